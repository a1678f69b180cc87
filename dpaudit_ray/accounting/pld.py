"""Privacy loss distributions (Koskela et al. 2020; Doroshenko et al. 2022), from both sides.

Both ends are proven at any grid width, errors of floats included (`losses`). Where every step sees
every record the exact formula answers.

Replacement with sampling is computed for gradients that point in opposite directions. That no
other pair is worse is conjectured (Lebeda et al. 2024), not proven; `NOTE` says so.
"""

from __future__ import annotations

import functools
import math

from . import gaussian, rdp
from .accountant import Accountant, Ends
from .losses import Sum, of_step
from .training import Adjacency, Training

NOTE = "replacement with sampling: opposite gradients are taken as the worst case"
FINEST = 1e-4  # grid width; wide enough losses get a wider one, so that the grid stays small
_LARGEST_GRID = 1e6  # cells over the losses that matter
_LARGEST_STEP = 1e6  # cells of one step, where a finer width is taken for it
_FEWEST_CELLS = 16  # that the standard deviation of a step's loss goes over
_FINER = 4  # from below, where the error of a cell is one of rounding down


def epsilon(training: Training, delta: float, both_ends: bool = True) -> tuple[float, float, float]:
    """(lower, upper, upper) of ε at δ; without `both_ends` the lower end is 0 and costs nothing."""
    if training.sample_rate == 1:
        return gaussian.epsilon(training, delta)
    upper, lower = _epsilon((training,), delta, True), 0.0
    if both_ends:
        lower = _epsilon((training,), delta, False)
    return lower, upper, upper


def delta(training: Training, epsilon: float, both_ends: bool = True) -> tuple[float, float, float]:
    """(lower, upper, upper) of δ at ε; see `epsilon`."""
    if training.sample_rate == 1:
        return gaussian.delta(training, epsilon)
    width, lower = _width(training, 1e-10), 0.0
    upper = max(one.delta(epsilon) for one in _composed((training,), width, True))
    if both_ends:
        lower = max(one.delta(epsilon) for one in _composed((training,), width / _FINER, False))
    return lower, upper, upper


def advantage(training: Training) -> float:
    """δ at ε = 0 from above, on the coarsest grid that moves it by 1e-5 at most; sampled steps.

    Rounding errors of single steps cancel mostly: their sum grows with the root of the steps.
    """
    width = _doubled(1e-2 / math.sqrt(training.steps))
    return max(one.delta(0.0) for one in _composed((training,), width, True))


def _epsilon(events: tuple[Training, ...], delta: float, pessimistic: bool) -> float:
    width = max(_width(one, delta) for one in events) / (1 if pessimistic else _FINER)
    return max(one.epsilon(delta) for one in _composed(events, width, pessimistic))


@functools.lru_cache(maxsize=32)
def _composed(
    events: tuple[Training, ...], width: float, pessimistic: bool
) -> tuple[Sum, ...]:  # fmt: skip
    """The loss of all steps of all events: with the record against without it, and the reverse."""
    steps = (_step(one.after(1), width, pessimistic) for one in events)
    counts = [one.steps for one in events]
    return tuple(
        Sum(tuple(zip(side, counts, strict=True)), pessimistic) for side in zip(*steps, strict=True)
    )


_step = functools.lru_cache(maxsize=8)(of_step)


def _width(training: Training, delta: float) -> float:
    """Grid width for the losses that matter at δ, which an RDP bound reaches over.

    Widths are the finest one, doubled, so that several δ share a composition; or halved, where the
    losses of a step spread over few cells.
    """
    noise, rate = training.unit_noise, training.sample_rate
    reach = rdp.epsilon(Training(noise, training.steps, rate), delta / 1000)[2]
    spread = rate * math.sqrt(math.expm1(min(1 / noise**2, 700.0)))
    finer = max(spread / _FEWEST_CELLS, (14 + 1 / noise) / noise / _LARGEST_STEP)
    return _doubled(reach / _LARGEST_GRID, min(finer, FINEST))


def _doubled(wanted: float, least: float = FINEST) -> float:
    return float(FINEST * 2.0 ** math.ceil(math.log2(max(wanted, least) / FINEST)))


class Pld(Accountant):
    """Koskela et al. 2020: privacy loss distributions, with proven ends."""

    name = "pld"

    def epsilon(self, training: Training, delta: float, both_ends: bool) -> Ends:
        """See `Accountant`."""
        return epsilon(training, delta, both_ends)

    def delta(self, training: Training, epsilon: float, both_ends: bool) -> Ends:
        """See `Accountant`."""
        return delta(training, epsilon, both_ends)

    def composed(self, events: tuple[Training, ...], delta: float) -> Ends:
        """Losses of all events on one grid."""
        upper = _epsilon(events, delta, True)
        return 0.0, upper, upper

    def remark(self, training: Training) -> str:
        """See `NOTE`."""
        sampled = training.sample_rate < 1 and training.adjacency is Adjacency.REPLACE
        return NOTE if sampled else ""
