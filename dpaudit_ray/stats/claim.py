"""Bets against a claim: payoffs of guesses with abstention, at many thresholds, against any (ε, δ).

A slot is a rule of guessing. It guesses "in" above a threshold (`up`), "out" below one (`down`), or
both with a gap between them, and abstains elsewhere; other slots guess diverged trials. Under
(ε, δ)-DP with fair bits the payoff

    Y = 1[guess right] - e^ε 1[guess wrong]

has mean at most δ/2 for one direction and δ for both, whatever happened before. Thresholds of an
epoch are nested, so a trial has one of a few dozen outcomes, which determines its payoff for every
slot. Hence counts of outcomes serve every ε, every δ and every bet.

The wealth of `ConstantStakes`, averaged over slots and stakes, is a supermartingale.
`Portfolio` bets on all points of a claim at once. One slot against one (ε, δ), with everything
staked, multiplies the wealth by

    V = 1 + (Y - δ) / (e^ε + δ),

which is 0 for a wrong guess and has mean at most 1, as has every mixture of such bets and of cash.
A mixture that would have grown over the epochs so far is bet on the next (Cover 1991 for
portfolios; Waudby-Smith, Ramdas 2024 for bets as tests).

Four ways of betting share the stake of the e-process of a claim δ(ε) (`Claim`): plain guessing,
mixed over all stakes; constant stakes at many points of the curve; the same on diverged trials
alone; and the mixture that past trials recommend. Reaching 1/alpha refutes the claim, at any look.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from . import cut, gdp
from .base import Estimator, Members, Scores
from .curve import Curve, gaussian
from .cut import Cut
from .e_process import log_mean, log_mixture
from .error_rates import Counts, Floats, as_floats, last_refuted
from .lower_bound import Estimate, Status
from .trial_log import TrialLog

# Distances of thresholds from the classes' midpoint, in deviations.
OFFSETS = np.linspace(0.0, 3.3, 12)
STAKES = np.array([0.02, 0.08, 0.2, 0.45, 0.75, 0.95])  # share of the stake lost by a wrong guess
_FIRST_EPOCH = 32  # trials that only place the first thresholds
_K = len(OFFSETS)
# Numbers of outcomes. Finite scores have one for each direction, right or wrong, and for each of
# the K thresholds: the furthest one that the score passed.
_UP_RIGHT, _UP_WRONG, _DOWN_RIGHT, _DOWN_WRONG = (np.arange(_K) + _K * i for i in range(4))
DIVERGED_RIGHT, DIVERGED_WRONG, MISSED = range(4 * _K, 4 * _K + 3)
OUTCOMES = 4 * _K + 3
PLAIN = 2 * _K  # the slot that guesses every finite trial, around the midpoint
_PORTFOLIO_POINTS = 16  # points of the curve that a portfolio bets on
_BETS = 12  # bets in a mixture at most
_LEAST_GROWTH = 1.0  # nats: a further bet that adds less may be noise
_LARGEST_SHARE = 0.95  # share of the mixture that one bet may take
_BISECTIONS = 24  # of a share, which is then exact to 1e-7
_CONSTANT_POINTS = 12  # points of a curve for constant stakes
# Number of the largest stakes, which are for diverged trials: these are rare and nearly sure.
_BOLD_STAKES = 3
_CAUTIONS = np.array([0.4, 1.0])  # shares of the recommended mixture that are staked


def _slots() -> tuple[NDArray[np.bool_], NDArray[np.bool_], Floats]:
    """Makes the table of slots.

    At each threshold there are four: up, down, both, and both with guesses on diverged trials. A
    last one guesses only diverged trials.

    Returns:
        Outcomes by which each slot wins, and those by which it loses, bool [slots, OUTCOMES]; and
        the share of δ in its mean payoff, float64 [slots]: half for one direction, all for both.
    """
    kinds = ((1, 0, 0), (0, 1, 0), (1, 1, 0), (1, 1, 1))  # up, down, diverged
    slots = [*itertools.product(kinds, range(_K)), ((0, 0, 1), 0)]
    wins, losses = np.zeros((2, len(slots), OUTCOMES), dtype=bool)
    shares = []
    # A score whose furthest threshold is k or a later one passed k: slot k guesses it.
    for slot, ((up, down, diverged), k) in enumerate(slots):
        wins[slot, _UP_RIGHT[k:]] = up
        losses[slot, _UP_WRONG[k:]] = up
        wins[slot, _DOWN_RIGHT[k:]] = down
        losses[slot, _DOWN_WRONG[k:]] = down
        wins[slot, DIVERGED_RIGHT] = diverged
        losses[slot, DIVERGED_WRONG] = diverged
        shares.append(max(up + down, diverged) / 2)
    losses[:, MISSED] = True
    return wins, losses, np.array(shares)


WINS, LOSSES, SHARES = _slots()


@dataclass
class Wagers:
    """Outcomes of trials 32 to 63, 64 to 127, ...: `epochs` are int64 [OUTCOMES] each.

    At the start of an epoch, thresholds are placed by the mean and spread of both worlds' past
    scores, or by a `cut`. Epochs start at fixed trial numbers, so that any split of the stream
    gives the same counts. Nothing is guessed before the first epoch, nor until trials of both
    worlds were observed. A diverged trial is guessed to be of the world in which more have diverged
    so far; a trial without an output is wrong in every slot.
    """

    trials: int = 0
    epochs: list[Counts] = field(default_factory=list)
    centre: float = math.nan  # centre of the thresholds; NaN until they are placed
    spread: float = math.nan  # standard deviation of scores, the unit of OFFSETS
    _epoch_end: int = _FIRST_EPOCH  # number of trials after which the next epoch begins
    _origin: float = math.nan  # the first finite score: sums of differences from it round less
    # Of differences from `_origin`: number, sum and sum of squares, [3, worlds], worlds (out, in).
    _moments: Floats = field(default_factory=lambda: np.zeros((3, 2)))
    _diverged: Counts = field(default_factory=lambda: np.zeros(2, dtype=np.int64))  # (out, in)
    _log: TrialLog = field(default_factory=TrialLog)  # up to `cut.LAST` trials
    _cut: Cut | None = None  # places thresholds by ranks; None if class means do it

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials in order.

        Args:
            scores: float64 [n], not finite where diverged.
            members: the secret bits, bool [n].
        """
        for part in self._parts(len(scores)):
            self._count(self._outcomes(scores[part], members[part]))
            self._add_moments(scores[part], members[part])

    def miss(self, members: Members) -> None:
        """Adds trials without an output, with bits bool [n]: they are wrong in every slot."""
        for part in self._parts(len(members)):
            self._count(np.full(part.stop - part.start, MISSED))

    @property
    def counts(self) -> Counts:
        """Number of trials with each outcome in all epochs together, int64 [OUTCOMES]."""
        return sum(self.epochs, start=np.zeros(OUTCOMES, dtype=np.int64))

    def _parts(self, trials: int) -> Iterator[slice]:
        """Yields parts of the next trials, split where an epoch ends.

        Once the caller has added a part that ends an epoch, thresholds are placed again.
        """
        start = 0
        while start < trials:
            stop = min(trials, start + self._epoch_end - self.trials)
            yield slice(start, stop)
            self.trials += stop - start
            start = stop
            if self.trials == self._epoch_end:
                self._place_thresholds()
                self._epoch_end *= 2
                self.epochs.append(np.zeros(OUTCOMES, dtype=np.int64))

    def _count(self, outcomes: NDArray[np.int64]) -> None:
        """Adds outcomes, int64 [n], to the epoch; drops outcomes before the first thresholds."""
        is_placed = not math.isnan(self.centre + self.spread)
        if self.epochs and is_placed:
            self.epochs[-1] += np.bincount(outcomes, minlength=OUTCOMES)

    def _outcomes(
        self,
        scores: Scores,
        members: Members,
    ) -> NDArray[np.int64]:
        """Returns each trial's outcome at the current thresholds, int64 [n] below OUTCOMES.

        Args:
            scores: float64 [n], not finite where diverged.
            members: the secret bits, bool [n].
        """
        finite = np.isfinite(scores)
        with np.errstate(invalid="ignore", over="ignore"):
            distance = scores - self.centre
            if self._cut is not None:
                distance = self._cut.position(scores)  # in units of its spread, 1
            distance = np.where(finite, distance, 0.0)[:, None]
            passed_up = (distance >= self.spread * OFFSETS).sum(axis=1)
            passed_down = (distance < -self.spread * OFFSETS).sum(axis=1)
        # Indices of the furthest threshold passed. If none was passed on a side, -1 selects a value
        # that is not used: every score passes the first threshold on one side.
        highest = passed_up - 1
        up = np.where(members, _UP_RIGHT[highest], _UP_WRONG[highest])
        lowest = passed_down - 1
        down = np.where(members, _DOWN_WRONG[lowest], _DOWN_RIGHT[lowest])
        diverged_before = []
        for world, count in enumerate(self._diverged):
            diverged = ~finite & (members == bool(world))
            totals = np.cumsum(np.concatenate([[count], diverged]))
            diverged_before.append(totals[:-1])
        diverged_out, diverged_in = diverged_before
        guess_in = diverged_in >= diverged_out
        if_diverged = np.where(guess_in == members, DIVERGED_RIGHT, DIVERGED_WRONG)
        if_finite = np.where(passed_up > 0, up, down)
        return np.where(finite, if_finite, if_diverged)

    def _add_moments(self, scores: Scores, members: Members) -> None:
        """Adds trials to the sums by which thresholds are placed; arguments are those of `fold`."""
        finite = np.isfinite(scores)
        if math.isnan(self._origin) and finite.any():
            self._origin = float(scores[finite][0])
        for world in (0, 1):
            in_world = members == bool(world)
            self._diverged[world] += int((~finite & in_world).sum())
            with np.errstate(over="ignore", invalid="ignore"):
                x = scores[finite & in_world] - self._origin
                for power in (0, 1, 2):
                    terms = np.append(self._moments[power, world], x**power)
                    # `cumsum` adds strictly in order, so a split stream sums to the same bits.
                    self._moments[power, world] = np.cumsum(terms)[-1]
        if self.trials < cut.LAST:
            self._log.append(scores, members)

    def _place_thresholds(self) -> None:
        """Puts thresholds between the worlds.

        If all trials of one world diverged, they are beyond all scores: every finite score is then
        guessed to be of the other world.
        """
        score_counts, total, square = self._moments  # [worlds] each
        if score_counts.min() == 0:
            if (score_counts + self._diverged).min() > 0:
                self.centre = math.inf if score_counts[1] == 0 else -math.inf
                self.spread = 1.0
            return
        with np.errstate(over="ignore", invalid="ignore"):
            means = total / score_counts
            squared_deviations = square - score_counts * means**2
            variance = float(np.sum(squared_deviations) / score_counts.sum())
            self.centre = float(means.mean()) + self._origin
        self.spread = math.nan
        if math.isfinite(variance):
            self.spread = math.sqrt(max(variance, 0.0))
        if self.trials <= cut.LAST:
            self._cut = cut.fit(*self._log.arrays())
        else:
            self._log = TrialLog()
        if self._cut is not None:
            self.centre = self._cut.threshold
            self.spread = 1.0


