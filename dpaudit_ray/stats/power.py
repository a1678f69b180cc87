"""What a design can show before it is run: the largest certifiable ε, and the chance of it."""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

from . import gdp
from .binomial import clopper_pearson_lower
from .guessing import mu_from_accuracy


def largest_certifiable(trials: int, delta: float, confidence: float) -> float:
    """ε that the accuracy bound gives when every guess of `trials` is right."""
    return float(gdp.epsilon(mu_from_accuracy(clopper_pearson_lower(
        trials, trials, 1 - confidence)), delta))  # fmt: skip


def accuracy_power(
    epsilon: float, target: float, trials: int, delta: float, confidence: float
) -> float:
    """Chance that the accuracy bound reaches `target` when the truth is `epsilon` (Gaussian)."""
    if trials == 0:
        return 0.0
    needed = _hits_needed(gdp.mu(target, delta), trials, 1 - confidence)
    rate = special.ndtr(gdp.mu(epsilon, delta) / 2)
    return float(stats.binom.sf(needed - 1, trials, rate))


def _hits_needed(mu: float, trials: int, alpha: float) -> int:
    """Fewest hits whose lower bound reaches Φ(μ/2); trials + 1 when none does."""
    rate = special.ndtr(mu / 2)
    low, high = 0, trials + 1
    while low < high:
        middle = (low + high) // 2
        if middle > trials or clopper_pearson_lower(middle, trials, alpha) >= rate:
            high = middle
        else:
            low = middle + 1
    return int(np.clip(math.ceil(low), 0, trials + 1))
