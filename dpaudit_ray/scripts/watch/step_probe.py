"""Inspects steps: how much noise one adds, and how far one example moves what it releases.

Only numbers of releases are recorded, for the judge: neither clipping bound nor batch size is taken
from what the code states, and only the ratio of movement to noise counts. What is the same for
every framework is `StepWatch`.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..protocol import EMPTY, ArraysGiven, Shift, StepInspection, Trial
from .generators import Generator, preserve_generators, seed_generators, states_of_all
from .loaders import ReleaseKey
from .noise_draws import NoiseDraws, StepNoise, draw_noise, draw_once
from .run_state import WatchedRun
from .tensors import (
    Release,
    along,
    difference,
    flat_vectors,
    random_direction,
    spread_indices,
    squared_lengths,
)

Change = Any  # a change of a step's examples, of a kind that an adapter has; None for none

INSPECTED = frozenset({0, 1, 2, 3, 5, 8} | {2**k for k in range(4, 14)})  # steps, in full
FAR = 1e3  # times the clipping bound: what every clipping must cut off
NEAR = 0.999  # times the clipping bound: what no clipping may change
_REMOVED = 6  # examples that are left out, one at a time
_MEAN_DRAWS = 6  # whose mean stands for a release without its noise
_SHORTEST = 1e-30


@dataclass(frozen=True)
class _CanaryTrial:
    """Canary of a step: its score is how far the release lies along `direction`, less `zero`.

    Attributes:
        member: whether the canary is in the step.
        direction: scaled so that the canary moves the score by 1.
        zero: where a release without the canary lies in the mean.
    """

    member: bool
    direction: Release
    zero: float


class StepWatch:
    """Inspects, tries and counts the steps of one optimizer or call site, the `number`th.

    An adapter defines what a step would release after a change of its examples, and which changes
    there are.

    Attributes:
        glance_changes: number of changes in steps that are not inspected in full.
        ghost: gradients come clipped, so that no change passes through the clipping.
        counts: the last number of a release is the clipping bound, which a count may set.
        steps: taken so far.
        noise: multiplier of the step, if its call states it.
        bound: bound of clipping, as the code has it.
        unit: length of a clipped gradient of length one in what is released.
        length: length of the longest clipped gradient in what is released, if known.
        rows: examples of the step that can be left out.
        shapes: shapes of an example's gradient; None if none can be appended.
        generators: generators of the optimizer and of the script.
    """

    glance_changes = 1
    ghost = False
    counts = False

    def __init__(self, run: WatchedRun, number: int) -> None:
        """Begins before the first step."""
        self.run = run
        self.number = number
        self.steps = 0
        self.noise: float | None = None
        self.bound = 1.0
        self.unit = 1.0
        self.length: float | None = None
        self.rows = 0
        self.shapes: list[tuple[int, ...]] | None = None
        self.generators: list[Generator] = []
        self._noise = StepNoise()
        self._has_gaps = False  # a draw of some step so far had gaps
        # Of all generators, after the step and its changes.
        self._states_after: set[tuple[str, ...]] = set()
        self._noise_states: set[tuple[str, ...]] = set()  # states that steps drew their noise from
        self._trial: _CanaryTrial | None = None  # the step's trial; None without one

    @property
    def at(self) -> ReleaseKey:
        """The step, among those of all optimizers and call sites."""
        return self.number, self.steps

    def release(self, change: Change, seed: int | None) -> Release:
        """Repeats the step after a change, with generators as they are, seeded with `seed` if any.

        It puts back all but the generators.
        """
        raise NotImplementedError

    def released(self, change: Change = None, seed: int | None = None) -> Release:
        """Returns what the step would release after a change; `seed` sets its generators."""
        with preserve_generators(self.generators):
            if seed is not None:
                seed_generators(seed, self.generators)
            release = self.release(change, seed)
            if seed is None:
                self._states_after.add(states_of_all(self.generators))
            return release

    @contextlib.contextmanager
    def fresh_noise(self) -> Iterator[None]:
        """Records a step, taken inside, whose generators were in the states of an earlier one.

        Only those count that the step draws from: others may go on while they repeat.
        """
        before = states_of_all(self.generators)
        yield
        after = states_of_all(self.generators)
        states = tuple(old for old, new in zip(before, after, strict=True) if old != new)
        if states and states in self._noise_states:
            self.run.put(ArraysGiven(kind="again"))
        self._noise_states.add(states)

    @contextlib.contextmanager
    def pinned_noise(self, member: bool) -> Iterator[int]:
        """Seeds the noise of a step inside, of a pinned run, and the random numbers after it.

        It yields the seed of the noise. Both seeds are the same in all pinned runs, but for noise
        of steps with the record in "other_noise", and random numbers after such a step in
        "other_randomness".

        Args:
            member: whether the step has the record that the run is about.
        """
        run = self.run
        request = run.request
        run.pinned.randomness_differs |= request.pinned == "other_randomness" and member
        seed = request.derived("noise", request.pinned == "other_noise" and member, *self.at)
        seed_generators(seed, self.generators)
        yield seed
        seed_generators(
            request.derived("after", run.pinned.randomness_differs, *self.at), self.generators
        )

    def pinned_release(self, shapes: Sequence[Sequence[int]], noise: float) -> list[torch.Tensor]:
        """Returns random numbers of a seed, as large as noise of this standard deviation."""
        length = noise * math.sqrt(sum(map(math.prod, shapes)))
        directions = random_direction(shapes, self.run.request.derived("held", *self.at))
        return [length * direction for direction in directions]

    def appended(self, row: list[torch.Tensor]) -> Change:
        """Returns the change that adds an example with this gradient."""

    def without(self, index: int) -> Change:
        """Returns the change that leaves out an example."""

    def names(self, count: int) -> list[str]:
        """Returns the names of the `count` tensors of a release."""
        return [f"array {index}" for index in range(count)]

    def direction(self) -> list[torch.Tensor]:
        """Returns the direction of changes: random, and the same at each step."""
        return random_direction(self.shapes or (), self.run.request.derived("look"))

    def changes(self) -> Iterator[tuple[str, Change]]:
        """Yields changes of one example each, with their description."""
        if self.shapes is not None:  # gradients can be appended
            far = self.appended([FAR * self.bound * w for w in self.direction()])
            yield "a gradient a thousand times too long", far
        for index in spread_indices(self.rows, _REMOVED):
            yield f"record {index} of the batch left out", self.without(index)
        if self.shapes is None:
            return
        v = self.direction()
        names = self.names(len(self.shapes))
        by_size = sorted(range(len(v)), key=lambda index: v[index].numel())
        for index in dict.fromkeys([*by_size[:2], *by_size[-2:]]):  # smallest and largest tensors
            row = [torch.zeros_like(w) for w in v]
            row[index] = FAR * self.bound * v[index] / max(float(v[index].norm()), _SHORTEST)
            what = f"a gradient of {names[index]} alone, a thousand times too long"
            yield what, self.appended(row)
        near = self.appended([NEAR * self.bound * w for w in v])
        yield "a gradient just within the clipping bound", near
        yield EMPTY, self.appended([torch.zeros(shape) for shape in self.shapes])

    def inspect(self) -> None:
        """Inspects the next step: by all draws and changes, or by a few while there is time."""
        in_full = self.steps in INSPECTED
        if not self.run.request.inspects or not (in_full or self.run.clock.has_time):
            return
        with self.run.replay():
            self._states_after.clear()
            actual = self.released()
            again = self.released()
            entry = self.inspection(actual)
            if not all(map(_is_same, actual, again)):
                entry = replace(entry, replays=False)
            else:
                seed = self.run.request.derived("draws", *self.at) // 2
                if in_full:
                    draws = draw_noise(actual, lambda n: self.released(seed=seed + n))
                else:
                    draws = draw_once(actual, self.released(seed=seed))
                entry = self.with_changes(entry, actual, draws, in_full)
        # If other numbers are drawn without a record, releases differ by their noise.
        if len(self._states_after) > 1:
            self.run.put(ArraysGiven(kind="draws"))
            return
        self.run.put(entry)

    def inspection(self, actual: Release) -> StepInspection:
        """Describes a step by what it releases, before anything is changed."""
        return StepInspection(
            step=self.steps,
            optimizer=self.number,
            names=tuple(self.names(len(actual))),
            sizes=tuple(map(len, actual)),
            norms=tuple(squared_lengths(actual)),
            noise=self.noise,
            bound=self.length,
            ghost=self.ghost,
            counts=self.counts,
        )

    def with_changes(
        self, entry: StepInspection, actual: Release, draws: NoiseDraws, in_full: bool
    ) -> StepInspection:
        """Adds what other draws of the step's noise and changes of its examples show.

        Args:
            entry: the inspection so far.
            actual: what the step releases.
            draws: draws of its noise.
            in_full: whether to make all changes; else the first `glance_changes`.
        """
        self._has_gaps |= draws.has_gaps
        if in_full and sum(draws.squares) > 0 and not self._has_gaps:
            correlations = self._noise.strongest_correlations(draws, self.steps)
            entry = replace(entry, correlations=correlations, law=self._noise.law_distance())
        shifts = []
        without_noise: set[int] = set()
        changes = itertools.islice(self.changes(), None if in_full else self.glance_changes)
        for what, change in changes:
            shift = difference(self.released(change), actual)
            shifts.append(Shift(what, tuple(squared_lengths(shift))))
            for index, part in enumerate(shift):
                if (draws.constant[index] & (part != 0)).any():
                    without_noise.add(index)
        return replace(
            entry,
            draws=draws.count,
            squares=tuple(draws.squares),
            shifts=tuple(shifts),
            without_noise=tuple(sorted(without_noise)),
            has_gaps=self._has_gaps,
        )

    def begin_trial(self, rate: float) -> Change:
        """Decides whether the step has a canary, sampled at `rate`; returns the change for it."""
        request = self.run.request
        if not request.canary or (self.shapes is None and not self.rows):
            return None
        if request.canary == "steps":
            member = request.coin(0.5, "bit", *self.at)
        else:
            member = request.member and request.coin(rate, "sampled", *self.at)
        if self.shapes is None:
            return self._leave_out(member)
        sign = 1.0 if request.coin(0.5, "sign", *self.at) else -1.0
        v = [sign * w for w in random_direction(self.shapes, request.derived("canary", *self.at))]
        direction = [w / (self.bound * self.unit) for w in flat_vectors(v)]
        self._trial = _CanaryTrial(member, direction, 0.0)
        length = self.bound if self.ghost else FAR * self.bound
        return self.appended([length * w for w in v]) if member else None

    def _leave_out(self, member: bool) -> Change:
        """Makes the last record a canary: it is left out of the step unless `member`.

        An adversary who knows the parameters knows the record's gradient. So the score is measured
        along the change of the release by that record, from the mean of releases without it.
        """
        without = self.without(self.rows - 1)
        seed = self.run.request.derived("draw", *self.at)
        with self.run.replay():
            releases = [self.released(without, seed + k) for k in range(_MEAN_DRAWS)]
            shift = difference(self.released(seed=seed), releases[0])
        square = sum(squared_lengths(shift)) or 1.0
        middle = [np.mean(parts, axis=0) for parts in zip(*releases, strict=True)]
        direction = [part / square for part in shift]
        self._trial = _CanaryTrial(member, direction, along(middle, direction))
        return None if member else without

    def end_step(
        self,
        release: Release,
        noise: float | None,
        rate: float | None,
    ) -> None:
        """Counts the step and records its trial: scores have mean 1 with the canary, else 0.

        Args:
            release: what the step has released.
            noise: noise multiplier that it was accounted with; None if it is unknown.
            rate: sampling rate that it was accounted with; None if it is unknown.
        """
        trial = self._trial
        self._trial = None
        if trial is not None:
            score = along(release, trial.direction) - trial.zero
            self.run.put(Trial(member=trial.member, score=score, noise=noise, rate=rate))
        self.steps += 1
        self.run.count_release()


def _is_same(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> bool:
    """Returns whether numbers are equal bit for bit, but for signs of zero; NaN equals NaN."""
    return np.array_equal(first, second, equal_nan=True)
