"""Interim analyses of the hits of declared trials: alpha spending, computed exactly.

The error is spent over a fixed grid of looks (Lan, DeMets 1983). For every candidate hit rate p the
boundary at each look is the smallest count that keeps the probability of ever crossing, summed
exactly over binomial increments, within the error that may be spent by then. A crossing refutes p.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln, ndtr, ndtri

from .base import Members, Scores
from .error_rates import Counts, Floats, as_floats, in_unit, root
from .guess_count_bound import Guesses
from .lower_bound import Status

_DIRECT = 1_000_000  # multiplications from which convolving by Fourier transform is faster
_NEGLIGIBLE = 1e-18  # mass of paths with so few hits that they are dropped
# Distances below a root, as shares of its distance from 1/2, at which rates may not be refuted.
_HOLES = np.geomspace(3e-3, 3e-5, 5)
Look = tuple[int, int]  # numbers of guesses and of hits so far


@dataclass
class GroupSequential(Guesses):
    """Bound that holds at all looks simultaneously, for a declared number of trials.

    Looks happen at fixed shares of the planned trials, whatever the size of the packs, so the
    bound is that of the last look. Any of them may stop a run. Trials beyond the plan add
    nothing; `anytime` is for audits whose `trials` are raised after a look.
    """

    looks: int = 50  # looks at equal shares of the trials
    spending: Literal["obrien-fleming", "pocock"] = "obrien-fleming"  # of α over looks
    name = "group-sequential"
    status = Status.IF_GAUSSIAN
    interim_valid = True
    within_planned = True

    def __post_init__(self) -> None:
        """Checks the options, and places looks evenly over the planned trials."""
        super().__post_init__()
        if self.looks < 1:
            raise ValueError(f"looks must be at least 1, got {self.looks}")
        if self.spending not in ("obrien-fleming", "pocock"):
            raise ValueError(f"spending must be obrien-fleming or pocock, got {self.spending!r}")
        shares = np.arange(1, self.looks + 1) / self.looks
        self._ends = np.unique(np.ceil(shares * self.planned).astype(np.int64))
        self._looks: list[Look] = []
        self._refuted: dict[float, float] = {}  # largest refuted rate at the last look, by alpha

    def _fold(self, scores: Scores, members: Members) -> None:
        for part in self._parts(len(scores)):
            self._counter.fold(scores[part], members[part])

    def _miss(self, members: Members) -> None:
        for part in self._parts(len(members)):
            self._counter.miss(members[part])

    def _parts(self, trials: int) -> Iterator[slice]:
        """Yields parts of the next trials, split at every look.

        Once the caller has added the part before a look, numbers of guesses and hits are recorded.
        """
        start = 0
        ends = self._ends - self._counter.trials
        for end in ends[(ends > 0) & (ends <= trials)].tolist():
            yield slice(start, end)
            self._looks.append((self._counter.guesses, self._counter.hits))
            self._refuted = {}
            start = end
        yield slice(start, trials)

    def _rate(self, alpha: float) -> float:
        """Returns the largest hit rate that the looks so far refute at `alpha`; 1/2 before any."""
        if not self._looks:
            return 0.5
        if alpha not in self._refuted:  # bounds are read at more than one level
            shares = self._ends[: len(self._looks)] / self.planned
            budget = spend(shares, alpha, self.spending)
            self._refuted[alpha] = refuted_rate(self._looks, budget)
        return self._refuted[alpha]


def spend(shares: ArrayLike, alpha: float, spending: str) -> Floats:
    """Returns the error that may be spent by each share of the trials, float64 [looks].

    Args:
        shares: shares of the declared trials, in (0, 1].
        alpha: error at share 1.
        spending: `pocock` or `obrien-fleming`.
    """
    in_unit("alpha", alpha)
    f = as_floats(shares)
    if spending == "pocock":
        return np.asarray(alpha * np.log1p(math.expm1(1) * f))  # (e - 1) f
    quantile = ndtri(alpha / 2) / np.sqrt(f)
    return np.asarray(2 * ndtr(quantile))


def refuted_rate(looks: Sequence[Look], budget: Floats) -> float:
    """Returns the largest hit rate that the last look refutes; 0.5 if chance is not refuted.

    Boundaries are whole numbers, so a rate a little below a refuted one may not be refuted. So
    rates at some distances below the root are also tested: those at which this was observed.

    Args:
        looks: guesses and hits so far at each look.
        budget: the error that may be spent by each look, float64 [looks].
    """

    def excess(rate: float) -> float:
        """Returns how much the p-value of a rate exceeds the error that may be spent."""
        return _excess(rate, looks, budget)

    guesses, hits = looks[-1]
    observed = min(hits / guesses, 1 - 1e-15) if guesses else 0.5
    if observed <= 0.5 or excess(0.5) > 0:
        return 0.5
    last_root = root(excess, 0.5, observed, xtol=1e-9, rtol=1e-12)
    below = (last_root - (last_root - 0.5) * _HOLES).tolist()
    for low, high in itertools.pairwise([0.5, *below]):
        if excess(high) > 0:
            return root(excess, low, high, xtol=1e-9, rtol=1e-12)
    return last_root


def _excess(
    rate: float,
    looks: Sequence[Look],
    budget: Floats,
) -> float:
    """Returns how much the p-value of a hit rate exceeds the error that is due at the last look.

    The p-value is P(no crossing before the last look, and there at least as many hits as observed).
    If it is below the error that is due, the rate is refuted.

    Args:
        rate: the hit rate.
        looks: guesses and hits so far at each look.
        budget: the error that may be spent by each look, float64 [looks].
    """
    paths = np.ones(1)  # P(no crossing yet, first + i hits), [i]
    first = 0
    crossed = 0.0  # P(a crossing at an earlier look)
    guesses_before = 0
    increments = {}  # distribution of new hits, by number of new guesses
    for index, (guesses, hits) in enumerate(looks):
        step = guesses - guesses_before
        guesses_before = guesses
        if step not in increments:
            k, log_ways = _choices(step)
            log_probabilities = log_ways + k * math.log(rate) + (step - k) * math.log1p(-rate)
            increments[step] = np.asarray(np.exp(log_probabilities))
        paths = _convolved(paths, increments[step])
        tails = paths[::-1].cumsum()  # sums from the most hits down, [n]
        n = len(tails)
        allowed = float(budget[index]) - crossed
        if index == len(looks) - 1:
            from_most = n - 1 - (hits - first)  # index of `hits`, counted from the most hits down
            return float(tails[from_most] if 0 <= from_most < n else 0.0) - allowed
        # Numbers of hits from the boundary on: as many as the allowed error has room for.
        crossing = int(tails.searchsorted(allowed, side="right"))
        if crossing:
            crossed += float(tails[crossing - 1])
        boundary = n - crossing
        # Paths with the fewest hits, whose mass is negligible, are dropped: one at least stays.
        unlucky = n - int(tails.searchsorted(tails[-1] - _NEGLIGIBLE))
        low = max(min(unlucky, boundary) - 1, 0)
        paths = paths[low:boundary]
        first += low
    return -math.inf


def _convolved(a: Floats, b: Floats) -> Floats:
    """Returns the distribution of the sum of two independent counts, by the faster algorithm.

    Args:
        a: probabilities of the first count from its smallest value on, float64.
        b: those of the second count.
    """
    if len(a) * len(b) < _DIRECT:
        return np.convolve(a, b)
    size = len(a) + len(b) - 1
    padded = 1 << (size - 1).bit_length()
    spectrum = np.fft.rfft(a, padded) * np.fft.rfft(b, padded)
    product = np.fft.irfft(spectrum, padded)[:size]
    return np.maximum(product, 0.0)  # rounding may leave about -1e-17


@functools.cache
def _choices(n: int) -> tuple[Counts, Floats]:
    """Returns the numbers of hits among n guesses, 0..n, and the log of the ways to each."""
    k = np.arange(n + 1)
    log_ways = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return k, log_ways
