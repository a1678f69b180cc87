"""The rank test: guesses ordered by confidence, and how often the surest ones may be wrong.

All trials of a group are guessed and ranked by |score - centre|. A mistake at rank i costs w_i, w_1
≥ w_2 ≥ ...; the sum is small when the surest guesses are right. Whatever the mechanism is:

Given the outputs of independent training runs, mistakes are independent. A claim bounds each run by
a randomised response of random, open confidence (`curve`), of which its output is a noisy copy;
given those answers, a guess errs with probability e_i or 1 - e_i ≥ e_i. Exchanging two weights so
that the larger one falls to the smaller e moves the sum of the two down stochastically. So no
guesses and no order, picked from outputs in any way, have a stochastically smaller sum than the
surest-first order of the randomised responses themselves, and the distribution of that sum can be
computed (after Xiang, Wang, Lin, Qiu 2025, who simulate it for one training run).

Weights are whole numbers, so the distribution is the inverse Fourier transform of E[exp(-it sum)],
which `_transform` computes from level to level without an error but that of floats. Large groups
take `_linear`: ranks and levels part at fixed places, and the trials between the two count to the
first order. It moves the sum down, by less than the level shows (tests/stats/test_ranking.py).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, ndtr, ndtri, xlogy

from . import cut, gdp
from .base import Estimator, Members, Scores
from .curve import Curve, Responses, gaussian
from .error_rates import Counts, Floats, as_floats
from .lower_bound import Estimate, Status
from .trial_log import LEARN, Diverged, Logged

Complex = NDArray[np.complex128]
ROUNDING = 1e-12  # rounding error of probabilities: no level below it is ever reached
_BLOCKS = 32  # ranks of equal weight: finer ones change no power by a tenth of a percent
_TYPICAL_COST = 6
_LARGEST_COST = 24  # cost of the surest mistake
# Costs are up to 8 times finer if the number of mistakes has a standard deviation below 16.
_FEW_MISTAKES = 16
_MOST_FINER = 8.0
_LLOYD = 20  # iterations at most: two groups separate within a few
_FAR = 9.0  # standard deviations: costs beyond have a probability of 1e-12
_PATH = 7.5  # standard deviations within which the number of trials above a level is followed
_PATHS = tuple(np.linspace(0.0, _PATH, 7))  # deviations at which `_largest` bounds the transform
_NEGLIGIBLE = -31.0  # log of the largest value of a frequency that is skipped: e^-31 = 3e-14
# `_linear` is used from so many trials of a group and levels of a claim on.
_LARGE = 128
_FINE = 16
_ADDED = 0.9  # share of the mean added by trials between ranks and levels; the rest is a margin
_FAULT = 1e-9  # a probability below minus this shows that `_linear` failed
_LOOK = 1.25  # ratio of trials between updates of `Rank`, each of which costs a distribution
# The grid of μ that `Rank` tries ends at 13.5.
_SMALLEST = 0.005
_RATIO = 1.02
_STEPS = 400
_PARTS = (1.0, 0.75, 0.5, 0.25)  # parts of the interpolated step between two μ, tried in turn


def ranked_mistakes(
    scores: Scores,
    members: Members,
    centre: float,
    diverged: Diverged,
) -> Members:
    """Returns whether each guess of a group of trials is wrong, bool [n], the surest guess first.

    Args:
        scores: float64 [n]; NaN marks a failed trial, ±inf a diverged one.
        members: the secret bits, bool [n].
        centre: function of outputs and of earlier bits; scores above it are guessed "in".
        diverged: counts by which diverged trials are guessed, from earlier trials.
    """
    failed = np.isnan(scores)
    infinite = np.isinf(scores)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(scores - centre)
        guesses = np.where(infinite, diverged.guessed_in, scores > centre)
    distance[infinite] = np.inf if diverged.sure else 0.0
    distance[failed] = np.inf
    wrong = (guesses != members) | failed
    order = np.argsort(-distance, kind="stable")
    return np.asarray(wrong[order])


@dataclass(frozen=True)
class Weights:
    """Costs of a mistake in each block of ranks of a group of a given size."""

    edges: Counts  # [blocks + 1], from rank 0 to the group's size
    costs: Counts  # [blocks]

    @classmethod
    def from_responses(cls, size: int, responses: Responses) -> Weights:
        """Makes the cost of a block from the log odds of the claim's answers at its ranks.

        Costs are whole numbers: log odds are divided by a `unit` and rounded.

        Args:
            size: trials of the group.
            responses: the claim's worst mechanism.
        """
        ends, errors = responses.cumulated(responses.mistakes)
        # Of all trials and of all mistakes together, each block has the same share.
        mistake_share = errors / max(errors[-1], 1e-300)
        share = (ends + mistake_share) / 2
        levels = np.linspace(0, share[-1], _BLOCKS + 1)
        cuts = np.interp(levels, share, ends)
        ranks = np.round(cuts * size / cuts[-1])
        edges = np.unique(ranks.astype(np.int64))
        cuts = edges / size
        odds = responses.mean_log_odds(cuts[:-1], cuts[1:])

        mistakes = responses.mistakes
        variances = responses.shares * mistakes * (1 - mistakes)
        variance = float(variances.sum())
        spread = float(variances @ responses.log_odds**2)
        if spread == 0:  # answers are all pure chance, or all certain
            costs = np.ones(len(odds), dtype=np.int64)
            return cls(edges, costs)
        # Standard deviation of the number of mistakes, about.
        deviation = math.sqrt(size * variance)
        finer = max(1.0, min(_MOST_FINER, _FEW_MISTAKES / deviation))
        typical = _TYPICAL_COST * finer  # cost of a typical mistake
        unit = math.sqrt(spread / variance) / typical
        largest = round(_LARGEST_COST / _TYPICAL_COST * typical)
        costs = np.minimum(np.round(odds / unit), largest).astype(np.int64)
        return cls(edges, costs)

    def cost(self, mistakes: Members) -> int:
        """Returns the cost of a group's mistakes, bool [n], the surest guess first."""
        starts = self.edges[:-1]
        counts = np.add.reduceat(mistakes, starts, dtype=np.int64)
        return int(counts @ self.costs)


