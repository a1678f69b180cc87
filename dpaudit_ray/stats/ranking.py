"""The rank test: guesses ordered by confidence, and how often the surest ones may be wrong.

All trials of a group are guessed and ranked by |score - centre|. A mistake at rank i costs w_i, w_1
≥ w_2 ≥ ...; the sum is small when the surest guesses are right. Whatever the mechanism is:

Given the outputs of independent training runs, mistakes are independent. A claim bounds each run by
a randomised response of random, open confidence (`curve`), of which its output is a noisy copy;
given those answers, a guess errs with probability e_i or 1 - e_i ≥ e_i. Exchanging two weights so
that the larger one belongs to the smaller e makes their sum stochastically smaller. So no guesses
and no order, chosen from outputs in any way, have a stochastically smaller sum than the
surest-first order of the randomised responses themselves, and the distribution of that sum can be
computed (after Xiang, Wang, Lin, Qiu 2025, who simulate it for one training run).

Weights are whole numbers, so the distribution is the inverse Fourier transform of E[exp(-it sum)],
which `_transform` computes from level to level, exact but for rounding. Large groups use `_linear`,
which counts the trials between a rank and its expected level to the first order only. It makes the
sum smaller, which is safe, and hardly changes its probabilities (tests/stats/test_ranking.py).
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
_TYPICAL_COST = 6  # cost of a typical mistake, unless mistakes are few
_LARGEST_COST = 24  # cost of the surest mistake
# Costs are up to 8 times finer if the number of mistakes has a standard deviation below 16.
_FEW_MISTAKES = 16
_MOST_FINER = 8.0
_LLOYD_ITERATIONS = 20  # at most: two groups separate within a few
_FAR = 9.0  # standard deviations: costs beyond have a probability of 1e-12
_PATH_REACH = 7.5  # standard deviations within which the number of trials above a level is followed
# Deviations at which `_log_bounds` bounds the transform.
_PATHS = tuple(np.linspace(0.0, _PATH_REACH, 7))
_NEGLIGIBLE = -31.0  # log of the largest value of a frequency that is skipped: e^-31 = 3e-14
# `_linear` is used if a group has at least so many trials, and a claim so many levels.
_LARGE_GROUP = 128
_MANY_LEVELS = 16
# Share of the mean cost that `_linear` lacks and adds again; the remainder is a margin.
_ADDED_SHARE = 0.9
_LARGEST_FAULT = 1e-9  # a probability below minus this shows that `_linear` failed
_UPDATE_RATIO = 1.25  # of trials between updates of `Rank`, each of which costs a distribution
# The grid of μ that `Rank` tries ends at 13.5.
_SMALLEST_MU = 0.005
_MU_RATIO = 1.02
_MU_STEPS = 400
_STEP_PARTS = (1.0, 0.75, 0.5, 0.25)  # parts of the interpolated step between two μ, tried in turn


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
    # Guesses on diverged trials are either the surest or the least sure. A failed trial counts as
    # the worst case, a sure guess that is wrong.
    distance[infinite] = np.inf if diverged.sure else 0.0
    distance[failed] = np.inf
    wrong = (guesses != members) | failed
    order = np.argsort(-distance, kind="stable")
    return np.asarray(wrong[order])


@dataclass(frozen=True)
class Weights:
    """Costs of a mistake in each block of ranks of a group: all ranks of a block cost the same."""

    edges: Counts  # ranks at the edges of blocks, [blocks + 1], from 0 to the group's size
    costs: Counts  # cost of a mistake in each block, [blocks]

    @classmethod
    def from_responses(cls, size: int, responses: Responses) -> Weights:
        """Makes the cost of a block from the log odds of the claim's answers at its ranks.

        Costs are whole numbers: log odds in a unit of which a typical mistake has a few, rounded.

        Args:
            size: trials of the group.
            responses: the claim's worst mechanism.
        """
        trial_shares, mistakes_so_far = responses.cumulated(responses.mistakes)
        # Blocks are equal by the mean of two shares: that of the trials, and that of the mistakes.
        mistake_shares = mistakes_so_far / max(mistakes_so_far[-1], 1e-300)
        mean_shares = (trial_shares + mistake_shares) / 2
        targets = np.linspace(0, mean_shares[-1], _BLOCKS + 1)
        edge_shares = np.interp(targets, mean_shares, trial_shares)
        ranks = np.round(edge_shares * size / edge_shares[-1])
        edges = np.unique(ranks.astype(np.int64))
        edge_shares = edges / size
        odds = responses.mean_log_odds(edge_shares[:-1], edge_shares[1:])

        mistakes = responses.mistakes
        variances = responses.shares * mistakes * (1 - mistakes)
        variance = float(variances.sum())
        odds_variance = float(variances @ responses.log_odds**2)
        if odds_variance == 0:  # answers are all pure chance, or all certain
            costs = np.ones(len(odds), dtype=np.int64)
            return cls(edges, costs)
        # About the standard deviation of the number of mistakes.
        deviation = math.sqrt(size * variance)
        finer = max(1.0, min(_MOST_FINER, _FEW_MISTAKES / deviation))
        typical_cost = _TYPICAL_COST * finer
        typical_odds = math.sqrt(odds_variance / variance)  # log odds of a typical mistake
        largest_cost = round(_LARGEST_COST / _TYPICAL_COST * typical_cost)
        rounded = np.round(odds / (typical_odds / typical_cost))
        costs = np.minimum(rounded, largest_cost).astype(np.int64)
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
    def cumulative(self) -> Floats:
        """Probability of each cost or a smaller one, float64 [n]."""
        return np.cumsum(self.probabilities)

    def at_most(self, cost: int) -> float:
        """Returns the probability of `cost` or less, in (0, 1]; below `first`, an upper bound."""
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

    def without_smallest(self, dropped: int) -> Costs:
        """Returns the distribution without its `dropped` smallest costs, not normalised.

        The largest costs, whose probability is lost in rounding, are dropped, too.
        """
        probabilities = self.probabilities[dropped:]
        large = np.flatnonzero(probabilities > ROUNDING / self.probabilities.size)
        end = int(large[-1]) + 1 if len(large) else 1
        return Costs(self.first + dropped, probabilities[:end])


def _fast_length(least: int) -> int:
    """Returns a length for fast Fourier transforms, at least `least`: factors of 2 and 3 only."""
    lengths = []
    for odd in (1, 3, 9):
        doublings = ((least - 1) // odd).bit_length()  # as few as reach `least`
        lengths.append(odd << doublings)
    return min(lengths)


@functools.lru_cache(maxsize=1024)
def distribution(size: int, claim: Curve) -> tuple[Weights, Costs]:
    """Returns the weights of a group, and its costs under the worst mechanism of the claim.

    Args:
        size: number of trials of the group.
        claim: the claim.
    """
    responses = Responses.from_curve(claim)
    weights = Weights.from_responses(size, responses)
    return weights, _costs(weights, responses)


def _costs(weights: Weights, responses: Responses) -> Costs:
    """Computes the distribution of the total cost of mistakes under the claim's worst mechanism.

    All guesses of a block have the same chance of a mistake, which costs a whole number. The
    characteristic function of the total is transformed back by FFT, on the window from `first` to
    `last`: the mean, and _FAR deviations on both sides. Frequencies at which it is negligible are
    skipped. Large groups under claims of many levels try the fast `_linear` first; if it fails,
    `_transform` computes the same in more time. Probability that is lost to rounding is given to
    the smallest cost, so that no cost is refuted by it.
    """
    sizes = np.diff(weights.edges)
    costs = weights.costs
    expected_mistakes = sizes * _rates(weights, responses, surer=0.0)  # [blocks]
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
    if weights.edges[-1] >= _LARGE_GROUP and levels >= _MANY_LEVELS:
        transforms.insert(0, ((0.0,), _linear))
    for paths, transform in transforms:
        used = np.flatnonzero(_log_bounds(weights, responses, frequencies, paths) > _NEGLIGIBLE)
        spectrum = np.zeros(len(frequencies), dtype=np.complex128)
        with np.errstate(over="ignore", invalid="ignore"):  # `_linear` may fail, see below
            values = transform(weights, responses, frequencies[used])
            spectrum[used] = values * np.exp(1j * frequencies[used] * first)
        probabilities = np.fft.irfft(spectrum, length)
        finite = np.isfinite(probabilities).all()
        if finite and probabilities.min() > -_LARGEST_FAULT:
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
    trial_shares, mistakes_so_far = responses.cumulated(responses.mistakes)
    edges = weights.edges / size  # shares of the group
    deviations = np.sqrt(edges * (1 - edges) / size)  # standard deviations of a binomial share
    edges = np.maximum.accumulate(edges - surer * deviations)
    edges = edges * trial_shares[-1]
    mistakes = np.diff(np.interp(edges, trial_shares, mistakes_so_far))
    block_shares = np.diff(np.maximum(edges, 0.0))
    rates = np.zeros(len(mistakes))
    np.divide(mistakes, block_shares, out=rates, where=block_shares > 0)
    return np.clip(rates, 0.0, 0.5)


def _log_bounds(
    weights: Weights,
    responses: Responses,
    frequencies: Floats,
    paths: tuple[float, ...],
) -> Floats:
    """Bounds the log of the transform's absolute value at each frequency, float64 [n].

    It is the largest of all paths: at t and on a path of d deviations, log |transform| - d²/2.

    Args:
        weights: weights of the group.
        responses: responses of the claim.
        frequencies: t, float64 [n].
        paths: deviations from the expected number of trials above each level.
    """
    largest = np.full(len(frequencies), -np.inf)
    sizes = np.diff(weights.edges)
    for surer in paths:
        logs = np.full(len(frequencies), -(surer**2) / 2)
        rates = _rates(weights, responses, surer)
        for size, rate, cost in zip(sizes, rates, weights.costs, strict=True):
            # |1 - e + e exp(-it cost)|² of a trial that errs with probability e.
            one_minus_cosine = 1 - np.cos(frequencies * cost)
            squared = 1 - 2 * rate * (1 - rate) * one_minus_cosine
            logs += size / 2 * np.log(np.maximum(squared, 1e-300))  # 0 has no logarithm
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
    with e_j, so they multiply the transform by Q_j(M_j) / Q_j(M_{j-1}), where Q_j(M) is the
    transform of the first M ranks if all err with e_j. Numbers of trials at each level are those of
    independent Poisson numbers, given their sum.

    Args:
        weights: costs by rank.
        responses: the claim's worst mechanism.
        frequencies: t, float64 [n].
    """
    size = int(weights.edges[-1])
    levels = responses.shares > 0
    shares = responses.shares[levels] / responses.shares[levels].sum()
    # A rate of 1/2 may give a factor of 0, which has no logarithm.
    mistakes = np.minimum(responses.mistakes[levels], 0.5 - 1e-6)
    drops = _drops(weights, frequencies)
    trial_counts = np.arange(1)  # all M_j that are likely enough
    # The transform, summed over the ways to each of these counts.
    sums = np.ones((1, len(frequencies)), dtype=np.complex128)
    log_scale = np.zeros_like(sums)  # log of the factor by which `sums` are still to be multiplied
    total_share = 0.0
    for level, (share, mistake) in enumerate(zip(shares, mistakes, strict=True)):
        total_share += share
        variance = size * max(total_share * (1 - total_share), 0.0)
        reach = _PATH_REACH * math.sqrt(variance) + 3
        least = max(0, math.floor(size * total_share - reach))
        most = min(size, math.ceil(size * total_share + reach))
        next_counts = np.arange(least, most + 1)
        # At the last level all trials are above: their number is known.
        if level == len(shares) - 1:
            next_counts = next_counts[-1:]
        log_factors = np.log(1 - mistake * drops)
        log_before = _overlap(weights.edges, trial_counts) @ log_factors
        trials = next_counts[:, None] - trial_counts  # trials at this level, by both counts
        most = max(int(trials.max()), 0)
        by_trials = _poisson(np.arange(most + 1), size * share)
        probabilities = by_trials[np.maximum(trials, 0)]
        probabilities = np.where(trials >= 0, probabilities, 0.0)
        # The factor 1 / Q_j(M_{j-1}) comes before the sum over M_{j-1}, Q_j(M_j) after it; both are
        # relative to Q_j of the smallest M_{j-1}.
        sums = sums * np.exp(log_scale + log_before[:1] - log_before)
        # A real matrix times complex numbers as pairs of reals takes half the time.
        real_sums = probabilities @ sums.view(np.float64)
        sums = real_sums.view(np.complex128)
        log_scale = _overlap(weights.edges, next_counts) @ log_factors - log_before[:1]
        trial_counts = next_counts
    sums = sums * np.exp(log_scale)
    return np.asarray(sums[0] / _poisson(trial_counts, size))