class ConstantStakes:
    """Constant stakes at some (ε, δ), with logarithms that serve many looks.

    A stake u multiplies the wealth by 1 + u (Y - mean) / (e^ε + mean), with the payoff Y of the
    module's docstring and its largest mean: 1 - u for a wrong guess, whatever ε is.
    """

    def __init__(self, epsilons: ArrayLike, deltas: ArrayLike) -> None:
        """Computes the log factors of a trial.

        Args:
            epsilons: ε of each point at which bets are made, [points].
            deltas: δ of each point, [points].
        """
        # Arrays are [points, slots, stakes].
        odds = np.exp(-as_floats(epsilons))[:, None, None]  # e^-ε, which does not overflow
        mean = as_floats(deltas)[:, None, None] * SHARES[:, None]
        stake_per_payoff = STAKES * odds / (1 + mean * odds)  # u / (e^ε + mean)
        self._log_right = np.log1p(stake_per_payoff * (1 - mean))
        self._log_abstain = np.log1p(-stake_per_payoff * mean)

    def log_wealth(self, counts: Counts) -> Floats:
        """Returns the log wealth of each bet, [points, slots, stakes]: a supermartingale each.

        Args:
            counts: number of trials with each outcome, int64 [OUTCOMES].
        """
        right = (WINS @ counts)[:, None]
        wrong = (LOSSES @ counts)[:, None]
        abstained = int(counts.sum()) - right - wrong
        gain = right * self._log_right + wrong * np.log1p(-STAKES)
        return np.asarray(gain + abstained * self._log_abstain)


