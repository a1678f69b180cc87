"""Bounds from how often a predictable guess hits the secret bit.

Trial i is guessed "in" if its score is above a cut that depends on trials before i alone (`cut`).
Because the bit is a fair coin independent of the past, P(hit | past) ≤ Φ(μ/2) under μ-GDP for
any such rule, so the number of hits is dominated by a binomial, at any stopping time.
"""

import functools
import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from . import cut, gdp
from .base import Estimator, Members, Scores
from .cut import Cut
from .e_process import anytime_lower
from .error_rates import clopper_pearson_lower
from .lower_bound import Estimate, Family, Status, TradeOff
from .trial_log import TrialLog


@dataclass
class GuessCounter:
    """Counts correct guesses by a threshold: the midpoint of both worlds' means, or a `cut`.

    The first `warmup` trials, and all until both worlds were observed, only set the threshold.
    Afterwards a diverged trial (NaN, ±inf) is guessed to be of the world in which more have
    diverged so far, "in" while they are equal; it changes no mean.

    Attributes:
        warmup: number of first trials that are not guessed.
        trials: number of trials so far.
        guesses: how many of them were guessed.
        hits: how many guesses were correct.
        diverged: how many trials diverged in each world, (out, in).
    """

    warmup: int = 20
    trials: int = 0
    guesses: int = 0
    hits: int = 0
    diverged: tuple[int, int] = (0, 0)
    _sums: tuple[float, float] = (0.0, 0.0)  # sums of finite scores, (out, in)
    _counts: tuple[int, int] = (0, 0)  # finite scores, (out, in)
    _log: TrialLog = field(default_factory=TrialLog)  # up to `cut.LAST` trials
    _cut: Cut | None = None  # replaces the midpoint as threshold
    _next_fit: int = cut.FIRST  # trials after which the cut is fitted again

    def fold(
        self,
        scores: Scores,
        members: Members,
        batch: int = 1,
    ) -> tuple[Members, Members]:
        """Adds trials in order.

        Args:
            scores: float64 [n].
            members: the secret bits, bool [n].
            batch: number of successive trials, such as the canaries of a run, that are all guessed
                by the trials before the first of them.

        Returns:
            Whether each trial was guessed, and whether that was correct, bool [n] each.
        """
        parts: list[tuple[Members, Members]] = []
        start = 0
        while start < len(scores) or not parts:  # once even without trials, for an empty result
            self._refit_cut()
            batches = math.ceil((self._next_fit - self.trials) / batch)  # until the next fit
            stop = start + batches * batch
            parts.append(self._fold(scores[start:stop], members[start:stop], batch))
            start = stop
        guessed, right = (np.concatenate(part) for part in zip(*parts, strict=True))
        return guessed, right

    def _refit_cut(self) -> None:
        """Fits the cut again if that is due: whenever there are GROWTH times as many trials."""
        if self._next_fit <= self.trials and self._next_fit <= cut.LAST:
            self._cut = cut.fit(*self._log.arrays())
        while self._next_fit <= self.trials:
            self._next_fit = math.ceil(cut.GROWTH * self._next_fit)
        if self._next_fit > cut.LAST:
            self._log = TrialLog()  # frees its memory: a sweep has many counters

    def _fold(
        self,
        scores: Scores,
        members: Members,
        batch: int,
    ) -> tuple[Members, Members]:
        """Guesses trials by the current threshold rule, then adds them to the totals.

        Arguments and results are those of `fold`.
        """
        finite = np.isfinite(scores)
        sums, score_counts, diverged = [], [], []  # running totals by world: out, in
        for world in (0, 1):
            in_world = members == bool(world)
            usable = finite & in_world
            with np.errstate(over="ignore", invalid="ignore"):
                sums.append(_totals(self._sums[world], np.where(usable, scores, 0.0)))
            score_counts.append(_totals(self._counts[world], usable))
            diverged.append(_totals(self.diverged[world], ~finite & in_world))
        # A whole batch is guessed by the totals before its first trial.
        before = np.arange(len(scores)) // batch * batch
        n_out = score_counts[0][before]
        n_in = score_counts[1][before]
        diverged_out = diverged[0][before]
        diverged_in = diverged[1][before]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            mean_out = sums[0][before] / n_out
            mean_in = sums[1][before] / n_in
            threshold = mean_out / 2 + mean_in / 2
        # If every trial of a world has diverged so far, a finite score points to the other world.
        threshold = np.where(n_in == 0, np.inf, threshold)
        threshold = np.where(n_out == 0, -np.inf, threshold)
        above = scores > threshold if self._cut is None else self._cut.guesses(scores)
        guess = np.where(finite, above, diverged_in >= diverged_out)
        both_observed = (n_out + diverged_out > 0) & (n_in + diverged_in > 0)
        guessed = both_observed & (self.trials + before >= self.warmup)
        right = guessed & (guess == members)

        self.trials += len(scores)
        self.guesses += int(guessed.sum())
        self.hits += int(right.sum())
        self._sums = (float(sums[0][-1]), float(sums[1][-1]))
        self._counts = (int(score_counts[0][-1]), int(score_counts[1][-1]))
        self.diverged = (int(diverged[0][-1]), int(diverged[1][-1]))
        if self._next_fit <= cut.LAST:
            self._log.append(scores, members)
        return guessed, right

    def miss(self, members: Members) -> None:
        """Adds trials without an output, which count as wrong guesses after the warm-up."""
        after = self.trials + len(members)
        self.guesses += max(after - max(self.trials, self.warmup), 0)
        self.trials = after

    @property
    def threshold(self) -> float:
        """The threshold for the next trial; NaN until both worlds were observed."""
        if self._cut is not None:
            return self._cut.threshold
        if min(self._counts) == 0:
            return math.nan
        mean_out, mean_in = (total / n for total, n in zip(self._sums, self._counts, strict=True))
        return mean_out / 2 + mean_in / 2


