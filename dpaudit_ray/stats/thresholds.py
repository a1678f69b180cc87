"""Error counts of "guess in when the score reaches h", and where a valid h may come from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from .base import Members, Scores
from .binomial import clopper_pearson_upper
from .diverged import LEARN, settled

Counts = npt.NDArray[np.int64]
Rates = npt.NDArray[np.float64]
# Maps error counts [n] of one world to upper bounds on its error rate [n]; never decreases.
Upper = Callable[[Counts], Rates]
# Maps upper bounds on false-positive and false-negative rates [n] to what they show [n].
Gain = Callable[[Rates, Rates], Rates]
DEFAULT_SHARES = {"past": 0.2, "holdout": 0.5, "fixed": 0.0}
_TABLE_SIZE = 4096


@dataclasses.dataclass
class Worlds:
    """Scores of both worlds, sorted; misses kept as counts: an error at every threshold.

    ±inf is a score like any other: a diverged trial that is guessed "in" or "out" at every
    threshold between the finite scores (`diverged.settled`).
    """

    outside: Scores
    inside: Scores
    missed_outside: int
    missed_inside: int

    @classmethod
    def of(cls, scores: Scores, members: Members) -> Worlds:
        """Splits float64 [n] scores, NaN for misses, by their bool [n] members."""
        counted = ~np.isnan(scores)
        return cls(
            np.sort(scores[counted & ~members]),
            np.sort(scores[counted & members]),
            int((~counted & ~members).sum()),
            int((~counted & members).sum()),
        )

    @classmethod
    def observed(cls, scores: Scores, members: Members) -> Worlds:
        """The same of a whole audit's scores: what is not finite has diverged."""
        marked = np.where(np.isfinite(scores), scores, np.inf)
        return cls.of(settled(marked, members, math.ceil(LEARN * len(marked))), members)

    @property
    def sizes(self) -> tuple[int, int]:
        """Trials per world, (out, in), misses included."""
        return len(self.outside) + self.missed_outside, len(self.inside) + self.missed_inside

    def midpoints(self) -> Scores:
        """Alg. 4's candidates: midpoints of neighbours in the pooled sorted scores.

        Between finite and diverged ones, the finite score beside the gap stands in.
        """
        pooled = np.sort(np.concatenate([self.outside, self.inside]))
        low, high = pooled[:-1], pooled[1:]
        above = np.where(np.isinf(low), high, np.nextafter(low, np.inf))
        return np.where(np.isfinite(low) & np.isfinite(high), _between(low, high), above)

    def errors(self, thresholds: npt.ArrayLike) -> tuple[Counts, Counts]:
        """False positives and false negatives at each threshold."""
        h = np.atleast_1d(np.asarray(thresholds, dtype=np.float64))
        false_positives = len(self.outside) - np.searchsorted(self.outside, h, side="left")
        false_negatives = np.searchsorted(self.inside, h, side="left")
        return false_positives + self.missed_outside, false_negatives + self.missed_inside


def _between(low: Scores, high: Scores) -> Scores:
    with np.errstate(invalid="ignore"):
        return low / 2 + high / 2


@dataclasses.dataclass
class TrialLog:
    """All folded trials, for methods that need every score (8 + 1 bytes per trial).

    Diverged trials are kept as inf, trials that count as misses as NaN.
    """

    scores: list[Scores] = dataclasses.field(default_factory=list)
    members: list[Members] = dataclasses.field(default_factory=list)

    def append(self, scores: Scores, members: Members) -> None:
        """Adds trials in order."""
        self.scores.append(np.where(np.isfinite(scores), scores, np.inf))
        self.members.append(members)

    def miss(self, members: Members) -> None:
        """Adds trials that count as misses."""
        self.scores.append(np.full(len(members), np.nan))
        self.members.append(members)

    def __len__(self) -> int:
        return sum(map(len, self.scores))

    def arrays(self) -> tuple[Scores, Members]:
        """The trials so far as two arrays."""
        if not self.scores:
            return np.empty(0), np.empty(0, dtype=np.bool_)
        self.scores = [np.concatenate(self.scores)]
        self.members = [np.concatenate(self.members)]
        return self.scores[0], self.members[0]


class Logged:
    """Mixin: an estimator that keeps every trial, and learns nothing from the order of the bits."""

    def __post_init__(self) -> None:
        self._log = TrialLog()

    @property
    def learns(self) -> bool:
        """False: guesses, ranks and thresholds are functions of all trials at once."""
        return False

    def _fold(self, scores: Scores, members: Members) -> None:
        self._log.append(scores, members)

    def _miss(self, members: Members) -> None:
        self._log.miss(members)


