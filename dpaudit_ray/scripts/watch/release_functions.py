"""Steps of loops that Opacus does not know: functions that give releases, in any framework.

A release is asked for after a change of its examples: "nothing", ("without", i), ("wild", i)
(example i a second time, a thousand times larger), or ("appended", arrays).
"""

from __future__ import annotations

import collections
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from . import held_runs, opacus_engine, step_probe
from .run_state import WatchedRun
from .step_probe import Change, Release, StepWatch

run: WatchedRun | None = None  # that is watched in this process

Arrays = list[Any]
ReleasedArrays = Callable[[Change, int | None], Arrays]  # after a change, by generators or a seed


def stream_at(name: str, promise: tuple[float, float, float]) -> Stream | None:
    """The steps of a call site that promises (σ, C, q); None outside training, and in replays."""
    if run is None or run.replaying or run.phase != "main":
        return None
    if name not in run.streams:
        run.streams[name] = Stream(run, len(run.streams))
    stream: Stream = run.streams[name]
    stream.noise, stream.bound, stream.rate = promise
    return stream


class Stream(StepWatch):
    """Steps of one call site, and their accountant: it takes them as their calls describe them."""

    nothing = "nothing"
    glanced = 2

    def __init__(self, run: WatchedRun, number: int) -> None:
        super().__init__(run, number)
        self.rate = 1.0  # of sampling, as the last call says
        self.records: int | None = None  # of which the last step's were drawn, as far as told
        self.sizes: list[int] = []  # examples of each step
        self._counts: collections.Counter[Any] = collections.Counter()
        self._redraws: bool | None = None
        self._scale = 1.0  # of what comes in place of a release that is held
        self.released_shapes: list[tuple[int, ...]] = []  # of the last step

    @property
    def history(self) -> list[tuple[float, float, int]]:
        """(σ, q, steps), as an accountant of Opacus has it."""
        return [(noise, rate, steps) for (noise, rate), steps in self._counts.items()]

    def mechanism(self) -> str:
        return "pld"

    def get_epsilon(self, delta: float) -> float:
        # The environment of a script may lack what this needs: `script_runs` computes it then.
        from ... import accounting
        from ...accounting import Training

        events = tuple(Training(noise, steps, rate) for noise, rate, steps in self.history)
        return accounting.find("pld").composed(events, delta)

    def step(
        self,
        call: ReleasedArrays,
        rows: int | None,
        shapes: list[tuple[int, ...]] | None,
        of: int | None,
        *,
        redraws: bool | None = True,
        clips: bool = True,
        records: Sequence[Any] = (),
    ) -> Arrays:
        """Looks into the step, decides about its canary, takes it.

        `call` gives what it releases after a change, by generators as they are or seeded; it
        `redraws` noise (None: that is tried once) and `clips`, or noise and sum were given. The
        step has `rows` examples, None where only their sum is known, of so many records (`of`).
        `shapes` are of an example's gradient, where one may be appended; else a canary is the last
        record, left out or not. `records` are the arrays that have its examples, where told.
        """
        self._call, self.shapes, self.rows, self.records = call, shapes, rows or 0, of
        if rows is not None:
            self.sizes.append(rows)
        run = self.run
        run.settle((self.number, self.steps))
        if run.request.looks and not self.steps:
            run.before |= opacus_engine.digests_of_all_networks()
        began = time.monotonic()
        if run.request.looks and not clips:
            run.put("summed", step=self.steps)
        if redraws is None and self._redraws is None:
            with run.replay():
                first, second = (self.released("nothing", seed) for seed in (1, 2))
            self._redraws = any((a != b).any() for a, b in zip(first, second, strict=True))
        if redraws or (redraws is None and self._redraws):
            self.look()
        elif run.request.looks:
            run.put("given", step=self.steps)
        if records and not run.steps and (run.request.looks or run.request.held):
            held_runs.find_tables(run, records)
        change = self.begin_trial(self.rate)
        run.spent += time.monotonic() - began
        arrays = self._hold(records) if run.request.held else call(change, None)
        self.released_shapes = [tuple(array.shape) for array in arrays]
        self._counts[self.noise, self.rate] += 1
        self.end_step(_flat(arrays), self.noise, self.rate)
        return arrays

    def _hold(self, records: Sequence[Any]) -> Arrays:
        """Takes the step, notes it, and gives random numbers of a seed in place of its release."""
        run, at = self.run, (self.number, self.steps)
        if not self.steps:
            first, second = (self.released("nothing", seed) for seed in (1, 2))
            spread = np.std(np.concatenate(step_probe.difference(first, second))) or 1.0
            self._scale = 2.0 ** round(math.log2(spread))  # whatever rounding does to the noise
        member = held_runs.has_row(run, records)
        with held_runs.noise_of_seed(run, at, member, run.drawing) as seed:
            arrays = self._call("nothing", seed)
        parts = map(torch.from_numpy, _flat(arrays))
        run.put(
            "held", member=member, release=[step_probe.sample_digest(p).hex() for p in parts],
            rows=[], generators="", drawn=self.rows,
        )  # fmt: skip
        shapes, seed = [np.shape(array) for array in arrays], run.request.derived("held", *at)
        length = self._scale * math.sqrt(sum(map(math.prod, shapes)))
        held = (length * part for part in step_probe.random_direction(shapes, seed))
        return [
            part.to(a) if isinstance(a, torch.Tensor) else part.numpy().astype(a.dtype)
            for a, part in zip(arrays, held, strict=True)
        ]

    def released(self, change: Change, seed: int | None) -> Release:
        with step_probe.preserve_generators():
            if seed is not None:
                step_probe.seed_generators(seed)
            return _flat(self._call(change, seed))

    def without(self, index: int) -> Change:
        return "without", index

    def appended(self, row: list[torch.Tensor]) -> Change:
        return "appended", [w.numpy() for w in row]

    def changes(self) -> Iterator[tuple[str, Change]]:
        if self.shapes is None and self.rows:
            yield "a record with values a thousand times larger", ("wild", self.rows - 1)
        yield from super().changes()


def change_examples(examples: Sequence[Any], change: Change) -> list[Any]:
    """Arrays with a leading dimension of examples, after a change; of any framework's kind."""
    if change == "nothing":
        return list(examples)
    kind, value = change
    if kind == "without":
        return [_join(array[:value], array[value + 1 :]) for array in examples]
    if kind == "appended":
        rows = [new.reshape(1, *a.shape[1:]) for a, new in zip(examples, value, strict=True)]
    else:  # classes and tokens stay what they are
        rows = [a[value : value + 1] * (1000 if "float" in str(a.dtype) else 1) for a in examples]
    return list(map(_join, examples, rows))


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
