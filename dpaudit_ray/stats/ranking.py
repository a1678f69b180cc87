"""The rank test: guesses in the order of their confidence, and how often the surest may be wrong.

All trials of a group are guessed and ranked by |score - centre|. A mistake at rank i costs w_i, w_1
≥ w_2 ≥ ...; the sum is small when the surest guesses are right. Whatever the mechanism is:

Given the outputs of independent trainings, mistakes are independent. A claim bounds each training
by a randomised response of random, open confidence (`curve`), of which its output is a noisy copy;
given those answers, a guess errs with probability e_i or 1 - e_i ≥ e_i. Exchanging two weights so
that the larger one falls to the smaller e moves the sum of the two down stochastically. So no
guesses and no order, picked from outputs in any way, have a stochastically smaller sum than the
surest-first order of the randomised responses themselves, and the distribution of that sum can be
computed (after Xiang, Wang, Lin, Qiu 2025, who simulate it for one training).

Weights are whole numbers, so the distribution is the inverse Fourier transform of E[exp(-it sum)],
which `_transform` computes from level to level without an error but that of floats. Large groups
take `_linear`: ranks and levels part at fixed places, and the trials between the two count to the
first order. It moves the sum down, by less than the level shows (tests/stats/test_ranking.py).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from . import cut, gdp
from .base import Estimator, Members, Scores
from .curve import Curve, Responses, gaussian
from .error_rates import Counts, Floats
from .lower_bound import Estimate, Status
from .trial_log import LEARN, Diverged, Logged

Complex = npt.NDArray[np.complex128]
_BLOCKS = 32  # ranks of equal weight: finer ones change no power by a tenth of a percent
_TYPICAL, _LARGEST = 6, 24  # weight of a typical mistake, and of the surest
_FEW, _FINER = 16, 8.0  # deviation of the number of mistakes below which weights are finer
_LLOYD = 20  # iterations at most: two groups part within a few
_FAR = 9.0  # standard deviations: beyond lies 1e-12
_PATH = 7.5  # standard deviations of the number of trials above a level
_PATHS = tuple(np.linspace(0.0, 7.5, 7))  # of levels, at which `_largest` is looked for
_FAINT = -31.0  # log of what a frequency may have and be left out: e^-31 = 3e-14
_LARGE, _FINE = 128, 16  # trials of a group and levels of a claim from which on `_linear` does
_ADDED = 0.9  # of the mean that trials between ranks and levels add: the rest is kept as a margin
_FAULT = 1e-9  # probability below 0 by which `_linear` shows that it does not do
ROUNDING = 1e-12  # of probabilities: no level below it is ever reached
_LOOK = 1.25  # ratio of trials between looks of `Rank`, each of which costs a distribution
_SMALLEST, _RATIO, _STEPS = 0.005, 1.02, 400  # μ that `Rank` tries, from 0.005 to 13.5


def ranked_mistakes(scores: Scores, members: Members, centre: float, diverged: Diverged) -> Members:
    """Whether each guess of a group of trials is wrong, bool [n], the surest guess first.

    Guesses are "in" above `centre`, a function of outputs and of earlier bits. In `scores`, float64
    [n], NaN marks a miss, ±inf a diverged trial, of which `diverged` has what earlier trials teach.
    """
    missed, lost = np.isnan(scores), np.isinf(scores)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(scores - centre)
        guessed = np.where(lost, diverged.guessed_in, scores > centre)
    distance[lost] = np.inf if diverged.sure else 0.0
    distance[missed] = np.inf
    wrong = (guessed != members) | missed
    return np.asarray(wrong[np.argsort(-distance, kind="stable")])


@dataclasses.dataclass(frozen=True)
class Weights:
    """Costs of a mistake in each block of ranks of a group of a given size."""

    edges: Counts  # [blocks + 1], from rank 0 to the group's size
    costs: Counts  # [blocks]

    @classmethod
    def from_responses(cls, size: int, responses: Responses) -> Weights:
        """Log odds of the claim's surest answers at these ranks, in whole units."""
        ends, errors = responses.cumulated(responses.mistakes)
        share = (ends + errors / max(errors[-1], 1e-300)) / 2
        cuts = np.interp(np.linspace(0, share[-1], _BLOCKS + 1), share, ends)
        edges = np.unique(np.round(cuts * size / cuts[-1]).astype(np.int64))
        odds = responses.mean_log_odds(edges[:-1] / size, edges[1:] / size)
        variances = responses.shares * responses.mistakes * (1 - responses.mistakes)
        spread = float(variances @ responses.log_odds**2)
        if spread == 0:  # nothing is said, or all of it outright
            return cls(edges, np.ones(len(odds), dtype=np.int64))
        mistakes = size * float(variances.sum())  # about; few are told apart by finer weights
        typical = _TYPICAL * max(1.0, min(_FINER, _FEW / math.sqrt(mistakes)))
        unit = math.sqrt(spread / float(variances.sum())) / typical
        largest = round(_LARGEST / _TYPICAL * typical)
        return cls(edges, np.minimum(np.round(odds / unit), largest).astype(np.int64))

    def cost(self, mistakes: Members) -> int:
        """The cost of a group's mistakes, bool [n], the surest guess first."""
        return int(np.add.reduceat(mistakes, self.edges[:-1], dtype=np.int64) @ self.costs)