@dataclass(frozen=True)
class Costs:
    """The distribution of a cost, a whole number.

    Attributes:
        first: the smallest cost.
        probabilities: those of `first`, `first` + 1, ..., float64 [n].
    """

    first: int
    probabilities: Floats

    @property
    def below(self) -> Floats:
        """Probability of each of these numbers or a smaller one, float64 [n]."""
        return np.cumsum(self.probabilities)

    def at_most(self, cost: int) -> float:
        """Returns the probability of `cost` or less, float64 in (0, 1]."""
        end = max(cost - self.first + 1, 1)
        probability = float(self.probabilities[:end].sum())
        return min(1.0, probability)

    def plus(self, other: Costs) -> Costs:
        """Returns the distribution of the sum with an independent cost."""
        n = len(self.probabilities) + len(other.probabilities) - 1
        length = _fast_length(n)
        spectrum = np.fft.rfft(self.probabilities, length)
        spectrum *= np.fft.rfft(other.probabilities, length)
        probabilities = np.fft.irfft(spectrum, length)[:n]
        probabilities = np.maximum(probabilities, 0.0)
        return Costs(self.first + other.first, probabilities)

    def above(self, dropped: int) -> Costs:
        """Returns the part of the distribution above its `dropped` smallest costs, not normalised.

        Largest costs whose probability is lost in rounding are dropped, too.
        """
        probabilities = self.probabilities[dropped:]
        large = np.flatnonzero(probabilities > ROUNDING / self.probabilities.size)
        end = int(large[-1]) + 1 if len(large) else 1
        return Costs(self.first + dropped, probabilities[:end])


