"""Steps of loops that Opacus does not know: functions that give releases, in any framework.

A release is asked for after a change of its examples: "nothing", "empty" (an example of zeros
more), ("without", i), ("wild", i) (example i a second time, a thousand times larger), or
("appended", arrays).
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ... import accounting
from ...accounting import Training
from . import step_probe
from .run_state import WatchedRun
from .step_probe import Release, StepWatch

_DRAWS = 6  # whose mean stands for a release without its noise
_current: contextvars.ContextVar[WatchedRun | None] = contextvars.ContextVar("run", default=None)

Change = Any
Arrays = list[Any]
ReleasedArrays = Callable[[Change, int | None], Arrays]  # as `step_probe.Released`
Shapes = Sequence[tuple[int, ...]] | None


def stream_at(name: str, promise: tuple[float, float, float]) -> Stream | None:
    """The steps of a call site, whose promise is (σ, C, q), in the run that is watched now.

    None outside a watched run, before and after its training, and while one of its steps is done
    again on copies of the model, whose releases are not the run's.
    """
    run = _current.get()
    if run is None or run.replaying or run.phase != "main":
        return None
    if name not in run.streams:
        run.streams[name] = Stream(run, len(run.streams))
    stream: Stream = run.streams[name]
    stream.promise = promise
    return stream


@contextlib.contextmanager
def watching(run: WatchedRun) -> Iterator[None]:
    """Functions that are called inside belong to this run."""
    token = _current.set(run)
    try:
        yield
    finally:
        _current.reset(token)


class Stream(StepWatch):
    """Steps of one call site, and their accountant: it takes them as their calls describe them.

    Attributes:
        promise: (σ, C, q) of the last call.
        records: how many records the last step's were drawn from, as far as told.
        sizes: examples of each step.
    """

    def __init__(self, run: WatchedRun, number: int) -> None:
        super().__init__(run, number, "nothing")
        self.promise = (1.0, 1.0, 1.0)
        self._counts: collections.Counter[tuple[float, float]] = collections.Counter()
        self.records: int | None = None
        self.sizes: list[int] = []

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """(σ, q, steps), as an accountant of Opacus has it."""
        return [(noise, rate, steps) for (noise, rate), steps in self._counts.items()]

    def mechanism(self) -> str:
        """The name of the accounting."""
        return "pld"

    def get_epsilon(self, delta: float) -> float:
        """ε at δ of the steps so far; ValueError or ArithmeticError where that fails."""
        events = tuple(Training(noise, steps, rate) for noise, rate, steps in self.history)
        return accounting.find("pld").composed(events, delta)

    def step(
        self,
        released: ReleasedArrays,
        rows: int | None,
        shapes: Shapes,
        of: int | None,
        *,
        redraws: bool = True,
        clips: bool = True,
    ) -> Arrays:
        """Looks into the step, decides about its canary, takes it.

        `released` gives what it releases after a change, by generators as they are or seeded; it
        `redraws` noise and `clips`, or noise and sum were given. The step has `rows` examples, None
        where only their sum is known, of so many records (`of`). `shapes` are of an example's
        gradient, where one may be appended; else a canary is the last record, left out or not.
        """
        self.records, self.noise = of, self.promise[0]
        if rows is not None:
            self.sizes.append(rows)
        run = self.run
        run.settle((self.number, self.steps))
        began = time.monotonic()
        if run.request.looks and (self.steps in step_probe.LOOKED_AT or run.has_time):
            if not clips:
                run.recorder.put("summed", step=self.steps)
            if redraws:
                self._look(released, rows or 0, shapes)
            else:
                run.recorder.put("given", step=self.steps)
        score, change, member = self._begin_trial(released, rows or 0, shapes)
        run.spent += time.monotonic() - began
        arrays = released(change, None)
        noise, _, rate = self.promise
        self._counts[noise, rate] += 1
        if score is not None:
            self.record_trial(member, score(_flat(arrays)), noise, rate)
        self.finish()
        return arrays

    def _look(self, released: ReleasedArrays, rows: int, shapes: Shapes) -> None:
        """Releases again on changed records, and notes how far each change moves what is released.

        `released` gives the arrays under a change of the `rows` records, with a seed or without;
        what it does meanwhile does not count as the run's.
        """

        def tried(change: Change, seed: int | None) -> Release:
            with step_probe.preserve_generators():
                if seed is not None:
                    step_probe.seed_generators(seed)
                return _flat(released(change, seed))

        empty, changes = "empty" if shapes is not None else None, self._changes(rows, shapes)
        with self.run.replay():
            if self.steps in step_probe.LOOKED_AT:
                self.examine(tried, changes, empty)
            else:
                self.glance(tried, itertools.islice(changes, 2))

    def _changes(self, rows: int, shapes: Shapes) -> Iterator[tuple[str, Change]]:
        if shapes is not None:
            v = step_probe.random_direction(shapes, self.run.request.derived("look"))
            far = [(step_probe.FAR * self.promise[1] * w).numpy() for w in v]
            yield "a gradient a thousand times too long", ("appended", far)
            near = [(step_probe.NEAR * self.promise[1] * w).numpy() for w in v]
            yield "a gradient just within the clipping bound", ("appended", near)
        elif rows:
            yield "a record with values a thousand times larger", ("wild", rows - 1)
        for index in step_probe.spread_indices(rows):
            yield f"record {index} of the batch left out", ("without", index)

    def _begin_trial(
        self, released: ReleasedArrays, rows: int, shapes: Shapes
    ) -> tuple[Callable[[Release], float] | None, Change, bool]:
        """The score of the release, where it is a trial; the change that makes it one; the bit."""
        bound = self.promise[1]
        if not self.run.request.canary or (shapes is None and rows < 1):
            return None, "nothing", False
        member = self.canary_is_in(self.promise[2])
        if shapes is None:
            return self._leave_out(released, rows, member)
        v = self.canary(shapes)
        directions = [w.double().numpy().reshape(-1) for w in v]

        def score(release: Release) -> float:
            return sum(float(a @ b) for a, b in zip(release, directions, strict=True)) / bound

        row = [(step_probe.FAR * bound * w).numpy() for w in v]
        return score, ("appended", row) if member else "nothing", member

    def _leave_out(
        self, released: ReleasedArrays, rows: int, member: bool
    ) -> tuple[Callable[[Release], float], Change, bool]:
        """A trial by the last record; who knows the parameters knows what it adds."""
        without_last = ("without", rows - 1)
        with self.run.replay(), step_probe.preserve_generators():
            seed = self.run.request.derived("draw", self.number, self.steps)
            without = [_flat(released(without_last, seed + k)) for k in range(_DRAWS)]
            whole = _flat(released("nothing", seed))
        moved = step_probe.difference(whole, without[0])
        middle = [np.mean(parts, axis=0) for parts in zip(*without, strict=True)]
        size = sum(step_probe.squared_lengths(moved)) or 1.0

        def score(release: Release) -> float:
            away = step_probe.difference(release, middle)
            return sum(float(a @ b) for a, b in zip(away, moved, strict=True)) / size

        return score, "nothing" if member else without_last, member


def change_examples(examples: Sequence[Any], change: Change) -> list[Any]:
    """Arrays with a leading dimension of examples, after a change; of any framework's kind."""
    if change == "nothing":
        return list(examples)
    if change == "empty":
        return [_join(array, np.zeros((1, *array.shape[1:]), np.float32)) for array in examples]
    kind, value = change
    if kind == "without":
        return [_join(array[:value], array[value + 1 :]) for array in examples]
    if kind == "wild":
        # Classes and tokens stay what they are.
        factors = [1000 if "float" in str(array.dtype) else 1 for array in examples]
        return [
            _join(array, array[value : value + 1] * factor)
            for array, factor in zip(examples, factors, strict=True)
        ]
    return [
        _join(array, new.reshape(1, *array.shape[1:]))
        for array, new in zip(examples, value, strict=True)
    ]


def _join(first: Any, second: Any) -> Any:
    """Two arrays after each other, of the kind of the first."""
    if isinstance(first, torch.Tensor):
        return torch.cat([first, torch.as_tensor(second).to(first)])
    kind = type(first).__module__.partition(".")[0]
    if kind in ("jax", "jaxlib"):
        import jax.numpy as jnp

        return jnp.concatenate([first, jnp.asarray(second, first.dtype)])
    if kind == "tensorflow":
        import tensorflow as tf

        return tf.concat([first, tf.cast(second, first.dtype)], axis=0)
    return np.concatenate([first, np.asarray(second, np.asarray(first).dtype)])


def _flat(arrays: Arrays) -> Release:
    return [
        step_probe.flat_vectors([array])[0] if isinstance(array, torch.Tensor)
        else np.asarray(array, dtype=np.float64).reshape(-1)
        for array in arrays
    ]  # fmt: skip
