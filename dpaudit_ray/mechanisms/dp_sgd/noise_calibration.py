"""Noise calibration: the multiplier that keeps `mechanism.epsilon`."""

from __future__ import annotations

import functools
import math

from ... import accounting
from ...accounting import Sampling
from ...errors import SpecError

_LARGEST = 1e6  # noise multiplier; above it, no gradient survives
_DIGITS = 6  # of the answer: fewer than accountants of different versions agree to
_ITERATIONS = 50  # a few are enough, but for accountants that jump


@functools.lru_cache(maxsize=1024)
def calibrate_noise(
    epsilon: float, delta: float, accountant: str, steps: int, rate: float, sampling: Sampling
) -> float:
    """A noise multiplier whose claim is at most ε, rounded up to six digits.

    The least one with the Gaussian accountant; by others the claim is at most 0.01 below ε, and at
    most 1 % of it.

    Raises:
        SpecError: no noise keeps ε, or the accountant cannot tell.
    """
    try:
        if accountant == "gaussian":
            noise = _exact(epsilon, delta, steps, rate, sampling)
        else:
            noise = _searched(epsilon, delta, accountant, steps, rate, sampling)
        if noise > _LARGEST:
            raise ValueError(f"it would take more than {_LARGEST:g}")
    except (ValueError, ArithmeticError) as error:
        raise SpecError(
            "mechanism.epsilon",
            f"is {epsilon:g}, for which {accountant} finds no noise multiplier at δ = {delta:g} "
            f"({error}); raise it, or list another accountant first in audit.accountants",
        ) from error
    unit = 10.0 ** (math.floor(math.log10(noise)) + 1 - _DIGITS)
    return float(f"{math.ceil(noise / unit) * unit:.{_DIGITS}g}")


def _exact(epsilon: float, delta: float, steps: int, rate: float, sampling: Sampling) -> float:
    return accounting.noise_multiplier(epsilon, steps, delta, rate, "gaussian", sampling=sampling)


def _searched(
    epsilon: float, delta: float, accountant: str, steps: int, rate: float, sampling: Sampling
) -> float:
    """By secants in log σ from a value close by; one claim may take seconds.

    That is where the central limit theorem points, or the closed form where sampling adds nothing.
    """
    tolerance = min(0.01, epsilon / 100)
    aim = math.log(epsilon - tolerance / 2)
    if sampling is Sampling.POISSON:
        noise = accounting.clt_noise_multiplier(epsilon, steps, delta, rate, tolerance)
    else:
        noise = _exact(epsilon, delta, steps, rate, sampling)
    power, tried = 1.0, list[tuple[float, float]]()
    for _ in range(_ITERATIONS):
        claim = accounting.epsilon(noise, steps, delta, rate, accountant, sampling=sampling)
        if epsilon - tolerance <= claim <= epsilon:
            return noise
        tried.append((math.log(noise), math.log(claim)))
        if len(tried) > 1:
            (x, y), (at, there) = tried[-2:]
            power = min(max((y - there) / (at - x), 0.2), 5.0)
        if noise == _LARGEST:
            break
        noise = min(noise * math.exp(min((tried[-1][1] - aim) / power, 10)), _LARGEST)
    raise ValueError(f"with {noise:.3g} it still claims {claim:.3g}")
