"""What a design can show before it is run, and what a design must have to show it.

Everything is for the accuracy bound on a Gaussian mechanism, computed from exact binomial
probabilities, unless it says otherwise. Time-uniform bounds need 1.1 (declared number of trials) to
1.6 times (undeclared) as many trials.
"""

from __future__ import annotations

import math
from typing import Literal

from scipy import special

from . import gdp
from .base import check_level
from .error_rates import clopper_pearson_lower as cp_lower
from .error_rates import clopper_pearson_upper as cp_upper
from .error_rates import first_where, in_unit, nonnegative
from .guess_count_bound import mu_from_accuracy
from .threshold_rates import epsilon_of_rates

_MOST_TRIALS = 10**9  # more are no plan


def largest_certifiable(
    trials: int,
    delta: float,
    confidence: float,
    method: Literal["accuracy", "eps-delta"] = "accuracy",
) -> float:
    """ε that `method` gives where no guess is wrong: no audit of so many trials shows more."""
    check_level(delta, confidence)
    nonnegative("trials", trials)
    alpha = 1 - confidence
    if method == "accuracy":
        mu = mu_from_accuracy(cp_lower(trials, trials, alpha))
        return float(gdp.epsilon(mu, delta))
    rates = [cp_upper(0, n, alpha / 2) for n in (trials // 2, trials - trials // 2)]
    if method == "eps-delta":
        return float(epsilon_of_rates(rates[0], rates[1], delta))
    raise ValueError(f"method must be accuracy or eps-delta, got {method!r}")


def accuracy_power(
    epsilon: float, target: float, trials: int, delta: float, confidence: float
) -> float:
    """Chance that the accuracy bound reaches `target` when the truth is `epsilon` (Gaussian)."""
    if trials == 0:
        return 0.0
    rate, alpha = special.ndtr(gdp.mu(target, delta) / 2), 1 - confidence
    # L(k) ≥ rate exactly when k or more hits have probability at most alpha at that rate.
    needed = first_where(lambda hits: _at_least(hits, trials, rate) <= alpha, trials + 1)
    return _at_least(needed, trials, float(special.ndtr(gdp.mu(epsilon, delta) / 2)))


def trials_needed(
    epsilon: float, within: float, power: float, delta: float, confidence: float
) -> int:
    """Trials from which the accuracy bound shows (1 - within) ε with the given probability.

    ε > 0 is the truth at δ; `within` and `power` are in (0, 1). Power is a saw-tooth of the
    number of trials, so a slightly smaller number may do. ValueError for more than a billion.
    """
    check_level(delta, confidence)
    _check_plan(epsilon, within, power)
    target = (1 - within) * epsilon
    low, high = 0, 1
    while accuracy_power(epsilon, target, high, delta, confidence) < power:
        low, high = high, 2 * high
        if high > _MOST_TRIALS:
            raise ValueError(f"more than {_MOST_TRIALS:.0e} trials are needed; raise within")
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        enough = accuracy_power(epsilon, target, middle, delta, confidence) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high


def likely_bound(
    epsilon: float, trials: int, power: float, delta: float, confidence: float
) -> float:
    """The ε that the accuracy bound reaches with a chance of `power` if the truth is `epsilon`."""
    check_level(delta, confidence)
    _check_plan(epsilon, 0.5, power)
    rate = float(special.ndtr(gdp.mu(epsilon, delta) / 2))
    hits = first_where(lambda count: _at_least(count + 1, trials, rate) < power, trials)
    lower = cp_lower(hits, trials, 1 - confidence) if trials else 0.0
    return float(gdp.epsilon(mu_from_accuracy(lower), delta))


def _at_least(hits: int, trials: int, rate: float) -> float:
    """P(Bin(trials, rate) ≥ hits)."""
    if hits <= 0:
        return 1.0
    if hits > trials:
        return 0.0
    return float(special.betainc(hits, trials - hits + 1, rate))


def _check_plan(epsilon: float, within: float, power: float) -> None:
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}")
    in_unit("within", within)
    in_unit("power", power)