@dataclasses.dataclass(frozen=True)
class Costs:
    """A distribution on whole numbers: `chances` float64 [n] of `first`, `first` + 1, ..."""

    first: int
    chances: Floats

    @property
    def below(self) -> Floats:
        """Probability of each of these numbers or a smaller one, float64 [n]."""
        return np.cumsum(self.chances)

    def at_most(self, cost: int) -> float:
        """Probability of `cost` or less, float64 in (0, 1]."""
        return min(1.0, float(self.chances[: max(cost - self.first + 1, 1)].sum()))

    def plus(self, other: Costs) -> Costs:
        """The distribution of the sum with an independent cost."""
        n = len(self.chances) + len(other.chances) - 1
        size = _quick(n)
        both = np.fft.rfft(self.chances, size) * np.fft.rfft(other.chances, size)
        return Costs(self.first + other.first, np.maximum(np.fft.irfft(both, size)[:n], 0.0))

    def above(self, dropped: int) -> Costs:
        """The distribution without its `dropped` smallest numbers, and those below rounding."""
        kept = np.flatnonzero(self.chances[dropped:] > ROUNDING / self.chances.size)
        end = dropped + (int(kept[-1]) + 1 if len(kept) else 1)
        return Costs(self.first + dropped, self.chances[dropped:end])


