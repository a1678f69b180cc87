"""Privacy loss distributions (Koskela et al. 2020; Doroshenko et al. 2022) by dp_accounting.

The losses are rounded to a grid pessimistically, so the result is an upper bound at any grid
width. Rounding them optimistically instead gives the lower end of the interval.

Replacement with sampling is computed for gradients that point in opposite directions. That no
other pair is worse is conjectured (Lebeda et al. 2024), not proven; `NOTE` says so.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from . import rdp
from .accountant import Accountant, Ends
from .training import Adjacency, Training

NOTE = "replacement with sampling: opposite gradients are taken as the worst case"
FINEST = 1e-4  # grid width; wide enough losses get a wider one, so that the grid stays small
_LARGEST_GRID = 1e6  # cells over the losses that matter
_LARGEST_SINGLE = 1e5  # the same where nothing is composed, so that no error adds up


def epsilon(training: Training, delta: float, both_ends: bool = True) -> tuple[float, float, float]:
    """(lower, upper, upper) of ε at δ; without `both_ends` the lower end is 0 and costs nothing."""
    width = _width(training, delta)
    upper = float(_composed(training, width, True).get_epsilon_for_delta(delta))
    lower = 0.0
    if both_ends:
        lower = min(float(_composed(training, width, False).get_epsilon_for_delta(delta)), upper)
    return lower, upper, upper


def delta(training: Training, epsilon: float, both_ends: bool = True) -> tuple[float, float, float]:
    """(lower, upper, upper) of δ at ε; see `epsilon`."""
    width = _width(training, 1e-10)
    upper = float(_composed(training, width, True).get_delta_for_epsilon(epsilon))
    lower = 0.0
    if both_ends:
        lower = min(float(_composed(training, width, False).get_delta_for_epsilon(epsilon)), upper)
    return lower, upper, upper


def advantage(training: Training) -> float:
    """δ at ε = 0 from above, on the coarsest grid that moves it by 1e-5 at most; sampled steps.

    Rounding errors of single steps cancel mostly: their sum grows with the root of the steps.
    """
    width = _doubled(1e-2 / math.sqrt(training.steps))
    return min(float(_composed(training, width, True).get_delta_for_epsilon(0.0)), 1.0)


def least_epsilon(training: Training, delta: float) -> float:
    """ε at δ from below, by losses that are rounded down: by .005 at least, and more over many
    steps; sampled steps."""
    width = _doubled(1e-2 / training.steps)
    return max(float(_composed(training, width, False).get_epsilon_for_delta(delta)), 0.0)


@functools.lru_cache(maxsize=32)
def _composed(training: Training, width: float, pessimistic: bool) -> Any:
    if training.sample_rate == 1:
        # Gaussians compose to a Gaussian: one distribution instead of many convolutions.
        noise = training.unit_noise / math.sqrt(training.steps)
        return _step(noise, 1.0, Adjacency.ADD_REMOVE, width, pessimistic)
    step = _step(
        training.noise_multiplier, training.sample_rate, training.adjacency, width, pessimistic
    )
    return step.self_compose(training.steps)


@functools.lru_cache(maxsize=8)
def _step(
    noise: float, rate: float, adjacency: str, width: float, pessimistic: bool
) -> Any:  # fmt: skip
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    replace = adjacency is Adjacency.REPLACE
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=noise,
        pessimistic_estimate=pessimistic,
        value_discretization_interval=width,
        sampling_prob=rate,
        use_connect_dots=pessimistic,
        neighboring_relation=(
            NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE
        ),
    )


def _width(training: Training, delta: float) -> float:
    """Grid width for the losses that matter at δ, which an RDP bound reaches over.

    Widths are doubled from the finest one, so that several δ share a composition.
    """
    noise, single = training.unit_noise, training.sample_rate == 1
    reach = rdp.epsilon(Training(noise, training.steps, training.sample_rate), delta / 1000)[2]
    return _doubled(reach / (_LARGEST_SINGLE if single else _LARGEST_GRID))


def _doubled(wanted: float) -> float:
    doublings = math.ceil(math.log2(max(wanted / FINEST, 1.0)))
    return float(FINEST * 2**doublings)


class Pld(Accountant):
    """Doroshenko et al. 2022: privacy loss distributions, rounded pessimistically."""

    name = "pld"

    def epsilon(self, training: Training, delta: float, both_ends: bool) -> Ends:
        """See `Accountant`."""
        return epsilon(training, delta, both_ends)

    def delta(self, training: Training, epsilon: float, both_ends: bool) -> Ends:
        """See `Accountant`."""
        return delta(training, epsilon, both_ends)

    def composed(self, events: tuple[Training, ...], delta: float) -> Ends:
        """Distributions of all events on one grid, convolved."""
        width = max(_width(one, delta) for one in events)
        whole = functools.reduce(
            lambda one, other: one.compose(other), (_composed(one, width, True) for one in events)
        )
        upper = float(whole.get_epsilon_for_delta(delta))
        return 0.0, upper, upper

    def remark(self, training: Training) -> str:
        """See `NOTE`."""
        sampled = training.sample_rate < 1 and training.adjacency is Adjacency.REPLACE
        return NOTE if sampled else ""
