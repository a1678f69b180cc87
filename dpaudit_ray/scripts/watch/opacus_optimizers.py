"""Inspects steps of Opacus' optimizers, and adds canaries that pass through their clipping.

Every instance of `DPOptimizer` is watched, whatever its class overrides: the class's own `step`
and `pre_step` are called, with gradients that are altered before them only. To inspect a step, it
is repeated on copies, and undone. Its release is what reaches the wrapped optimizer, or the
parameters themselves. So a step is a function of per-example gradients and of generators, whatever
its code does.

Ghost clipping computes no record's gradient. If its bound is adaptive, its backward pass publishes
a new bound, by a noisy count of records, which is then part of the release.
"""

import contextlib
import copy
import functools
import math
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ..protocol import CarriedSum, PinnedStep, UnevenStep
from . import ghost_clipping, other_updates, pinned_runs
from .generators import (
    generators_in,
    preserve_attributes,
    script_generators,
    states_of_all,
)
from .ghost_clipping import copy_tensors, parameters_copied
from .hooks import after, calling_line, import_if_there
from .loaders import Iteration
from .run_state import WatchedRun
from .step_probe import INSPECTED, StepWatch
from .tensors import (
    Release,
    flat_vectors,
    gradients,
    sample_digest,
    squared_lengths,
)

_GHOST = "DPOptimizerFastGradientClipping"  # Opacus' class of optimizers with ghost clipping

Change = Callable[[], None] | None  # alters the gradients that a step is about to clip
Call = functools.partial[Any]  # a call of an optimizer's method, with its arguments
Passes = list[list[torch.Tensor]]  # gradients of examples, by parameter and backward pass


def install(run: WatchedRun) -> None:
    """Watches all optimizers that are made from now on."""
    if import_if_there("opacus"):
        _watch_private(run)

    def wrappers(inner: Any) -> list[OptimizerWatch]:
        """Returns the watches whose private optimizer wraps `inner`."""
        return [w for w in run.optimizers if w.optimizer.original_optimizer is inner]

    def before_step(optimizer: Any, *_: Any) -> None:
        """Notes the gradients of a private step, or counts a step that is not private."""
        if run.replaying:
            return
        # A private step ends in a step of the wrapped optimizer, which calls this hook.
        stepping = [w for w in wrappers(optimizer) if w.is_stepping or w.may_step]
        if stepping:
            stepping[0].note_update()
        elif not any(w.by_hand for w in wrappers(optimizer)):
            other_updates.count_step(run, optimizer)

    def after_step(optimizer: Any, *_: Any) -> None:
        """Notes which step left the parameters as they are, since they may be published later."""
        for watched in wrappers(optimizer):
            if run.request.inspects and not run.replaying:
                for p in watched.optimizer.params:
                    version = (watched, watched.steps + 1)
                    run.publications.versions[sample_digest(p)] = version

    register_optimizer_step_pre_hook(before_step)
    register_optimizer_step_post_hook(after_step)


def _watch_private(run: WatchedRun) -> None:
    """Watches Opacus' optimizers, and backward passes that adapt their clipping bound."""
    from opacus.optimizers import DPOptimizer

    ghost_clipping.install(run)

    @after(DPOptimizer, "__init__")
    def prepare(optimizer: Any, /, *_: Any, **__: Any) -> None:
        """Watches an optimizer from its construction on."""
        run.optimizers.append(OptimizerWatch(run, len(run.optimizers), optimizer))

    def watch_adaptation(loss: Any, /, *_: Any, **__: Any) -> None:
        """Replaces a loss's method that adapts the clipping bound by the watch's `adapt`."""
        for watched in run.optimizers:
            if watched.optimizer is loss.optimizer:
                vars(loss)["_update_clip_and_noise"] = functools.partial(watched.adapt, loss)

    if adaptive := import_if_there("opacus.utils.adaptive_clipping"):
        after(adaptive.DPTensorFastGradientAdaptiveClipping, "__init__")(watch_adaptation)


