"""Privacy random variables (Gopi, Lee, Wutschitz 2021) by prv_accountant.

The library composes on a grid whose size it derives from ε and the number of steps. For large
ε that grid takes minutes, and its construction is known to fail ("Discrete mean differs").
`UnansweredError` is raised in both cases, the first before any work is done: the limit is on grid
points, so which accountant answers does not depend on how fast or how busy a machine is.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import fft

from .training import Adjacency, Training

EPSILON_ERROR = 0.01
GRID_LIMIT = 10_000_000  # points; about a minute and two gigabytes
_FAILURES = (RuntimeError, ValueError, OverflowError, AssertionError, FloatingPointError)


class UnansweredError(Exception):
    """PRV cannot answer; the message says why, in a few words."""


def epsilons(
    training: Training, steps: Sequence[int], delta: float
) -> list[tuple[float, float, float]]:
    """(lower, estimate, upper) of ε at δ after each of `steps`, all at most `training.steps`."""
    accountant = _built(training, delta / 1000)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [accountant.compute_epsilon(delta, [n]) for n in steps]
    except _FAILURES as error:
        raise UnansweredError(f"prv failed: {error}") from error
    if not np.all(np.isfinite(found)):
        raise UnansweredError("prv failed: its answer is not a number")
    return [(max(low, 0.0), max(mid, 0.0), max(high, 0.0)) for low, mid, high in found]


def epsilon(training: Training, delta: float) -> tuple[float, float, float]:
    """(lower, estimate, upper) of ε at δ; the upper end includes the error of 0.01."""
    return epsilons(training, [training.steps], delta)[0]


def delta(training: Training, epsilon: float) -> tuple[float, float, float]:
    """(lower, estimate, upper) of δ at ε, to an absolute error of 1e-10 beside ε's 0.01."""
    accountant = _built(training, 1e-10)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            low, mid, high = accountant.compute_delta(epsilon, [training.steps])
    except _FAILURES as error:
        raise UnansweredError(f"prv failed: {error}") from error
    return tuple(min(max(float(d), 0.0), 1.0) for d in (low, mid, high))  # type: ignore[return-value]


def _built(training: Training, delta_error: float) -> Any:
    accountant = _accountant(training, delta_error)
    if isinstance(accountant, UnansweredError):
        raise accountant
    return accountant


@functools.lru_cache(maxsize=2)
def _accountant(training: Training, delta_error: float) -> Any:
    """The library's accountant, or why there is none: failures take long and are kept as well."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _build(training, delta_error)
    except UnansweredError as reason:
        return reason
    except _FAILURES as error:
        return UnansweredError(f"prv failed: {error}")


def _build(training: Training, delta_error: float) -> Any:
    from prv_accountant import PRVAccountant
    from prv_accountant.accountant import compute_safe_domain_size

    variable, steps = _variable(training), training.steps
    reach = compute_safe_domain_size([variable], [steps], EPSILON_ERROR, delta_error)
    mesh = EPSILON_ERROR / math.sqrt(steps / 2 * math.log(12 / delta_error))
    if not 2 * reach / mesh <= GRID_LIMIT:
        points = f"{2 * reach / mesh:.2g} grid points, more than {GRID_LIMIT:.0g}"
        raise UnansweredError(f"prv would need {points}")
    # The library's grid has 2 (half + 1) points; a size without large prime factors makes its
    # Fourier transforms several times faster and the reach a trifle longer.
    half = fft.next_fast_len(math.ceil(reach / mesh) + 1, real=True) - 1
    return PRVAccountant(variable, EPSILON_ERROR, delta_error, steps, eps_max=(half - 0.5) * mesh)


def _variable(training: Training) -> Any:
    from prv_accountant import GaussianMechanism, PoissonSubsampledGaussianMechanism

    if training.sample_rate == 1:
        return GaussianMechanism(training.unit_noise)
    if training.adjacency is Adjacency.REPLACE:
        raise UnansweredError("prv handles replacement only at sample_rate 1")
    return PoissonSubsampledGaussianMechanism(training.sample_rate, training.noise_multiplier)
