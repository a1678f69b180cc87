"""Steps of Opacus' optimizers: looked into, and given canaries that pass through their clipping.

Every instance of `DPOptimizer` is watched, whatever its class overrides: its own `step` and
`pre_step` are called, and what they are given is altered at their entrance only.
"""

from __future__ import annotations

import contextlib
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from . import ghost, step_probe, vectors
from .canaries import FAR, Canaries
from .loaders import Indices, Iteration
from .run_state import Run
from .step_replay import Change, Replay, added, appended, clipping_bound, unchanged, without

LOOKED_AT = frozenset({0, 1, 2, 3, 5, 8} | {2**k for k in range(4, 14)})
_NEAR = 0.999
_ROWS = 6  # examples that are left out, one at a time
_GHOST = "DPOptimizerFastGradientClipping"


def install(run: Run) -> None:
    """Watches all optimizers that are made from now on."""
    from opacus.optimizers import DPOptimizer

    original = DPOptimizer.__init__

    def begun(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        run.optimizers.append(_Watched(self, run, len(run.optimizers)))

    DPOptimizer.__init__ = begun

    def due(optimizer: Any) -> int | None:
        own = next((one for one in run.optimizers if one.optimizer is optimizer), None)
        looks_now = run.asked.looks and run.phase == "main" and not run.replaying
        return own.steps if own is not None and looks_now and own.steps in LOOKED_AT else None

    ghost.install(run, due)
    register_optimizer_step_pre_hook(lambda optimizer, *_: _stepping(run, optimizer))
    register_optimizer_step_post_hook(lambda optimizer, *_: _stepped(run, optimizer))


class _Watched:
    """One optimizer under watch."""

    def __init__(self, optimizer: Any, run: Run, number: int) -> None:
        self.optimizer, self._run, self._number = optimizer, run, number
        self._armed: Change | None = None
        self.inside = False
        self.handed_on = False  # a script took the step apart: what is wrapped may step once
        self._after_step: list[torch.Tensor] | None = None
        self.steps = 0
        self._noise = step_probe.Noise()
        self._canaries = Canaries(optimizer, run, number, self.ghost)
        self.last: vectors.Release | None = None  # gradients that the last step released
        self._open: tuple[Iteration | None, Indices] | None = None  # a draw that is not whole yet
        names = ("step", "pre_step", "clip_and_accumulate", "accumulate")
        entered = {"step": self._step, "pre_step": self._pre_step}
        for name in names:
            if hasattr(type(optimizer), name):
                vars(optimizer)[name] = types.MethodType(
                    _wrapper(name, entered.get(name, self._changed)), optimizer
                )
        run.noise_seeds += [one.initial_seed() for one in _generators(optimizer)]
        if run.asked.reseeds:
            for index, one in enumerate(_generators(optimizer)):
                one.manual_seed(run.asked.derived("generator", number, index, one.initial_seed()))

    @property
    def ghost(self) -> bool:
        """Whether gradients come clipped."""
        return any(cls.__name__ == _GHOST for cls in type(self.optimizer).__mro__)

    def _step(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        closure = bool(args and args[0] is not None) or kwargs.get("closure") is not None
        return self._taken(call, closure, args, kwargs)

    def _pre_step(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.inside:
            return self._changed(call, *args, **kwargs)
        self.handed_on = bool(found := self._taken(call, False, args, kwargs))
        return found

    def _changed(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Applies what is armed, once, before gradients are clipped."""
        change, self._armed = self._armed, None
        if change is not None:
            change(self.optimizer)
        return call(*args, **kwargs)

    def _taken(
        self, call: Callable[..., Any], closure: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        run = self._run
        if run.replaying or self.inside:
            return call(*args, **kwargs)
        self._notice_carried()
        if self._skipped():
            self._open = run.loaders.current, run.loaders.open
            return call(*args, **kwargs)
        self._open = None
        began = time.monotonic()
        release = self._number, self.steps
        run.settle(release)
        run.loaders.at_step(self._accumulated(), release)
        self._notice_moved()
        if run.asked.looks and (self.steps in LOOKED_AT or self._has_time()):
            self._look(lambda: call(*args, **kwargs), closure)
        change = self._canaries.drawn(self.steps)
        run.spent += time.monotonic() - began
        self.inside = True
        try:
            with self._arm(change or unchanged, now=not closure):
                result = call(*args, **kwargs)
        finally:
            self.inside = False
        self._after()
        return result

    def _has_time(self) -> bool:
        """Whether a glance at a step keeps watching within a third of all time."""
        run = self._run
        return run.spent < 2 + (time.monotonic() - run.began) / 3

    def _notice_moved(self) -> None:
        """Parameters that changed since the last step, by no step of it."""
        run = self._run
        if not run.asked.looks:
            return
        if self._after_step is not None and not all(
            torch.equal(p.data, old)
            for p, old in zip(self.optimizer.params, self._after_step, strict=False)
        ):
            run.moved += 1
        self._after_step = None

    def keep(self) -> None:
        """Parameters as the step left them."""
        if self._run.asked.looks:
            self._after_step = [p.data.clone() for p in self.optimizer.params]

    def _notice_carried(self) -> None:
        """A sum of another walk through the data was left, and this step adds to it."""
        now = self._run.loaders
        left = any(getattr(p, "summed_grad", None) is not None for p in self.optimizer.params)
        if self._open is None or self._open[0] is now.current or not left:
            return
        both = np.intersect1d(self._open[1], now.open)
        self._run.recorder.put(
            "carried", optimizer=self._number, step=self.steps, both=len(both),
            drawn=len(now.open), before=len(self._open[1]),
        )  # fmt: skip
        self._open = None

    def _accumulated(self) -> int:
        """How many draws the gradients of this step are of."""
        counts = [
            len(p.grad_sample)
            for p in self.optimizer.params
            if isinstance(getattr(p, "grad_sample", None), list)
        ]
        return max(counts, default=1)

    def _skipped(self) -> bool:
        queue = getattr(self.optimizer, "_step_skip_queue", None)
        return bool(queue and queue[0])

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

    def _look(self, step: Callable[[], Any], closure: bool) -> None:
        run, optimizer = self._run, self.optimizer
        run.replaying, self.inside = True, True
        seed = run.asked.derived("draws", self._number, self.steps) // 2
        try:
            tried = Replay(
                optimizer, step, run.accountants, lambda change: self._arm(change, not closure)
            )
            if self.steps in LOOKED_AT:
                entry = step_probe.examined(
                    self.steps, tried.release, self._changes(tried), unchanged,
                    self._empty(tried), self._noise, seed,
                )  # fmt: skip
            else:
                change = next(self._changes(tried))
                entry = step_probe.glanced(self.steps, tried.release, change, unchanged, seed)
        finally:
            run.replaying, self.inside = False, False
        run.recorder.put(
            "look", optimizer=self._number, names=run.names(tried.params), rows=tried.rows,
            ghost=self.ghost, **entry,
        )  # fmt: skip

    def _changes(self, tried: Replay) -> Iterator[tuple[str, Change]]:
        bound = clipping_bound(self.optimizer)
        v = vectors.direction([p.shape for p in tried.params], self._run.asked.derived("look"))
        if self.ghost:
            yield "a clipped gradient", added([one * bound for one in v])
            return
        yield (
            "a gradient a thousand times too long",
            appended([FAR * bound * w for w in v]),
        )
        n = tried.rows or 0
        for index in dict.fromkeys(int(i * n / _ROWS) for i in range(min(_ROWS, n))):
            yield f"record {index} of the batch left out", without(index)
        for index in _ends([p.numel() for p in tried.params]):
            own = [FAR * bound * w * (k == index) / max(float(w.norm()), 1e-30)
                   for k, w in enumerate(v)]  # fmt: skip
            name = self._run.names([tried.params[index]])[0]
            yield (
                f"a gradient of {name} alone, a thousand times too long",
                appended(own),
            )
        near = appended([_NEAR * bound * one for one in v])
        yield "a gradient just within the clipping bound", near

    def _empty(self, tried: Replay) -> Change | None:
        if self.ghost:
            return None
        return appended([torch.zeros_like(p) for p in tried.params])

    def released(self) -> None:
        """The wrapped optimizer is about to step."""
        self.last = vectors.flat(
            torch.zeros_like(p) if p.grad is None else p.grad for p in self.optimizer.params
        ) if self._run.asked.looks else None  # fmt: skip
        self._canaries.released()

    def _after(self) -> None:
        self._canaries.record(self.steps)
        self.steps += 1
        self._run.after_step()


def _ends(sizes: list[int]) -> list[int]:
    """Indices of the two smallest and the two largest, each once."""
    order = sorted(range(len(sizes)), key=lambda index: sizes[index])
    return list(dict.fromkeys([*order[:2], *order[-2:]]))


def _wrapper(name: str, entered: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Of the class: a subclass overrides it, and is what is to be looked at.
        return entered(types.MethodType(getattr(type(self), name), self), *args, **kwargs)

    method.__name__ = name
    return method


def _generators(optimizer: Any) -> list[torch.Generator]:
    found = getattr(optimizer, "generator", None)
    return [found] if isinstance(found, torch.Generator) else []


def _stepping(run: Run, optimizer: Any) -> None:
    """Any optimizer of torch is about to step."""
    if run.replaying:
        return
    for watched in run.optimizers:
        own = watched.optimizer.original_optimizer is optimizer
        if own and (watched.inside or watched.handed_on):
            watched.handed_on = False
            watched.released()
            return
    run.stepped_outside(optimizer)


def _stepped(run: Run, optimizer: Any) -> None:
    """Any optimizer of torch has stepped."""
    for watched in run.optimizers:
        if watched.optimizer.original_optimizer is optimizer and not run.replaying:
            watched.keep()
