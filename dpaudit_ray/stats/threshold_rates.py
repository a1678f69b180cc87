"""Bounds from both error rates of one test, "guess in when the score reaches h".

Both rates get a Clopper-Pearson bound, on trials that had no part in choosing h. Without any
assumption, (ε, δ)-DP forces α + e^ε β ≥ 1 - δ and β + e^ε α ≥ 1 - δ on every test with
false-positive rate α and false-negative rate β (Nasr et al. 2021, eq. 4-5, with the inequality the
right way round). A μ-GDP mechanism forces Φ⁻¹(1 - α) - Φ⁻¹(β) ≤ μ (Nasr et al. 2023, section 4).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from .base import Estimator, Members, Scores
from .error_rates import Counts, Rates, clopper_pearson_upper
from .lower_bound import Estimate, Status
from .trial_log import LEARN, Logged, settled

# Maps upper bounds on false-positive and false-negative rates [n] to what they show [n].
Gain = Callable[[Rates, Rates], Rates]
SHARES = {"past": 0.2, "holdout": 0.5, "fixed": 0.0}  # of trials that choose a threshold
_MOST_BLOCKS, _PARTS = 1024, 8  # of thresholds, at first; of each block that stays


@dataclasses.dataclass
class Worlds:
    """Scores of both worlds, sorted, ±inf where `settled`; misses as counts: errors everywhere."""

    outside: Scores
    inside: Scores
    missed_outside: int
    missed_inside: int

    @classmethod
    def from_scores(cls, scores: Scores, members: Members) -> Worlds:
        """Splits float64 [n] scores, NaN for misses, by their bool [n] members."""
        counted = ~np.isnan(scores)
        outside, inside = scores[counted & ~members], scores[counted & members]
        outside.sort()  # in place: there may be millions
        inside.sort()
        missed = ~counted & ~members, ~counted & members
        return cls(outside, inside, int(missed[0].sum()), int(missed[1].sum()))

    @classmethod
    def observed(cls, scores: Scores, members: Members) -> Worlds:
        """Splits a whole audit's scores, float64 [R]: what is not finite has diverged."""
        marked = np.where(np.isfinite(scores), scores, np.inf)
        return cls.from_scores(settled(marked, members, math.ceil(LEARN * len(marked))), members)

    @property
    def sizes(self) -> tuple[int, int]:
        """Trials per world, (out, in), misses included."""
        return len(self.outside) + self.missed_outside, len(self.inside) + self.missed_inside

    @property
    def pooled(self) -> Scores:
        """All scores, sorted."""
        both = np.concatenate([self.outside, self.inside])
        both.sort(kind="stable")  # merges parts that are sorted, in place
        return both

    def midpoints(self, most: int | None = None) -> Scores:
        """Alg. 4's candidates, rising: midpoints of pooled scores; of many about `most`."""
        pooled = self.pooled
        if most is None or len(pooled) - 1 <= most:
            return _between(pooled[:-1], pooled[1:])
        last = len(pooled) - 2
        near = np.geomspace(1, last + 1, most // 4).astype(np.int64) - 1
        evenly = np.linspace(0, last, most // 2).astype(np.int64)
        places = np.unique(np.concatenate([near, evenly, last - near]))
        return _between(pooled[places], pooled[places + 1])

    def errors(self, thresholds: npt.ArrayLike) -> tuple[Counts, Counts]:
        """False positives and false negatives at each threshold."""
        h = np.atleast_1d(np.asarray(thresholds, dtype=np.float64))
        false_positives = len(self.outside) - np.searchsorted(self.outside, h, side="left")
        false_negatives = np.searchsorted(self.inside, h, side="left")
        return false_positives + self.missed_outside, false_negatives + self.missed_inside


@dataclasses.dataclass
class AtOneThreshold(Logged):
    """Mixin: a threshold fixed before the trials it is judged on, and the errors it made there.

    `past` and `holdout` spend the first share of the planned trials, 0.2 and 0.5, on choosing
    the threshold, and judge it on the later ones; `fixed` judges the pre-registered `value` on
    all. Which way diverged trials are guessed is learnt from the first of them.
    """

    planned: int
    threshold: Literal["past", "holdout", "fixed"] = "past"  # how it is chosen
    value: float = math.nan  # of the threshold, where `fixed`
    fair: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.threshold not in SHARES:
            choices = ", ".join(SHARES)
            raise ValueError(f"threshold must be one of {choices}, got {self.threshold!r}")
        if (self.threshold == "fixed") != math.isfinite(self.value):
            raise ValueError(f"threshold: fixed goes with a finite value, got {self.value}")
        self.learns = self.threshold != "fixed"
        super().__post_init__()

    def _judge(self, gain: Gain, alpha: float) -> tuple[float, float]:
        """(what the best threshold of earlier trials shows on later ones, that threshold)."""
        scores, members = self._log.arrays()
        first, threshold = 0, self.value
        if self.threshold != "fixed":
            first = math.ceil(SHARES[self.threshold] * self.planned)
            past = Worlds.from_scores(settled(scores[:first], members[:first], 0), members[:first])
            threshold = best_test(past, alpha, gain)[1]
        scores = settled(scores, members, first or math.ceil(LEARN * self.planned))[first:]
        inside = members[first:]
        sizes = int((~inside).sum()), int(inside.sum())
        if math.isnan(threshold) or min(sizes) == 0:
            return 0.0, float(threshold)
        # What was missed is NaN, neither below nor above: an error in either world.
        errors = (~inside & ~(scores < threshold)).sum(), (inside & ~(scores >= threshold)).sum()
        return float(gain(*rates_at_most(errors, sizes, alpha))[0]), float(threshold)


def best_test(worlds: Worlds, alpha: float, gain: Gain) -> tuple[float, float]:
    """The largest gain over all thresholds, and that threshold; (0, NaN) when a world is empty.

    `gain` maps bounds on both error rates, at `alpha` / 2 each, to what they show, and falls in
    either. A block of neighbouring thresholds is left out if not even its lowest rates, of
    either kind, gain what some threshold does. Blocks that stay are divided.
    """
    pooled = worlds.pooled
    if min(worlds.sizes) == 0 or len(pooled) < 2:
        return 0.0, math.nan
    count, width = len(pooled) - 1, 1
    while count // width > _MOST_BLOCKS:
        width *= _PARTS
    places = np.arange(0, count, width)

    def rates(places: Counts) -> tuple[Rates, Rates]:
        errors = worlds.errors(_between(pooled[places], pooled[places + 1]))
        return rates_at_most(errors, worlds.sizes, alpha)

    while width > 1:
        fpr, fnr = rates(places)
        ends = np.minimum(places + width, count) - 1
        alarms, _ = worlds.errors(_between(pooled[ends], pooled[ends + 1]))
        fpr_at_end = clopper_pearson_upper(alarms, worlds.sizes[0], alpha / 2)
        kept = places[gain(fpr_at_end, fnr) >= gain(fpr, fnr).max()]
        width //= _PARTS
        places = (kept[:, None] + width * np.arange(_PARTS)).ravel()
        places = places[places < count]
    gains = gain(*rates(places))
    best = np.flatnonzero(gains == gains.max())
    middle = best[len(best) // 2]
    at = places[middle]
    return float(gains[middle]), float(_between(pooled[at], pooled[at + 1]))


def _between(low: npt.ArrayLike, high: npt.ArrayLike) -> Scores:
    """Midpoints of pairs of scores; between a finite and a diverged one, beside the finite one."""
    above = np.where(np.isinf(low), high, np.nextafter(low, np.inf))
    with np.errstate(invalid="ignore"):
        between = np.asarray(low) / 2 + np.asarray(high) / 2
    return np.where(np.isfinite(low) & np.isfinite(high), between, above)


@dataclasses.dataclass
class EpsDelta(AtOneThreshold, Estimator):
    """Assumption-free bound at a threshold fixed before the trials it is judged on."""

    name: ClassVar[str] = "eps-delta"
    status: ClassVar[Status] = Status.CERTIFIED

    def bound(self, delta: float, confidence: float) -> Estimate:
        shown, at = self._judge(lambda a, b: epsilon_of_rates(a, b, delta), 1 - confidence)
        return self._estimate(shown, math.nan, (delta, confidence), len(self._log), at)


def epsilon_of_rates(fpr: npt.ArrayLike, fnr: npt.ArrayLike, delta: float) -> Any:
    """The smallest ε ≥ 0 at which a test with these error rates is possible; no test is flipped."""
    a, b = np.asarray(fpr, dtype=np.float64), np.asarray(fnr, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        up = np.log(np.maximum(1 - delta - a, 0) / b)
        down = np.log(np.maximum(1 - delta - b, 0) / a)
    return np.fmax(np.fmax(up, down), 0.0)


def rates_at_most(
    errors: tuple[npt.ArrayLike, npt.ArrayLike], sizes: tuple[float, float], alpha: float
) -> tuple[Rates, Rates]:
    """Upper bounds on false-positive and false-negative rates, float64 [n], at `alpha` / 2 each."""
    false_positives, false_negatives = (
        np.asarray(clopper_pearson_upper(np.atleast_1d(counts), trials, alpha / 2))
        for counts, trials in zip(errors, sizes, strict=True)
    )
    return false_positives, false_negatives


def mu_of_rates(fpr: Rates, fnr: Rates) -> Rates:
    """The μ of the Gaussian trade-off curve through each pair of error rates, float64 [n]."""
    return np.asarray(-special.ndtri(fpr) - special.ndtri(fnr))