@dataclass(frozen=True)
class _AdaptedBound:
    """A backward pass that adapted the clipping bound.

    Attributes:
        loss: the loss whose pass it was.
        norms: lengths of the records' gradients.
        bound: the clipping bound before.
    """

    loss: Any
    norms: torch.Tensor
    bound: float


class OptimizerWatch(StepWatch):
    """Watches one private optimizer, which wraps the script's own.

    Attributes:
        is_stepping: the private optimizer is taking a step.
        may_step: the script called `pre_step` itself, so that the wrapped optimizer may step next.
        by_hand: the script calls the parts of steps one by one, so that none can be repeated.
        last_release: gradients that the last step released; None before.
    """

    counts = True

    def __init__(self, run: WatchedRun, number: int, optimizer: Any) -> None:
        """Wraps the methods by which a private optimizer takes steps.

        Args:
            run: the run.
            number: number of the optimizer among those of the run.
            optimizer: optimizer of Opacus.
        """
        super().__init__(run, number)
        self.ghost = any(cls.__name__ == _GHOST for cls in type(optimizer).__mro__)
        self.optimizer = optimizer
        self.is_stepping = False
        self.may_step = False
        self.by_hand = False
        self.last_release: Release | None = None
        self._pinned: PinnedStep | None = None  # the entry of the step, in a pinned run
        self._pinned_noise = 0.0  # standard deviation of the numbers that replace releases
        self._gradient_count = 0  # examples' gradients in the parts of the step so far
        self._backward_count = 0  # backward passes that made these gradients
        self._adapted_bound: _AdaptedBound | None = None
        # Adds a gradient that an adaptive bound counts as unclipped.
        self._unclipped_change: Change = None
        self._call: Callable[[], Any] = lambda: None  # takes the step as the script would
        self._has_closure = False  # a closure makes the step's gradients
        self._pending_change: Change = None  # to be made before gradients are clipped
        self._open_iteration: Iteration | None = None  # walk whose last draw is not complete yet
        entrances = {
            "step": self._enter_step,
            "pre_step": self._enter_pre_step,
            "clip_and_accumulate": self._apply_pending,
            "accumulate": self._apply_pending,
            "add_noise": self._enter_noise,
        }
        for name, enter in entrances.items():
            if hasattr(type(optimizer), name):
                vars(optimizer)[name] = types.MethodType(_enter_by(name, enter), optimizer)
        generator = getattr(optimizer, "generator", None)
        if isinstance(generator, torch.Generator):
            seed = generator.initial_seed()
            run.noise_seeds.append(seed)
            if run.request.reseeds:
                generator.manual_seed(run.request.derived("generator", number, 0, seed))

    def _enter_step(self, call: Call) -> Any:
        """Takes a step in place of the optimizer's `step`."""
        closures = (*call.args[1:], call.keywords.get("closure"))
        return self._take_step(call, has_closure=any(c is not None for c in closures))

    def _enter_pre_step(self, call: Call) -> Any:
        """Makes a release in place of the optimizer's `pre_step`.

        Called by `step`, it is a part of that step. A script that calls `pre_step` itself steps the
        wrapped optimizer afterwards.
        """

        def release() -> Any:
            """Makes the release; returns whether the wrapped optimizer is to step."""
            is_to_step = self._apply_pending(call)
            if is_to_step and not self.run.replaying:
                self._pin()
            return is_to_step

        if self.is_stepping or self.run.replaying:
            return release()
        is_to_step = self._take_step(release, has_closure=False)
        self.may_step = bool(is_to_step)
        return is_to_step

    def _enter_noise(self, call: Call) -> Any:
        """Adds noise in place of the optimizer's `add_noise`, and notes if the script called it."""
        self.by_hand |= not (self.is_stepping or self.run.replaying)
        return call()

    def _apply_pending(self, call: Call) -> Any:
        """Makes the pending change, if there is any, and calls the method that clips gradients."""
        change = self._pending_change
        self._pending_change = None
        if change is not None:
            change()
        return call()

    @contextlib.contextmanager
    def _changed(self, change: Change) -> Iterator[None]:
        """Changes the gradients of a step that is taken inside, before they are clipped.

        A closure makes gradients within the step, so the change waits for the method that clips.
        """
        if self._has_closure:
            self._pending_change = change
        elif change is not None:
            change()
        try:
            yield
        finally:
            self._pending_change = None

    def _take_step(self, call: Callable[[], Any], has_closure: bool) -> Any:
        """Inspects a step, decides about its canary, and takes it.

        For one of several virtual batches, whose gradients Opacus only adds up, the script calls
        `step` as well. Such a part of a step is only counted.

        Args:
            call: takes the step as the script would.
            has_closure: a closure makes the step's gradients, inside of `call`.

        Returns:
            What `call` returns.
        """
        run = self.run
        if run.replaying or self.is_stepping:
            return call()
        self._check_open_sum()
        skips = getattr(self.optimizer, "_step_skip_queue", None)
        if skips and skips[0]:  # a part of a step: Opacus adds up, and takes no step
            self._open_iteration = run.loaders.current
            self._add_part(self._passes())
            with self._stepping():  # `step` calls `pre_step`, which decides to skip the step
                return call()
        self.finish_pinned()  # the entry of the step before
        self._open_iteration = None  # this step completes the draw
        self.last_release = None
        self._call = call
        self._has_closure = has_closure
        with run.clock.inspection():
            change = self._prepare_step()
        pinned_noise: AbstractContextManager[Any] = contextlib.nullcontext()
        if self._pinned is not None:
            pinned_noise = self.pinned_noise(self._pinned.member)
        with self._stepping(), self._changed(change), pinned_noise, self.fresh_noise():
            result = call()
        history = run.accountants.history()
        noise, rate = history[-1][:2] if history else (None, None)
        self.end_step(self.last_release or gradients(self.optimizer.params), noise, rate)
        return result

    def _prepare_step(self) -> Change:
        """Inspects the step that is about to be taken; returns the change by its canary, if any."""
        run = self.run
        optimizer = self.optimizer
        if self.steps in INSPECTED:
            self.generators = [*generators_in(optimizer, depth=1), *script_generators()]
        run.accountants.note_gains(self.at)
        passes = self._count_examples()
        self.shapes = [tuple(p.shape) for p in optimizer.params]
        self.bound = clipping_bound(optimizer)
        self.unit = self._unit_gradient()
        self.length = self.bound * self.unit  # length of the longest clipped gradient, as released
        self.inspect()
        # The rate at which the last step was accounted to sample a record.
        history = run.accountants.history()
        change: Change = self.begin_trial(history[-1][1] if history else run.networks.rate)
        if run.request.pinned:
            self._begin_pinned(passes)
        return change

    @contextlib.contextmanager
    def _stepping(self) -> Iterator[None]:
        """Marks what is done inside as a part of a step."""
        self.is_stepping = True
        try:
            yield
        finally:
            self.is_stepping = False

    def _check_open_sum(self) -> None:
        """Records that this step adds to a sum which another walk through the data left."""
        iteration = self._open_iteration
        if iteration is None or iteration is self.run.loaders.current:
            return
        if any(getattr(p, "summed_grad", None) is not None for p in self.optimizer.params):
            self.run.put(CarriedSum(step=self.steps))

    def _passes(self) -> Passes:
        """Returns the gradients of examples; empty with ghost clipping, which has none."""
        passes = []
        for p in self.optimizer.params:
            # A tensor after one backward pass, and a list of tensors after several.
            sample = getattr(p, "grad_sample", None)
            if sample is not None:
                passes.append(sample if isinstance(sample, list) else [sample])
        return passes

    def _add_part(self, passes: Passes) -> int:
        """Counts a part of a step; returns how many examples it has, or 0 if that is unknown."""
        # Not all parameters need to be in each backward pass.
        rows = max((sum(map(len, samples)) for samples in passes), default=0)
        self._gradient_count += rows
        self._backward_count += max(map(len, passes), default=1)
        return rows

    def _count_examples(self) -> Passes:
        """Compares the step's examples with its draws; returns the examples' gradients.

        Gradients that a closure makes, as Lightning's does, are not there yet.
        """
        run = self.run
        passes = [] if self._has_closure else self._passes()
        rows = self._add_part(passes)
        count = self._gradient_count
        records = run.loaders.at_step(self._backward_count, self.at)
        self.rows = rows if passes else records
        if passes and records and count != records:
            size = run.networks.records_each
            # Are there as many gradients as micro-batches of this size, the last one shorter?
            records_each = size if 0 <= records - count * size < size else 1
            step = UnevenStep(self.steps, count, records, self._backward_count, records_each)
            run.uneven.append(step)
        self._gradient_count = self._backward_count = 0
        return passes

    def _begin_pinned(self, passes: Passes) -> None:
        """Notes the records, gradients and generators of a step of a pinned run.

        Args:
            passes: gradients of the step's examples.
        """
        run = self.run
        params = list(self.optimizer.params)
        # Under autocast, gradients have fewer digits than parameters.
        tensors = sum(passes, params)
        # Another record in a batch may change the random numbers of the batch's other records.
        generators = [*self.generators, *generators_in(run.networks.data, depth=3)]
        draws = run.loaders.last_draws
        draw = np.concatenate(draws or [np.zeros(0, dtype=np.int64)])
        if draws and run.loaders.current is not None:
            draw = run.loaders.current.in_base(draw)
        pinned_runs.choose_record(run, draw)
        # With half of the records exchanged all rows differ, so that none is compared.
        rows = [] if run.request.pinned == "halved" else _row_lengths(passes)
        digests = map(sample_digest, params)
        self._pinned = PinnedStep(
            line=calling_line(),
            member=run.request.is_about(draw),
            release=(),
            rows=tuple(rows),
            rounding=max((torch.finfo(t.dtype).eps for t in tensors), default=0.0),
            state="".join([*states_of_all(generators), *map(bytes.hex, digests), str(self.bound)]),
            drawn=len(draw),
            bound=self.bound,
        )
        if run.request.pinned == "varied":
            self._pinned = pinned_runs.with_variation(run, self._pinned, draws)

    def note_update(self) -> None:
        """Notes the gradients that the wrapped optimizer is about to use; records a pinned step."""
        self.may_step = False
        self.last_release = gradients(self.optimizer.params)
        self._pin()  # if the script never called `pre_step`
        if self._pinned is not None:  # a step of a pinned run, which `_begin_pinned` noted
            self._pinned = replace(self._pinned, update=self._digests())
            self.finish_pinned()

    def finish_pinned(self) -> None:
        """Records the step of a pinned run, if it has made a release that is not recorded yet."""
        if self._pinned is not None and self._pinned.release:
            self.run.put(self._pinned)
            self._pinned = None

    def _digests(self) -> tuple[str, ...]:
        """Returns digests of the parameters' present gradients."""
        params = self.optimizer.params
        return tuple(sample_digest(p.grad).hex() for p in params if p.grad is not None)

    def _pin(self) -> None:
        """Notes the release of a step of a pinned run, and replaces it by random numbers.

        The numbers are as large as the noise, and the same in all pinned runs. The method does
        nothing in other runs, and nothing if it is called again in the same step.
        """
        if self._pinned is None or self._pinned.release:
            return
        optimizer = self.optimizer
        params = list(optimizer.params)
        released = gradients(params)
        self._pinned = replace(
            self._pinned,
            release=self._digests(),
            length=math.sqrt(sum(squared_lengths(released))),
            numbers=sum(map(len, released)),
        )
        # The noise of the first step serves for all: a noisy count may set later clipping bounds.
        noise = self.unit * self.bound * float(optimizer.noise_multiplier)
        self._pinned_noise = self._pinned_noise or noise
        values = self.pinned_release([p.shape for p in params], self._pinned_noise)
        for p, gradient in zip(params, values, strict=True):
            p.grad = gradient.to(p)

    def _unit_gradient(self) -> float:
        """Returns the length that a clipped gradient of length 1 has in the release."""
        optimizer = self.optimizer
        if optimizer.loss_reduction != "mean":
            return 1.0
        # Some optimizers have no number of accumulated batches, or cannot compute it.
        with contextlib.suppress(AttributeError, IndexError, ValueError):
            return 1 / float(optimizer.expected_batch_size * optimizer.accumulated_iterations)
        return 1 / float(optimizer.expected_batch_size)

    def names(self, count: int) -> list[str]:
        return self.run.networks.names(self.optimizer.params)

    def without(self, index: int) -> Change:
        """Implements `StepWatch.without`; `index` counts over all backward passes of the step."""

        def change() -> None:
            """Removes the example's row from the gradients of each parameter."""
            for p in self.optimizer.params:
                position = index
                is_list = isinstance(p.grad_sample, list)
                parts = p.grad_sample if is_list else [p.grad_sample]
                for number, part in enumerate(parts):
                    if position < len(part):
                        parts[number] = torch.cat([part[:position], part[position + 1 :]])
                        break
                    position -= len(part)
                p.grad_sample = parts if is_list else parts[0]

        return change

    def appended(self, row: list[torch.Tensor]) -> Change:
        """Implements `StepWatch.appended`: in the last backward pass, or the sum of ghost clipping.

        Ghost clipping has the sum of clipped gradients alone.
        """

        def with_row(sample: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
            """Returns the gradients of examples, followed by that of another example."""
            # The tensor is a new one, as Opacus marks a tensor of gradients that it has used.
            return torch.cat([sample, tensor.to(sample).reshape(1, *sample.shape[1:])])

        def change() -> None:
            """Appends the example's row to the gradients of each parameter."""
            for p, tensor in zip(self.optimizer.params, row, strict=True):
                sample = getattr(p, "grad_sample", None)
                if self.ghost:
                    p.grad = None if p.grad is None else p.grad + tensor.to(p.grad)
                elif isinstance(sample, list) and sample:
                    sample[-1] = with_row(sample[-1], tensor)
                elif isinstance(sample, torch.Tensor):
                    p.grad_sample = with_row(sample, tensor)

        return change

    def changes(self) -> Iterator[tuple[str, Change]]:
        """Implements `StepWatch.changes`; with ghost clipping a change is a clipped gradient."""
        if not self.ghost:
            yield from super().changes()
            return
        yield "a clipped gradient", self.appended([w * self.bound for w in self.direction()])
        if self._adapted_bound is not None:  # a noisy count of records sets the bound
            length = min(self.bound, self._adapted_bound.bound)
            self._unclipped_change = self.appended([w * length for w in self.direction()])
            yield "a gradient that counts as unclipped", self._unclipped_change

    def adapt(self, loss: Any, norms: torch.Tensor) -> tuple[float, float]:
        """Returns the bound and the noise multiplier with which a backward pass continues.

        In repeated passes, and in runs with pinned releases, the bound stays as it is.

        Args:
            loss: the loss whose backward pass calls it, in place of the loss's method.
            norms: lengths of the records' gradients.
        """
        optimizer = self.optimizer
        bound = float(optimizer.max_grad_norm)
        if self.run.replaying:
            noise = float(optimizer.noise_multiplier)
            return bound, getattr(optimizer, "_adjusted_noise_multiplier", noise)
        self._adapted_bound = _AdaptedBound(loss, norms.detach().clone(), bound)
        new_bound, noise = type(loss)._update_clip_and_noise(loss, norms)
        return bound if self.run.request.pinned else new_bound, noise

    def _log_factor(self, adapted: _AdaptedBound, change: Change) -> float:
        """Returns the log of the factor by which a noisy count changes the bound.

        Limits of the bound are left out, as they only process what the count has published.

        Args:
            adapted: the backward pass that adapted the bound.
            change: change of the step, which the count has, too; None for no change.
        """
        loss = adapted.loss
        norms = adapted.norms
        if change is not None:
            norm = adapted.bound if change is self._unclipped_change else math.inf
            norms = torch.cat([norms, norms.new_tensor([norm])])
        with preserve_attributes([loss, loss.module, self.optimizer]):
            loss.module.max_grad_norm = self.optimizer.max_grad_norm = adapted.bound
            loss.min_clipbound = 0.0
            loss.max_clipbound = math.inf
            return math.log(type(loss)._update_clip_and_noise(loss, norms)[0] / adapted.bound)

    def release(self, change: Change, seed: int | None) -> Release:
        """Implements `StepWatch.release`: repeats the step on copies.

        The last part of the release is the log of the factor by which the clipping bound changed.
        """
        optimizer = self.optimizer
        params = list(optimizer.params)
        caught = []  # gradients by each call of the wrapped optimizer's step

        def catch(
            closure: Callable[[], Any] | None = None,
            *_: Any,
            **__: Any,
        ) -> None:
            """Replaces the step of the wrapped optimizer: notes the gradients that it would use."""
            if closure is not None:  # evaluated by the optimizer, before it steps
                with torch.enable_grad():
                    closure()
            caught.append(gradients(params))

        with self._step_undone() as before:
            optimizer.original_optimizer.step = catch
            with self._changed(change):
                self._call()
            # A release is what the step itself adds to the parameters, plus the gradients that it
            # passes to the wrapped optimizer; without either, the gradients that the step leaves.
            shifts = (p.data - old for p, old in zip(params, before, strict=True))
            release = flat_vectors(shifts)
            if caught:
                release = [a + b for a, b in zip(release, caught[-1], strict=True)]
            elif not any(part.any() for part in release):
                release = gradients(params)
            factor = clipping_bound(optimizer) / self.bound if self.bound > 0 else 1.0
            published = float(np.log(factor))
            if self._adapted_bound is not None:  # the backward pass set the bound, not the step
                published = self._log_factor(self._adapted_bound, change)
            return [*release, np.array([published])]

    @contextlib.contextmanager
    def _step_undone(self) -> Iterator[list[torch.Tensor]]:
        """Undoes, at the end, a step that is taken inside; yields the parameters from before.

        It restores parameters, attributes of both optimizers, and histories of accountants.
        """
        optimizer = self.optimizer
        inner = optimizer.original_optimizer
        accountants = self.run.accountants.all
        params = list(optimizer.params)
        histories = [list(accountant.history) for accountant in accountants]
        before = [p.data.clone() for p in params]
        with parameters_copied(params), preserve_attributes([optimizer, inner]):
            for name, value in list(vars(optimizer).items()):
                if name not in ("original_optimizer", "param_groups"):  # an attribute in Opacus 1.4
                    vars(optimizer)[name] = copy_tensors(value)
            optimizer.step_hook = None
            inner.state = copy.copy(inner.state)
            # The user's own optimizer may change its state in any way.
            if not type(optimizer).__module__.startswith("opacus."):
                states = {p: copy_tensors(dict(state)) for p, state in inner.state.items()}
                inner.state.update(states)
            try:
                yield before
            finally:
                for p, old in zip(params, before, strict=True):
                    p.data.copy_(old)
                for accountant, history in zip(accountants, histories, strict=True):
                    accountant.history = history


def _row_lengths(passes: Passes) -> list[float]:
    """Returns the length of each example's gradient over all parameters, in the order of passes."""
    squares = []  # squared lengths of the examples' gradients, by parameter
    for gradients_of_passes in passes:
        parts = [gradient.flatten(1).square().sum(1) for gradient in gradients_of_passes]
        squares.append(torch.cat(parts))
    if len(set(map(len, squares))) != 1:  # no gradients, or a parameter that is not in all passes
        return []
    return list(map(float, torch.stack(squares).sum(0).sqrt()))


def clipping_bound(optimizer: Any) -> float:
    """Returns the largest length of a clipped gradient over all layers.

    If each layer has its own bound, it is the root of the bounds' squared sum.
    """
    bound = optimizer.max_grad_norm
    parts = bound if isinstance(bound, (list, tuple)) else [bound]
    return float(np.sqrt(sum(float(part) ** 2 for part in parts)))


def _enter_by(name: str, enter: Callable[[Call], Any]) -> Callable[..., Any]:
    """Returns a method that calls `enter` with the call of the optimizer's method `name`."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Passes the call to `enter`, which decides when it is made."""
        # The method is that of the class, so that what a subclass overrides is inspected.
        return enter(functools.partial(getattr(type(self), name), self, *args, **kwargs))

    method.__name__ = name
    return method
