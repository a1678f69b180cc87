"""Guesses on many independent trainings of one fair coin each: what so many right ones show.

Kairouz, Oh, Viswanath (2015): an (ε, δ)-DP training is a post-processing of randomised response
that tells its bit outright with probability δ and otherwise is right with probability
p = e^ε / (1 + e^ε). Given all of these responses the bits of independent trainings are
independent. So however the r trials to guess, and the guesses, were chosen from outputs and from
bits that are not judged: of r guesses at most those that were told, K ≤ k, are surely right, and
the others are right like Bin(r - K, p) or less. Of R trials K ~ Bin(R, δ) exceeds k with some
probability β that no choice can change, and

    P[v or more of r right] ≤ P[Bin(r - k, p) ≥ v - k] + β    for every r at once.

Steinke's Theorem 3.1 (`one_run`) needs 2 m δ in its place, because canaries of one training may
fail together. To average over K in place of bounding it would be a little sharper, and right only
for a number of guesses that does not depend on the outputs, because those say something about K.
"""

from __future__ import annotations

import math

from scipy import special

from .binomial import check_alpha, check_counts, clopper_pearson_lower

_TOLD_SHARE = 0.05  # of the error probability, spent on "more trainings told their bit"


def epsilon_lower(
    correct: int, guesses: int, trials: int, delta: float, confidence: float
) -> float:
    """Lower bound on ε from independent trainings; 0 when nothing is shown.

    Args:
        correct: right guesses, v.
        guesses: guesses made, r; may depend on the outputs of the trials, not on their bits.
        trials: independent trainings with a fair coin each that could have been guessed, R.
        delta: δ of the bound, in [0, 1].
        confidence: level of the bound, in (0, 1).

    Raises:
        ValueError: an argument outside its bounds.
    """
    check_alpha(1 - confidence)
    check_counts(correct, guesses, trials, delta)
    allowed, spent = told(trials, delta, 1 - confidence)
    if correct <= allowed:
        return 0.0
    alpha = 1 - confidence - spent
    rate = clopper_pearson_lower(correct - allowed, guesses - allowed, alpha)
    return max(0.0, float(special.logit(rate)))


def told(trials: int, delta: float, alpha: float) -> tuple[int, float]:
    """(k, β): the least k that Bin(trials, δ) exceeds with a probability β of `alpha` / 20."""
    check_alpha(alpha)
    share = _TOLD_SHARE * alpha
    low, high = -1, 0
    while high < trials and special.bdtrc(high, trials, delta) > share:
        low, high = high, 2 * high + 1
    high = min(high, trials)
    while high - low > 1:
        middle = (low + high) // 2
        enough = special.bdtrc(middle, trials, delta) <= share
        low, high = (low, middle) if enough else (middle, high)
    spent = float(special.bdtrc(high, trials, delta)) if high < trials else 0.0
    return high, spent if math.isfinite(spent) else 0.0
