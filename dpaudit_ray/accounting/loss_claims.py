"""Claims by distributions of the privacy loss: Laplace noise, and losses that a user lists.

Releases are composed on a grid, from above (`pld`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ..errors import plain
from ..stats.curve import Curve
from ..stats.error_rates import Floats
from .claim import Claim, check_number, check_unit
from .pld import LossSum, split_losses

_CELLS = 2000  # cells of the grid of one release
_POINTS = 60  # points of a curve


@dataclass(frozen=True)
class LaplaceReleases(Claim):
    """Releases with Laplace noise.

    `laplace` is the scale of the noise over the sensitivity: ε of one release is its inverse.
    """

    key = "laplace"
    laplace: float
    releases: int = 1
    unit: str = "record"

    def __post_init__(self) -> None:
        """Checks the fields. Raises ValueError."""
        check_number("laplace", self.laplace)
        _check_releases(self.releases)
        check_unit(self.unit)

    @property
    def pure(self) -> float:
        """The claimed ε at δ = 0."""
        return self.releases / self.laplace

    def delta_at(self, epsilon: float) -> float:
        """Returns δ at ε; for one release it is 1 - e^((ε - 1/scale) / 2)."""
        if epsilon >= self.pure:
            return 0.0
        if self.releases == 1:
            return -math.expm1((epsilon - self.pure) / 2)
        return _laplace_sum(self.laplace, self.releases).delta(epsilon)

    def epsilon_at(self, delta: float) -> float:
        """Returns ε at δ; for one release, by the formula of `delta_at`, solved for ε."""
        if delta == 0:
            return self.pure
        if self.releases == 1:
            return max(self.pure + 2 * math.log1p(-delta), 0.0)
        return super().epsilon_at(delta)

    def weakened(self, noise: float) -> Claim:
        return replace(self, laplace=self.laplace * noise)

    @property
    def words(self) -> str:
        several = f" in each of {self.releases} releases" if self.releases > 1 else ""
        return f"Laplace noise of {plain(self.laplace, '.4g')} sensitivities{several}"


@dataclass(frozen=True)
class LossDistribution(Claim):
    """Releases whose privacy loss is one of `losses`, with these `chances` under the first input.

    If the chances have a sum below 1, the loss is infinite with the remaining probability. The
    claim is symmetric: the losses are those of both orders of the inputs.
    """

    key = "losses"
    losses: Sequence[float]
    chances: Sequence[float]
    releases: int = 1
    unit: str = "record"

    def __post_init__(self) -> None:
        """Checks the fields, and makes tuples of the lists. Raises ValueError."""
        for name in ("losses", "chances"):
            values = getattr(self, name)
            if not isinstance(values, list | tuple) or not values:
                raise ValueError(f"{name} must be a list of numbers, got {values!r}")
            for value in values:
                least = -math.inf if name == "losses" else 0.0
                check_number(name, value, least=least, open_end=False)
            object.__setattr__(self, name, tuple(values))
        if len(self.chances) != len(self.losses):
            raise ValueError(f"chances must be {len(self.losses)} numbers, one for each loss")
        if math.fsum(self.chances) > 1 + 1e-9:
            raise ValueError(f"chances must sum to at most 1, got {math.fsum(self.chances)}")
        _check_releases(self.releases)
        check_unit(self.unit)

    def delta_at(self, epsilon: float) -> float:
        """Returns δ at ε: the mean of max(1 - e^(ε - loss), 0), for one release."""
        losses = np.array(self.losses)
        chances = np.array(self.chances)
        if self.releases == 1:
            excess = np.clip(-np.expm1(epsilon - losses), 0.0, None)
            infinite = max(1 - math.fsum(self.chances), 0.0)
            return float(excess @ chances) + infinite
        return min(self._sum.delta(epsilon), 1.0)

    def epsilon_at(self, delta: float) -> float:
        """Returns ε at δ; at δ = 0 the largest loss, if none is infinite."""
        if delta == 0 and math.fsum(self.chances) >= 1 - 1e-12:
            return self.releases * max(*self.losses, 0.0)
        return super().epsilon_at(delta)

    @property
    def _sum(self) -> LossSum:
        return _listed_sum(tuple(self.losses), tuple(self.chances), self.releases)

    @property
    def curve(self) -> Curve:
        largest = self.releases * max(*self.losses, 0.0)
        return self.at(np.linspace(0.0, largest, _POINTS))

    def weakened(self, noise: float) -> Claim:
        losses = [loss / noise for loss in self.losses]
        return replace(self, losses=losses)

    @property
    def words(self) -> str:
        several = f", {self.releases} times" if self.releases > 1 else ""
        return f"losses up to {plain(max(self.losses), '.4g')}{several}"


def _check_releases(releases: int) -> None:
    """Raises ValueError unless the number of releases is an integer of at least 1."""
    if not isinstance(releases, int) or isinstance(releases, bool) or releases < 1:
        raise ValueError(f"releases must be a whole number of at least 1, got {releases!r}")


@lru_cache
def _laplace_sum(scale: float, releases: int) -> LossSum:
    """Composes Laplace releases; both orders of the inputs have the same losses.

    The loss at an output x is (|x - 1| - |x|) / scale: it lies within ±1/scale.

    Args:
        scale: scale of the noise, over the sensitivity.
        releases: number of releases.
    """
    largest = 1 / scale
    width = 2 * largest / _CELLS
    losses = np.linspace(-largest, largest, _CELLS + 1)
    inside = np.exp((losses - largest) / 2) / 2  # P[L ≤ l] with the record
    outside = 1 - np.exp(-(losses + largest) / 2) / 2  # P[L ≤ l] without the record
    cells_inside = np.diff(inside)
    cells_outside = np.diff(outside)
    # With the record, half of the mass has exactly the largest loss; without it, the smallest.
    cells_inside[0] += inside[0]
    cells_outside[0] += outside[0]
    cells_inside[-1] += 0.5
    cells_outside[-1] += 1 - outside[-1]
    return _composed(cells_inside, cells_outside, -_CELLS // 2, width, releases)


@lru_cache
def _listed_sum(
    losses: tuple[float, ...],
    chances: tuple[float, ...],
    releases: int,
) -> LossSum:
    """Composes listed losses, each in its cell of the grid.

    Args:
        losses: possible losses of one release.
        chances: probability of each loss with the record; without it, it is e^-loss times as large.
        releases: number of releases.
    """
    values = np.array(losses)
    largest = max(float(np.abs(values).max()), 1e-3)
    width = 2 * largest / _CELLS
    steps = np.floor(values / width).astype(int)
    cell = np.minimum(steps + _CELLS // 2, _CELLS - 1)  # the largest loss is the end of the last
    masses = np.array(chances)
    inside = np.zeros(_CELLS)
    np.add.at(inside, cell, masses)
    outside = np.zeros(_CELLS)
    np.add.at(outside, cell, masses * np.exp(-values))
    infinite = 1 - math.fsum(chances)
    return _composed(inside, outside, -_CELLS // 2, width, releases, infinite)


def _composed(
    inside: Floats,
    outside: Floats,
    first: int,
    width: float,
    releases: int,
    infinite: float = 0.0,
) -> LossSum:
    """Composes releases whose losses have these masses in cells of a grid.

    Args:
        inside: probability of each cell with the record, float64 [n].
        outside: probability of each cell without the record, float64 [n].
        first: index of the lower end of the first cell.
        width: width of a cell.
        releases: number of releases.
        infinite: probability of an infinite loss.
    """
    with np.errstate(divide="ignore"):  # cells may be empty
        losses = split_losses(np.log(inside), np.log(outside), first, width, infinite=0.0)
    losses = replace(losses, infinite=max(infinite, 0.0))
    return LossSum(((losses, releases),), pessimistic=True)