class Portfolio:
    """Bets of one stream of trials against one claim: all slots, at some points of the curve.

    Attributes:
        curve: the claim.
        factors: factor of the wealth by each bet, one row for a point and slot, [bets, OUTCOMES].
        constant: constant stakes at points of the curve.
    """

    def __init__(self, curve: Curve) -> None:
        """Computes the factors of bets against a claim."""
        self.curve = curve
        # Factors V of the module's docstring, [points of the curve, slots, outcomes]: Y is 0 if a
        # slot abstains, 1 if it is right; δ is its share, half for one direction. A wrong guess
        # loses everything.
        few = curve.thinned(_PORTFOLIO_POINTS)
        odds = np.exp(-few.epsilons)[:, None]  # e^-ε
        abstaining = 1 / (1 + few.deltas[:, None] * SHARES * odds)
        right = abstaining * (1 + odds)
        otherwise = np.where(LOSSES, 0.0, abstaining[..., None])
        factors = np.where(WINS, right[..., None], otherwise)
        self.factors = factors.reshape(-1, OUTCOMES)
        self.constant = _constant_stakes(curve)
        self._log_factors: dict[int, Floats] = {}  # log factors by epoch, [_CAUTIONS, OUTCOMES]

    def log_wealth(self, epochs: list[Counts]) -> float:
        """Returns the natural logarithm of the wealth after the epochs, from a stake of 1.

        The bets of each epoch are the mixture that would have grown on all epochs before it.
        """
        logs = np.zeros(len(_CAUTIONS))
        past = np.zeros(OUTCOMES, dtype=np.int64)
        for epoch, counts in enumerate(epochs):
            if counts.any():
                if epoch not in self._log_factors:  # depends only on earlier epochs, now complete
                    gains = _CAUTIONS[:, None] * (self.mixture(past) - 1)
                    self._log_factors[epoch] = np.log1p(gains)
                logs = logs + self._log_factors[epoch] @ counts
            past = past + counts
        return float(log_mean(logs))

    def mixture(self, counts: Counts) -> Floats:
        """Returns factors by outcome of a mixture that grows on the counts, float64 [OUTCOMES].

        It begins as cash. Again and again, the bet that promises most growth is added at its best
        share (Frank, Wolfe 1956), until the growth that it adds could be noise. No outcome loses
        everything, since some cash is kept.
        """
        mixed = np.ones(OUTCOMES)  # cash: the wealth stays as it is
        if not counts.any():
            return mixed
        for _ in range(_BETS):
            # Slopes of log wealth, by the share of each bet.
            slopes = self.factors @ (counts / mixed)
            best = self.factors[int(np.argmax(slopes))]
            difference = best - mixed
            # Bisects the share at which growth is largest: where its derivative falls to 0.
            low, high = 0.0, _LARGEST_SHARE
            for _ in range(_BISECTIONS):
                share = (low + high) / 2
                growth = difference / (mixed + share * difference)
                if float(growth @ counts) > 0:
                    low = share
                else:
                    high = share
            extended = (1 - low) * mixed + low * best
            growth_added = float(np.log(extended / mixed) @ counts)
            if growth_added < _LEAST_GROWTH:
                break
            mixed = extended
        return mixed