def _totals(start: float, steps: NDArray[Any]) -> NDArray[Any]:
    """Returns the running total from `start` on, before each step and after the last: [n + 1]."""
    return np.cumsum(np.concatenate([[start], steps]))


@dataclass
class ThroughCurve(Estimator):
    """Base: an estimator that bounds a hit rate, and converts it to ε by a trade-off curve.

    `curve: gaussian` converts the rate to μ = 2 Φ⁻¹(rate); `any` assumes no trade-off curve;
    `claimed` takes those of `family`, which the claimed mechanism has with more noise or less.
    """

    curve: Literal["gaussian", "any", "claimed"] = "gaussian"  # curve by which a hit rate becomes ε
    family: Family | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.curve not in ("gaussian", "any", "claimed"):
            raise ValueError(f"curve must be gaussian, any or claimed, got {self.curve!r}")

    def _read(
        self,
        rate: float,
        delta: float,
    ) -> tuple[float, float]:
        """Converts a hit rate of at least `rate` to (ε, μ); μ is NaN if no curve is assumed."""
        if self.curve == "any":
            return epsilon_from_accuracy(rate, delta), math.nan
        mu = mu_from_accuracy(rate)
        if self.curve == "gaussian":
            return _gaussian_epsilon(mu, delta), mu
        if self.family is None:
            raise ValueError("curve is claimed, but of no mechanism; give a family")
        return self.family.epsilon(rate, delta), mu

    def _status_at(self, mu: float) -> Status:
        """Implements `Estimator._status_at`: by the curve with which the rate was converted."""
        if self.curve == "any":
            return Status.CERTIFIED
        if self.curve == "gaussian" or self.family is None:
            return Status.IF_GAUSSIAN
        is_gaussian = self.family.trade_off is TradeOff.GAUSSIAN
        return Status.IF_GAUSSIAN if is_gaussian else Status.IF_CLAIMED