def _quick(length: int) -> int:
    """A length from this one on that Fourier transforms are fast for: by factors of 2 and 3."""
    return min(odd << ((length - 1) // odd).bit_length() for odd in (1, 3, 9))


@functools.lru_cache(maxsize=1024)
def distribution(size: int, claim: Curve) -> tuple[Weights, Costs]:
    """The weights of a group, and what its mistakes cost under the claim's worst mechanism."""
    responses = Responses.from_curve(claim)
    weights = Weights.from_responses(size, responses)
    return weights, _costs(weights, responses)


def _costs(weights: Weights, responses: Responses) -> Costs:
    """Distribution of costs under the claim's worst mechanism; what is left out is the smallest."""
    sizes, costs = np.diff(weights.edges), weights.costs
    rates = _rates(weights, responses, 0.0)
    mean = float(sizes * rates @ costs)
    far = _FAR * math.sqrt(float(sizes * rates @ costs**2)) + _FAR
    first = max(0, math.floor(mean - far))
    last = min(int(sizes @ costs), math.ceil(mean + far) + 6 * int(costs.max()))
    length = _quick(last - first + 1)
    turns: Floats = np.asarray(2 * np.pi / length * np.arange(length // 2 + 1), dtype=np.float64)
    fine = np.count_nonzero(responses.shares) >= _FINE
    linear = fine and weights.edges[-1] >= _LARGE
    for paths, transform in (((0.0,), _linear), (_PATHS, _transform))[0 if linear else 1 :]:
        kept = np.flatnonzero(_largest(weights, responses, turns, paths) > _FAINT)
        whole = np.zeros(len(turns), dtype=np.complex128)
        with np.errstate(over="ignore", invalid="ignore"):  # of `_linear`, on claims of few levels
            values = transform(weights, responses, turns[kept])
            whole[kept] = values * np.exp(1j * turns[kept] * first)
        chances = np.fft.irfft(whole, length)
        if np.isfinite(chances).all() and chances.min() > -_FAULT:
            break
    chances = np.maximum(chances, 0.0)
    chances[0] += max(1 - float(chances.sum()), 0.0) + ROUNDING
    return Costs(first, chances)


def _rates(weights: Weights, responses: Responses, surer: float) -> Floats:
    """Mistakes per trial in each block, with `surer` deviations more trials at all levels."""
    ends, errors = responses.cumulated(responses.mistakes)
    at = weights.edges / weights.edges[-1]
    at = np.maximum.accumulate(at - surer * np.sqrt(at * (1 - at) / weights.edges[-1])) * ends[-1]
    wrong, share = np.diff(np.interp(at, ends, errors)), np.diff(np.maximum(at, 0.0))
    rates = np.divide(wrong, share, out=np.zeros(len(wrong)), where=share > 0)
    return np.asarray(np.clip(rates, 0.0, 0.5))


def _largest(
    weights: Weights, responses: Responses, turns: Floats, paths: tuple[float, ...]
) -> Floats:
    """Log of what the transform is at most at each of `turns`, on any of these paths of levels."""
    largest, sizes = np.full(len(turns), -np.inf), np.diff(weights.edges)
    for surer in paths:
        sums = np.full(len(turns), -(surer**2) / 2)
        rates = _rates(weights, responses, surer)
        for size, rate, cost in zip(sizes, rates, weights.costs, strict=True):
            squared = 1 - 2 * rate * (1 - rate) * (1 - np.cos(turns * cost))
            sums += size / 2 * np.log(np.maximum(squared, 1e-300))
        largest = np.maximum(largest, sums)
    return np.asarray(largest)


def _transform(weights: Weights, responses: Responses, turns: Floats) -> Complex:
    """E[exp(-it cost)] at each t of `turns`, complex128 [n].

    Let M_j be the number of trials at the first j levels. Given all M, trials M_{j-1} to M_j err
    with e_j, so they multiply the transform by Q_j(M_j) / Q_j(M_{j-1}), where Q_j(M) is what the
    first M ranks would with e_j. Numbers of trials per level are Poisson given their sum.
    """
    size = int(weights.edges[-1])
    some = responses.shares > 0
    shares = responses.shares[some] / responses.shares[some].sum()
    mistakes = np.minimum(responses.mistakes[some], 0.5 - 1e-6)  # of 1/2, all may cancel
    moved = 1 - np.exp(-1j * np.outer(weights.costs, turns))
    path, above, total = np.arange(1), np.ones((1, len(turns)), dtype=np.complex128), 0.0
    due = np.zeros_like(above)  # logarithm of what `above` is still to be multiplied by
    for level, (share, mistake) in enumerate(zip(shares, mistakes, strict=True)):
        total += share
        spread = _PATH * math.sqrt(size * max(total * (1 - total), 0.0)) + 3
        least, most = math.floor(size * total - spread), math.ceil(size * total + spread)
        ends = np.arange(max(0, least), min(size, most) + 1)
        if level == len(shares) - 1:
            ends = ends[-1:]
        log_factors = np.log(1 - mistake * moved)
        before = _overlap(weights.edges, path) @ log_factors
        trials = ends[:, None] - path
        numbers = np.arange(max(int(trials.max()), 0) + 1)
        chances = np.where(trials >= 0, _poisson(numbers, size * share)[np.maximum(trials, 0)], 0.0)
        above = above * np.exp(due + before[:1] - before)
        above = (chances @ above.view(np.float64)).view(np.complex128)
        due = _overlap(weights.edges, ends) @ log_factors - before[:1]
        path = ends
    return np.asarray((above * np.exp(due))[0] / _poisson(path, size))


def _overlap(edges: Counts, ranks: Counts) -> Floats:
    """How many of the first ranks lie in each block, float64 [ranks, blocks]."""
    return np.asarray(np.clip(ranks[:, None] - edges[:-1], 0, np.diff(edges)), dtype=np.float64)


def _poisson(counts: Counts, mean: float) -> Floats:
    return np.asarray(np.exp(special.xlogy(counts, mean) - mean - special.gammaln(counts + 1)))


def _linear(weights: Weights, responses: Responses, turns: Floats) -> Complex:
    """`_transform` to the first order in what lies between ranks and levels.

    Let N of n trials be among the surest share E / n, where the claim errs with η. If N < E, the
    E - N trials that follow err with η or more, and cost what ranks above E do; if N > E, the
    last N - E err with η or less, and cost what ranks below do. Were it η in both cases, each
    trial would multiply the transform by a factor of its own, whose mean is raised to the power
    of n. Of E[exp(-s cost)], s > 0, that is an upper bound: costs are made smaller. What the
    sum's mean lacks by it is known and added again, but for a tenth.
    """
    size, inner = int(weights.edges[-1]), weights.edges[1:-1]
    some = responses.shares > 0
    ends = np.cumsum(responses.shares[some])
    ends, mistakes = ends / ends[-1], responses.mistakes[some]
    cuts = np.unique(np.concatenate([[0.0], ends, inner / size]))
    middles = (cuts[1:] + cuts[:-1]) / 2
    blocks = np.searchsorted(inner / size, middles)
    moved = 1 - np.exp(-1j * np.outer(weights.costs, turns))
    at = mistakes[np.searchsorted(ends[:-1], inner / size)][:, None]
    passed = np.log(1 - at * moved[:-1]) - np.log(1 - at * moved[1:])  # a trial over each edge
    later = np.concatenate([np.cumsum(passed[::-1], axis=0)[::-1], np.zeros((1, len(turns)))])
    wrong = mistakes[np.searchsorted(ends[:-1], middles)][:, None]
    factor = np.diff(cuts) @ ((1 - wrong * moved[blocks]) * np.exp(-later[blocks]))
    spread = np.sqrt(np.maximum(size * ends[:-1] * (1 - ends[:-1]), ROUNDING))
    away = np.abs(inner[:, None] - size * ends[:-1]) / spread
    excess = np.exp(-(away**2) / 2) / math.sqrt(2 * math.pi) - away * special.ndtr(-away)
    more = (spread * excess) @ np.diff(mistakes)  # E[mistakes among E ranks], beyond the linear
    lost = more @ (moved[:-1] / (1 - at * moved[:-1]) - moved[1:] / (1 - at * moved[1:]))
    return np.asarray(np.exp(inner @ passed + size * np.log(factor) - _ADDED * lost))


def two_means(values: Scores) -> float:
    """The midpoint of two groups of finite values, by Lloyd's iteration, without bits; or NaN."""
    finite = np.sort(values[np.isfinite(values)])
    if (n := len(finite)) == 0:
        return math.nan
    scale = float(np.abs(finite[[0, -1]]).max()) or 1.0  # sums of the largest would overflow
    sums = np.cumsum(finite / scale)
    centre = float(np.median(finite)) / 2 + float(sums[-1] / n) * scale / 2
    for _ in range(_LLOYD):
        below = int(np.searchsorted(finite, centre, side="right"))
        if below in (0, n):
            break
        low, high = sums[below - 1] / below, (sums[-1] - sums[below - 1]) / (n - below)
        moved = float((high + low) / 2 * scale)
        if moved == centre:
            break
        centre = moved
    return centre


def from_median(scores: Scores) -> Scores:
    """Returns scores [n] as normal quantiles of their ranks: above 0 where above the median.

    Scores that are not finite have no rank, and stay.
    """
    finite = np.isfinite(scores)
    away = scores.copy()
    away[finite] = cut.normal_scores(scores[finite], np.sort(scores[finite]))
    return away


@dataclasses.dataclass
class Rank(Logged, Estimator):
    """Fixed-R bound on μ: 1.5 times fewer trials than `accuracy` for ε ≤ 4.

    All trials are one group. Scores above their median are guessed "in", and the further a rank
    lies from the middle, the surer the guess: no bit is used, and an increasing map of all scores
    changes nothing. While trials arrive, the bound is that of the last look. Of diverged trials,
    the first fifth of the planned ones teach which way the later ones are guessed, and are ranked
    last.
    """

    name: ClassVar[str] = "rank"
    status: ClassVar[Status] = Status.IF_GAUSSIAN
    needs_independence: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._known = (0, 0.0, 0.0)  # of so many trials, at this confidence: μ

    def bound(self, delta: float, confidence: float) -> Estimate:
        trials = self._looked()
        scores, members = self._log.arrays()
        scores, members = scores[:trials], members[:trials]
        if self._known[:2] != (trials, confidence):
            both = members.any() and not members.all()  # one world alone is an accident
            mistakes = self._mistakes(scores, members) if both else np.empty(0, np.bool_)
            self._known = (trials, confidence, mu_lower(mistakes, 1 - confidence))
        mu = self._known[2]
        epsilon = float(gdp.epsilon(mu, delta))
        finite = scores[np.isfinite(scores)]
        threshold = float(np.median(finite)) if len(finite) else math.nan
        return self._estimate(epsilon, mu, (delta, confidence), len(self._log), threshold)

    def _looked(self) -> int:
        """Trials of the last look: all when they are complete, else at sizes a quarter apart."""
        trials = len(self._log)
        if trials >= self.planned or trials < 2:
            return trials
        steps = math.floor(math.log(trials) / math.log(_LOOK) + 1e-9)
        return min(math.ceil(_LOOK**steps), trials)

    def _mistakes(self, scores: Scores, members: Members) -> Members:
        """Of all trials, ranked; diverged ones that taught how others are guessed come last."""
        learn = math.ceil(LEARN * self.planned)
        taught = Diverged()
        taught.fold(scores[:learn], members[:learn])
        lesson = np.isinf(scores) & (np.arange(len(scores)) < learn)
        away = from_median(scores[~lesson])
        judged = ranked_mistakes(away, members[~lesson], 0.0, taught)
        return np.concatenate([judged, ~members[lesson]])


def mu_lower(mistakes: Members, alpha: float) -> float:
    """The largest μ that the order of mistakes refutes at level `alpha`, on a grid; 0 when none."""
    if len(mistakes) == 0 or _excess_at(0, mistakes, alpha) <= 0:
        return 0.0
    low, high = 0, _STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _excess_at(middle, mistakes, alpha) > 0 else (low, middle)
    left, right = (_excess_at(end, mistakes, alpha) for end in (low, high))
    share = left / (left - right) if high < _STEPS and right < left else 0.0
    # Down to 2e-8 of μ: matrix products on another number of threads have other last bits.
    return float(_SMALLEST * _RATIO**low * _RATIO ** (math.floor(share * 2**20) / 2**20))


def _excess_at(index: int, mistakes: Members, alpha: float) -> float:
    """How clearly mistakes refute the grid's μ `index`: z-scores of `alpha` less the p-value's."""
    weights, costs = distribution(len(mistakes), _claim_at(index))
    return float(special.ndtri(alpha) - special.ndtri(costs.at_most(weights.cost(mistakes))))


@functools.cache
def _claim_at(index: int) -> Curve:
    return gaussian(_SMALLEST * _RATIO**index)
