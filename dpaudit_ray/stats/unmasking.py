"""Chooses which independent training runs to guess, without using the bits that are tested.

The bits of the first trials are revealed, then, one small part at a time, those of the trials that
seem least certain; all others are guessed. Every choice is a function of the outputs and of
revealed bits. Given all outputs, the bits of independent runs are independent, so masked ones are
as uncertain as if nothing had been revealed. (AdaPT, by Lei and Fithian 2018, so reveals p-values.)

How likely "in" is at a score is estimated from the revealed bits. The log odds of "in" are assumed
to rise along a ramp in the rank of the score (as a normal score) and to be flat beyond its two
ends. Six ramps, with two of four knots as ends, and two of them a second time with another prior,
are fitted with normal priors and averaged by their evidence: a steady rise suits Gaussian noise, a
rise between two plateaus Laplace noise and randomised response, a rise at one end a leak in some
runs only. If the revealed bits at either end of the ranks contradict the ramps, as those of a rare
event that only one world has do, their rate replaces that of the ramps. If scores are log odds, a
line in the scores themselves is fitted, too. No certified number depends on the quality of the fit.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, betaln, expit, ndtri, xlog1py, xlogy

from .base import Members, Scores
from .error_rates import Counts, Floats

# Trials that are revealed from the start: a share of the planned ones, or at least so many.
FIRST_SHARE = 0.05
FIRST_TRIALS = 10
_PART = 15  # at most a fifteenth of the masked trials is revealed between two choices
# Numbers of guesses that are compared: the number of masked trials to these powers.
_EXPONENTS = np.linspace(0, 1, 64)
GROUPS = 256  # groups of neighbouring scores: enough to place a threshold, few enough to be fast
_SMALLEST_GROUP = 64  # scores of the groups at either end, which are halved down to these
_END_SHARE = 0.1  # share of the scores at either end where another rate may replace a ramp's
_CONTRADICTION = 5.0  # nats by which a separate rate of an end must fit its revealed bits better
_END_RATES = 4  # separate rates at most, of ranges one inside the other, at either end
_KNOTS = (-9.0, -0.7, 0.7, 9.0)  # normal scores at which ramps end; no score is beyond ±9
_REACH = 2.5  # normal scores beyond this are too few to count in a ramp's height
_RAMPS = (
    *itertools.combinations(_KNOTS, 2),
    (_KNOTS[0], _KNOTS[3]),
    (_KNOTS[1], _KNOTS[2]),
)
_LOW, _HIGH = np.array(_RAMPS).T[:, :, None]  # ends of the ramps, [8, 1] each
_BOTTOM = np.maximum(_LOW, -_REACH)
_TOP = np.minimum(_HIGH, _REACH)
# Prior weights of the ramps: a steady rise, as of Gaussian noise, is the likeliest.
_FAVOUR = np.log([1.0, 1.0, 1.0, 4.0, 1.0, 1.0, 0.3, 0.6, 4.0])[:, None]
# Prior standard deviations of the log odds halfway up a ramp: six ramps, the two of them that come
# a second time, and the line in log odds. The two have about even odds halfway up, so that both
# sides are alike: otherwise chance in early trials makes one of two equal sides look surer.
_LEVEL_SD = np.repeat([2.0, 0.05, 0.5], [6, 2, 1])[:, None]
_LARGEST_ODDS = 20.0  # log odds beyond which scores count as these
_RISE_SD = 8.0  # standard deviation of the height of a ramp
_NEWTON_STEPS = 12
_NEWTON_REACH = 4.0  # largest change of a parameter by one step, in log odds
_CLOSE = 5e-2  # a step below this many log odds ends the fit


@dataclass(frozen=True)
class Judged:
    """Guesses on masked trials.

    Attributes:
        right: number of correct guesses.
        guesses: number of guesses.
        threshold: lowest score of a trial that is guessed "in"; NaN if none is.
    """

    right: int
    guesses: int
    threshold: float = math.nan


def hit_rate(
    guesses: Floats,
    wrong: Floats,
    alpha: float,
    revealed: int,
    missed: int,
) -> Floats:
    """Computes lower bounds on the hit rate that numbers of guesses are expected to give, [n].

    Args:
        guesses: numbers of guesses, [n].
        wrong: how many of them are expected to be wrong, [n].
        alpha: level of the lower bounds.
        revealed: correct guesses that are excluded, as if their bits had been revealed.
        missed: trials without an output, which count as wrong.
    """
    right = np.maximum(guesses - wrong - revealed, 0.0)
    # Clopper and Pearson's bound, for numbers that need not be whole.
    bound = betaincinv(np.maximum(right, 1e-9), wrong + missed + 1, alpha)
    return np.where(right > 0, bound, 0.0)


def first_trials(planned: int) -> int:
    """Returns the number of trials that are revealed from the start, of `planned` ones."""
    at_least = min(FIRST_TRIALS, planned // 2)
    return max(math.ceil(FIRST_SHARE * planned), at_least)


class Masks:
    """Trials of an audit, of which the bits are revealed group by group.

    Args:
        scores: float64 [R].
        members: bool [R], the bits.
        first: number of trials that are revealed from the start.
        log_odds: whether scores are log odds of "in".
    """

    def __init__(
        self,
        scores: Scores,
        members: Members,
        first: int,
        log_odds: bool = False,
    ) -> None:
        """Groups the trials by score, reveals the bits of the first ones, and estimates P(in)."""
        self._scores = scores
        self._groups = groups = Groups.from_scores(scores, log_odds)
        # Trials that are in, among the first k of the order.
        self._in_before = _running_count(members[groups.order])
        # Within a group trials are in order, so the revealed ones are always its first.
        first_before = _running_count(groups.order < first)
        revealed = first_before[groups.start + groups.size] - first_before[groups.start]
        self._revealed = revealed.astype(np.int64)  # number of revealed trials, [groups]
        self._fit: Floats | None = None  # parameters of the last fit, from which the next begins
        self._refit()

    def adaptive(
        self,
        alpha: float,
        revealed: int = 0,
        missed: int = 0,
    ) -> Judged:
        """Reveals bits while fewer, surer guesses promise a larger `hit_rate`; guesses the others.

        Args:
            alpha: level of the lower bound on the rate.
            revealed: correct guesses that are excluded, as if their bits had been revealed.
            missed: trials without an output, which count as wrong.
        """
        while self._reveal(alpha, revealed, missed):
            self._refit()
        return self._guess(self._groups.size - self._revealed)

    def fixed(self, guesses: int) -> Judged:
        """Guesses so many of the surest masked trials, by the bits revealed so far.

        Args:
            guesses: number of guesses; a negative number counts as 0.
        """
        masked = self._groups.size - self._revealed
        surest = np.argsort(self._doubt, kind="stable")
        sizes = masked[surest]
        # Guesses that remain for each group, after those for surer groups.
        remaining = guesses - (np.cumsum(sizes) - sizes)
        guessed = np.zeros_like(masked)
        guessed[surest] = np.minimum(sizes, np.maximum(remaining, 0))
        return self._guess(guessed)

    def _refit(self) -> None:
        """Estimates P(in) of all groups again from the bits that are revealed."""
        start = self._groups.start
        # The revealed trials of a group are its first ones.
        members_revealed = self._in_before[start + self._revealed] - self._in_before[start]
        self._chance, self._fit = self._groups.chance_in(
            members_revealed, self._revealed, self._fit
        )
        # Probability that the likelier bit is wrong, [groups].
        self._doubt = np.minimum(self._chance, 1 - self._chance)

    def _reveal(self, alpha: float, revealed: int, missed: int) -> bool:
        """Reveals some of the least certain trials; returns whether it did.

        Compares the `hit_rate` of some numbers of the surest guesses. If the best number is not
        all, it reveals a part of the others, so that the fit can be repeated before the next part.

        Args:
            alpha: level of the lower bound on the rate.
            revealed: correct guesses that are excluded.
            missed: trials without an output.
        """
        masked = self._groups.size - self._revealed
        surest = np.argsort(self._doubt, kind="stable")
        surest = surest[masked[surest] > 0]
        if len(surest) == 0:
            return False
        expected_wrong = masked * self._doubt
        guesses = np.cumsum(masked[surest]).astype(float)
        wrong = np.cumsum(expected_wrong[surest])
        most = float(guesses[-1])
        candidates = np.searchsorted(guesses, most**_EXPONENTS)
        # Rounding of the last power may lead beyond the last group.
        candidates = np.unique(np.minimum(candidates, len(guesses) - 1))
        rates = hit_rate(guesses[candidates], wrong[candidates], alpha, revealed, missed)
        if rates.max() <= rates[-1]:
            return False
        best = candidates[int(np.argmax(rates))]
        excess = int(most - guesses[best])
        part = min(excess, math.ceil(most / _PART))
        # About `part` bits, of the most doubtful groups first; never all of a large group.
        doubtful = surest[:best:-1]
        shares = np.maximum(masked[doubtful] // _PART, 1)
        before = np.cumsum(shares) - shares
        self._revealed[doubtful] += np.clip(part - before, 0, shares)
        return True

    def _guess(self, counts: Counts) -> Judged:
        """Guesses the first masked trials of each group as its likelier bit.

        Args:
            counts: number of guesses in each group, int64 [groups].
        """
        begin = self._groups.start + self._revealed
        end = begin + counts
        members_guessed = self._in_before[end] - self._in_before[begin]
        guess_in = self._chance > 0.5
        right = np.where(guess_in, members_guessed, counts - members_guessed)
        threshold = math.nan  # the lowest score of a trial that is guessed "in"; NaN if none is
        has_guesses_in = guess_in & (counts > 0)
        # Groups rise in score, and the last one holds the diverged trials, which have none.
        groups_guessed_in = np.flatnonzero(has_guesses_in[:-1])
        if len(groups_guessed_in):
            lowest_group = groups_guessed_in[0]
            trials = self._groups.order[begin[lowest_group] : end[lowest_group]]
            threshold = float(self._scores[trials].min())
        return Judged(int(right.sum()), int(counts.sum()), threshold)


@dataclass(frozen=True)
class Groups:
    """Trials grouped by score, lowest first; the last group holds the diverged ones, if any.

    Indices of the trials of group g are `order[start[g] : start[g] + size[g]]`.

    Attributes:
        order: indices of the trials, int32 [R], by group, and in trial order within each.
        start: index of each group's first trial in `order`, int64 [groups].
        size: number of trials of each group, int64 [groups].
        ramps: values of the fitted shapes, float64 [8, groups - 1]; of log odds [9, groups - 1].
    """

    order: NDArray[np.int32]
    start: Counts
    size: Counts
    ramps: Floats

    @classmethod
    def from_scores(cls, scores: Scores, log_odds: bool = False) -> "Groups":
        """Groups scores by their value: equal ones together, and all that are not finite.

        Args:
            scores: float64 [R].
            log_odds: whether scores are log odds of "in". Then the middle score of each group is a
                shape that is fitted, too.
        """
        rising = np.flatnonzero(np.isfinite(scores)).astype(np.int32)
        rising = rising[np.argsort(scores[rising])]
        is_first = _is_new(scores[rising])
        first = np.flatnonzero(is_first).astype(np.int32)  # rank where each distinct value begins
        equal_scores = np.diff(first, append=np.int32(len(rising)))  # scores that have the value
        # 16 bits suffice for GROUPS, and sorting them is faster: by digits.
        group_of_value = np.arange(min(len(first), GROUPS), dtype=np.int16)
        if len(first) > GROUPS:  # else each value is a group
            middle = first + (equal_scores - 1) // 2  # middle rank of each value
            coarse = np.searchsorted(_first_ranks(len(rising)), middle, side="right")
            # Numbered anew, since groups without a middle rank are empty.
            group_of_value = np.cumsum(_is_new(coarse), dtype=np.int16) - 1
            del middle, coarse  # arrays as long as the scores
        total = int(group_of_value[-1]) + 1 if len(group_of_value) else 0
        group = np.full(len(scores), total, dtype=np.int16)  # the last one, for diverged trials
        group[rising] = np.repeat(group_of_value, equal_scores)
        del first, equal_scores, group_of_value, rising  # arrays as long as the scores
        size = np.bincount(group, minlength=total + 1)
        start = np.cumsum(size) - size
        finite = max(len(scores) - int(size[-1]), 1)
        middle_rank = start + size / 2
        quantile = middle_rank[:-1] / finite
        order = np.argsort(group, kind="stable").astype(np.int32)
        # Each ramp rises by 1 from _BOTTOM to _TOP, with 0 halfway, and is flat beyond its ends.
        normal = np.clip(ndtri(quantile), _LOW, _HIGH)
        ramps = (normal - (_BOTTOM + _TOP) / 2) / (_TOP - _BOTTOM)
        if log_odds:
            middle_trial = order[middle_rank[:-1].astype(np.int64)]
            odds = np.clip(scores[middle_trial], -_LARGEST_ODDS, _LARGEST_ODDS)
            ramps = np.concatenate([ramps, odds[None]])
        return cls(order, start, size, ramps)

    def chance_in(
        self, inside: Counts, revealed: Counts, initial: Floats | None = None
    ) -> tuple[Floats, Floats]:
        """Estimates P(in) of each group, float64 [groups].

        The ramps are fitted to the revealed bits. At both ends, the rate of the revealed bits there
        replaces the ramps if it contradicts them. Diverged trials have the rate of their revealed
        bits.

        Args:
            inside: how many of the revealed trials are in, [groups].
            revealed: number of revealed trials, [groups].
            initial: parameters from which the fit begins; None for zeros.

        Returns:
            The probabilities, and the fitted parameters.
        """
        chance, theta = _average(self.ramps, inside[:-1], revealed[:-1], initial)
        middle_rank = (self.start + self.size / 2)[:-1]
        finite = float(self.size[:-1].sum())  # number of trials that did not diverge
        upper_end = np.flatnonzero(middle_rank > (1 - _END_SHARE) * finite)
        lower_end = np.flatnonzero(middle_rank < _END_SHARE * finite)
        for end in (upper_end[::-1], lower_end):  # groups from the outermost on
            chance[end] = _end_rates(chance[end], inside[end], revealed[end])
        diverged = (inside[-1] + 0.5) / (revealed[-1] + 1)  # mean by Jeffreys' prior
        return np.append(chance, diverged), theta


def _running_count(flags: Members) -> NDArray[np.int32]:
    """Counts the true flags among the first k, for k = 0..R: int32 [R + 1]."""
    counts = np.zeros(len(flags) + 1, dtype=np.int32)
    np.cumsum(flags, dtype=np.int32, out=counts[1:])
    return counts


def _is_new(rising: Floats | Counts) -> Members:
    """Marks values in rising order that differ from the one before, bool [n]."""
    first = np.ones(min(len(rising), 1), bool)
    return np.concatenate([first, rising[1:] != rising[:-1]])


def _average(
    ramps: Floats, inside: Counts, revealed: Counts, initial: Floats | None
) -> tuple[Floats, Floats]:
    """Computes the posterior mean of P(in), averaged over ramps by their evidence.

    The log odds of "in" are level + rise * ramp. Newton's method finds the mode of each ramp's
    level and rise; a Laplace approximation around it gives the evidence, and a probit approximation
    the mean.

    Args:
        ramps: values of the shapes, float64 [ramps, groups].
        inside: how many of the revealed trials are in, [groups].
        revealed: number of revealed trials, [groups].
        initial: parameters from which Newton's method begins; None for zeros.

    Returns:
        The mean of each group, float64 [groups], and levels and rises, float64 [2, ramps, 1].
    """
    theta = np.zeros((2, len(ramps), 1)) if initial is None else initial
    level_sd = _LEVEL_SD[: len(ramps)]
    for _ in range(_NEWTON_STEPS):
        level, rise = theta
        log_odds = level + rise * ramps
        chance = expit(log_odds)
        residual = inside - revealed * chance
        weight = revealed * chance * (1 - chance)
        level_slope = _sum(residual) - level / level_sd**2
        rise_slope = _sum(residual * ramps) - rise / _RISE_SD**2
        # The Hessian is [[a, b], [b, c]].
        a = _sum(weight) + level_sd**-2
        b = _sum(weight * ramps)
        c = _sum(weight * ramps**2) + _RISE_SD**-2
        determinant = a * c - b * b
        level_step = (c * level_slope - b * rise_slope) / determinant
        rise_step = (a * rise_slope - b * level_slope) / determinant
        step = np.array([level_step, rise_step])
        furthest = float(np.abs(step).max())
        if furthest < _CLOSE:
            break
        theta = theta + step * min(1.0, _NEWTON_REACH / furthest)
    variance = (c - 2 * b * ramps + a * ramps**2) / determinant
    level, rise = theta
    prior = (level / level_sd) ** 2 + (rise / _RISE_SD) ** 2
    # log(1 + e^x) takes a fifth of the time that logaddexp takes.
    smaller_term = np.exp(-np.abs(log_odds))
    log_sum = np.maximum(log_odds, 0) + np.log(1 + smaller_term)
    likelihood = _sum(inside * log_odds - revealed * log_sum)
    log_volume = np.log(level_sd * np.sqrt(determinant))
    evidence = _FAVOUR[: len(ramps)] + likelihood - prior / 2 - log_volume
    shares = np.exp(evidence - evidence.max())
    shrinkage = np.sqrt(1 + np.pi / 8 * variance)
    chances = expit(log_odds / shrinkage)
    return (shares * chances).sum(0) / shares.sum(), theta


def _first_ranks(scores: int) -> Counts:
    """Returns the first rank of each group except the lowest, rising, int64 [groups - 1].

    Groups have equal sizes, but the two at the ends are halved again and again towards the end: so
    an event that is rarer than a group forms a separate group in large audits.
    """
    equal = -(-np.arange(1, GROUPS, dtype=np.int64) * scores // GROUPS)
    halvings = max(int(math.log2(scores / GROUPS / _SMALLEST_GROUP)), 0)
    from_end = equal[0] >> np.arange(halvings, 0, -1)
    return np.concatenate([from_end, equal, scores - from_end[::-1]])


def _end_rates(chance: Floats, inside: Counts, revealed: Counts) -> Floats:
    """Replaces P(in) at an end of the ranks where revealed bits contradict it.

    A range of groups from the end on gets the rate of its revealed bits if that explains them
    better than the ramps do, by more than `_CONTRADICTION`. The same is repeated inside the range.

    Args:
        chance: P(in) by the ramps, of groups from the outermost on, float64 [n].
        inside: how many of their revealed trials are in, [n].
        revealed: number of their revealed trials, [n].
    """
    chance = chance.copy()
    in_to_here = np.cumsum(inside)
    to_here = np.cumsum(revealed)
    # The predictive probability of the bits if their rate has Jeffreys' prior.
    predictive = betaln(in_to_here + 0.5, to_here - in_to_here + 0.5) - betaln(0.5, 0.5)
    last = len(chance)
    for _ in range(_END_RATES):
        by_ramps = xlogy(inside, chance) + xlog1py(revealed - inside, -chance)
        gain = (predictive - np.cumsum(by_ramps))[:last]
        if len(gain) == 0 or gain.max() < _CONTRADICTION:
            break
        last = int(np.argmax(gain))
        chance[: last + 1] = (in_to_here[last] + 0.5) / (to_here[last] + 1)
    return chance


def _sum(values: Floats) -> Floats:
    """Sums over groups: [ramps, groups] to [ramps, 1]."""
    return np.asarray(values.sum(1, keepdims=True))
