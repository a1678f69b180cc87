"""Bounds from how often a predictable guess hits the secret bit.

Trial i is guessed "in" when its score exceeds a threshold computed from trials before i only.
Because the bit is a fair coin independent of the past, P(hit | past) ≤ Φ(μ/2) under μ-GDP for
any such rule, so the number of hits is dominated by a binomial, at any stopping time
(statistics of the design, 1.4 and 1.10a).
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
from scipy import optimize, special

from . import gdp
from .base import Estimate, Estimator, Members, Scores, Status
from .binomial import check_alpha, clopper_pearson_lower


@dataclasses.dataclass
class GuessCounter:
    """Counts hits of "score above the midpoint of the two running class means".

    The first `warmup` trials, and all until both worlds were seen, only set the threshold: to
    skip them is itself decided from the past, so it costs trials but no validity. A diverged
    trial (NaN, ±inf) is a wrong guess in either world and moves no mean.
    """

    warmup: int = 20
    trials: int = 0
    guesses: int = 0
    hits: int = 0
    _sums: tuple[float, float] = (0.0, 0.0)
    _counts: tuple[int, int] = (0, 0)

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials in order; cumulative sums run on, so any split gives the same counts."""
        finite = np.isfinite(scores)
        totals, seen = [], []
        for world in (0, 1):
            inside = finite & (members == bool(world))
            steps = np.where(inside, scores, 0.0)
            totals.append(np.cumsum(np.concatenate([[self._sums[world]], steps])))
            seen.append(np.cumsum(np.concatenate([[self._counts[world]], inside])))
        with np.errstate(invalid="ignore", divide="ignore"):
            threshold = (totals[0] / seen[0])[:-1] / 2 + (totals[1] / seen[1])[:-1] / 2
        index = self.trials + np.arange(len(scores))
        guessed = (index >= self.warmup) & (seen[0][:-1] > 0) & (seen[1][:-1] > 0)
        hit = guessed & finite & ((scores > threshold) == members)
        self.trials += len(scores)
        self.guesses += int(guessed.sum())
        self.hits += int(hit.sum())
        self._sums = (float(totals[0][-1]), float(totals[1][-1]))
        self._counts = (int(seen[0][-1]), int(seen[1][-1]))

    @property
    def threshold(self) -> float:
        """The threshold for the next trial, NaN until both worlds were seen."""
        if min(self._counts) == 0:
            return math.nan
        return self._sums[0] / self._counts[0] / 2 + self._sums[1] / self._counts[1] / 2


@dataclasses.dataclass
class Accuracy(Estimator):
    """Fixed-R bound: μ ≥ 2 Φ⁻¹(lower Clopper-Pearson bound of the hit rate, one-sided)."""

    warmup: int = 20
    name: ClassVar[str] = "accuracy"
    status: ClassVar[Status] = Status.CERTIFIED

    def __post_init__(self) -> None:
        self._counter = GuessCounter(_checked_warmup(self.warmup))

    def _fold(self, scores: Scores, members: Members) -> None:
        self._counter.fold(scores, members)

    def bound(self, delta: float, confidence: float) -> Estimate:
        counter = self._counter
        lower = clopper_pearson_lower(counter.hits, counter.guesses, 1 - confidence)
        mu = mu_from_accuracy(lower)
        return self._estimate(
            gdp.epsilon(mu, delta), mu, (delta, confidence), counter.trials, counter.threshold
        )


@dataclasses.dataclass
class Anytime(Estimator):
    """Time-uniform bound: holds at every look at once, at the stated confidence.

    A one-sided Beta(1, 1) mixture over hit rates above p is a supermartingale for every
    conditional hit rate ≤ p; p is refuted when it reaches 1/alpha (Ville's inequality).
    """

    warmup: int = 20
    name: ClassVar[str] = "anytime"
    status: ClassVar[Status] = Status.CERTIFIED
    interim_valid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._counter = GuessCounter(_checked_warmup(self.warmup))

    def _fold(self, scores: Scores, members: Members) -> None:
        self._counter.fold(scores, members)

    def bound(self, delta: float, confidence: float) -> Estimate:
        counter = self._counter
        mu = mu_from_accuracy(anytime_lower(counter.hits, counter.guesses, 1 - confidence))
        return self._estimate(
            gdp.epsilon(mu, delta), mu, (delta, confidence), counter.trials, counter.threshold
        )


def mu_from_accuracy(rate: float) -> float:
    """μ at which the best guess is right at `rate`: 2 Φ⁻¹(rate), 0 for chance or worse."""
    return 2 * float(special.ndtri(rate)) if rate > 0.5 else 0.0


def log_mixture(rate: float, hits: int, trials: int, prior: tuple[float, float] = (1, 1)) -> float:
    """Log of the mixture e-process against "the conditional hit rate never exceeds `rate`"."""
    a, b = prior
    misses = trials - hits
    return float(
        special.betaln(a + hits, b + misses)
        - special.betaln(a, b)
        + _log_betaincc(a + hits, b + misses, rate)
        - _log_betaincc(a, b, rate)
        - hits * math.log(rate)
        - misses * math.log1p(-rate)
    )


def anytime_lower(
    hits: int, trials: int, alpha: float, prior: tuple[float, float] = (1, 1)
) -> float:
    """Largest refuted hit rate ≥ 1/2; 0.5 when chance itself is not refuted.

    Raises:
        ValueError: `alpha` outside (0, 1) or hits outside 0..trials.
    """
    check_alpha(alpha)
    if not 0 <= hits <= trials:
        raise ValueError(f"hits must lie in 0..{trials}, got {hits}")
    target = -math.log(alpha)

    def excess(rate: float) -> float:
        return log_mixture(rate, hits, trials, prior) - target

    if trials == 0 or excess(0.5) <= 0:
        return 0.5
    # Just below the observed rate the mixture has lost its evidence; between the two it crosses.
    top = min(hits / trials, 1 - 1e-15)
    if excess(top) >= 0:
        return top
    return float(optimize.brentq(excess, 0.5, top, xtol=1e-14, rtol=1e-14))


def _log_betaincc(a: float, b: float, x: float) -> float:
    tail = special.betaincc(a, b, x)
    return math.log(tail) if tail > 0 else -math.inf


def _checked_warmup(warmup: int) -> int:
    if warmup < 0:
        raise ValueError(f"warmup must be at least 0, got {warmup}")
    return warmup
