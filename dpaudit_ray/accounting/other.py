"""Claims of mechanisms other than DP-SGD, by privacy loss distributions of dp_accounting."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from .training import check_delta, check_epsilon

_WIDTH = 1e-4


def composed_epsilon(parts: Sequence[tuple[float, float]], delta: float) -> float:
    """ε at δ of the composition of (ε_i, δ_i)-DP mechanisms, an upper bound.

    Raises:
        ValueError: δ outside (0, 1), or a part outside its bounds.
    """
    check_delta(delta)
    return float(_composed(tuple(parts)).get_epsilon_for_delta(delta))


def composed_delta(parts: Sequence[tuple[float, float]], epsilon: float) -> float:
    """δ at ε of the composition of (ε_i, δ_i)-DP mechanisms, an upper bound.

    Raises:
        ValueError: ε below 0, or a part outside its bounds.
    """
    check_epsilon(epsilon)
    return float(_composed(tuple(parts)).get_delta_for_epsilon(epsilon))


def laplace_epsilon(scale: float, steps: int, delta: float, sample_rate: float = 1.0) -> float:
    """ε at δ of Laplace noise of this scale on sums that one record moves by 1; an upper bound.

    Raises:
        ValueError: a value outside its bounds.
    """
    check_delta(delta)
    if not 0 < scale < math.inf:
        raise ValueError(f"scale must be positive and finite, got {scale}")
    if steps < 0:
        raise ValueError(f"steps must be at least 0, got {steps}")
    if not 0 < sample_rate <= 1:
        raise ValueError(f"sample_rate must lie in (0, 1], got {sample_rate}")
    if steps == 0:
        return 0.0
    from dp_accounting.pld import privacy_loss_distribution

    step = privacy_loss_distribution.from_laplace_mechanism(
        scale, value_discretization_interval=_WIDTH, sampling_prob=sample_rate
    )
    return float(step.self_compose(steps).get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=8)
def _composed(parts: tuple[tuple[float, float], ...]) -> Any:
    for epsilon, delta in parts:
        check_epsilon(epsilon)
        if not 0 <= delta <= 1:
            raise ValueError(f"delta of each part must lie in [0, 1], got {delta}")
    from dp_accounting.pld import common, privacy_loss_distribution

    whole = privacy_loss_distribution.identity(value_discretization_interval=_WIDTH)
    for epsilon, delta in parts:
        one = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(epsilon, delta), _WIDTH
        )
        whole = whole.compose(one)
    return whole
