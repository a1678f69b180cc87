"""Inspects steps: how much noise a step adds, and how far one example moves its release.

Only the ratio of this distance to the noise counts. Both are measured from releases, so the judge
need not trust the clipping bound or batch size that the code states. `StepWatch` has the part of
the inspection that is the same for every framework.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ..protocol import EMPTY, ArraysGiven, Integers, Limit, Shift, StepInspection, Texts, Trial
from .generators import Generator, preserve_generators, seed_generators, states_of_all
from .loaders import ReleaseKey
from .noise_draws import NoiseDraws, StepNoise, draw_noise, draw_once
from .run_state import WatchedRun
from .tensors import (
    Release,
    difference,
    flat_vectors,
    projection,
    random_direction,
    spread_indices,
    squared_lengths,
)

Change = Any  # a change of a step's examples, in an adapter's own form; None for no change

# Steps that are inspected in full: the first ones, and then ever fewer.
INSPECTED = frozenset({0, 1, 2, 3, 5, 8} | {2**k for k in range(4, 14)})
FAR = 1e3  # times the clipping bound: a length that every clipping must cut off
NEAR = 0.999  # times the clipping bound: a length that no clipping may change
_REMOVED = 6  # examples that are left out, one at a time
_MEAN_DRAWS = 6  # draws whose mean stands for a release without its noise
_UNLIKELY = 0.01  # probability of a law from which on it is tested whether noise is only added
_EQUAL = 1e-3  # share of its square that a shift may change by with other noise, from rounding
_SHORTEST = 1e-30  # a tensor's part of a direction counts as at least this long


@dataclass(frozen=True)
class _CanaryTrial:
    """Canary of a step. The score is the projection of the release on `direction`, minus `zero`.

    Attributes:
        member: whether the canary is in the step.
        direction: direction of the canary, scaled so that the canary moves the score by 1.
        zero: mean projection of releases without the canary.
    """

    member: bool
    direction: Release
    zero: float


class StepWatch:
    """Inspects, tries and counts the steps of one optimizer or call site.

    An adapter derives from it, and defines which changes of examples there are, and what a step
    would release after a change.

    Attributes:
        number: number of the optimizer or call site in the run.
        glance_changes: number of changes in steps that are not inspected in full.
        ghost: gradients come clipped, so that no change passes through the clipping.
        counts: the last number of a release is the clipping bound, which a count may set.
        steps: number of steps taken so far.
        noise: noise multiplier of the step, if its call states it.
        bound: bound of clipping, as the code has it.
        unit: length that a clipped gradient of length 1 has in the release.
        length: length that the longest clipped gradient has in the release, if known.
        rows: number of the step's examples that can be left out.
        shapes: shapes of an example's gradient; None if no gradient can be appended.
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
        self.shapes: list[Integers] | None = None
        self.generators: list[Generator] = []
        self._noise = StepNoise()
        self._has_gaps = False  # a draw of some step so far had gaps
        self._sizes: tuple[int, ...] = ()  # numbers of each tensor that the last full draws had
        # States of all generators after each repetition of the step.
        self._states_after: set[Texts] = set()
        self._noise_states: set[Texts] = set()  # states that steps drew their noise from
        self._trial: _CanaryTrial | None = None  # the step's trial; None without one

    @property
    def at(self) -> ReleaseKey:
        """Key of the next step, among the steps of all optimizers and call sites."""
        return self.number, self.steps

    def note_limit(self, kind: Limit) -> None:
        """Records something that limits what can be checked; see `ArraysGiven`."""
        self.run.put(ArraysGiven(kind=kind))

    def release(self, change: Change, seed: int | None) -> Release:
        """Repeats the step after a change, and undoes it, except for the generators' states.

        Args:
            change: change of the step's examples.
            seed: the seed that generators were set to; None if they are as the script has them.
        """
        raise NotImplementedError

    def released(self, change: Change = None, seed: int | None = None) -> Release:
        """Returns what the step would release after a change.

        Args:
            change: change of the step's examples.
            seed: seed of the generators; None to leave them as the script has them.
        """
        with preserve_generators(self.generators):
            if seed is not None:
                seed_generators(seed, self.generators)
            release = self.release(change, seed)
            if seed is None:
                self._states_after.add(states_of_all(self.generators))
            return release

    @contextlib.contextmanager
    def fresh_noise(self) -> Iterator[None]:
        """Records if a step, taken inside, begins with the generators' states of an earlier step.

        Only generators that the step draws from count.
        """
        before = states_of_all(self.generators)
        yield
        after = states_of_all(self.generators)
        # The step has drawn from generators whose states have changed.
        states = tuple(old for old, new in zip(before, after, strict=True) if old != new)
        if states and states in self._noise_states:
            self.note_limit("again")
        self._noise_states.add(states)

    @contextlib.contextmanager
    def pinned_noise(self, member: bool) -> Iterator[int]:
        """Seeds the noise of a pinned run's step, taken inside, and the random numbers after it.

        It yields the seed of the noise. Both seeds are the same in all pinned runs, with two
        exceptions: an "other_noise" run has another seed for the noise of steps with the record,
        and an "other_randomness" run has other seeds for the random numbers after the first of
        these steps.

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
        """Returns random numbers of a seed, as large as noise of this standard deviation.

        Args:
            shapes: shapes of the release's tensors.
            noise: the standard deviation.
        """
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
        """Returns the direction of appended gradients: random, and the same at each step."""
        return random_direction(self.shapes or (), self.run.request.derived("look"))

    def changes(self) -> Iterator[tuple[str, Change]]:
        """Yields changes of one example each, as (description in words, change)."""
        if self.shapes is not None:  # a gradient can be appended
            far = self.appended([FAR * self.bound * w for w in self.direction()])
            yield "a gradient a thousand times too long", far
        for index in spread_indices(self.rows, _REMOVED):
            yield f"record {index} of the batch left out", self.without(index)
        if self.shapes is None:
            return
        direction = self.direction()
        names = self.names(len(self.shapes))
        by_size = sorted(range(len(direction)), key=lambda index: direction[index].numel())
        for index in dict.fromkeys([*by_size[:2], *by_size[-2:]]):  # smallest and largest tensors
            row = [torch.zeros_like(part) for part in direction]
            length = max(float(direction[index].norm()), _SHORTEST)
            row[index] = FAR * self.bound * direction[index] / length
            words = f"a gradient of {names[index]} alone, a thousand times too long"
            yield words, self.appended(row)
        near = self.appended([NEAR * self.bound * part for part in direction])
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
            pairs = zip(actual, again, strict=True)
            if not all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
                entry = replace(entry, replays=False)
            else:
                # Half of the range of seeds is left for the numbers of the draws.
                seed = self.run.request.derived("draws", *self.at) // 2
                if in_full:
                    draws = draw_noise(actual, lambda n: self.released(seed=seed + n))
                else:
                    draws = draw_once(actual, self.released(seed=seed))
                entry = self.with_changes(entry, actual, draws, in_full)
        # If a step without a record draws other numbers, releases differ by their noise, too.
        if len(self._states_after) > 1:
            self.note_limit("draws")
            return
        self.run.put(entry)

    def inspection(self, actual: Release) -> StepInspection:
        """Returns the inspection of a step before anything is changed: what its release shows."""
        has_same_tensors = len(self._sizes) == len(actual)
        return StepInspection(
            step=self.steps,
            optimizer=self.number,
            names=tuple(self.names(len(actual))),
            sizes=self._sizes if has_same_tensors else tuple(map(len, actual)),
            norms=tuple(squared_lengths(actual)),
            noise=self.noise,
            bound=self.length,
            ghost=self.ghost,
            counts=self.counts,
        )

    def with_changes(
        self, entry: StepInspection, actual: Release, draws: NoiseDraws, in_full: bool
    ) -> StepInspection:
        """Adds to an inspection what draws of the step's noise and changes of its examples show.

        Args:
            entry: the inspection so far.
            actual: what the step releases.
            draws: draws of the step's noise.
            in_full: whether to make all changes; else only the first `glance_changes`.
        """
        self._has_gaps |= draws.has_gaps
        if in_full:
            self._sizes = tuple(map(len, draws.mean))
            entry = replace(entry, sizes=self._sizes)
        if in_full and sum(draws.squares) > 0 and not self._has_gaps:
            correlations = self._noise.strongest_correlations(draws, self.steps)
            law = self._noise.law_distance()
            if law is not None and law.probability < _UNLIKELY:
                law = replace(law, is_added=self._adds_noise())
            entry = replace(entry, correlations=correlations, law=law)
        shifts = []
        without_noise = set()
        changes = itertools.islice(self.changes(), None if in_full else self.glance_changes)
        for words, change in changes:
            shift = difference(self.released(change), actual)
            shifts.append(Shift(words, tuple(squared_lengths(shift))))
            for index, is_constant in enumerate(draws.constant):
                if (is_constant & (shift[index] != 0)).any():
                    without_noise.add(index)
        return replace(
            entry,
            draws=draws.count,
            squares=tuple(draws.squares),
            shifts=tuple(shifts),
            without_noise=tuple(sorted(without_noise)),
            has_gaps=self._has_gaps,
        )

    def _adds_noise(self) -> bool:
        """Returns whether a change of the examples moves the release equally under any noise.

        It does not if the noisy sum is processed further, for example divided by a mean that has
        the squares of its own numbers. Then what is released is not distributed as the noise.
        """
        _, change = next(self.changes())
        shifts = []
        for seed in (1, 2):
            shifts.append(difference(self.released(change, seed), self.released(seed=seed)))
        unequal = sum(squared_lengths(difference(*shifts)))
        return unequal <= _EQUAL * sum(squared_lengths(shifts[0]))

    def begin_trial(self, rate: float) -> Change:
        """Decides whether the step has a canary; returns the change for it.

        Args:
            rate: rate at which a "run" canary is sampled into steps.

        Returns:
            The change; None if the examples stay as they are.
        """
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
        parts = random_direction(self.shapes, request.derived("canary", *self.at))
        canary = [sign * part for part in parts]  # of length 1
        direction = [vector / (self.bound * self.unit) for vector in flat_vectors(canary)]
        self._trial = _CanaryTrial(member, direction, zero=0.0)
        # The canary is too long, so that clipping makes it as long as the bound. With ghost
        # clipping it is added to gradients that are clipped already.
        length = self.bound if self.ghost else FAR * self.bound
        return self.appended([length * part for part in canary]) if member else None

    def _leave_out(self, member: bool) -> Change:
        """Makes the last record a canary, which is left out of the step unless `member`.

        An adversary who knows the parameters knows the record's gradient. So the score is measured
        in the direction in which that record changes the release, from the mean of releases without
        the record.
        """
        without = self.without(self.rows - 1)
        seed = self.run.request.derived("draw", *self.at)
        with self.run.replay():
            releases = [self.released(without, seed + k) for k in range(_MEAN_DRAWS)]
            shift = difference(self.released(seed=seed), releases[0])
        square = sum(squared_lengths(shift)) or 1.0
        mean = [np.mean(parts, axis=0) for parts in zip(*releases, strict=True)]
        direction = [part / square for part in shift]
        self._trial = _CanaryTrial(member, direction, zero=projection(mean, direction))
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
            noise: noise multiplier that the step was accounted with; None if it is unknown.
            rate: sampling rate that the step was accounted with; None if it is unknown.
        """
        trial = self._trial
        self._trial = None
        if trial is not None:
            score = projection(release, trial.direction) - trial.zero
            self.run.put(Trial(member=trial.member, score=score, noise=noise, rate=rate))
        self.steps += 1
        self.run.count_release()