class Wagered:
    """Mixin: an estimator whose state is a table of wagers."""

    def __post_init__(self) -> None:
        self._wagers = Wagers()

    def _fold(self, scores: Scores, members: Members) -> None:
        self._wagers.fold(scores, members)

    def _miss(self, members: Members) -> None:
        self._wagers.miss(members)


@dataclass
class EpsDeltaAnytime(Wagered, Estimator):
    """Time-uniform bound on ε that assumes no curve."""

    name = "eps-delta-anytime"
    status = Status.CERTIFIED
    interim_valid = True

    def bound(self, delta: float, confidence: float) -> Estimate:
        """Bounds ε by the mean wealth of constant stakes, over all slots and stakes."""
        wagers = self._wagers
        counts = wagers.counts
        log_alpha = math.log(1 - confidence)

        def excess(epsilon: float) -> float:
            """Returns the log of the mean wealth over slots and stakes, less ln(1 / α)."""
            wealth = ConstantStakes([epsilon], [delta]).log_wealth(counts)
            return float(special.logsumexp(wealth)) - math.log(wealth.size) + log_alpha

        # The search ends, since the gain of a correct guess falls with e^-ε.
        epsilon = last_refuted(excess, xtol=1e-10)
        level = (delta, confidence)
        return self._estimate(epsilon, math.nan, level, wagers.trials, wagers.centre)


