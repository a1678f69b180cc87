"""Tests of one claim on the trials of one audit, together under one error.

On independent training runs (`ClaimTest`) the e-process of `claim` is valid at every look; tests
for declared numbers of trials (`DeclaredTest`) are more sensitive up to these numbers. Each has a
share of the error, so a true claim is refuted with probability alpha at most, at any look.

A `DeclaredTest` tests the order of mistakes (`ranking`) sixteen times, at fixed shares of the
declared trials; the boundary is computed under the claim's worst mechanism, and each look spends
the error that is due by then. Diverged trials are tested once, at the end: those after the first
eight are all guessed to be of the world in which most of these eight diverged. If trials diverge
with probability q, the claim forces a share of mistakes among them that grows with q. So q is
bounded from below first, at a tenth of the error; given the number of diverged trials, mistakes are
binomial (Berger, Boos 1994 for such p-values).

Runs of several canaries each (`RunTest`) have scores that are not independent. Under a claim
(ε, δ) no guess of a canary is right with more than (e^ε + δ)/(e^ε + 1) (Kairouz, Oh, Viswanath
2015), so neither is the mean share of a run, however its canaries depend on each other. Bets on
these shares are an e-process, which is valid after every run. Such an audit has no other test, so
the e-process has all of the error.
"""

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy.special import bdtr, expit, ndtr, ndtri

from . import cut, e_process
from .base import Members, Scores
from .claim import Claim
from .curve import Curve, Responses
from .error_rates import Counts, Floats, clopper_pearson_lower, first_where, root
from .growth import shares
from .guess_count_bound import GuessCounter
from .multi_canary import RunAccuracies
from .one_run import OneRun
from .paired import PairOutcomes
from .ranking import Costs, Weights, distribution, ranked_mistakes, two_means
from .trial_log import Diverged, TrialLog

EVIDENCE_SHARE = 0.3  # share of the error for the e-process of `ClaimTest`
# The grid of noise multipliers that are tried: from 1/29 of the claimed one to 29 times it.
_NOISE_RATIO = 1.02
_NOISE_STEPS = 170
_HALVINGS = 8  # tests of a search by halves among 170 noise multipliers
_LOOK_RATIO = 1.02  # ratio of trials between looks at the evidence
_LOPSIDED = 1e-3  # p-value below which diverging counts as dependent on the bit
LOOKS = 16  # more would find little earlier, and each costs a distribution
_FEWEST_TRIALS = 8  # between two looks
# Share of a declared test's error for the order of mistakes; the remainder is for diverged trials.
_ORDER_SHARE = 0.7
_SHAPE = 0.8  # boundary ~ share of the trials to the power of -0.8: nearly all is spent at the end
_TEACHING = 8  # diverged trials, the first of an audit, that decide how later ones are guessed
_MOST_FITTED = 200_000  # trials by which log odds are fitted to bits
# Share of the error of diverged trials for the bound on how often trials diverge.
_RATE_SHARE = 0.1