def _overlap(edges: Counts, ranks: Counts) -> Floats:
    """Counts the ranks of each block among the first M ones, float64 [M, blocks].

    Args:
        edges: ranks at the edges of the blocks, [blocks + 1].
        ranks: each M.
    """
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
    last N - E err with η or less, and cost what ranks below do. If the rate were η in both cases,
    each trial would multiply the transform by an independent factor, whose mean is raised to the
    power of n. That is an upper bound on E[exp(-s cost)], s > 0: costs become smaller. The part of
    the mean cost that is lost in this way is known, and all but a tenth of it is added again.

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

    # Log ratio of the factors of a trial in the block before an edge, and in the block behind it.
    edge_mistakes = mistakes[np.searchsorted(inner_ends, edges)][:, None]
    before = 1 - edge_mistakes * drops[:-1]
    behind = 1 - edge_mistakes * drops[1:]
    log_ratios = np.log(before) - np.log(behind)
    log_ratios_from = np.zeros(drops.shape, dtype=np.complex128)  # sums over all later edges
    log_ratios_from[-2::-1] = np.cumsum(log_ratios[::-1], axis=0)

    # The mean factor of a trial, over parts of the trials with one level and one block each.
    part_edges = np.unique(np.concatenate([[0.0], ends, edges]))
    middles = (part_edges[1:] + part_edges[:-1]) / 2
    blocks = np.searchsorted(edges, middles)
    part_mistakes = mistakes[np.searchsorted(inner_ends, middles)][:, None]
    factors = 1 - part_mistakes * drops[blocks]
    factors *= np.exp(-log_ratios_from[blocks])
    mean_factor = np.diff(part_edges) @ factors

    # Expected mistakes among the first E ranks, beyond those of the approximation.
    variances = size * inner_ends * (1 - inner_ends)
    deviations = np.sqrt(np.maximum(variances, ROUNDING))
    away = np.abs(inner[:, None] - size * inner_ends) / deviations
    density = np.exp(-(away**2) / 2) / math.sqrt(2 * math.pi)
    excess = density - away * ndtr(-away)
    more_mistakes = (deviations * excess) @ np.diff(mistakes)
    lacking = more_mistakes @ (drops[:-1] / before - drops[1:] / behind)
    log_transform = inner @ log_ratios + size * np.log(mean_factor)
    return np.asarray(np.exp(log_transform - _ADDED_SHARE * lacking))


