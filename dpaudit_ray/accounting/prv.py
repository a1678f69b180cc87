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

from .accountant import Accountant, Ends, UnansweredError
from .training import Adjacency, Training

EPSILON_ERROR = 0.01
GRID_LIMIT = 10_000_000  # points; about a minute and two gigabytes
_FAILURES = (RuntimeError, ValueError, OverflowError, AssertionError, FloatingPointError)


def epsilons(
    training: Training, steps: Sequence[int], delta: float
) -> list[tuple[float, float, float]]:
    """(lower, estimate, upper) of ε at δ after each of `steps`, all at most `training.steps`."""
    return _asked(_built((training,), delta / 1000), delta, [[n] for n in steps])


def epsilon(training: Training, delta: float) -> tuple[float, float, float]:
    """(lower, estimate, upper) of ε at δ; the upper end includes the error of 0.01."""
    return epsilons(training, [training.steps], delta)[0]


def delta(training: Training, epsilon: float) -> tuple[float, float, float]:
    """(lower, estimate, upper) of δ at ε, to an absolute error of 1e-10 beside ε's 0.01."""
    accountant = _built((training,), 1e-10)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            low, mid, high = accountant.compute_delta(epsilon, [training.steps])
            wrong = _wrong(accountant, [training.steps])
    except _FAILURES as error:
        raise UnansweredError(f"prv failed: {error}") from error
    return tuple(min(max(float(d), 0.0), 1.0) for d in (low - wrong, mid, high + wrong))  # type: ignore[return-value]


def composed(events: tuple[Training, ...], delta: float) -> tuple[float, float, float]:
    """(lower, estimate, upper) of ε at δ of trainings that follow each other."""
    return _asked(_built(events, delta / 1000), delta, [[one.steps for one in events]])[0]


def _asked(
    accountant: Any, delta: float, counts: list[list[int]]
) -> list[tuple[float, float, float]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [
                accountant.compute_composition(each).compute_epsilon(
                    delta, accountant.delta_error + _wrong(accountant, each), EPSILON_ERROR
                )
                for each in counts
            ]
    except _FAILURES as error:
        raise UnansweredError(f"prv failed: {error}") from error
    if not np.all(np.isfinite(found)):
        raise UnansweredError("prv failed: its answer is not a number")
    return [(max(low, 0.0), max(mid, 0.0), max(high, 0.0)) for low, mid, high in found]


def _wrong(accountant: Any, counts: list[int]) -> float:
    """What δ may be wrong by where the library's transforms round, in norm (see `losses`)."""
    parts = accountant.composer.prvs
    size = len(parts[0].pmf)
    rounding = float(np.finfo(parts[0].pmf.dtype).eps)
    gamma = 4 * rounding * math.log2(2 * size) * math.sqrt(size)
    steps = sum(
        n * float(np.linalg.norm(one.pmf.astype(np.float64)))
        for n, one in zip(counts, parts, strict=True)
    )
    return gamma * (1 + 3 * steps)


def _built(events: tuple[Training, ...], delta_error: float) -> Any:
    accountant = _accountant(events, delta_error)
    if isinstance(accountant, UnansweredError):
        raise accountant
    return accountant


@functools.lru_cache(maxsize=2)
def _accountant(events: tuple[Training, ...], delta_error: float) -> Any:
    """The library's accountant, or why there is none: failures take long and are kept as well."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _build(events, delta_error)
    except UnansweredError as reason:
        return reason
    except _FAILURES as error:
        return UnansweredError(f"prv failed: {error}")


def _build(events: tuple[Training, ...], delta_error: float) -> Any:
    from prv_accountant import PRVAccountant
    from prv_accountant.accountant import compute_safe_domain_size
    from scipy import fft

    variables, counts = [_variable(one) for one in events], [one.steps for one in events]
    reach = compute_safe_domain_size(variables, counts, EPSILON_ERROR, delta_error)
    mesh = EPSILON_ERROR / math.sqrt(sum(counts) / 2 * math.log(12 / delta_error))
    if not 2 * reach / mesh <= GRID_LIMIT:
        points = f"{2 * reach / mesh:.2g} grid points, more than {GRID_LIMIT:.0g}"
        raise UnansweredError(f"prv would need {points}")
    # The library's grid has 2 (half + 1) points; a size without large prime factors makes its
    # Fourier transforms several times faster and the reach a trifle longer.
    half = fft.next_fast_len(math.ceil(reach / mesh) + 1, real=True) - 1
    reach = (half - 0.5) * mesh
    return PRVAccountant(variables, EPSILON_ERROR, delta_error, counts, eps_max=reach)


def _variable(training: Training) -> Any:
    from prv_accountant import GaussianMechanism, PoissonSubsampledGaussianMechanism

    if training.sample_rate == 1:
        return GaussianMechanism(training.unit_noise)
    if training.adjacency is Adjacency.REPLACE:
        raise UnansweredError("prv handles replacement only at sample_rate 1")
    return PoissonSubsampledGaussianMechanism(training.sample_rate, training.noise_multiplier)


class Prv(Accountant):
    """Gopi, Lee, Wutschitz 2021: numerical composition with an error interval."""

    name = "prv"

    def epsilon(self, training: Training, delta: float, both_ends: bool) -> Ends:
        """See `Accountant`."""
        return epsilon(training, delta)

    def delta(self, training: Training, epsilon: float, both_ends: bool) -> Ends:
        """See `Accountant`."""
        return delta(training, epsilon)

    def epsilons(self, training: Training, steps: Sequence[int], delta: float) -> list[Ends]:
        """Builds its grid once, for the largest step count."""
        return epsilons(training.after(max(steps)), steps, delta)

    def composed(self, events: tuple[Training, ...], delta: float) -> Ends:
        """One grid for all events."""
        return composed(events, delta)

    def fallback(self, training: Training) -> str:
        """The exact formula where there is one, else the PLD, which does not fail."""
        return "gaussian" if training.sample_rate == 1 else "pld"
