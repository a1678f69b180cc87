"""Steps of Opacus' optimizers: looked into, and given canaries that pass through their clipping.

Every instance of `DPOptimizer` is watched, whatever its class overrides: its own `step` and
`pre_step` are called, and what they are given is altered at their entrance only. To look into a
step it is tried again and again on copies, and put back. What it releases is what reaches the
optimizer that it wraps, or the parameters themselves. So a step is a function of per-example
gradients and of generators, whatever its code does.

Ghost clipping never has a record's gradient, only what it takes for its norm. What one record adds
to the clipped sum is there the difference of two backward passes: with its loss, and without. Where
the bound is adaptive, too, the backward pass publishes a new one, by a noisy count of records.
"""

import contextlib
import copy
import functools
import math
import time
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_map

from . import held_runs, step_probe
from .run_state import Iteration, WatchedRun, around, import_if_there
from .step_probe import LOOKED_AT, Release, StepWatch

_GHOST = "DPOptimizerFastGradientClipping"
_GHOST_ROWS = 4  # records whose loss is made larger
_GHOST_FACTORS = (1.0, 30.0, 1e3)  # times a record's loss, so that its gradient must be clipped

Change = Callable[[Any], None] | None  # alters the copies that a step is about to work on


def install(run: WatchedRun) -> None:
    """Watches all optimizers that are made from now on."""
    if import_if_there("opacus"):
        _watch_private(run)

    def wrappers(inner: Any) -> list[OptimizerWatch]:
        return [w for w in run.optimizers if w.optimizer.original_optimizer is inner]

    def before_step(optimizer: Any, *_: Any) -> None:
        if run.replaying:
            return
        stepping = [w for w in wrappers(optimizer) if w.inside or w.handed_on]
        if not stepping:
            run.count_outside_step(optimizer)
        for watched in stepping[:1]:
            watched.handed_on = False
            watched.last = step_probe.gradients(watched.optimizer.params)
            if run.request.held:
                held_runs.hold(watched)

    def after_step(optimizer: Any, *_: Any) -> None:
        for watched in wrappers(optimizer):
            if run.request.looks and not run.replaying:
                watched.after_step = [p.data.clone() for p in watched.optimizer.params]
                for p in watched.optimizer.params:
                    run.versions[step_probe.sample_digest(p)] = watched, watched.steps + 1

    register_optimizer_step_pre_hook(before_step)
    register_optimizer_step_post_hook(after_step)