@dataclasses.dataclass(frozen=True)
class Judged:
    """Errors of one test on the trials that had no part in choosing it."""

    false_positives: int
    false_negatives: int
    sizes: tuple[int, int]
    threshold: float

    @property
    def usable(self) -> bool:
        """Whether there was a threshold, and trials of both worlds to judge it on."""
        return not math.isnan(self.threshold) and min(self.sizes) > 0


@dataclasses.dataclass
class AtOneThreshold:
    """Mixin: a threshold fixed before the trials it is judged on, and the errors it made there.

    `past` and `holdout` spend the first `calibration` share of the planned trials on choosing
    the threshold, 0.2 and 0.5 unless told otherwise, and judge it on the later ones; `fixed`
    takes the pre-registered `value` and judges it on all. Which way diverged trials are guessed
    is learnt from the first of them (`diverged.settled`).
    """

    planned: int
    threshold: Literal["past", "holdout", "fixed"] = "past"
    calibration: float | None = None
    value: float = math.nan
    fair: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.threshold not in DEFAULT_SHARES:
            known = ", ".join(DEFAULT_SHARES)
            raise ValueError(f"threshold must be one of {known}, got {self.threshold!r}")
        if self.calibration is not None and not 0 < self.calibration < 1:
            raise ValueError(f"calibration must lie in (0, 1), got {self.calibration}")
        if (self.threshold == "fixed") != math.isfinite(self.value):
            raise ValueError(f"threshold: fixed goes with a finite value, got {self.value}")
        self._log = TrialLog()

    @property
    def learns(self) -> bool:
        """Unless the threshold was registered beforehand."""
        return self.threshold != "fixed"

    def _fold(self, scores: Scores, members: Members) -> None:
        self._log.append(scores, members)

    def _miss(self, members: Members) -> None:
        self._log.miss(members)

    def _judge(self, gain: Gain, alpha: float) -> Judged:
        """Errors, on the later trials, of the threshold that shows most on the earlier ones."""
        scores, members = self._log.arrays()
        first, threshold = 0, self.value
        if self.threshold != "fixed":
            share = self.calibration or DEFAULT_SHARES[self.threshold]
            first = math.ceil(share * self.planned)
            past = Worlds.of(settled(scores[:first], members[:first], 0), members[:first])
            threshold = best_test(past, two_rate_uppers(past.sizes, alpha), gain)[1]
        scores = settled(scores, members, first or math.ceil(LEARN * self.planned))
        judged = Worlds.of(scores[first:], members[first:])
        false_positives, false_negatives = judged.errors(threshold)
        return Judged(
            int(false_positives[0]), int(false_negatives[0]), judged.sizes, float(threshold)
        )


def two_rate_uppers(sizes: tuple[int, int], alpha: float) -> tuple[Upper, Upper]:
    """Clopper-Pearson bounds at `alpha` / 2 each: the upper ends of two-sided intervals."""
    out, inside = sizes
    return (
        lambda counts: np.asarray(clopper_pearson_upper(counts, out, alpha / 2)),
        lambda counts: np.asarray(clopper_pearson_upper(counts, inside, alpha / 2)),
    )


def best_test(worlds: Worlds, uppers: tuple[Upper, Upper], gain: Gain) -> tuple[float, float]:
    """The largest gain over all thresholds, and that threshold; (0, NaN) when a world is empty.

    `gain` maps bounds on both error rates to what they show, and falls in either. Bounds are
    tabulated per count; large worlds are tabulated coarsely, which discards every threshold that
    cannot be best, and computed exactly for the few that remain.
    """
    thresholds = worlds.midpoints()
    if min(worlds.sizes) == 0 or len(thresholds) == 0:
        return 0.0, math.nan
    counts = worlds.errors(thresholds)
    step = max(1, max(worlds.sizes) // _TABLE_SIZE)
    tables = [
        upper(np.minimum(np.arange(0, n + step, step), n))
        for upper, n in zip(uppers, worlds.sizes, strict=True)
    ]
    floors = [table[count // step] for table, count in zip(tables, counts, strict=True)]
    gains = gain(floors[0], floors[1])
    if step > 1:
        ceilings = [table[-(-count // step)] for table, count in zip(tables, counts, strict=True)]
        kept = np.flatnonzero(gains >= gain(ceilings[0], ceilings[1]).max())
        thresholds = thresholds[kept]
        gains = gain(uppers[0](counts[0][kept]), uppers[1](counts[1][kept]))
    best = np.flatnonzero(gains == gains.max())
    middle = best[len(best) // 2]
    return float(gains[middle]), float(thresholds[middle])
