"""Bounds from secret bits guessed simultaneously: canaries of one training run, or many runs.

One run (Steinke, Nasr, Jagielski 2023, Theorem 3.1): of m canaries, r are guessed from the run's
output alone and v guesses are correct. If training is (ε, δ)-DP, then v or more happen with
probability at most

    P[B ≥ v] + 2 m δ max over 1 ≤ i ≤ v of P[v > B ≥ v - i] / i,   B ~ Bin(r, e^ε / (1 + e^ε)).

The same holds under replacement, where the bit picks one record of a pair. The number of guesses
must not be chosen by the resulting bound: `OneRun` splits its error over a few choices.

Independent training runs with one bit each, where guesses are chosen by bits that are revealed and
then excluded (`unmasking`), have a tighter bound. An (ε, δ)-DP run is a post-processing of
randomised response that reveals its bit with probability δ and otherwise is correct with
probability p = e^ε / (1 + e^ε) (Kairouz, Oh, Viswanath 2015). Given all of these responses the bits
are independent. So, however the r trials to guess and the guesses were chosen from outputs and
excluded bits: K guesses with a revealed bit are certainly correct, and the number of correct ones
among the others is stochastically at most Bin(r - K, p). Of R trials, K ~ Bin(R, δ) exceeds k with
some probability β, and

    P[v or more of r right] ≤ P[Bin(r - k, p) ≥ v - k] + β    for every r at once.

Canaries of one run may fail together, which is why Theorem 3.1 needs 2 m δ in place of β. An
average over K would be tighter, but wrong if the number of guesses depends on outputs.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import bdtrc, betainc, expit, gammaln, logit

from .base import Estimator, Members, Scores
from .error_rates import (
    Floats,
    check_counts,
    clopper_pearson_lower,
    first_where,
    in_unit,
    nonnegative,
)
from .lower_bound import Estimate, Status
from .trial_log import Logged
from .unmasking import Judged, Masks, first_trials

# Bound on one training run by correct guesses, guesses, canaries and confidence.
Lower = Callable[[int, int, int, float], float]
SHARES = (1.0, 0.5, 0.2, 0.1, 0.05)  # shares of canaries that are guessed, if no number is fixed
LARGEST = 200.0  # above any ε that a run could refute
_PRECISION = 1e-10  # precision of bounds, relative above 1
_REVEALED_SHARE = 0.05  # share of the error for the event that more than k bits are revealed


@dataclass
class Canaries(Logged):
    """Mixin that keeps all trials and selects those to guess.

    Canaries of one training run: half of the guesses are "in" for the highest scores, half "out"
    for the lowest. A canary whose score is not a number is guessed first, and wrong. `guesses`
    fixes the number of guesses, or as (k+, k-) that of each kind; 0 splits the error over `SHARES`.

    `independent` training runs: the first 5 % of the planned trials, 10 at least, decide which
    scores to guess and how, one-sided or not. A diverged run is an outcome like a score. A trial
    without output is a wrong guess, from which nothing is learnt.
    """

    planned: int
    guesses: int | tuple[int, int] = 0  # their number, or [k+, k-]; 0: by the trials
    independent: bool = False
    log_odds: bool = False  # whether scores are log odds of "in"
    needs_independence = True

    def __post_init__(self) -> None:
        """Checks the number of guesses. Raises ValueError."""
        kinds = self.guesses if isinstance(self.guesses, tuple) else (self.guesses,)
        if min(kinds) < 0:
            raise ValueError(f"guesses must be at least 0, got {min(kinds)}")
        if sum(kinds) > self.planned:
            raise ValueError(f"guesses must be at most the {self.planned} trials, got {sum(kinds)}")
        if len(kinds) > 1 and (self.independent or not sum(kinds)):
            raise ValueError(
                "guesses of two kinds are for several canaries in each training, 1 or more; use one"
            )
        self.learns = self.independent  # canaries of one run have no order
        super().__post_init__()

    def _of_one_training(self, lower: Lower, confidence: float) -> float:
        """Returns the largest bound over numbers of guesses, each with a share of the error.

        Args:
            lower: bound by correct guesses, guesses, canaries, and confidence.
            confidence: confidence of the largest bound.
        """
        scores, members = self._log.arrays()
        total = len(scores)
        # Pairs (k+, k-) of numbers of guesses "in" and "out" that are tried.
        if isinstance(self.guesses, tuple):
            pairs = [self.guesses]
        else:
            numbers = {math.ceil(share * total) for share in SHARES}
            if self.guesses:
                numbers = {min(self.guesses, total)}
            pairs = [balanced(scores, number) for number in sorted(numbers) if number > 0]
        counts = [hits_of(scores, members, *pair) for pair in pairs]  # correct guesses, guesses
        confidence_each = 1 - (1 - confidence) / max(len(counts), 1)
        return max((lower(*count, total, confidence_each) for count in counts), default=0.0)

    @property
    def fixed(self) -> int:
        """Number of guesses of both kinds; 0 if it is not fixed."""
        return sum(self.guesses) if isinstance(self.guesses, tuple) else self.guesses

    def _masks(self) -> tuple[Masks, int, int]:
        """Masks the bits of trials with an output, except those of the first trials.

        Returns:
            The trials with an output; then, for the trials after the first ones, how many of them
            failed, and how many there are.
        """
        scores, members = self._log.arrays()
        failed = np.isnan(scores)
        ran = ~failed
        first = first_trials(self.planned)
        first_ran = int(ran[:first].sum())
        masks = Masks(scores[ran], members[ran], first_ran, self.log_odds)
        later_failed = int(failed[first:].sum())
        return masks, later_failed, max(len(scores) - first, 0)


@dataclass
class OneRun(Canaries, Estimator):
    """Bound on ε by the number of correct guesses; no trade-off function is assumed.

    One training run: Steinke et al., Theorem 3.1, exactly and with its δ. Independent runs:
    `independent_epsilon_lower` of the number of guesses that promises the largest bound.
    """

    name = "one-run"
    status = Status.CERTIFIED
    one_run = True

    def bound(self, delta: float, confidence: float) -> Estimate:
        """Bounds ε by the surest guesses on independent training runs, or on canaries of one."""
        trials = len(self._log)
        level = (delta, confidence)
        if self.independent:
            guessed, guessable = self._guess_independent(delta, 1 - confidence)
            counts = guessed.right, guessed.guesses, guessable
            epsilon = independent_epsilon_lower(*counts, *level)
            return self._estimate(epsilon, math.nan, level, trials, guessed.threshold)

        def lower(correct: int, guesses: int, canaries: int, confidence: float) -> float:
            """Returns the bound at this δ, in the form of `_of_one_training`."""
            return epsilon_lower(correct, guesses, canaries, delta, confidence)

        epsilon = self._of_one_training(lower, confidence)
        return self._estimate(epsilon, math.nan, level, trials)

    def _guess_independent(
        self,
        delta: float,
        alpha: float,
    ) -> tuple[Judged, int]:
        """Guesses independent training runs; failed ones count as wrong guesses.

        Args:
            delta: δ of the bound.
            alpha: error probability of the bound.

        Returns:
            The guesses, and the number of trials that could have been guessed.
        """
        masks, failed, trials = self._masks()
        if self.fixed:
            guesses = masks.fixed(self.fixed - failed)
        else:
            revealed, spent_alpha = most_revealed(trials, delta, alpha)
            guesses = masks.adaptive(alpha - spent_alpha, revealed, failed)
        return replace(guesses, guesses=guesses.guesses + failed), trials


def balanced(scores: Scores, guesses: int) -> tuple[int, int]:
    """Divides a number of guesses into guesses "in" and "out"; returns both numbers.

    Scores that are not finite are guessed "in", and wrong; of the other guesses, half are "in".

    Args:
        scores: float64 [m].
        guesses: number of guesses, from 0 to m.
    """
    diverged = int(np.count_nonzero(~np.isfinite(scores)))
    wrong = min(diverged, guesses)
    above = wrong + (guesses - wrong + 1) // 2  # an odd number has one more "in"
    return above, guesses - above


def hits_of(
    scores: Scores,
    members: Members,
    positive: int,
    negative: int,
) -> tuple[int, int]:
    """Returns the number of correct guesses, and that of all guesses (Algorithm 1).

    Args:
        scores: float64 [m]; those that are not finite are guessed first, and wrong.
        members: the secret bits, bool [m].
        positive: k+, highest scores that are guessed "in".
        negative: k-, lowest scores that are guessed "out".
    """
    finite = np.isfinite(scores)
    order = np.argsort(scores[finite], kind="stable")
    bits = members[finite][order]  # bits by rising score
    n = len(bits)
    # Wrong guesses on diverged canaries use up guesses of "in" first, then those of "out".
    wrong = min(len(scores) - n, positive + negative)
    above = min(max(positive - wrong, 0), n)
    below = negative - max(wrong - positive, 0)
    below = min(below, n - above)
    correct_in = bits[n - above :].sum()
    correct_out = (~bits[:below]).sum()
    return int(correct_in + correct_out), wrong + above + below


def epsilon_lower(
    correct: int, guesses: int, canaries: int, delta: float, confidence: float
) -> float:
    """Computes a lower bound on ε from one training run; 0 if no ε is refuted.

    Args:
        correct: number of correct guesses.
        guesses: number of guesses, made from the run's output alone.
        canaries: number of canaries with a random bit, guessed or not.
        delta: δ, in [0, 1].
        confidence: confidence of the bound, in (0, 1).
    """
    in_unit("confidence", confidence)
    check_counts(correct, guesses, canaries, delta)

    def is_refuted(epsilon: float) -> bool:
        """Returns whether so many correct guesses refute (ε, δ)-DP."""
        return p_value(correct, guesses, canaries, epsilon, delta) < 1 - confidence

    return largest_refuted(is_refuted, LARGEST)


def largest_refuted(
    refuted: Callable[[float], bool],
    largest: float,
) -> float:
    """Returns the last number that is refuted, by doubling from 1 and bisection; 0 if none is.

    Args:
        refuted: whether a number of at least 0 is refuted; true up to some number, false above.
        largest: numbers are doubled only up to this one.
    """
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < largest and refuted(high):
        low, high = high, 2 * high
    while high - low > _PRECISION * max(high, 1.0):
        middle = (low + high) / 2
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low


def p_value(
    correct: int,
    guesses: int,
    canaries: int,
    epsilon: float,
    delta: float,
) -> float:
    """Bounds the probability of `correct` or more correct guesses under (ε, δ)-DP.

    Args:
        correct: number of correct guesses.
        guesses: number of guesses, made from the run's output alone.
        canaries: number of canaries with a random bit, guessed or not.
        epsilon: at least 0.
        delta: δ, in [0, 1].
    """
    check_counts(correct, guesses, canaries, delta)
    nonnegative("epsilon", epsilon)
    if correct == 0:
        return 1.0
    rate = expit(epsilon)
    tail = float(betainc(correct, guesses - correct + 1, rate))
    if delta == 0:
        return tail
    leak = 2 * canaries * delta * _largest_mean(correct, guesses, epsilon)
    return min(1.0, tail + leak)


def _largest_mean(correct: int, guesses: int, epsilon: float) -> float:
    """Returns max over 1 ≤ i ≤ v of P[v > B ≥ v - i] / i: the largest mean of the pmf below v.

    B is the number of correct guesses if each is correct with probability e^ε / (e^ε + 1).

    Args:
        correct: v, number of correct guesses.
        guesses: r, number of guesses.
        epsilon: ε, for the law of B.
    """
    # log pmf at v - 1, then sums of log ratios pmf(k - 1) / pmf(k) = k / (r - k + 1) * e^-ε.
    wrong = guesses - correct + 1
    log_pmf = (
        gammaln(guesses + 1)
        - gammaln(correct)
        - gammaln(wrong + 1)
        - (correct - 1) * np.logaddexp(0, -epsilon)
        - wrong * np.logaddexp(0, epsilon)
    )
    log_ratios = _log_ratios(correct, guesses)
    lags = np.arange(len(log_ratios), dtype=float)
    pmf = np.exp(log_pmf + log_ratios - epsilon * lags)
    means = np.cumsum(pmf) / (lags + 1)
    return float(np.max(means))


@functools.lru_cache
def _log_ratios(correct: int, guesses: int) -> Floats:
    """Returns log pmf(v - 1 - i) - log pmf(v - 1) at ε = 0, [i], to ten deviations below r/2.

    Arguments are those of `_largest_mean`. At another ε, i ε is to be subtracted.
    """
    # A standard deviation of Bin(r, 1/2) is √r / 2; for small r, 64 more entries cost nothing.
    reach = max(correct - guesses // 2, 0) + 5 * math.isqrt(guesses) + 64
    last = max(correct - 1 - reach, 0)
    k = np.arange(correct - 1, last, -1, dtype=float)
    log_ratios = np.log(k / (guesses - k + 1))
    return np.concatenate([[0.0], np.cumsum(log_ratios)])


def independent_epsilon_lower(
    correct: int, guesses: int, trials: int, delta: float, confidence: float
) -> float:
    """Computes a lower bound on ε from independent training runs; 0 if no ε is refuted.

    Args:
        correct: number of correct guesses.
        guesses: number of guesses; they may depend on outputs, but on no guessed bit.
        trials: training runs with a fair bit each that could have been guessed.
        delta: δ, in [0, 1].
        confidence: confidence of the bound, in (0, 1).
    """
    in_unit("confidence", confidence)
    check_counts(correct, guesses, trials, delta)
    revealed, spent_alpha = most_revealed(trials, delta, 1 - confidence)
    if correct <= revealed:
        return 0.0
    # All revealed bits count as correct guesses; the others are correct with a rate of at most
    # e^ε / (1 + e^ε), whose inverse is the logit.
    alpha = 1 - confidence - spent_alpha
    rate = clopper_pearson_lower(correct - revealed, guesses - revealed, alpha)
    return max(0.0, float(logit(rate)))


def most_revealed(
    trials: int,
    delta: float,
    alpha: float,
) -> tuple[int, float]:
    """Returns the least k that Bin(trials, δ) exceeds with a probability β ≤ `alpha` / 20, and β.

    Args:
        trials: training runs, each of which reveals its bit with probability δ.
        delta: δ, in [0, 1].
        alpha: error probability of the bound, in (0, 1).
    """
    in_unit("alpha", alpha)
    share = _REVEALED_SHARE * alpha
    k = first_where(lambda k: bdtrc(k, trials, delta) <= share, trials)
    if k == trials:
        return k, 0.0
    beta = float(bdtrc(k, trials, delta))
    return k, beta if math.isfinite(beta) else 0.0
