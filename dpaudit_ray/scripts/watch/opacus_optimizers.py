"""Steps of Opacus' optimizers: looked into, and given canaries that pass through their clipping.

Every instance of `DPOptimizer` is watched, whatever its class overrides: its own `step` and
`pre_step` are called, and what they are given is altered at their entrance only.
"""

from __future__ import annotations

import contextlib
import math
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .run_state import Iteration, WatchedRun
from .step_probe import (
    FAR,
    LOOKED_AT,
    NEAR,
    Release,
    StepWatch,
    gradients,
    random_direction,
    spread_indices,
)
from .step_replay import (
    Change,
    StepReplay,
    add_to_sum,
    append_row,
    clipping_bound,
    install_ghost,
    unchanged,
    without_row,
)

_GHOST = "DPOptimizerFastGradientClipping"


def install(run: WatchedRun) -> None:
    """Watches all optimizers that are made from now on."""
    from opacus.optimizers import DPOptimizer

    original = DPOptimizer.__init__

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        run.optimizers.append(OptimizerWatch(run, len(run.optimizers), self))

    def due(optimizer: Any) -> int | None:
        """The step of an optimizer that is to be looked into."""
        watched = next((w for w in run.optimizers if w.optimizer is optimizer), None)
        looks = run.request.looks and run.phase == "main" and not run.replaying
        return watched.steps if looks and watched and watched.steps in LOOKED_AT else None

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
            watched.note_release()

    def after_step(optimizer: Any, *_: Any) -> None:
        for watched in wrappers(optimizer):
            if not run.replaying:
                watched.keep_parameters()

    DPOptimizer.__init__ = make
    install_ghost(run, due)
    register_optimizer_step_pre_hook(before_step)
    register_optimizer_step_post_hook(after_step)


