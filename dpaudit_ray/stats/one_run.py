"""Bounds from secret bits guessed all at once: canaries of one training, or many trainings.

One training (Steinke, Nasr, Jagielski 2023, Theorem 3.1): of m canaries, r are guessed from the
training's output alone and v guesses are right. If training is (ε, δ)-DP, then v or more happen
with probability at most

    P[B ≥ v] + 2 m δ max over 1 ≤ i ≤ v of P[v > B ≥ v - i] / i,   B ~ Bin(r, e^ε / (1 + e^ε)).

The same holds under replacement, where the coin picks one record of a pair. How many to guess must
not be picked by the bound that comes out: `OneRun` splits its error over a few choices.

Independent trainings of one coin each, whose guesses are chosen by bits that are looked at and
given up (`unmasking`), have a sharper bound. An (ε, δ)-DP training is a post-processing of
randomised response that tells its bit outright with probability δ and otherwise is right with
probability p = e^ε / (1 + e^ε) (Kairouz, Oh, Viswanath 2015). Given all of these responses the bits
are independent. So however the r trials to guess, and the guesses, were chosen from outputs and
from bits that are not judged: those that were told, K ≤ k, are surely right, and the others are
right like Bin(r - K, p) or less. Of R trials K ~ Bin(R, δ) exceeds k with some probability β, and

    P[v or more of r right] ≤ P[Bin(r - k, p) ≥ v - k] + β    for every r at once.

Canaries of one training may fail together, which is why Theorem 3.1 needs 2 m δ in place of β. To
average over K would be sharper, and wrong where the number of guesses depends on outputs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from .base import Estimator, Members, Scores
from .error_rates import check_counts, clopper_pearson_lower, first_where, in_unit, nonnegative
from .lower_bound import Estimate, Status
from .trial_log import Logged
from .unmasking import Judged, Masks, first_trials

SHARES = (1.0, 0.5, 0.2, 0.1, 0.05)  # of canaries that are guessed, where no number is fixed
LARGEST = 200.0  # beyond any ε that a run could show
_PRECISION = 1e-10  # of bounds, relative above 1
_TOLD_SHARE = 0.05  # of the error probability, spent on "more trainings told their bit"


@dataclasses.dataclass
class Canaries(Logged):
    """Mixin: all trials, and which of them to guess.

    Canaries of one training: half of the guesses are "in" for the highest scores, half "out" for
    the lowest. A canary whose score is not a number is guessed first, and wrong. `guesses` fixes
    how many to guess, or as (k+, k-) how many of each kind; 0 splits the error over the `shares`.

    `independent` trainings: the first 5 % of the planned trials, 10 at least, teach which scores to
    guess and how, one-sided or not. Diverged trainings are an outcome like a score. A trial without
    output is a wrong guess and teaches nothing.
    """

    planned: int
    guesses: int | tuple[int, int] = 0  # how many, or [k+, k-]; 0: by the trials
    independent: bool = False
    needs_independence: ClassVar[bool] = True
    shares: ClassVar[tuple[float, ...]] = SHARES  # of canaries to guess, where no number is fixed

    def __post_init__(self) -> None:
        kinds = self.guesses if isinstance(self.guesses, tuple) else (self.guesses,)
        if min(kinds) < 0:
            raise ValueError(f"guesses must be at least 0, got {min(kinds)}")
        if sum(kinds) > self.planned:
            raise ValueError(f"guesses must be at most the {self.planned} trials, got {sum(kinds)}")
        if len(kinds) > 1 and (self.independent or not sum(kinds)):
            raise ValueError(
                "guesses of two kinds are for several canaries in each training, 1 or more; use one"
            )
        self.learns = self.independent  # canaries of one training have no order
        super().__post_init__()

    def _of_one_training(
        self, lower: Callable[[int, int, float], float], confidence: float
    ) -> float:
        """The largest `lower(right, guesses, level)` over the numbers of guesses tried."""
        scores, members = self._log.arrays()
        total, fixed = len(scores), self.guesses
        if isinstance(fixed, tuple):
            kinds = [fixed]
        else:
            tried = {math.ceil(share * total) for share in self.shares}
            tried = {min(fixed, total)} if fixed else tried
            kinds = [balanced(scores, guesses) for guesses in sorted(tried) if guesses > 0]
        attempts = [hits_of(scores, members, *pair) for pair in kinds]
        split = 1 - (1 - confidence) / max(len(attempts), 1)
        return max((lower(right, guesses, split) for right, guesses in attempts), default=0.0)

    @property
    def fixed(self) -> int:
        """How many are to be guessed; 0 where that is left open."""
        return sum(self.guesses) if isinstance(self.guesses, tuple) else self.guesses

    def _masks(self) -> tuple[Masks, int, int]:
        """The trials that gave output, how many to be judged did not, and how many there are."""
        scores, members = self._log.arrays()
        ran = ~np.isnan(scores)
        first = first_trials(self.planned)
        missed = int((~ran[first:]).sum())
        masks = Masks(scores[ran], members[ran], int(ran[:first].sum()))
        return masks, missed, max(len(scores) - first, 0)


@dataclasses.dataclass
class OneRun(Canaries, Estimator):
    """ε from how many guesses are right; no trade-off curve is assumed.

    One training: Steinke et al., Theorem 3.1, exactly and with its δ. Independent trainings:
    `independent_epsilon_lower` of the guesses that are left when no fewer promise more.
    """

    name: ClassVar[str] = "one-run"
    status: ClassVar[Status] = Status.CERTIFIED
    one_run: ClassVar[bool] = True

    def bound(self, delta: float, confidence: float) -> Estimate:
        trials, level = len(self._log), (delta, confidence)
        if self.independent:
            judged, used = self._judged(delta, 1 - confidence)
            epsilon = independent_epsilon_lower(judged.right, judged.guesses, used, *level)
            return self._estimate(epsilon, math.nan, level, trials, judged.threshold)
        epsilon = self._of_one_training(
            lambda v, r, split: epsilon_lower(v, r, trials, delta, split), confidence
        )
        return self._estimate(epsilon, math.nan, level, trials)

    def _judged(self, delta: float, alpha: float) -> tuple[Judged, int]:
        """Guesses on independent trainings, those without output among them, and the trials."""
        masks, missed, trials = self._masks()
        if self.fixed:
            judged = masks.fixed(self.fixed - missed)
        else:
            allowed, spent = told_outright(trials, delta, alpha)
            judged = masks.adaptive(alpha - spent, allowed, missed)
        return dataclasses.replace(judged, guesses=judged.guesses + missed), trials


def balanced(scores: Scores, guesses: int) -> tuple[int, int]:
    """How many of so many guesses are "in" and "out": half of each, after scores not finite."""
    wrong = min(int(np.count_nonzero(~np.isfinite(scores))), guesses)
    above = wrong + (guesses - wrong + 1) // 2
    return above, guesses - above


def hits_of(scores: Scores, members: Members, positive: int, negative: int) -> tuple[int, int]:
    """(right, guesses) of the k+ highest scores as "in" and the k- lowest as "out", Algorithm 1."""
    finite = np.isfinite(scores)
    bits = members[finite][np.argsort(scores[finite], kind="stable")]
    wrong = min(len(scores) - len(bits), positive + negative)
    above = max(positive - wrong, 0)
    below = min(negative - max(wrong - positive, 0), len(bits) - min(above, len(bits)))
    above = min(above, len(bits))
    right = int(bits[len(bits) - above :].sum() + (~bits[:below]).sum())
    return right, wrong + above + below


def epsilon_lower(
    correct: int, guesses: int, canaries: int, delta: float, confidence: float
) -> float:
    """Lower bound on ε from one training run; 0 when nothing is shown.

    Of `guesses`, made from the training's output alone, `correct` are right; `canaries` had a
    coin, guessed or not. `delta` in [0, 1], `confidence` in (0, 1).
    """
    in_unit("confidence", confidence)
    check_counts(correct, guesses, canaries, delta)
    level = 1 - confidence
    return largest_refuted(
        lambda epsilon: p_value(correct, guesses, canaries, epsilon, delta) < level, LARGEST
    )


def largest_refuted(refuted: Callable[[float], bool], largest: float) -> float:
    """Where refutation ends, by doubling from 1, up to `largest`, and bisection; 0 for nowhere."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < largest and refuted(high):
        low, high = high, 2 * high
    while high - low > _PRECISION * max(high, 1.0):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def p_value(correct: int, guesses: int, canaries: int, epsilon: float, delta: float) -> float:
    """Largest chance of `correct` or more right guesses under (ε, δ)-DP; arguments as above."""
    check_counts(correct, guesses, canaries, delta)
    nonnegative("epsilon", epsilon)
    if correct == 0:
        return 1.0
    rate = special.expit(epsilon)
    tail = float(special.betainc(correct, guesses - correct + 1, rate))
    if delta == 0:
        return tail
    return min(1.0, tail + 2 * canaries * delta * _densest(correct, guesses, epsilon))