@dataclass
class Guesses(ThroughCurve):
    """Base: an estimator that bounds the rate of a stream of hits and misses."""

    warmup: int = 20  # number of first trials that are not guessed

    def __post_init__(self) -> None:
        """Begins to count. Raises ValueError for an option out of its bounds."""
        super().__post_init__()
        if self.warmup < 0:
            raise ValueError(f"warmup must be at least 0, got {self.warmup}")
        self._counter = GuessCounter(self.warmup)

    def _fold(self, scores: Scores, members: Members) -> None:
        self._counter.fold(scores, members)

    def _miss(self, members: Members) -> None:
        self._counter.miss(members)

    @abstractmethod
    def _rate(self, alpha: float) -> float:
        """Returns a bound that exceeds the true hit rate with probability `alpha` at most."""

    def bound(self, delta: float, confidence: float) -> Estimate:
        """Bounds ε by the hit rate so far; the threshold is that of the next guess."""
        counter = self._counter
        rate = self._rate(1 - confidence)
        level = delta, confidence
        return self._estimate(*self._read(rate, delta), level, counter.trials, counter.threshold)


@dataclass
class Accuracy(Guesses):
    """Fixed-R bound: μ ≥ 2 Φ⁻¹(lower Clopper-Pearson bound of the hit rate, one-sided)."""

    name = "accuracy"
    status = Status.IF_GAUSSIAN

    def _rate(self, alpha: float) -> float:
        counter = self._counter
        return float(clopper_pearson_lower(counter.hits, counter.guesses, alpha))


@dataclass
class Anytime(Guesses):
    """Time-uniform bound: valid at all looks simultaneously, at the stated confidence.

    Hit rates are refuted by a one-sided Beta mixture (`e_process`). The bound of the best look so
    far remains valid.
    """

    name = "anytime"
    status = Status.IF_GAUSSIAN
    interim_valid = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._best_rate = -math.inf  # largest approximate lower bound after any trial so far
        self._best_look = (0, 0)  # hits and guesses after that trial

    def _fold(self, scores: Scores, members: Members) -> None:
        """Counts guesses and hits, and records the trial after which the bound is largest."""
        if len(scores) == 0:
            return
        hits_before, guesses_before = self._counter.hits, self._counter.guesses
        guessed, right = self._counter.fold(scores, members)
        hits = hits_before + np.cumsum(right)
        guesses = guesses_before + np.cumsum(guessed)
        # An approximate lower bound on the hit rate after each trial chooses a look: the rate so
        # far less √(6 + ln n) standard deviations. Any choice is valid, since bounds hold at all
        # looks simultaneously. The added numbers keep n above 0, and the rate inside of (0, 1).
        n = guesses + 1.0
        rate = (hits + 0.5) / n
        lower = rate - np.sqrt((6 + np.log(n)) * rate * (1 - rate) / n)
        best = int(np.argmax(lower))
        if lower[best] > self._best_rate:
            self._best_rate = float(lower[best])
            self._best_look = int(hits[best]), int(guesses[best])

    def _rate(self, alpha: float) -> float:
        """Returns the bound of this look, or the best look's bound if that is larger."""
        looks = {(self._counter.hits, self._counter.guesses), self._best_look}
        return max(anytime_lower(*look, alpha) for look in looks)


# Looks and δ often repeat the same numbers of hits, and so the same μ.
_gaussian_epsilon = functools.lru_cache(gdp.epsilon)


def mu_from_accuracy(rate: float) -> float:
    """Returns 2 Φ⁻¹(rate), the μ whose best guesses have this hit rate; 0 for chance or worse."""
    return 2 * float(special.ndtri(rate)) if rate > 0.5 else 0.0


def epsilon_from_accuracy(rate: float, delta: float) -> float:
    """Returns the ε whose best guesses have this hit rate; 0 for chance or worse.

    The best hit rate under (ε, δ)-DP is (e^ε + δ) / (e^ε + 1) (Kairouz et al. 2015).

    Args:
        rate: hit rate, in [0, 1].
        delta: δ, in [0, 1).
    """
    if rate >= 1:
        return math.inf
    return math.log(max((rate - delta) / (1 - rate), 1.0))