def _fast_length(least: int) -> int:
    """Returns a length for fast Fourier transforms, at least `least`: factors of 2 and 3 only."""
    lengths = []
    for odd in (1, 3, 9):
        doublings = ((least - 1) // odd).bit_length()
        lengths.append(odd << doublings)
    return min(lengths)


@functools.lru_cache(maxsize=1024)
def distribution(size: int, claim: Curve) -> tuple[Weights, Costs]:
    """Returns the weights of a group, and its costs under the worst mechanism of the claim."""
    responses = Responses.from_curve(claim)
    weights = Weights.from_responses(size, responses)
    return weights, _costs(weights, responses)


def _costs(weights: Weights, responses: Responses) -> Costs:
    """Computes the distribution of the total cost of mistakes under the claim's worst mechanism.

    All guesses of a block have the same chance of a mistake, which costs a whole number. The
    characteristic function of the total is transformed back by FFT, on the window from `first` to
    `last`: the mean, and _FAR deviations on both sides. Frequencies at which it is negligible are
    left out. Claims of many levels try the fast `_linear`; if it fails, `_transform` computes the
    same in more time. Probability that is lost to rounding is given to the smallest cost.
    """
    sizes = np.diff(weights.edges)
    costs = weights.costs
    expected_mistakes = sizes * _rates(weights, responses, 0.0)  # expected mistakes of each block
    mean = float(expected_mistakes @ costs)
    half_width = _FAR * math.sqrt(float(expected_mistakes @ costs**2)) + _FAR
    first = max(0, math.floor(mean - half_width))
    last = math.ceil(mean + half_width) + 6 * int(costs.max())  # the upper tail is longer
    last = min(last, int(sizes @ costs))
    length = _fast_length(last - first + 1)
    indices = np.arange(length // 2 + 1, dtype=float)
    frequencies = 2 * np.pi / length * indices

    transforms = [(_PATHS, _transform)]
    levels = np.count_nonzero(responses.shares)
    if weights.edges[-1] >= _LARGE and levels >= _FINE:
        transforms.insert(0, ((0.0,), _linear))
    for paths, transform in transforms:
        used = np.flatnonzero(_largest(weights, responses, frequencies, paths) > _NEGLIGIBLE)
        spectrum = np.zeros(len(frequencies), dtype=np.complex128)
        with np.errstate(over="ignore", invalid="ignore"):  # of `_linear`, on claims of few levels
            values = transform(weights, responses, frequencies[used])
            spectrum[used] = values * np.exp(1j * frequencies[used] * first)
        probabilities = np.fft.irfft(spectrum, length)
        finite = np.isfinite(probabilities).all()
        if finite and probabilities.min() > -_FAULT:
            break
    probabilities = np.maximum(probabilities, 0.0)
    missing = 1 - float(probabilities.sum())
    probabilities[0] += max(missing, 0.0) + ROUNDING
    return Costs(first, probabilities)


def _rates(weights: Weights, responses: Responses, surer: float) -> Floats:
    """Returns mistakes per trial in each block, float64 [blocks].

    Args:
        weights: weights of the group, for its blocks.
        responses: responses of the claim.
        surer: standard deviations by which the number of trials above each level exceeds the
            expected one. Then the block up to rank r has the answers that are expected up to a
            lower rank.
    """
    size = weights.edges[-1]
    ends, errors = responses.cumulated(responses.mistakes)
    edges = weights.edges / size  # shares of the group
    deviations = np.sqrt(edges * (1 - edges) / size)  # standard deviations of a binomial share
    edges = np.maximum.accumulate(edges - surer * deviations)
    edges = edges * ends[-1]
    mistakes = np.diff(np.interp(edges, ends, errors))
    share = np.diff(np.maximum(edges, 0.0))
    rates = np.zeros(len(mistakes))
    np.divide(mistakes, share, out=rates, where=share > 0)
    return np.clip(rates, 0.0, 0.5)


def _largest(
    weights: Weights,
    responses: Responses,
    frequencies: Floats,
    paths: tuple[float, ...],
) -> Floats:
    """Bounds the log of the transform at each of `frequencies`, on any of these paths of levels.

    Args:
        weights: weights of the group.
        responses: responses of the claim.
        frequencies: float64 [n].
        paths: deviations from the expected number of trials above each level.
    """
    largest = np.full(len(frequencies), -np.inf)
    sizes = np.diff(weights.edges)
    for surer in paths:
        logs = np.full(len(frequencies), -(surer**2) / 2)
        rates = _rates(weights, responses, surer)
        for size, rate, cost in zip(sizes, rates, weights.costs, strict=True):
            # |1 - e + e exp(-it cost)|² of a trial that errs with probability e.
            away = 1 - np.cos(frequencies * cost)
            squared = 1 - 2 * rate * (1 - rate) * away
            logs += size / 2 * np.log(np.maximum(squared, 1e-300))
        largest = np.maximum(largest, logs)
    return largest


def _drops(weights: Weights, frequencies: Floats) -> Complex:
    """Returns 1 - exp(-it cost), complex128 [blocks, n].

    A trial that errs with probability e multiplies the transform by 1 - e times this.
    """
    angles = np.outer(weights.costs, frequencies)
    return np.asarray(1 - np.exp(-1j * angles))


def _transform(weights: Weights, responses: Responses, frequencies: Floats) -> Complex:
    """Computes E[exp(-it cost)] at each t of `frequencies`, complex128 [n].

    Let M_j be the number of trials at the first j levels. Given all M, trials M_{j-1} to M_j err
    with e_j, so they multiply the transform by Q_j(M_j) / Q_j(M_{j-1}), where Q_j(M) is what the
    first M ranks would with e_j. Numbers of trials per level are Poisson given their sum.

    Args:
        weights: costs by rank.
        responses: the claim's worst mechanism.
        frequencies: t, float64 [n].
    """
    size = int(weights.edges[-1])
    levels = responses.shares > 0
    shares = responses.shares[levels] / responses.shares[levels].sum()
    mistakes = np.minimum(responses.mistakes[levels], 0.5 - 1e-6)  # of 1/2, all may cancel
    drops = _drops(weights, frequencies)
    mistake_counts = np.arange(1)  # M_j that are likely enough
    # The transform, summed over the ways to each of these counts.
    sums = np.ones((1, len(frequencies)), dtype=np.complex128)
    log_scale = np.zeros_like(sums)  # by which `sums` are still to be multiplied
    total_share = 0.0
    for level, (share, mistake) in enumerate(zip(shares, mistakes, strict=True)):
        total_share += share
        variance = size * max(total_share * (1 - total_share), 0.0)
        reach = _PATH * math.sqrt(variance) + 3
        least = max(0, math.floor(size * total_share - reach))
        most = min(size, math.ceil(size * total_share + reach))
        next_counts = np.arange(least, most + 1)
        # At the last level all trials are above: their number is known.
        if level == len(shares) - 1:
            next_counts = next_counts[-1:]
        log_factors = np.log(1 - mistake * drops)
        log_before = _overlap(weights.edges, mistake_counts) @ log_factors
        trials = next_counts[:, None] - mistake_counts
        most = max(int(trials.max()), 0)
        by_number = _poisson(np.arange(most + 1), size * share)
        probabilities = by_number[np.maximum(trials, 0)]
        probabilities = np.where(trials >= 0, probabilities, 0.0)
        sums = sums * np.exp(log_scale + log_before[:1] - log_before)
        # A real matrix times complex numbers as pairs of reals takes half the time.
        real_sums = probabilities @ sums.view(np.float64)
        sums = real_sums.view(np.complex128)
        log_scale = _overlap(weights.edges, next_counts) @ log_factors - log_before[:1]
        mistake_counts = next_counts
    sums = sums * np.exp(log_scale)
    return np.asarray(sums[0] / _poisson(mistake_counts, size))


def _overlap(edges: Counts, ranks: Counts) -> Floats:
    """Counts how many of the first ranks lie in each block, float64 [ranks, blocks]."""
    ranks_behind = ranks[:, None] - edges[:-1]
    counts = np.clip(ranks_behind, 0, np.diff(edges))
    return as_floats(counts)


def _poisson(counts: Counts, mean: float) -> Floats:
    """Returns the Poisson probabilities of `counts`, float64 [n], for this mean."""
    log_factorials = gammaln(counts + 1)
    log_probabilities = xlogy(counts, mean) - mean - log_factorials
    return np.asarray(np.exp(log_probabilities))


def _linear(weights: Weights, responses: Responses, frequencies: Floats) -> Complex:
    """Computes `_transform` to the first order in what lies between ranks and levels.

    Let N of n trials be among the surest share E / n, where the claim errs with η. If N < E, the
    E - N trials that follow err with η or more, and cost what ranks above E do; if N > E, the
    last N - E err with η or less, and cost what ranks below do. Were it η in both cases, each
    trial would multiply the transform by an independent factor, whose mean is raised to the power
    of n. Of E[exp(-s cost)], s > 0, that is an upper bound: costs are made smaller. What the
    sum's mean lacks by it is known and added again, but for a tenth.

    Args:
        weights: costs by rank.
        responses: the claim's worst mechanism.
        frequencies: t, float64 [n].
    """
    size = int(weights.edges[-1])
    inner = weights.edges[1:-1]
    edges = inner / size
    levels = responses.shares > 0
    mistakes = responses.mistakes[levels]
    ends = np.cumsum(responses.shares[levels])
    ends = ends / ends[-1]
    inner_ends = ends[:-1]
    drops = _drops(weights, frequencies)

    # A trial that falls into the block before an edge instead of the one behind it.
    edge_mistakes = mistakes[np.searchsorted(inner_ends, edges)][:, None]
    before = 1 - edge_mistakes * drops[:-1]
    behind = 1 - edge_mistakes * drops[1:]
    exchanged = np.log(before) - np.log(behind)
    later = np.zeros(drops.shape, dtype=np.complex128)  # sums over all edges from a block on
    later[-2::-1] = np.cumsum(exchanged[::-1], axis=0)

    # The mean factor of a trial, over parts in which both level and block are one.
    cuts = np.unique(np.concatenate([[0.0], ends, edges]))
    middles = (cuts[1:] + cuts[:-1]) / 2
    blocks = np.searchsorted(edges, middles)
    part_mistakes = mistakes[np.searchsorted(inner_ends, middles)][:, None]
    factors = 1 - part_mistakes * drops[blocks]
    factors *= np.exp(-later[blocks])
    mean_factor = np.diff(cuts) @ factors

    # E[mistakes among E ranks], beyond the linear.
    variances = size * inner_ends * (1 - inner_ends)
    deviations = np.sqrt(np.maximum(variances, ROUNDING))
    away = np.abs(inner[:, None] - size * inner_ends) / deviations
    density = np.exp(-(away**2) / 2) / math.sqrt(2 * math.pi)
    excess = density - away * ndtr(-away)
    more_mistakes = (deviations * excess) @ np.diff(mistakes)
    lacking = more_mistakes @ (drops[:-1] / before - drops[1:] / behind)
    log_transform = inner @ exchanged + size * np.log(mean_factor)
    return np.asarray(np.exp(log_transform - _ADDED * lacking))


def two_means(values: Scores) -> float:
    """Returns the midpoint of two groups of finite values, by Lloyd's iteration; or NaN."""
    finite = np.sort(values[np.isfinite(values)])
    n = len(finite)
    if n == 0:
        return math.nan
    largest = float(np.abs(finite[[0, -1]]).max())
    scale = largest or 1.0  # sums of the largest would overflow
    sums = np.cumsum(finite / scale)
    mean = float(sums[-1] / n) * scale
    # The start: the median withstands outliers, the mean notices a small group.
    centre = float(np.median(finite)) / 2 + mean / 2
    for _ in range(_LLOYD):
        below = int(np.searchsorted(finite, centre, side="right"))
        if below in (0, n):
            break
        sum_below = sums[below - 1]
        low = sum_below / below
        high = (sums[-1] - sum_below) / (n - below)
        middle = float((high + low) / 2 * scale)
        if middle == centre:
            break
        centre = middle
    return centre


def from_median(scores: Scores) -> Scores:
    """Returns scores [n] as normal quantiles of their ranks: above 0 where above the median.

    Scores that are not finite have no rank, and stay.
    """
    finite = np.isfinite(scores)
    values = scores[finite]
    quantiles = scores.copy()
    quantiles[finite] = cut.normal_scores(values, np.sort(values))
    return quantiles


@dataclass
class Rank(Logged, Estimator):
    """Fixed-R bound on μ: 1.5 times fewer trials than `accuracy` for ε ≤ 4.

    All trials are one group. Scores above their median are guessed "in", and the further a rank
    lies from the middle, the surer the guess: no bit is used, and an increasing map of all scores
    changes nothing. While trials arrive, the bound is updated whenever there are a quarter more.
    The diverged ones among the first fifth of the planned trials decide how later diverged trials
    are guessed, and are ranked last.
    """

    name = "rank"
    status = Status.IF_GAUSSIAN
    needs_independence = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._last_bound = (0, 0.0, 0.0)  # trials, confidence, and the bound on μ from these

    def bound(self, delta: float, confidence: float) -> Estimate:
        """Bounds μ by the order of mistakes, from the surest guess to the least sure."""
        trials = self._trials_used()
        scores, members = self._log.arrays()
        scores, members = scores[:trials], members[:trials]
        if self._last_bound[:2] != (trials, confidence):
            mistakes = np.empty(0, bool)
            if members.any() and not members.all():  # one world alone is an accident
                mistakes = self._mistakes(scores, members)
            self._last_bound = (trials, confidence, mu_lower(mistakes, 1 - confidence))
        mu = self._last_bound[2]
        epsilon = float(gdp.epsilon(mu, delta))
        finite = scores[np.isfinite(scores)]
        threshold = float(np.median(finite)) if len(finite) else math.nan
        level = delta, confidence
        return self._estimate(epsilon, mu, level, len(self._log), threshold)

    def _trials_used(self) -> int:
        """Returns all trials if they are complete, else the last size of a grid by quarters."""
        trials = len(self._log)
        if trials >= self.planned or trials < 2:
            return trials
        steps = math.floor(math.log(trials) / math.log(_LOOK) + 1e-9)  # despite rounding
        return min(math.ceil(_LOOK**steps), trials)

    def _mistakes(self, scores: Scores, members: Members) -> Members:
        """Returns whether each trial was guessed wrong, in the order of `ranked_mistakes`.

        A diverged trial has an infinite score. Those among the first LEARN of the plan only teach
        which world diverges more often; they have no rank and stand last, guessed as "in".
        """
        first = math.ceil(LEARN * self.planned)
        diverged = Diverged()
        diverged.fold(scores[:first], members[:first])
        teaching = np.isinf(scores)
        teaching[first:] = False
        quantiles = from_median(scores[~teaching])
        mistakes = ranked_mistakes(quantiles, members[~teaching], 0.0, diverged)
        return np.concatenate([mistakes, ~members[teaching]])


def mu_lower(mistakes: Members, alpha: float) -> float:
    """Returns a large μ that the order of mistakes refutes; 0 if none is refuted.

    A μ is refuted if its excess of evidence, `_excess_at`, is above 0. The result lies between the
    last refuted μ of the grid _SMALLEST * _RATIO^i and the next one: where the excess, interpolated
    linearly in i, falls to 0. The excess is not quite linear: if the μ found is not refuted itself,
    only part of the way to it is taken.

    Args:
        mistakes: bool [n], the surest guess first.
        alpha: level of the test.
    """
    if len(mistakes) == 0 or _excess_at(0, mistakes, alpha) <= 0:
        return 0.0
    low, high = 0, _STEPS
    while high - low > 1:
        middle = (low + high) // 2
        if _excess_at(middle, mistakes, alpha) > 0:
            low = middle
        else:
            high = middle
    excess = _excess_at(low, mistakes, alpha)
    next_excess = _excess_at(high, mistakes, alpha)
    share = 0.0  # share of the way from `low` to `high`
    if high < _STEPS and next_excess < excess:
        share = excess / (excess - next_excess)
    # Down to 2e-8 of μ: matrix products on another number of threads have other last bits.
    share = math.floor(share * 2**20) / 2**20
    for part in _PARTS:
        if _excess_at(low + part * share, mistakes, alpha) > 0:
            return float(_SMALLEST * _RATIO**low * _RATIO ** (part * share))
    return float(_SMALLEST * _RATIO**low)


def _excess_at(index: float, mistakes: Members, alpha: float) -> float:
    """Returns how clearly mistakes refute μ number `index` of the grid, in standard deviations."""
    weights, costs = distribution(len(mistakes), _claim_at(index))
    p_value = costs.at_most(weights.cost(mistakes))
    return float(ndtri(alpha) - ndtri(p_value))


@functools.lru_cache(maxsize=1024)
def _claim_at(index: float) -> Curve:
    """Returns the claim "μ-GDP" for μ number `index` of the grid; fractions lie between two."""
    return gaussian(_SMALLEST * _RATIO**index)
