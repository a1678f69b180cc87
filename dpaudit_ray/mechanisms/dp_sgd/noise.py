"""The noise multiplier that keeps an ε: `mechanism.epsilon` in place of `noise_multiplier`."""

from __future__ import annotations

import functools
import math

from ... import accounting
from ...accounting import Sampling
from ...errors import SpecError

_LARGEST = 1e6  # noise multiplier; above it, no gradient survives
_DIGITS = 6  # of the answer: fewer than accountants of different versions agree to


@functools.lru_cache(maxsize=1024)
def solved(
    epsilon: float, delta: float, accountant: str, steps: int, rate: float, sampling: Sampling
) -> float:
    """The least noise multiplier whose claim is at most ε, rounded up to six digits.

    Exact with the Gaussian accountant; by others the claim is at most 0.01 below ε, and at most
    1 % of it.

    Raises:
        SpecError: no noise keeps ε, or the accountant cannot tell.
    """
    if sampling is not Sampling.POISSON:
        raise SpecError(
            "mechanism.epsilon",
            f"is {epsilon:g}, but noise is not solved for with sampling {sampling}; state "
            "mechanism.noise_multiplier",
        )
    tolerance = min(0.01, epsilon / 100)
    try:
        found = accounting.noise_multiplier(
            epsilon, steps, delta, rate, accountant, tolerance=tolerance
        )
    except (ValueError, ArithmeticError) as error:
        raise SpecError(
            "mechanism.epsilon",
            f"is {epsilon:g}, for which {accountant} finds no noise at δ = {delta:g} ({error}); "
            "raise it, or list another accountant first in audit.accountants",
        ) from error
    if found > _LARGEST:
        raise SpecError(
            "mechanism.epsilon",
            f"is {epsilon:g}, which takes a noise multiplier of {found:.3g} at δ = {delta:g}, "
            f"above {_LARGEST:g}; raise it",
        )
    unit = 10.0 ** (math.floor(math.log10(found)) + 1 - _DIGITS)
    return float(f"{math.ceil(found / unit) * unit:.{_DIGITS}g}")