def _densest(correct: int, guesses: int, epsilon: float) -> float:
    """max over 1 ≤ i ≤ v of P[v > B ≥ v - i] / i: the largest mean of the pmf just below v."""
    # log pmf at v - 1, then sums of log ratios pmf(k - 1) / pmf(k) = k / (r - k + 1) * e^-ε.
    first = (
        special.gammaln(guesses + 1) - special.gammaln(correct)
        - special.gammaln(guesses - correct + 2)
        - (correct - 1) * np.logaddexp(0, -epsilon)
        - (guesses - correct + 1) * np.logaddexp(0, epsilon)
    )  # fmt: skip
    ratios = _log_ratios(correct, guesses)
    lags = np.arange(len(ratios), dtype=np.float64)
    pmf = np.exp(first + ratios - epsilon * lags)
    return float(np.max(np.cumsum(pmf) / (lags + 1)))


@functools.lru_cache
def _log_ratios(correct: int, guesses: int) -> npt.NDArray[np.float64]:
    """log pmf(v - 1 - i) - log pmf(v - 1) at ε = 0, to ten deviations below the peak at r/2."""
    reach = max(correct - guesses // 2, 0) + 5 * math.isqrt(guesses) + 64
    k = np.arange(correct - 1, max(correct - 1 - reach, 0), -1, dtype=np.float64)
    return np.concatenate([[0.0], np.cumsum(np.log(k / (guesses - k + 1)))])


def independent_epsilon_lower(
    correct: int, guesses: int, trials: int, delta: float, confidence: float
) -> float:
    """Lower bound on ε from independent trainings; 0 when nothing is shown.

    Of `guesses`, which may depend on outputs but on no bit, `correct` are right; `trials` trainings
    with a fair coin each could have been guessed. `delta` in [0, 1], `confidence` in (0, 1).
    """
    in_unit("confidence", confidence)
    check_counts(correct, guesses, trials, delta)
    allowed, spent = told_outright(trials, delta, 1 - confidence)
    if correct <= allowed:
        return 0.0
    alpha = 1 - confidence - spent
    rate = clopper_pearson_lower(correct - allowed, guesses - allowed, alpha)
    return max(0.0, float(special.logit(rate)))


def told_outright(trials: int, delta: float, alpha: float) -> tuple[int, float]:
    """(k, β): the least k that Bin(trials, δ) exceeds with a probability β of `alpha` / 20."""
    in_unit("alpha", alpha)
    share = _TOLD_SHARE * alpha
    most = first_where(lambda k: special.bdtrc(k, trials, delta) <= share, trials)
    spent = float(special.bdtrc(most, trials, delta)) if most < trials else 0.0
    return most, spent if math.isfinite(spent) else 0.0
