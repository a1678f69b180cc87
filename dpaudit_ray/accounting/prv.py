"""Privacy random variables (Gopi, Lee, Wutschitz 2021) by prv_accountant.

The library composes on a grid whose size it derives from ε and the number of steps. For large ε
that grid takes minutes, and its construction is known to fail ("Discrete mean differs").
`UnansweredError` is raised in both cases. A large grid is recognised by its number of points before
any work is done, so that the accountant that answers does not depend on the machine.
"""

import contextlib
import functools
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import plain
from .accountant import Accountant, UnansweredError
from .training import Adjacency, Training

EPSILON_ERROR = 0.01  # error of ε on either side; a finer grid takes proportionally longer
GRID_LIMIT = 10_000_000  # largest number of points: they take about a minute and two gigabytes
# Exceptions of the library for a grid that does not suffice.
_FAILURES = (RuntimeError, ValueError, OverflowError, AssertionError, FloatingPointError)


class Prv(Accountant):
    """Numerical composition with an error interval, on a grid."""

    name = "prv"

    def epsilon(self, training: Training, delta: float) -> float:
        """Returns an upper bound on ε, within 0.01."""
        return self.epsilons(training, [training.steps], delta)[0]

    def epsilons(
        self,
        training: Training,
        steps: Sequence[int],
        delta: float,
    ) -> list[float]:
        """Returns upper bounds on ε after each of `steps`, all from the grid of the most steps."""
        # The library may err by a thousandth of δ, which `_epsilons` adds to its upper bound.
        accountant = _library_accountant((training,), delta / 1000)
        return _epsilons(accountant, delta, [[count] for count in steps])

    def delta(self, training: Training, epsilon: float) -> float:
        """Returns δ at ε, with absolute errors of 1e-10 in δ and 0.01 in ε."""
        accountant = _library_accountant((training,), 1e-10)
        counts = [training.steps]
        with _library_failures():
            _, _, upper = accountant.compute_delta(epsilon, counts)
            upper += _rounding_error(accountant, counts)
        return min(max(float(upper), 0.0), 1.0)

    def composed(
        self,
        events: tuple[Training, ...],
        delta: float,
    ) -> float:
        """Returns an upper bound on ε of all events together."""
        # As in `epsilons`: the library may err by a thousandth of δ.
        accountant = _library_accountant(events, delta / 1000)
        # A single composition: the outer list has one item, the steps of all events.
        return _epsilons(accountant, delta, [[part.steps for part in events]])[0]

    def fallback(self, training: Training) -> str:
        """Returns the exact formula if there is one, else the PLD, which does not fail."""
        return "gaussian" if training.sample_rate == 1 else "pld"


@contextlib.contextmanager
def _library_failures() -> Iterator[None]:
    """Raises known errors of the library as UnansweredError, and hides its warnings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except _FAILURES as error:
        raise UnansweredError(f"prv failed: {error}") from error


def _epsilons(
    accountant: Any,
    delta: float,
    counts: list[list[int]],
) -> list[float]:
    """Computes ε at δ for each item of `counts`.

    Args:
        accountant: the library's accountant of some kinds of steps.
        delta: δ.
        counts: lists of the numbers of steps of all kinds; there is an ε for each list.
    """
    intervals = []
    with _library_failures():
        for steps in counts:
            error = accountant.delta_error + _rounding_error(accountant, steps)
            composed = accountant.compute_composition(steps)
            intervals.append(composed.compute_epsilon(delta, error, EPSILON_ERROR))
    if not np.all(np.isfinite(intervals)):
        raise UnansweredError("prv failed: its answer is not a number")
    return [max(high, 0.0) for _, _, high in intervals]


def _rounding_error(accountant: Any, counts: list[int]) -> float:
    """Bounds the error of δ by rounding in the library's Fourier transforms, as in `pld`.

    Args:
        accountant: the library's accountant of some kinds of steps.
        counts: numbers of steps of all kinds.
    """
    masses = [part.pmf for part in accountant.composer.prvs]
    size = len(masses[0])
    unit = float(np.finfo(masses[0].dtype).eps)
    gamma = 4 * unit * math.log2(2 * size) * math.sqrt(size)
    total = 0.0
    for count, part in zip(counts, masses, strict=True):
        total += count * float(np.linalg.norm(part.astype(float)))
    return gamma * (1 + 3 * total)


def _library_accountant(events: tuple[Training, ...], delta_error: float) -> Any:
    """Returns the library's accountant for events with at most their numbers of steps.

    Args:
        events: kinds of steps, each with its number of steps.
        delta_error: largest error of δ by the library's grid.

    Raises:
        UnansweredError: the library fails, or would need too large a grid.
    """
    accountant = _built_or_failed(events, delta_error)
    if isinstance(accountant, UnansweredError):
        raise accountant
    return accountant


@functools.lru_cache(maxsize=2)
def _built_or_failed(events: tuple[Training, ...], delta_error: float) -> Any:
    """Returns the library's accountant, or its error: failures take long, and are cached, too."""
    try:
        return _build(events, delta_error)
    except UnansweredError as reason:
        return reason


@_library_failures()
def _build(events: tuple[Training, ...], delta_error: float) -> Any:
    """Builds the library's accountant on a grid that is wide and fine enough for these events.

    Raises:
        UnansweredError: the grid would be too large, or the library fails.
    """
    from prv_accountant import PRVAccountant
    from prv_accountant.accountant import compute_safe_domain_size
    from scipy import fft

    variables = [_variable(part) for part in events]
    counts = [part.steps for part in events]
    reach = compute_safe_domain_size(variables, counts, EPSILON_ERROR, delta_error)
    # The library's own formula for the width of a cell.
    mesh = EPSILON_ERROR / math.sqrt(sum(counts) / 2 * math.log(12 / delta_error))
    points = 2 * reach / mesh
    if not points <= GRID_LIMIT:  # also if it is NaN
        needed = plain(points, ".2g")
        raise UnansweredError(f"prv would need {needed} grid points, more than {plain(GRID_LIMIT)}")
    # The library's grid has 2 (half + 1) points. A number without large prime factors makes its
    # Fourier transforms several times faster, and the grid a little wider.
    half = fft.next_fast_len(math.ceil(reach / mesh) + 1, real=True) - 1
    reach = (half - 0.5) * mesh
    return PRVAccountant(variables, EPSILON_ERROR, delta_error, counts, eps_max=reach)


def _variable(training: Training) -> Any:
    """Returns the privacy loss of one step, as the library takes it."""
    from prv_accountant import GaussianMechanism, PoissonSubsampledGaussianMechanism

    if training.sample_rate == 1:
        return GaussianMechanism(training.unit_noise)
    if training.adjacency is Adjacency.REPLACE:
        raise UnansweredError("prv handles replacement only at sample_rate 1")
    return PoissonSubsampledGaussianMechanism(training.sample_rate, training.noise_multiplier)
