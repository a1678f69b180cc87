"""Which landscape is the worst: thresholds (Alg. 5, appendix F) and widths, compared exactly."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from scipy import optimize, special

from .density import evolve
from .process import Process
from .tradeoff import Power, power

TUNED_AT = 1e-5  # δ at which widths are compared
_RATES = np.arange(1, 20) / 20  # false-positive rates whose thresholds are tried
_SPACING = math.log(2) / 2  # of the widths that are tried, in their logarithm


def last(process: Process, steps: int, delta: float = TUNED_AT) -> Power:
    """What θ_`steps` gives away."""
    return power(next(evolve(process, (steps,))), delta)


@functools.lru_cache(maxsize=64)
def best_threshold(process: Process, steps: int) -> float:
    """The threshold h whose final model has the largest μ; that of `process` is among those tried.

    The others are the most powerful tests of θ_1 at rates α_i: h_i = std(θ_1) Φ⁻¹(1 - α_i), what
    Alg. 5 tries. Its printed range for α starts at 0, which puts h_1 at infinity; here α runs
    over 0.05 .. 0.95.
    """
    tests = process.first_noise * special.ndtri(1 - _RATES)
    tried = [process.threshold, *map(float, tests)]
    return max(tried, key=lambda threshold: _mu(process, threshold, steps))


@functools.lru_cache(maxsize=64)
def best_width(process: Process, steps: int) -> float:
    """The half-width w of a linear g whose final model has the largest true ε at `TUNED_AT`.

    ε has several local maxima in w. So widths from a quarter of a step's noise to 64 times that
    of the first step are scanned, and the best of them is refined.
    """

    def loss(log_width: float) -> float:
        wide = dataclasses.replace(process, width=math.exp(log_width))
        return -last(wide, steps).epsilon

    low, high = math.log(process.step_noise / 4), math.log(64 * process.first_noise)
    scanned = np.linspace(low, high, math.ceil((high - low) / _SPACING) + 1)
    losses = [loss(log_width) for log_width in scanned]
    best = int(np.argmin(losses))
    found = optimize.minimize_scalar(
        loss,
        bounds=(scanned[max(best - 1, 0)], scanned[min(best + 1, len(scanned) - 1)]),
        method="bounded",
        options={"xatol": 1e-2},
    )
    return math.exp(found.x if found.fun < losses[best] else scanned[best])


def _mu(process: Process, threshold: float, steps: int) -> float:
    return last(dataclasses.replace(process, threshold=threshold), steps).mu
