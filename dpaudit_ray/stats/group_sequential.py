"""Looking while it runs when the number of trials is declared: alpha spending, computed exactly.

The error is spent over a fixed grid of looks (Lan, DeMets 1983). For every candidate hit rate p the
boundary at each look is the smallest count that keeps the probability of ever crossing, summed
exactly over binomial increments, within what may be spent by then. A crossing refutes p.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import special

from .base import Members, Scores
from .error_rates import Floats, in_unit, root
from .guess_count_bound import Guesses
from .lower_bound import Status

_DIRECT = 1_000_000  # multiplications from which convolving by Fourier transform is faster
_NEGLIGIBLE = 1e-18  # mass of paths so unlucky that they cannot cross any more
_HOLES = np.geomspace(3e-3, 3e-5, 5)  # relative distances below a root where rates may stand
Look = tuple[int, int]  # guesses and hits so far


@dataclasses.dataclass
class GroupSequential(Guesses):
    """Bound that holds at every look at once, for a declared number of trials.

    Looks happen at fixed shares of the planned trials, whatever the size of the packs, so the
    bound is that of the last look. Any of them may stop a run. Trials beyond the plan add
    nothing; `anytime` is for audits whose `trials` are raised after a look.
    """

    looks: int = 50  # at equal shares of the trials
    spending: Literal["obrien-fleming", "pocock"] = "obrien-fleming"  # of α over looks
    name = "group-sequential"
    status = Status.IF_GAUSSIAN
    interim_valid = True
    within_planned = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.looks < 1:
            raise ValueError(f"looks must be at least 1, got {self.looks}")
        if self.spending not in ("obrien-fleming", "pocock"):
            raise ValueError(f"spending must be obrien-fleming or pocock, got {self.spending!r}")
        shares = np.arange(1, self.looks + 1) / self.looks
        self._ends = np.unique(np.ceil(shares * self.planned).astype(np.int64))
        self._looks: list[Look] = []
        self._refuted: dict[float, float] = {}  # rate at the last look, by alpha

    def _fold(self, scores: Scores, members: Members) -> None:
        def add(first: int, end: int) -> None:
            self._counter.fold(scores[first:end], members[first:end])

        self._look(len(scores), add)

    def _miss(self, members: Members) -> None:
        self._look(len(members), lambda first, end: self._counter.miss(members[first:end]))

    def _look(self, trials: int, add: Callable[[int, int], None]) -> None:
        """Adds trials by `add(first, end)`, stopping at every look that is due."""
        start = 0
        ends = self._ends - self._counter.trials
        for end in ends[(ends > 0) & (ends <= trials)].tolist():
            add(start, end)
            self._looks.append((self._counter.guesses, self._counter.hits))
            self._refuted = {}
            start = end
        add(start, trials)

    def _rate(self, alpha: float) -> float:
        """Returns the largest hit rate that the looks so far refute at `alpha`; 1/2 before any."""
        if not self._looks:
            return 0.5
        if alpha not in self._refuted:  # bounds are read at more than one level
            shares = self._ends[: len(self._looks)] / self.planned
            budget = spend(shares, alpha, self.spending)
            self._refuted[alpha] = refuted_rate(self._looks, budget)
        return self._refuted[alpha]


def spend(shares: npt.ArrayLike, alpha: float, spending: str) -> Floats:
    """Returns the error that may be spent by each share of the trials, float64 [looks].

    Args:
        shares: of the declared trials, in (0, 1].
        alpha: error at share 1.
        spending: `pocock` or `obrien-fleming`.
    """
    in_unit("alpha", alpha)
    f = np.asarray(shares, dtype=np.float64)
    if spending == "pocock":
        return np.asarray(alpha * np.log1p(math.expm1(1) * f))
    quantile = special.ndtri(alpha / 2) / np.sqrt(f)
    return np.asarray(2 * special.ndtr(quantile))


def refuted_rate(looks: Sequence[Look], spent: Floats) -> float:
    """The largest hit rate that the last of `looks` refutes; 0.5 when chance is not refuted.

    Boundaries are whole numbers, so a rate a little below a refuted one may stand: looks are taken
    below the root as far as this was seen to happen. `looks` have guesses and hits so far, `spent`
    the error.
    """
    guesses, hits = looks[-1]
    low, high = 0.5, min(hits / guesses, 1 - 1e-15) if guesses else 0.5
    if high <= low or _excess(low, looks, spent) > 0:
        return low

    def root_between(low: float, high: float) -> float:
        return root(lambda rate: _excess(rate, looks, spent), low, high, xtol=1e-9, rtol=1e-12)

    end = root_between(low, high)
    below = (end - (end - 0.5) * _HOLES).tolist()
    for low, high in itertools.pairwise([0.5, *below]):
        if _excess(high, looks, spent) > 0:
            return root_between(low, high)
    return end


def _excess(rate: float, looks: Sequence[Look], spent: Floats) -> float:
    """P(as many hits at the last look, never crossed before) less what may be spent on it."""
    paths, first, crossed, done = np.ones(1), 0, 0.0, 0
    increments: dict[int, Floats] = {}
    for index, (guesses, hits) in enumerate(looks):
        step, done = guesses - done, guesses
        if step not in increments:
            k, logs = _choices(step)
            logs = logs + k * math.log(rate) + (step - k) * math.log1p(-rate)
            increments[step] = np.asarray(np.exp(logs))
        paths = _convolved(paths, increments[step])
        tails = paths[::-1].cumsum()[::-1]  # P(no crossing yet, hits >= first + index)
        allowed = float(spent[index]) - crossed
        if index == len(looks) - 1:
            at = hits - first
            return float(tails[at] if 0 <= at < len(tails) else 0.0) - allowed
        boundary = len(tails) - int(tails[::-1].searchsorted(allowed, side="right"))
        crossed += float(tails[boundary]) if boundary < len(tails) else 0.0
        low = len(tails) - int(tails[::-1].searchsorted(tails[0] - _NEGLIGIBLE))
        low = max(min(low, boundary) - 1, 0)
        paths, first = paths[low:boundary], first + low
    return -math.inf


def _convolved(a: Floats, b: Floats) -> Floats:
    """Distribution of the sum of two independent counts, by the faster way at this size."""
    if len(a) * len(b) < _DIRECT:
        return np.convolve(a, b)
    size = len(a) + len(b) - 1
    padded = 1 << (size - 1).bit_length()
    product = np.fft.irfft(np.fft.rfft(a, padded) * np.fft.rfft(b, padded), padded)[:size]
    return np.maximum(product, 0.0)  # rounding, about 1e-17: early looks spend a little less


@functools.cache
def _choices(n: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Numbers of hits, and the logarithms of how many ways there are to each."""
    k = np.arange(n + 1)
    return k, special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