class DeclaredTest:
    """Test for a declared number of trials; later trials are ignored.

    Args:
        planned: declared number of trials, at least 1.
        log_odds: whether scores are log odds of the bit, so that 0 is between the worlds.
    """

    def __init__(self, planned: int, log_odds: bool = False) -> None:
        """Places at most LOOKS looks evenly, the last one at the end. Raises ValueError."""
        if planned < 1:
            raise ValueError(f"planned must be at least 1, got {planned}")
        looks = max(min(LOOKS, planned // _FEWEST_TRIALS), 1)
        ends = (math.ceil(planned * look / looks) for look in range(1, looks + 1))
        self._ends = tuple(ends)  # numbers of trials at the looks, rising to `planned`
        self._log = TrialLog()
        self._log_odds = log_odds
        # For each look so far: whether guesses on the trials since the previous look were wrong,
        # the surest guess first.
        self._mistakes: list[Members] = []
        self._diverged = Diverged()  # counts of diverged trials before the last look

    @property
    def trials(self) -> int:
        """Number of trials that count: at most the declared number."""
        return min(len(self._log), self._ends[-1])

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials in order; `scores` float64 [n], not finite where diverged."""
        if self.trials < self._ends[-1]:
            self._log.append(scores, members)
            self._rank()

    def miss(self, members: Members) -> None:
        """Adds trials without an output, with bits bool [n]: the surest guesses, all wrong."""
        if self.trials < self._ends[-1]:
            self._log.miss(members)
            self._rank()

    def first_trials(self, number: int) -> tuple[Scores, Members]:
        """Returns scores and bits of the first trials, at most this number."""
        scores, members = self._log.arrays()
        return scores[:number], members[:number]

    def refuted_after(self, curve: Curve, alpha: float) -> int | None:
        """Returns the number of trials after which a claim was refuted; None if it is not.

        Args:
            curve: the claim; a true one is refuted with probability `alpha` at most.
            alpha: level of the test.
        """
        weights_of_looks, limits = boundary(curve, self._ends, alpha * _ORDER_SHARE)
        cost = 0
        for look, mistakes in enumerate(self._mistakes):
            cost += weights_of_looks[look].cost(mistakes)
            if cost <= limits[look]:
                return self._ends[look]
        level = (1 - _ORDER_SHARE) * alpha
        if self.trials == self._ends[-1] and self._diverged_p_value(curve, level) <= level:
            return self.trials
        return None

    def _rank(self) -> None:
        """Guesses and ranks the trials before each look that is due, and adds it to `_mistakes`.

        A score above a centre is guessed "in". For log odds, the centre is 0. Otherwise it is the
        midpoint of all outputs, or the `cut` of earlier trials if their bits show that means do not
        separate the worlds.
        """
        scores, members = self._log.arrays()
        start = self._ends[len(self._mistakes) - 1] if self._mistakes else 0
        for end in self._ends[len(self._mistakes) :]:
            if end > len(scores):
                break
            new_scores = positions = scores[start:end]
            bits = members[start:end]
            centre = 0.0
            if not self._log_odds:
                earlier_cut = cut.fit(scores[:start], members[:start])
                if earlier_cut is None:
                    centre = two_means(scores[:end])
                else:
                    from_cut = earlier_cut.position(new_scores)
                    positions = np.where(np.isfinite(new_scores), from_cut, new_scores)
            self._mistakes.append(ranked_mistakes(positions, bits, centre, self._diverged))
            self._diverged.fold(new_scores, bits)
            start = end

    def _diverged_p_value(self, curve: Curve, alpha: float) -> float:
        """Computes the p-value of diverged trials for a test at `alpha`; 1 if there are few.

        The first `_TEACHING` diverged trials are not tested. All later ones get the same guess: the
        world to which most of the first belong.
        """
        scores, members = self._log.arrays()
        diverged = np.flatnonzero(np.isinf(scores[: self.trials]))
        if len(diverged) <= _TEACHING:
            return 1.0
        first = members[diverged[:_TEACHING]]
        later = members[diverged[_TEACHING:]]
        guess_in = 2 * first.sum() >= _TEACHING
        mistakes = int((later != guess_in).sum())
        later_trials = self.trials - int(diverged[_TEACHING - 1]) - 1
        counts = (mistakes, len(later), later_trials)
        return one_sided_p_value(Responses.from_curve(curve), counts, _RATE_SHARE * alpha)


class BoundTest:
    """Test by a lower bound on ε after a declared number of trials; later trials are ignored.

    It finds rare events, which hardly change the order of mistakes: `one-run` may guess only them.

    Args:
        planned: declared number of trials.
        delta: δ at which the bound is compared with a claim.
        log_odds: whether scores are log odds, as in `DeclaredTest`.
    """

    def __init__(self, planned: int, delta: float, log_odds: bool = False) -> None:
        """Begins without trials."""
        self._missing = planned  # trials that are still to come
        self._delta = delta
        self._state = OneRun(planned, independent=True, log_odds=log_odds)
        self._epsilons: dict[float, float] = {}  # by alpha: a search for the noise repeats levels

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials in order, up to the declared number: float64 scores and bits, [n]."""
        self._state.fold(scores[: self._missing], members[: self._missing])
        self._missing = max(self._missing - len(scores), 0)

    def miss(self, members: Members) -> None:
        """Adds trials without an output, with bits bool [n]: each counts as a wrong guess."""
        self._state.miss(members[: self._missing])
        self._missing = max(self._missing - len(members), 0)

    def refuted_after(self, curve: Curve, alpha: float) -> int | None:
        """Returns the declared number of trials if the bound refutes a claim; None if not.

        Args:
            curve: the claim; a true one is refuted with probability `alpha` at most.
            alpha: level of the test, and error of the bound.
        """
        claimed = curve.epsilons[curve.deltas <= self._delta]
        if self._missing or len(claimed) == 0:
            return None
        if alpha not in self._epsilons:
            self._epsilons[alpha] = self._state.bound(self._delta, 1 - alpha).epsilon_lower
        is_refuted = self._epsilons[alpha] > claimed.min()
        return self._state.planned if is_refuted else None


@functools.lru_cache(maxsize=1024)
def boundary(
    claim: Curve, ends: tuple[int, ...], alpha: float
) -> tuple[tuple[Weights, ...], Counts]:
    """Computes the costs that refute a claim at each look.

    After a share t of the trials, an error of Φ(Φ⁻¹(α) t^-0.8) may have been spent: nearly all of
    it is spent at the end. Each look refutes as many of the smallest costs as this error allows.

    Args:
        claim: the claimed curve.
        ends: numbers of trials at the looks.
        alpha: error of all looks together.

    Returns:
        Weights of mistakes at each look, and the largest cost that refutes, int64 [looks]; -1 if
        none does.
    """
    parts = [distribution(int(size), claim) for size in np.diff([0, *ends])]
    trial_shares = np.array(ends) / ends[-1]
    allowed_errors = ndtr(ndtri(alpha) * trial_shares**-_SHAPE)
    total = Costs(0, np.ones(1))  # the sum of costs so far, where no look refuted the claim
    spent_error = 0.0
    limits = []
    for (_, costs), allowed in zip(parts, allowed_errors, strict=True):
        total = total.plus(costs)
        refuting = int(np.searchsorted(spent_error + total.cumulative, allowed, side="right"))
        limits.append(total.first + refuting - 1 if refuting else -1)
        spent_error += float(total.probabilities[:refuting].sum())
        total = total.without_smallest(refuting)
    return tuple(weights for weights, _ in parts), np.array(limits)


def one_sided_p_value(
    responses: Responses,
    counts: tuple[int, int, int],
    rate_error: float,
) -> float:
    """Bounds the probability of so few mistakes among guesses that are all of the same world.

    Args:
        responses: the claim's worst mechanism.
        counts: mistakes, guesses, and trials of which any could have been guessed.
        rate_error: error of a bound on the share of trials that are guessed.
    """
    mistakes, guesses, trials = counts
    guess_rate = clopper_pearson_lower(guesses, trials, rate_error)
    mistake_rate = 0.0
    if guess_rate > 0:
        # The surest share `guess_rate` of the worst mechanism's answers makes the fewest mistakes.
        one_sided = responses.one_sided
        trial_shares, mistakes_so_far = one_sided.cumulated(one_sided.mistakes)
        mistake_rate = float(np.interp(guess_rate, trial_shares, mistakes_so_far)) / guess_rate
    return min(1.0, rate_error + float(bdtr(mistakes, guesses, mistake_rate)))


@dataclass
class _Test(ABC):
    """Base of tests of a claim: the noise that is refuted, and whether diverging reveals the bit.

    Attributes:
        curve: the claim.
        planned: declared number of trials.
        best: largest evidence at any look, a natural logarithm: once refuted, a claim stays
            refuted.
        latest: evidence at the last look, for averages over audits: the mean of e-values at one
            time is an e-value, the mean of their largest values is not.
        due: number of trials at which the next look is due.
        hits: counts of guesses and of correct ones.
    """

    curve: Curve
    planned: int
    evidence_share: ClassVar[float] = EVIDENCE_SHARE  # share of the error for the e-process
    best: float = field(default=0.0, init=False)
    latest: float = field(default=0.0, init=False)
    due: int = field(default=0, init=False)
    hits: GuessCounter = field(init=False)

    @property
    def diverged(self) -> tuple[int, int]:
        """Diverged scores per world, (out, in)."""
        return self.hits.diverged

    @property
    def lopsided(self) -> bool:
        """Whether diverging depends on the bit: that is no violation, but not consistent either."""
        total = sum(self.diverged)
        tail = bdtr(min(self.diverged), total, 0.5)
        return total > 0 and 2 * float(tail) < _LOPSIDED

    @abstractmethod
    def _refutes(self, alpha: float) -> Callable[[Curve], bool]:
        """Returns a function that tests any claim on the trials so far, at level `alpha`."""

    def count_refuted(self, claims: Iterable[Curve], alpha: float) -> int:
        """Returns how many claims the trials refute in turn, until one is not refuted.

        Args:
            claims: claims, of which each is true if the one before it is.
            alpha: largest probability that a true claim counts. Each test has this level, as a true
                claim is reached only if all false ones before it, and no true one, were refuted.
        """
        return sum(1 for _ in itertools.takewhile(self._refutes(alpha), claims))

    def effective_noise(
        self,
        family: Callable[[float], Curve],
        claimed: float,
        alpha: float,
        gaussian: bool = True,
    ) -> float | None:
        """Returns the least noise multiplier that is refuted, on a grid of 2 %; None if none is.

        The claimed noise is tested first. If it is refuted, less noise is searched by bisection,
        else more.

        Claims are nested: if that of some noise is true, so are those of less noise. If `gaussian`,
        trials that refute one claim also refute those of more noise. So the search errs only if it
        refutes the largest true claim, and each test may have the level `alpha`. Otherwise the
        tests of true claims share `alpha` (Bonferroni). Only the tests on one path of the search
        matter: that on which all false claims are refuted. If the claimed noise is not true, the
        tests of true claims are all of less noise. If it is, half of `alpha` is for its own test,
        and half for tests of more noise.

        Args:
            family: claimed curve by noise multiplier.
            claimed: noise multiplier of the claim.
            alpha: largest probability that the answer is below the true noise multiplier.
            gaussian: whether all curves of the family are Gaussian.
        """
        level = alpha if gaussian else alpha / 2
        refutes = self._refutes(level)

        def is_refuted(step: int) -> bool:
            """Returns whether the trials refute the noise of this step of the grid."""
            return refutes(family(claimed * _NOISE_RATIO**step))

        # The search has 170 steps of the grid below the claimed noise, or 170 above it.
        if is_refuted(0):
            first = -_NOISE_STEPS
            level = alpha if gaussian else alpha / _HALVINGS
        else:
            first = 1
            # The test of the most noise, and those of the search, share the other half.
            level = alpha if gaussian else alpha / 2 / (1 + _HALVINGS)
        refutes = self._refutes(level)
        if first == 1 and not is_refuted(_NOISE_STEPS):
            return None
        least = first + first_where(lambda step: is_refuted(first + step), _NOISE_STEPS)
        return float(claimed * _NOISE_RATIO ** min(least, _NOISE_STEPS))


@dataclass
class ClaimTest(_Test):
    """Test on independent runs: fold trials in order, and `look` at any time.

    A look evaluates only `process`. The parts `between_looks` need the same trials, but may fold
    them later, many at once.
    """

    # Claims by noise multiplier if scores are simulated by these; None if as Gaussian.
    alternatives: Callable[[float], Curve] | None = None
    later: tuple[int, ...] = ()  # declared with `planned`: each has a `DeclaredTest`
    log_odds: bool = False  # whether scores are log odds of the bit
    delta: float | None = None  # δ of a `BoundTest`, which has half of the declared tests' error
    # Trials and log e-value of each look that had more evidence than all looks before it.
    _reached: list[tuple[int, float]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        """Makes the parts: the e-process, a test for each declared number, and bounds."""
        self.process = Claim(planned=self.planned)
        self.hits = GuessCounter()
        numbers = (self.planned, *self.later)
        self.declared = [DeclaredTest(number, self.log_odds) for number in numbers]
        self.bounds: list[BoundTest] = []
        if self.delta is not None:
            self.bounds.append(BoundTest(self.planned, self.delta, self.log_odds))
        self.between_looks: tuple[GuessCounter | DeclaredTest | BoundTest, ...] = (
            self.hits,
            *self.declared,
            *self.bounds,
        )

    @property
    def trials(self) -> int:
        return self.process.trials

    @property
    def horizon(self) -> int:
        """The first declared number of trials that is not exceeded; the last if all are."""
        numbers = (self.planned, *self.later)
        return next((number for number in numbers if number >= self.trials), numbers[-1])

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials in order.

        Args:
            scores: float64 [n], not finite where diverged.
            members: the secret bits, bool [n].
        """
        for part in (self.process, *self.between_looks):
            part.fold(scores, members)

    def miss(self, members: Members) -> None:
        """Adds trials without an output, with bits bool [n]: each counts as a wrong guess."""
        for part in (self.process, *self.between_looks):
            part.miss(members)

    def fitted_odds(self) -> Floats:
        """Returns the finite scores, which are log odds, scaled to fit the bits of their trials.

        They are multiplied by the factor, 1 at most, with which logistic regression explains the
        bits best. The result is empty if no factor above 0 explains any bits.
        """
        scores, members = self.declared[-1].first_trials(_MOST_FITTED)
        finite = np.isfinite(scores)
        odds, bits = scores[finite], members[finite]

        def slope(factor: float) -> float:
            """Returns the derivative of the log likelihood by the factor."""
            return float(odds @ (bits - expit(factor * odds)))

        if slope(0.0) <= 0:
            return odds[:0]
        return odds if slope(1.0) >= 0 else odds * root(slope, 0.0, 1.0, xtol=1e-6)

    def look(self, now: bool = False) -> None:
        """Updates the evidence if there are 2 % more trials than at the last look, or `now`."""
        if self.trials < self.due and not now:
            return
        self.due = math.ceil(_LOOK_RATIO * self.trials)
        self.latest = self.process.evidence(self.curve)
        if self.latest > self.best:
            self.best = self.latest
            self._reached.append((self.trials, self.best))

    def refuted_after(self, alpha: float) -> int | None:
        """Returns the number of trials after which the claim was refuted; None if it is not.

        A true claim is refuted with probability `alpha` at most.
        """
        # The log e-value from which on the claim is refuted at the e-process's share of the error.
        limit = -math.log(EVIDENCE_SHARE * alpha)
        reached = [trials for trials, best in self._reached if best >= limit]
        return min([*reached, *self._crossings(self.curve, alpha)], default=None)

    def _refutes(self, alpha: float) -> Callable[[Curve], bool]:
        """Implements `_Test._refutes`: by the e-process, or by a test for a declared number."""
        limit = -math.log(EVIDENCE_SHARE * alpha)

        def refutes(curve: Curve) -> bool:
            """Returns whether the trials refute a claim at this level."""
            return self.process.evidence(curve) >= limit or bool(self._crossings(curve, alpha))

        return refutes

    def _crossings(self, curve: Curve, alpha: float) -> list[int]:
        """Returns the numbers of trials after which tests for declared numbers refuted `curve`.

        `alpha` is the error of the e-process and of all these tests together.
        """
        level = (1 - EVIDENCE_SHARE) * alpha / (1 + len(self.bounds))
        crossings = [bound.refuted_after(curve, level) for bound in self.bounds]
        test_shares = shares(len(self.declared))
        for test, share in zip(self.declared, test_shares, strict=True):
            crossings.append(test.refuted_after(curve, share * level))
        return [trials for trials in crossings if trials is not None]


@dataclass
class RunTest(_Test):
    """Test on runs of several canaries: fold scores in order, run after run.

    Each canary is a trial, so `planned` and `trials` count canaries, not runs.
    """

    canaries: int
    in_pairs: bool = False
    evidence_share = 1.0

    def __post_init__(self) -> None:
        self._runs = (PairOutcomes if self.in_pairs else RunAccuracies)(self.canaries)
        self.hits = self._runs.counter

    @property
    def trials(self) -> int:
        return self._runs.trials

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds scores in order, run after run, with their bits; float64 and bool [n]."""
        self._runs.fold(scores, members)

    def miss(self, members: Members) -> None:
        """Adds trials without an output: their run has the outcome 0."""
        self._runs.fold(np.full(len(members), math.nan), members, ran=False)

    def look(self, now: bool = False) -> None:
        """Updates the evidence; `now` has no effect."""
        wealth = self._wealth(self.curve)
        if len(wealth):
            self.latest = float(wealth[-1])
            self.best = max(self.best, float(wealth.max()))

    def refuted_after(self, alpha: float) -> int | None:
        """Returns the number of trials after which the claim was refuted; None if it is not.

        A true claim is refuted with probability `alpha` at most.
        """
        refuting = np.flatnonzero(self._wealth(self.curve) >= -math.log(alpha))
        if len(refuting) == 0:
            return None
        runs = self._runs.skipped + int(refuting[0]) + 1
        return runs * self.canaries

    def _refutes(self, alpha: float) -> Callable[[Curve], bool]:
        accuracy = e_process.mean_lower(self._runs.outcomes(), alpha)
        return lambda curve: accuracy > largest_accuracy(curve)

    def share_found(self, alternative: float, alpha: float, audits: int) -> float:
        """Simulates audits by resampling runs; returns the share of them that refute the claim.

        An outcome is a run's share of correct guesses. For a μ-GDP mechanism its mean is Φ(μ/2) at
        most, and noise that is `alternative` times as large divides μ by it. So the measured
        outcomes are shifted to the mean that this predicts.

        Args:
            alternative: noise of the simulated mechanism, as a multiple of the measured one's.
            alpha: level of the test.
            audits: number of simulated audits.
        """
        outcomes = self._runs.outcomes()
        if len(outcomes) == 0:
            return 0.0
        rng = np.random.default_rng(0)
        measured_mean = float(outcomes.mean())
        # Not below chance, and below 1, where μ would be infinite.
        accuracy = min(max(measured_mean, 0.5), 1 - 0.5 / len(outcomes))
        simulated_mu = 2 * float(ndtri(accuracy)) / alternative
        simulated_mean = float(ndtr(simulated_mu / 2))
        shifted = np.clip(outcomes - measured_mean + simulated_mean, 0.0, 1.0)
        claimed_accuracy = largest_accuracy(self.curve)
        # The first runs have no outcome: they only set a threshold. `planned` counts canaries.
        runs = max(self.planned // self.canaries - self._runs.skipped, 1)
        refuted = 0
        for _ in range(audits):
            log_wealth = e_process.evidence(rng.choice(shifted, runs), claimed_accuracy)
            refuted += bool(log_wealth.max() >= -math.log(alpha))
        return refuted / audits

    def _wealth(self, curve: Curve) -> Floats:
        """Returns the log wealth of bets against `curve` after each run, float64 [runs]."""
        return e_process.evidence(self._runs.outcomes(), largest_accuracy(curve))


def largest_accuracy(curve: Curve) -> float:
    """Returns the largest rate of correct guesses of a fair coin that the claim allows.

    It is the least of (e^ε + δ) / (e^ε + 1) over the points of the curve (Kairouz et al. 2015).
    """
    odds = np.exp(-curve.epsilons)  # of a wrong guess: e^-ε does not overflow
    return float(np.min((1 + curve.deltas * odds) / (1 + odds)))