def two_means(values: Scores) -> float:
    """Returns the midpoint of two groups of values, by Lloyd's iteration; NaN if none is finite."""
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
    for _ in range(_LLOYD_ITERATIONS):
        below = int(np.searchsorted(finite, centre, side="right"))
        if below in (0, n):
            break
        sum_below = sums[below - 1]
        mean_below = sum_below / below
        mean_above = (sums[-1] - sum_below) / (n - below)
        middle = float((mean_above + mean_below) / 2 * scale)
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
            if members.any() and not members.all():  # else nothing is refuted
                mistakes = self._mistakes(scores, members)
            self._last_bound = (trials, confidence, mu_lower(mistakes, 1 - confidence))
        mu = self._last_bound[2]
        epsilon = float(gdp.epsilon(mu, delta))
        finite = scores[np.isfinite(scores)]
        threshold = float(np.median(finite)) if len(finite) else math.nan
        level = delta, confidence
        return self._estimate(epsilon, mu, level, len(self._log), threshold)

    def _trials_used(self) -> int:
        """Returns the number of trials that the bound uses: all if they are complete.

        Before, it is the last number of a grid, in which each number is a quarter larger.
        """
        trials = len(self._log)
        if trials >= self.planned or trials < 2:
            return trials
        steps = math.floor(math.log(trials) / math.log(_UPDATE_RATIO) + 1e-9)  # despite rounding
        return min(math.ceil(_UPDATE_RATIO**steps), trials)

    def _mistakes(self, scores: Scores, members: Members) -> Members:
        """Returns whether each trial was guessed wrong, in the order of `ranked_mistakes`.

        A diverged trial has an infinite score. Those among the first trials, a share LEARN of the
        planned ones, only show which world diverges more often; they have no rank and come last,
        guessed as "in".

        Args:
            scores: float64 [n], ±inf where diverged, NaN where failed.
            members: the secret bits, bool [n].
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
    last refuted μ of the grid _SMALLEST_MU * _MU_RATIO^i and the next one: where the excess,
    interpolated linearly in i, falls to 0. The excess is not quite linear: if the interpolated μ is
    not refuted itself, only part of the way to it is taken.

    Args:
        mistakes: bool [n], the surest guess first.
        alpha: level of the test.
    """
    if len(mistakes) == 0 or _excess_at(0, mistakes, alpha) <= 0:
        return 0.0
    low, high = 0, _MU_STEPS
    while high - low > 1:
        middle = (low + high) // 2
        if _excess_at(middle, mistakes, alpha) > 0:
            low = middle
        else:
            high = middle
    excess = _excess_at(low, mistakes, alpha)
    next_excess = _excess_at(high, mistakes, alpha)
    share = 0.0  # share of the way from `low` to `high`
    if high < _MU_STEPS and next_excess < excess:
        share = excess / (excess - next_excess)
    # Rounded to 2e-8 of μ: matrix products on another number of threads have other last bits.
    share = math.floor(share * 2**20) / 2**20
    for part in _STEP_PARTS:
        if _excess_at(low + part * share, mistakes, alpha) > 0:
            return float(_SMALLEST_MU * _MU_RATIO**low * _MU_RATIO ** (part * share))
    return float(_SMALLEST_MU * _MU_RATIO**low)


def _excess_at(index: float, mistakes: Members, alpha: float) -> float:
    """Returns how clearly mistakes refute μ number `index` of the grid, in standard deviations.

    Args:
        index: number of μ in the grid; it need not be whole.
        mistakes: bool [n], the surest guess first.
        alpha: level of the test; at it, the result is 0.
    """
    weights, costs = distribution(len(mistakes), _claim_at(index))
    p_value = costs.at_most(weights.cost(mistakes))
    return float(ndtri(alpha) - ndtri(p_value))


@functools.lru_cache(maxsize=1024)
def _claim_at(index: float) -> Curve:
    """Returns the claim "μ-GDP" for μ number `index` of the grid; it need not be whole."""
    return gaussian(_SMALLEST_MU * _MU_RATIO**index)