def _watch_private(run: WatchedRun) -> None:
    """Watches Opacus' optimizers, and backward passes of ghost clipping where it has them."""
    from opacus.optimizers import DPOptimizer

    looked_at: set[tuple[int, int]] = set()  # backward passes, by optimizer and step

    @around(DPOptimizer, "__init__")
    def prepare(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        run.optimizers.append(OptimizerWatch(run, len(run.optimizers), self))

    def adapt(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        for watched in run.optimizers:
            if watched.optimizer is self.optimizer:
                vars(self)["_update_clip_and_noise"] = functools.partial(watched.adapt, self)

    def backward(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        for watched in run.optimizers if run.looks else ():
            at = (watched.number, watched.steps)
            if watched.optimizer is self.optimizer and at[1] in LOOKED_AT and at not in looked_at:
                looked_at.add(at)
                with run.replay():
                    length, what = _longest_ghost(self, original)
                bound = float(self.optimizer.max_grad_norm)
                run.put("ghost", step=watched.steps, longest=length, what=what, bound=bound)
        return original(self, *args, **kwargs)

    if ghost := import_if_there("opacus.utils.fast_gradient_clipping_utils"):  # Opacus 1.5
        around(ghost.DPTensorFastGradientClipping, "backward")(backward)
    if adaptive := import_if_there("opacus.utils.adaptive_clipping"):
        kind = adaptive.DPTensorFastGradientAdaptiveClipping
        around(kind, "__init__")(adapt)
        around(kind, "backward")(backward)


class OptimizerWatch(StepWatch):
    """One optimizer under watch."""

    nothing = None

    def __init__(self, run: WatchedRun, number: int, optimizer: Any) -> None:
        super().__init__(run, number)
        self.ghost = any(cls.__name__ == _GHOST for cls in type(optimizer).__mro__)
        self.optimizer = optimizer
        self.inside = False  # a step is being taken
        self.handed_on = False  # the script calls `pre_step` itself, so what is wrapped may step
        self.last: Release | None = None  # gradients that the last step released
        self.after_step: list[torch.Tensor] | None = None  # parameters as it left them
        self.batch: dict[str, Any] = {}  # of a run that holds: what its next entry says of it
        # Of the last backward pass that adapted the bound: its loss, records' norms, the bound.
        self._adapted: tuple[Any, torch.Tensor, float] | None = None
        self._within: Change = None  # one record more that such a pass counts as unclipped
        self._call: Callable[[], Any] = lambda: None  # takes the step as the script would
        self._closure = False  # the step has a closure, which makes its gradients
        self._armed: Change = None
        self._open: Iteration | None = None  # of a draw that is not whole yet
        entrances = {
            "step": self._enter_step, "pre_step": self._enter_pre_step,
            "clip_and_accumulate": self._apply_armed, "accumulate": self._apply_armed,
        }  # fmt: skip
        for name, enter in entrances.items():
            if hasattr(type(optimizer), name):
                vars(optimizer)[name] = types.MethodType(_enter_by(name, enter), optimizer)
        generator = getattr(optimizer, "generator", None)
        if isinstance(generator, torch.Generator):
            first = generator.initial_seed()
            run.noise_seeds.append(first)
            if run.request.reseeds:
                generator.manual_seed(run.request.derived("generator", number, 0, first))

    def _enter_step(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        closure = bool(args and args[0] is not None) or kwargs.get("closure") is not None
        return self._take_step(lambda: call(*args, **kwargs), closure)

    def _enter_pre_step(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.inside or self.run.replaying:
            return self._apply_armed(call, *args, **kwargs)
        steps = self._take_step(lambda: call(*args, **kwargs), False)
        self.handed_on = bool(steps)
        return steps

    def _apply_armed(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Makes the change that is armed, once, before gradients are clipped."""
        change, self._armed = self._armed, None
        if change is not None:
            change(self.optimizer)
        return call(*args, **kwargs)

    @contextlib.contextmanager
    def _arm(self, change: Change) -> Iterator[None]:
        """The change comes at once, or after a closure, where gradients are about to be clipped."""
        if self._closure:
            self._armed = change
        elif change is not None:
            change(self.optimizer)
        try:
            yield
        finally:
            self._armed = None

    def _take_step(self, call: Callable[[], Any], closure: bool) -> Any:
        run, optimizer = self.run, self.optimizer
        if run.replaying or self.inside:
            return call()
        if self._open not in (None, run.loaders.current) and any(
            getattr(p, "summed_grad", None) is not None for p in optimizer.params
        ):  # a sum of another walk through the data, which this step adds to
            run.put("carried", step=self.steps)
        skips = getattr(optimizer, "_step_skip_queue", None)
        if skips and skips[0]:  # a part of a batch: Opacus adds up, and takes no step
            self._open = run.loaders.current
            return call()
        self._open, self.last = None, None
        self._call, self._closure = call, closure
        began = time.monotonic()
        release = self.number, self.steps
        run.settle(release)
        # Gradients of examples, of each pass that the step is made of; ghost clipping keeps none.
        samples = [getattr(p, "grad_sample", None) for p in optimizer.params]
        # What a closure, Lightning's for one, makes is not there yet.
        kept = [s if isinstance(s, list) else [s] for s in samples if s is not None and not closure]
        drawn = run.loaders.at_step(max(map(len, kept), default=1), release)
        self.rows = max((sum(map(len, passes)) for passes in kept), default=drawn)
        if kept and drawn and self.rows != drawn:
            run.uneven.append((self.steps, self.rows, drawn))
        if self.after_step is not None:
            now = (p.data for p in optimizer.params)
            run.moved += not all(map(torch.equal, now, self.after_step))
            self.after_step = None
        self.shapes = [tuple(p.shape) for p in optimizer.params]
        self.bound, self.unit = clipping_bound(optimizer), self._unit_gradient()
        self.length = self.bound * self.unit
        self.look()
        history = run.history()
        # The rate at which the last step was accounted to sample a record.
        change = self.begin_trial(history[-1][1] if history else run.rate)
        if run.request.held:
            generators = step_probe.digest(torch.get_rng_state()).hex()
            self.batch = {"rows": _row_lengths(kept), "generators": generators}
        run.spent += time.monotonic() - began
        self.inside = True
        try:
            with self._arm(change), self._held_noise():
                result = call()
        finally:
            self.inside = False
        history = run.history()
        noise, rate = history[-1][:2] if history else (None, None)
        self.end_step(self.last or step_probe.gradients(optimizer.params), noise, rate)
        return result

    def _held_noise(self) -> contextlib.AbstractContextManager[Any]:
        run, at = self.run, (self.number, self.steps)
        if not run.request.held:
            return contextlib.nullcontext()
        held = [v for v in vars(self.optimizer).values() if isinstance(v, torch.Generator)]
        return held_runs.noise_of_seed(run, at, held_runs.has_record(run, at), held)

    def _unit_gradient(self) -> float:
        """What a clipped gradient of length one is in the gradient that is released."""
        optimizer = self.optimizer
        if optimizer.loss_reduction != "mean":
            return 1.0
        with contextlib.suppress(AttributeError, IndexError, ValueError):  # where none are kept
            return 1 / float(optimizer.expected_batch_size * optimizer.accumulated_iterations)
        return 1 / float(optimizer.expected_batch_size)

    def names(self, count: int) -> list[str]:
        return self.run.parameter_names(list(self.optimizer.params))

    def without(self, index: int) -> Change:
        def change(optimizer: Any) -> None:
            for p in optimizer.params:
                at, several = index, isinstance(p.grad_sample, list)
                parts = p.grad_sample if several else [p.grad_sample]
                for number, part in enumerate(parts):
                    if at < len(part):
                        parts[number] = torch.cat([part[:at], part[at + 1 :]])
                        break
                    at -= len(part)
                p.grad_sample = parts if several else parts[0]

        return change

    def appended(self, row: list[torch.Tensor]) -> Change:
        def longer(sample: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
            # A new tensor, as Opacus marks a tensor of gradients that it has used.
            return torch.cat([sample, tensor.to(sample).reshape(1, *sample.shape[1:])])

        def change(optimizer: Any) -> None:
            for p, tensor in zip(optimizer.params, row, strict=True):
                sample = getattr(p, "grad_sample", None)
                if self.ghost:  # which has the clipped sum, and no rows
                    p.grad = None if p.grad is None else p.grad + tensor.to(p.grad)
                elif isinstance(sample, list) and sample:
                    sample[-1] = longer(sample[-1], tensor)
                elif isinstance(sample, torch.Tensor):
                    p.grad_sample = longer(sample, tensor)

        return change

    def changes(self) -> Iterator[tuple[str, Change]]:
        if not self.ghost:
            yield from super().changes()
            return
        yield "a clipped gradient", self.appended([w * self.bound for w in self.direction()])
        if self._adapted is not None:
            length = min(self.bound, self._adapted[2])
            self._within = self.appended([w * length for w in self.direction()])
            yield "a gradient that counts as unclipped", self._within

    def adapt(self, loss: Any, norms: torch.Tensor) -> tuple[float, float]:
        """The bound and the noise multiplier that a backward pass goes on with.

        The bound stays where passes are repeated, and in runs that hold what is published.
        """
        optimizer = self.optimizer
        bound, usual = float(optimizer.max_grad_norm), float(optimizer.noise_multiplier)
        if self.run.replaying:
            return bound, getattr(optimizer, "_adjusted_noise_multiplier", usual)
        self._adapted = loss, norms.detach().clone(), bound
        new_bound, noise = type(loss)._update_clip_and_noise(loss, norms)
        return bound if self.run.request.held else new_bound, noise

    def _log_factor(self, change: Change) -> float:
        """The log of what a noisy count makes the bound grow by, after a change of its records.

        Without its limits: they process what the count has published.
        """
        assert self._adapted is not None
        loss, norms, bound = self._adapted
        if change is not self.nothing:
            norm = bound if change is self._within else math.inf
            norms = torch.cat([norms, norms.new_tensor([norm])])
        with step_probe.preserve_attributes([loss, loss.module, self.optimizer]):
            loss.module.max_grad_norm = self.optimizer.max_grad_norm = bound
            loss.min_clipbound, loss.max_clipbound = 0.0, math.inf
            return math.log(type(loss)._update_clip_and_noise(loss, norms)[0] / bound)

    def released(self, change: Change, seed: int | None) -> Release:
        """The last part is the log of the bound's factor, which adaptive clipping publishes."""
        optimizer, caught = self.optimizer, list[Release]()
        params = list(optimizer.params)
        held = [value for value in vars(optimizer).values() if isinstance(value, torch.Generator)]

        def catch(closure: Callable[[], Any] | None = None, *_: Any, **__: Any) -> None:
            if closure is not None:  # evaluated by the optimizer, before it steps
                with torch.enable_grad():
                    closure()
            caught.append(step_probe.gradients(params))

        with step_probe.preserve_generators(held), self._copies() as before:
            if seed is not None:
                step_probe.seed_generators(seed, held)
            optimizer.original_optimizer.step = catch
            with self._arm(change):
                self._call()
            changes = (p.data - old for p, old in zip(params, before, strict=True))
            moved = step_probe.flat_vectors(changes)
            if caught:
                moved = [a + b for a, b in zip(moved, caught[-1], strict=True)]
            elif not any(part.any() for part in moved):
                moved = step_probe.gradients(params)
            bound = clipping_bound(optimizer)
            published = np.log(bound / self.bound) if self.bound > 0 else 0.0
            if self._adapted is not None:
                published = self._log_factor(change)
            return [*moved, np.array([published])]

    @contextlib.contextmanager
    def _copies(self) -> Iterator[list[torch.Tensor]]:
        """Everything that a step may alter is copied, and put back; gives what parameters were."""
        optimizer, inner = self.optimizer, self.optimizer.original_optimizer
        accountants, params = self.run.accountants, list(optimizer.params)
        histories = [list(accountant.history) for accountant in accountants]
        before = [p.data.clone() for p in params]
        with _parameters_copied(params), step_probe.preserve_attributes([optimizer, inner]):
            for name, value in list(vars(optimizer).items()):
                if name not in ("original_optimizer", "param_groups"):  # an attribute in Opacus 1.4
                    vars(optimizer)[name] = _copy_tensors(value)
            optimizer.step_hook = None
            inner.state = copy.copy(inner.state)
            # The user's own optimizer keeps what it likes.
            if not type(optimizer).__module__.startswith("opacus."):
                inner.state.update({p: _copy_tensors(dict(s)) for p, s in inner.state.items()})
            try:
                yield before
            finally:
                for p, old in zip(params, before, strict=True):
                    p.data.copy_(old)
                for accountant, history in zip(accountants, histories, strict=True):
                    accountant.history = history


def _row_lengths(samples: list[list[torch.Tensor]]) -> list[float]:
    """The length of each example's gradient, over all parameters; of each pass after the other."""
    squares = [torch.cat([g.flatten(1).square().sum(1) for g in passes]) for passes in samples]
    if len(set(map(len, squares))) != 1:  # none, or a parameter that is in one pass only
        return []
    return list(map(float, torch.stack(squares).sum(0).sqrt()))


def clipping_bound(optimizer: Any) -> float:
    """The clipping bound; of all layers together where each has its own."""
    bound = optimizer.max_grad_norm
    parts = bound if isinstance(bound, (list, tuple)) else [bound]
    return float(np.sqrt(sum(float(part) ** 2 for part in parts)))


def _enter_by(name: str, enter: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Of the class: a subclass overrides it, and is what is to be looked at.
        return enter(types.MethodType(getattr(type(self), name), self), *args, **kwargs)

    method.__name__ = name
    return method


@contextlib.contextmanager
def _parameters_copied(params: Iterable[torch.Tensor]) -> Iterator[None]:
    """Gradients and what hangs on parameters are copies inside, and put back at the end."""
    kept = [(p, p.grad) for p in params]
    with step_probe.preserve_attributes(p for p, _ in kept):
        for p, grad in kept:
            vars(p).update({name: _copy_tensors(value) for name, value in vars(p).items()})
            p.grad = None if grad is None else grad.clone()
        try:
            yield
        finally:
            for p, grad in kept:
                p.grad = grad


def _copy_tensors(value: Any) -> Any:
    return tree_map(lambda part: part.clone() if isinstance(part, torch.Tensor) else part, value)


def _longest_ghost(loss: Any, backward: Callable[..., Any]) -> tuple[float, str]:
    """The length of the longest clipped gradient of a single record, and which that is."""
    longest, what = 0.0, ""
    for row in step_probe.spread_indices(len(loss.loss_per_sample), _GHOST_ROWS):
        without = _ghost_sum(loss, backward, row, 0.0)
        for factor in _GHOST_FACTORS:
            moved = step_probe.difference(_ghost_sum(loss, backward, row, factor), without)
            length = float(np.sqrt(sum(step_probe.squared_lengths(moved))))
            if length >= longest:
                longest = length
                what = f"record {row} of the batch with {factor:.0f} times its loss"
    return longest, what


def _ghost_sum(loss: Any, backward: Callable[..., Any], row: int, factor: float) -> Release:
    """The clipped sum with one record's loss that many times as large."""
    weights = torch.ones_like(loss.loss_per_sample)
    weights[row] = factor
    params = list(loss.optimizer.params)
    with step_probe.preserve_generators(), _backward_undone(loss.module, params):
        weighted = loss.loss_per_sample * weights
        backward(type(loss)(loss.module, loss.optimizer, weighted, loss.loss_reduction))
        return step_probe.gradients(params)


@contextlib.contextmanager
def _backward_undone(hooks: Any, params: list[Any]) -> Iterator[None]:
    """Puts back what a backward pass takes off modules and parameters, and keeps the graph."""
    modules = list(getattr(hooks, "_module", hooks).modules())
    norms = vars(hooks).get("_per_sample_gradient_norms")
    tensor: Any = torch.Tensor
    original = tensor.backward

    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["retain_graph"] = True  # the script's own backward pass comes after
        return original(self, *args, **kwargs)

    with _parameters_copied(params), step_probe.preserve_attributes(modules):
        for module in modules:
            if "activations" in vars(module):
                module.activations = list(module.activations)
        tensor.backward = backward
        try:
            yield
        finally:
            tensor.backward = original
            hooks._per_sample_gradient_norms = norms
