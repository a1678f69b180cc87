"""The noise that a target ε needs, and the central-limit approximation of Opacus' "gdp"."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from ..stats import gdp
from .claims import epsilon_of
from .training import Adjacency, Sampling, Training, check_delta

_FIRST, _LAST = 20.0, 1e6


def noise_multiplier(  # noqa: PLR0913 (what a training is, by name)
    epsilon: float,
    steps: int,
    delta: float,
    sample_rate: float = 1.0,
    accountant: str = "gaussian",
    adjacency: str = Adjacency.ADD_REMOVE,
    tolerance: float = 0.01,
    *,
    sampling: str = Sampling.POISSON,
) -> float:
    """Noise multiplier whose claim lies in [epsilon - tolerance, epsilon].

    The gaussian accountant answers in closed form. The others are bisected from 20 downwards, as
    Opacus does, so that its default tolerance of 0.01 gives its answers.

    Raises:
        ValueError: a value outside its bounds, or no noise up to 1e6 reaches `epsilon`.
    """
    check_delta(delta)
    training = Training(1.0, steps, sample_rate, adjacency, sampling)
    fixed = training.unamplified
    if accountant == "gaussian" and fixed.sample_rate == 1:
        _check_target(epsilon, tolerance)
        sensitivity = 2 if adjacency == Adjacency.REPLACE else 1
        return sensitivity * math.sqrt(fixed.steps) / float(gdp.mu(epsilon, delta))

    def claim(noise: float) -> float:
        one = dataclasses.replace(training, noise_multiplier=noise)
        return epsilon_of(one, delta, accountant).upper

    return _bisected(claim, epsilon, tolerance)


def clt_epsilon(
    noise_multiplier: float, steps: int, delta: float, sample_rate: float = 1.0
) -> float:
    """ε by the central limit theorem for GDP (Bu et al. 2020). NOT an upper bound.

    It underestimates: 4.03 against 4.16 by PLD for noise 2, rate 0.05, 1000 steps, δ = 1e-6. It
    is here to be looked at; no verdict accepts it.

    Raises:
        ValueError: a value outside its bounds.
    """
    training = Training(noise_multiplier, steps, sample_rate)
    check_delta(delta)
    if training.known is not None:
        return training.known
    spread = math.expm1(min(1 / noise_multiplier**2, 700.0))
    return float(gdp.epsilon(sample_rate * math.sqrt(steps * spread), delta))


def clt_noise_multiplier(
    epsilon: float,
    steps: int,
    delta: float,
    sample_rate: float = 1.0,
    tolerance: float = 0.01,
) -> float:
    """As `noise_multiplier`, by `clt_epsilon`; too little noise for its ε, for the same reason."""
    return _bisected(
        lambda noise: clt_epsilon(noise, steps, delta, sample_rate), epsilon, tolerance
    )


def _bisected(claim: Callable[[float], float], epsilon: float, tolerance: float) -> float:
    _check_target(epsilon, tolerance)
    coarse, low, high = max(tolerance, 0.01), 0.0, _FIRST
    while (found := claim(high)) > epsilon:
        high *= 2
        if high > _LAST:
            raise ValueError(f"no noise_multiplier up to {_LAST:g} reaches epsilon {epsilon}")
    while epsilon - found > coarse:
        middle = (low + high) / 2
        value = claim(middle)
        if value < epsilon:
            high, found = middle, value
        else:
            low = middle
    if epsilon - found <= tolerance:
        return high
    from scipy import optimize  # as long to import as all else of this package

    # Bisection has bracketed the noise; a finer answer takes a few more claims, not dozens.
    aim = epsilon - tolerance / 2
    return float(
        optimize.brentq(lambda noise: claim(noise) - aim, low or high / 2, high, xtol=1e-9)
    )


def _check_target(epsilon: float, tolerance: float) -> None:
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}")
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