@dataclass
class Claim(Wagered, Estimator):
    """Evidence against claims; as an estimator, the largest refuted μ of the Gaussian family."""

    name = "claim"
    status = Status.IF_GAUSSIAN
    interim_valid = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._portfolio: Portfolio | None = None

    @property
    def trials(self) -> int:
        return self._wagers.trials

    def evidence(self, curve: Curve) -> float:
        """Returns the natural log of an e-value: from ln(1/alpha) on, `curve` is refuted."""
        if self._portfolio is None or self._portfolio.curve is not curve:
            self._portfolio = Portfolio(curve)
        recommended = self._portfolio.log_wealth(self._wagers.epochs)
        constant = self._constant(self._portfolio.constant)
        return float(log_mean([self._plain(curve), *constant, recommended]))

    def _plain(self, curve: Curve) -> float:
        """Returns the log wealth of bets against the claimed accuracy, with all stakes mixed.

        The bets are on guesses around the midpoint. An accuracy is (1 + δ) / 2 at most, with the
        claimed δ at ε = 0.
        """
        advantage = float(curve.deltas[curve.epsilons == 0].min(initial=1.0))
        rate = (1 + advantage) / 2
        if rate >= 1:
            return 0.0
        counts = self._wagers.counts
        hits = int(WINS[PLAIN] @ counts)
        misses = int(LOSSES[PLAIN] @ counts)
        return log_mixture(rate, hits, hits + misses)

    def _constant(self, stakes: ConstantStakes) -> tuple[float, float]:
        """Returns the log wealth of constant stakes: in all slots, and on diverged trials alone."""
        wealth = stakes.log_wealth(self._wagers.counts)
        bold = wealth[:, -1, -_BOLD_STAKES:]  # the last slot guesses only diverged trials
        return float(log_mean(wealth.ravel())), float(log_mean(bold.ravel()))

    def bound(self, delta: float, confidence: float) -> Estimate:
        """Bounds μ by the largest Gaussian curve that is refuted, and converts it to ε."""
        target = -math.log(1 - confidence)

        def excess(mu: float) -> float:
            """Returns the log wealth against μ-GDP, without a portfolio, less ln(1 / α)."""
            curve = gaussian(mu)  # a portfolio would take too long: this runs after every pack
            constant = self._constant(_constant_stakes(curve))
            return float(log_mean([self._plain(curve), *constant])) - target

        mu = last_refuted(excess, high=40.0, most=40.0, xtol=1e-9, rtol=1e-5)
        epsilon = float(gdp.epsilon(mu, delta))
        return self._estimate(epsilon, mu, (delta, confidence), self.trials)


def _constant_stakes(curve: Curve) -> ConstantStakes:
    """Returns constant stakes at a few points of a curve, evenly over ε."""
    few = curve.thinned(_CONSTANT_POINTS)
    return ConstantStakes(few.epsilons, few.deltas)
