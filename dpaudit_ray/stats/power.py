"""Power of a design before it is run: the bounds it can reach, and the trials it needs.

Everything is for the accuracy bound on a Gaussian mechanism, computed from exact binomial
probabilities, unless stated otherwise. Time-uniform bounds need 1.1 (declared number of trials) to
1.6 times (undeclared) as many trials.
"""

import math

from scipy import special

from . import gdp
from .base import check_level
from .error_rates import clopper_pearson_lower as cp_lower
from .error_rates import first_where, in_unit, nonnegative
from .guess_count_bound import mu_from_accuracy

_MOST_TRIALS = 10**9  # no design has more


def largest_certifiable(trials: int, delta: float, confidence: float) -> float:
    """Returns the bound on ε by `accuracy` if no guess is wrong: it cannot be larger.

    Args:
        trials: number of trials.
        delta: δ, in (0, 1).
        confidence: confidence of the bound, in (0, 1).
    """
    check_level(delta, confidence)
    nonnegative("trials", trials)
    mu = mu_from_accuracy(cp_lower(trials, trials, 1 - confidence))
    return float(gdp.epsilon(mu, delta))


def accuracy_power(
    epsilon: float, target: float, trials: int, delta: float, confidence: float
) -> float:
    """Returns the probability that the accuracy bound on a Gaussian mechanism reaches a target.

    Args:
        epsilon: true ε of the mechanism, at `delta`.
        target: the bound to reach, at `delta`.
        trials: number of trials.
        delta: δ, in (0, 1).
        confidence: confidence of the bound, in (0, 1).
    """
    if trials == 0:
        return 0.0
    alpha = 1 - confidence
    target_rate = _accuracy(target, delta)

    def reaches_target(hits: int) -> bool:
        """Returns whether so many correct guesses give a bound of at least the target."""
        # They do exactly if so many or more have probability at most alpha at the target's rate.
        return _at_least(hits, trials, target_rate) <= alpha

    needed = first_where(reaches_target, trials + 1)
    return _at_least(needed, trials, _accuracy(epsilon, delta))


def trials_needed(
    epsilon: float, within: float, power: float, delta: float, confidence: float
) -> int:
    """Returns a number of trials with which the accuracy bound reaches (1 - within) ε.

    Power does not rise steadily with the number of trials: slightly fewer may be enough, and
    slightly more may just be too few. The search ends within a thousandth of the number.

    Args:
        epsilon: true ε of the mechanism, at `delta`; above 0.
        within: share of ε by which the bound may be smaller, in (0, 1).
        power: probability that the bound is as large, in (0, 1).
        delta: δ, in (0, 1).
        confidence: confidence of the bound, in (0, 1).

    Raises:
        ValueError: An argument is invalid, or more than a billion trials are needed.
    """
    check_level(delta, confidence)
    _check_epsilon(epsilon)
    in_unit("within", within)
    in_unit("power", power)
    target = (1 - within) * epsilon
    low, high = 0, 1
    while accuracy_power(epsilon, target, high, delta, confidence) < power:
        low, high = high, 2 * high
        if high > _MOST_TRIALS:
            raise ValueError(f"more than {_MOST_TRIALS:.0e} trials are needed; raise within")
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        if accuracy_power(epsilon, target, middle, delta, confidence) < power:
            low = middle
        else:
            high = middle
    return high


def likely_bound(
    epsilon: float, trials: int, power: float, delta: float, confidence: float
) -> float:
    """Returns the ε that the accuracy bound reaches with probability `power`.

    Args:
        epsilon: true ε of the mechanism, at `delta`; above 0.
        trials: number of trials.
        power: probability of reaching the bound, in (0, 1).
        delta: δ, in (0, 1).
        confidence: confidence of the bound, in (0, 1).
    """
    check_level(delta, confidence)
    _check_epsilon(epsilon)
    in_unit("power", power)
    rate = _accuracy(epsilon, delta)

    def more_is_too_unlikely(hits: int) -> bool:
        """Returns whether more than so many correct guesses have a probability below `power`."""
        return _at_least(hits + 1, trials, rate) < power

    # The most correct guesses that are reached with probability `power`.
    hits = first_where(more_is_too_unlikely, trials)
    accuracy_bound = cp_lower(hits, trials, 1 - confidence) if trials else 0.0
    return float(gdp.epsilon(mu_from_accuracy(accuracy_bound), delta))


def _accuracy(epsilon: float, delta: float) -> float:
    """Returns the probability of a correct guess about a Gaussian mechanism of this ε."""
    return float(special.ndtr(gdp.mu(epsilon, delta) / 2))


def _at_least(hits: int, trials: int, rate: float) -> float:
    """Returns P(Bin(trials, rate) ≥ hits)."""
    if hits <= 0:
        return 1.0
    if hits > trials:
        return 0.0
    return float(special.betainc(hits, trials - hits + 1, rate))


def _check_epsilon(epsilon: float) -> None:
    """Raises ValueError unless ε is positive and finite."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}")