class OptimizerWatch(StepWatch):
    """One optimizer under watch.

    Attributes:
        inside: a step is being taken.
        handed_on: a script calls `pre_step` itself, so what is wrapped may step once.
        last: gradients that the last step released.
    """

    def __init__(self, run: WatchedRun, number: int, optimizer: Any) -> None:
        # Ghost clipping: gradients come clipped.
        ghost = any(cls.__name__ == _GHOST for cls in type(optimizer).__mro__)
        super().__init__(run, number, unchanged, ghost)
        self.optimizer = optimizer
        self.inside = self.handed_on = False
        self.last: Release | None = None
        self._armed: Change | None = None
        self._score: Callable[[], float] | None = None  # of the canary in `.grad`
        self._trial = (False, math.nan)  # whether the canary is in the step, and its score
        self._after_step: list[torch.Tensor] | None = None  # parameters
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
        return self._take_step(call, closure, args, kwargs)

    def _enter_pre_step(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.inside or self.run.replaying:
            return self._apply_armed(call, *args, **kwargs)
        steps = self._take_step(call, False, args, kwargs)
        self.handed_on = bool(steps)
        return steps

    def _apply_armed(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Makes the change that is armed, once, before gradients are clipped."""
        change, self._armed = self._armed, None
        if change is not None:
            change(self.optimizer)
        return call(*args, **kwargs)

    @contextlib.contextmanager
    def _arm(self, change: Change, now: bool) -> Iterator[None]:
        """The change comes at once, or where gradients are about to be clipped."""
        if now:
            change(self.optimizer)
        else:
            self._armed = change
        try:
            yield
        finally:
            self._armed = None

    def _take_step(
        self, call: Callable[..., Any], closure: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        run = self.run
        if run.replaying or self.inside:
            return call(*args, **kwargs)
        self._notice_carried_sum()
        skips = getattr(self.optimizer, "_step_skip_queue", None)
        if skips and skips[0]:  # a part of a batch: Opacus adds up, and takes no step
            self._open = run.loaders.current
            return call(*args, **kwargs)
        self._open = None
        began = time.monotonic()
        release = self.number, self.steps
        run.settle(release)
        samples = [getattr(p, "grad_sample", None) for p in self.optimizer.params]
        accumulated = [len(sample) for sample in samples if isinstance(sample, list)]
        drawn = run.loaders.at_step(max(accumulated, default=1), release)
        rows = max((_rows(sample) for sample in samples if sample is not None), default=drawn)
        if rows < drawn:
            run.fewer.append((self.steps, rows, drawn))
        self._notice_moved()
        if run.request.looks and (self.steps in LOOKED_AT or run.has_time):
            self._look(lambda: call(*args, **kwargs), closure)
        change = self._begin_trial() if run.request.canary else unchanged
        run.spent += time.monotonic() - began
        self.inside = True
        try:
            with self._arm(change, now=not closure):
                result = call(*args, **kwargs)
        finally:
            self.inside = False
        self._end_trial()
        self.finish()
        return result

    def _notice_carried_sum(self) -> None:
        """Records a sum of another walk through the data, which this step adds to."""
        left = any(getattr(p, "summed_grad", None) is not None for p in self.optimizer.params)
        if left and self._open is not None and self._open is not self.run.loaders.current:
            self.run.recorder.put("carried", step=self.steps)
            self._open = None

    def _notice_moved(self) -> None:
        """Counts where parameters changed since the last step, by no step of it."""
        if not self.run.request.looks:
            return
        if self._after_step is not None and not all(
            torch.equal(p.data, old)
            for p, old in zip(self.optimizer.params, self._after_step, strict=False)
        ):
            self.run.moved += 1
        self._after_step = None

    def keep_parameters(self) -> None:
        """Keeps parameters as the step left them."""
        if self.run.request.looks:
            self._after_step = [p.data.clone() for p in self.optimizer.params]

    def note_release(self) -> None:
        """Keeps the gradients that the wrapped optimizer is about to step with."""
        self.last = gradients(self.optimizer.params) if self.run.request.looks else None
        if self._score is not None:
            self._trial = self._trial[0], self._score()

    def _look(self, step: Callable[[], Any], closure: bool) -> None:
        with self.run.replay():
            replay = StepReplay(
                self.optimizer, step, self.run.accountants,
                lambda change: self._arm(change, not closure),
            )  # fmt: skip
            names, changes = self.run.parameter_names(replay.params), self._changes(replay)
            if self.steps in LOOKED_AT:
                zeros = [torch.zeros_like(p) for p in replay.params]
                empty = None if self.ghost else append_row(zeros)
                self.examine(replay.release, changes, empty, names)
                if empty is not None and (kept := replay.carried(self._far())):
                    self.run.recorder.put("kept", step=self.steps, names=kept)
            else:
                self.glance(replay.release, [next(changes)], names)

    def _far(self) -> Change:
        """A gradient a thousand times too long, in a direction of its own."""
        params = self.optimizer.params
        v = random_direction([p.shape for p in params], self.run.request.derived("look"))
        return append_row([FAR * clipping_bound(self.optimizer) * w for w in v])

    def _changes(self, replay: StepReplay) -> Iterator[tuple[str, Change]]:
        """Changes of one example each, with what they are in words."""
        bound = clipping_bound(self.optimizer)
        sizes = [p.numel() for p in replay.params]
        v = random_direction([p.shape for p in replay.params], self.run.request.derived("look"))
        if self.ghost:
            yield "a clipped gradient", add_to_sum([w * bound for w in v])
            return
        yield "a gradient a thousand times too long", self._far()
        for index in spread_indices(replay.rows):
            yield f"record {index} of the batch left out", without_row(index)
        order = sorted(range(len(sizes)), key=lambda index: sizes[index])
        for index in dict.fromkeys([*order[:2], *order[-2:]]):  # smallest and largest tensors
            row = [FAR * bound * w * (k == index) / max(float(w.norm()), 1e-30)
                   for k, w in enumerate(v)]  # fmt: skip
            name = self.run.parameter_names([replay.params[index]])[0]
            yield f"a gradient of {name} alone, a thousand times too long", append_row(row)
        near = append_row([NEAR * bound * w for w in v])
        yield "a gradient just within the clipping bound", near

    def _begin_trial(self) -> Change:
        """Decides whether the step has a canary; the change that puts it in."""
        history = self.run.history()
        # The rate at which the last step was accounted to sample a record.
        member = self.canary_is_in(history[-1][1] if history else self.run.rate or 1.0)
        params = list(self.optimizer.params)
        v = self.canary(p.shape for p in params)
        bound = clipping_bound(self.optimizer)
        scale = 1 / (bound * self._unit_gradient())

        def score() -> float:
            along: float = sum(
                float(torch.sum(p.grad.detach().cpu().double() * w))
                for p, w in zip(params, v, strict=True)
                if p.grad is not None
            )
            return float(scale * along)

        self._trial, self._score = (member, math.nan), score
        if not member:
            return unchanged
        if self.ghost:
            return add_to_sum([bound * w for w in v])
        return append_row([FAR * bound * w for w in v])

    def _end_trial(self) -> None:
        if self._score is None:
            return
        history = self.run.history()
        noise, rate = history[-1][:2] if history else (None, None)
        member, score = self._trial
        self.record_trial(member, self._score() if math.isnan(score) else score, noise, rate)
        self._score = None

    def _unit_gradient(self) -> float:
        """What a clipped gradient of length one is in the gradient that is released."""
        optimizer = self.optimizer
        if optimizer.loss_reduction != "mean":
            return 1.0
        with contextlib.suppress(AttributeError, IndexError, ValueError):  # where none are kept
            return 1 / float(optimizer.expected_batch_size * optimizer.accumulated_iterations)
        return 1 / float(optimizer.expected_batch_size)


def _rows(samples: Any) -> int:
    """Examples whose gradients Opacus keeps for a parameter: of one pass, or a list of several."""
    return sum(map(len, samples)) if isinstance(samples, list) else len(samples)


def _enter_by(name: str, enter: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Of the class: a subclass overrides it, and is what is to be looked at.
        return enter(types.MethodType(getattr(type(self), name), self), *args, **kwargs)

    method.__name__ = name
    return method
