"""Noise of DP-SGD: independent at each step, or correlated between steps by a matrix.

Correlated noise is n = C⁻¹ z, for independent normals z and a lower triangular matrix C, the
strategy (Denisov et al. 2022; Choquette-Choo et al. 2023). Multiplied by C, the releases g + n of
all T steps are C g + z: together one Gaussian release of C g. Noise of later steps cancels part of
the noise of earlier ones, so sums over many steps have less of it.
"""

import functools
from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, model_validator

from ...errors import SpecError
from ...plugins import Count, OpenShare, Plugin, Share
from .updates import ListAsTuple, State

if TYPE_CHECKING:
    from torch import Tensor

Matrix = NDArray[np.float64]
_MOST_STEPS = 4096  # C then takes 128 MiB


class Noise(Plugin):
    """Base of all kinds of noise. A canary may join steps t with t ≡ `offset` modulo its period."""

    kind = "noise"
    home = "dpaudit_ray.mechanisms.dp_sgd.noise"
    offset: ClassVar[int] = 0

    def check(self, steps: int) -> None:
        """Raises SpecError if the training has too few or too many `steps`."""

    def scale(self, steps: int) -> float:
        """Returns the standard deviation of the normals z, in units of σC."""
        return 1.0

    def strategy(self, steps: int) -> Matrix | None:
        """Returns C [steps, steps]; None for independent noise."""
        return None

    def correlate(self, normals: "Tensor", number: int, state: State) -> None:
        """Turns the normals z_t of one step into its noise n_t.

        Args:
            normals: z_t, float [n, p], changed in place.
            number: number t of the step, from 1.
            state: what this method stores for later steps; empty at the first one.
        """


class Independent(Noise):
    """Independent noise at each step."""

    name: Literal["independent"] = "independent"


class Correlated(Noise):
    """Base of correlated noise, for records that take part in steps o, o + b, o + 2b, ...

    b is the `separation`, and o one of 1, ..., b. At a separation of 1, the claim covers records
    in any steps. The canary takes part from the first step on.
    """

    offset = 1
    separation: Count = 1  # b, steps from one participation of a record to the next

    @abstractmethod
    def strategy(self, steps: int) -> Matrix:
        """Returns C, lower triangular. The first rows are the same for any number of steps."""

    @abstractmethod
    def correlate(self, normals: "Tensor", number: int, state: State) -> None: ...

    def check(self, steps: int) -> None:
        """Raises SpecError for too many steps: C would be too large."""
        if steps > _MOST_STEPS:
            raise SpecError(
                "steps",
                f"is {steps}, but noise: {self.name} takes at most {_MOST_STEPS}; use fewer",
            )

    def scale(self, steps: int) -> float:
        """Returns the sensitivity of C g.

        With normals z of σC times this deviation, the release hides a record as well as one step
        with independent noise σC does.
        """
        return self.sensitivity(steps, steps, self.separation)

    def sensitivity(self, steps: int, horizon: int, separation: int) -> float:
        """Returns how much C g changes by one record, in units of the clipping norm.

        A record adds g_i, |g_i| ≤ 1, to the sums of its steps i. The change of C g has the squared
        norm Σ_ij (CᵀC)_ij <g_i, g_j> ≤ |Cπ|², where π is 1 at these steps and 0 at all others, if
        no entry of C is negative. A record with the same g_i at all its steps reaches the bound.
        Gradients may depend on earlier releases (Denisov et al. 2022, Theorem 2.1). For a
        user-defined C with negative entries, their absolute values give an upper bound.

        Args:
            steps: number of steps of the training.
            horizon: last step that is released.
            separation: b; the offset is the worst one.
        """
        return float(_sensitivities(self, steps, separation)[horizon - 1])


@functools.lru_cache(maxsize=64)
def _sensitivities(noise: Correlated, steps: int, separation: int) -> Matrix:
    """Computes the sensitivity of a training that ends after 1, 2, ... steps, float64 [steps].

    It is |Cπ|, of the rows of C so far, for the worst step of a record's first participation
    (`Correlated.sensitivity`).

    Args:
        noise: the noise, with its strategy C.
        steps: number of steps of the training.
        separation: steps from one participation of a record to the next.
    """
    strategy = np.abs(noise.strategy(steps))
    largest_squares = np.zeros(steps)
    for first in range(min(separation, steps)):  # the step o of the first participation
        squares = strategy[:, first::separation].sum(axis=1) ** 2
        largest_squares = np.maximum(largest_squares, np.cumsum(squares))
    return np.sqrt(largest_squares)


class Toeplitz(Correlated):
    """Base of strategies C_ts = c_(t-s), whose coefficients c never rise and are never negative.

    For these the claim also covers records that take part in any steps at least `separation` apart
    (Kalinin and Lampert 2024, Theorem 2).
    """

    @abstractmethod
    def column(self, steps: int) -> Matrix:
        """Returns c, float64 [steps]."""

    def strategy(self, steps: int) -> Matrix:
        """Returns C, whose diagonals are the coefficients."""
        numbers = np.arange(steps)
        lags = np.subtract.outer(numbers, numbers)
        return np.tril(self.column(steps)[lags])  # negative lags are above the diagonal


class Banded(Toeplitz):
    """Banded noise (Choquette-Choo et al. 2023): remembers the noise of `bandwidth` - 1 steps.

    By default C is the band of the square root of the matrix of prefix sums, c_k = (2k choose k) /
    4^k. Give `coefficients` in place of `bandwidth` for another matrix.
    """

    name: Literal["banded"] = "banded"
    bandwidth: Count | None = None  # number of coefficients
    # c_0, c_1, ..., in place of the bandwidth; only their ratios matter
    coefficients: Annotated[tuple[NonNegativeFloat, ...] | None, ListAsTuple] = None

    @model_validator(mode="after")
    def _has_one_matrix(self) -> Self:
        """Checks that the band is stated once, and that coefficients never rise."""
        coefficients = self.coefficients
        if coefficients is None:
            if self.bandwidth is None:
                raise SpecError("bandwidth", "is required, or coefficients in its place")
            return self
        if self.bandwidth is not None:
            raise SpecError("bandwidth", f"is {self.bandwidth}, next to coefficients; leave it out")
        falling = tuple(sorted(coefficients, reverse=True))
        if max(coefficients, default=0) == 0 or coefficients != falling:
            raise SpecError(
                "coefficients",
                f"are {list(coefficients)}; begin above 0, then never rise",
            )
        return self

    @property
    def _band(self) -> tuple[float, ...]:
        """c_0, c_1, ..., divided by c_0: this changes C and the sensitivity by the same factor."""
        if self.coefficients is None:
            return _root_coefficients(self.bandwidth or 1)
        first = self.coefficients[0]
        return tuple(coefficient / first for coefficient in self.coefficients)

    def check(self, steps: int) -> None:
        """Raises SpecError for too many steps, or if the band is longer than the training."""
        super().check(steps)
        bandwidth = len(self._band)
        if bandwidth > steps:
            raise SpecError(
                "noise", f"has a band of {bandwidth} for {steps} steps; use at most {steps}"
            )

    def column(self, steps: int) -> Matrix:
        band = self._band[:steps]
        return np.pad(band, (0, steps - len(band)))

    def correlate(self, normals: "Tensor", number: int, state: State) -> None:
        """Solves for n_t = z_t - c_1 n_(t-1) - c_2 n_(t-2) - ..., as c_0 = 1."""
        band = self._band
        # Number of earlier steps whose noise is stored; the oldest one is overwritten.
        remembered = len(band) - 1
        for lag, coefficient in enumerate(band[1:number], start=1):  # no step is before the first
            earlier = state[f"{(number - lag) % remembered}"]
            normals.sub_(earlier, alpha=coefficient)
        if remembered:
            state[f"{number % remembered}"] = normals.clone()


class Blt(Toeplitz):
    """Noise of a buffered linear Toeplitz matrix (Dvijotham et al. 2024): one buffer a decay.

    c_0 = 1, and c_k = Σ_d w_d θ_d^(k-1) with `weights` w, of sum 1 at most, and `decays` θ.
    """

    name: Literal["blt"] = "blt"
    decays: Annotated[tuple[OpenShare, ...], ListAsTuple]  # θ
    weights: Annotated[tuple[Share, ...], ListAsTuple]  # w

    @model_validator(mode="after")
    def _options_go_together(self) -> Self:
        """Checks that each decay has a weight, and that coefficients never rise."""
        buffers = len(self.decays)
        if len(self.weights) != buffers or buffers == 0:
            raise SpecError(
                "weights",
                f"are {len(self.weights)} for {buffers} decays; give as many, and at least one",
            )
        if sum(self.weights) > 1:
            raise SpecError(
                "weights",
                f"have the sum {sum(self.weights):g}, so coefficients rise; use 1 at most",
            )
        return self

    def column(self, steps: int) -> Matrix:
        """Returns 1, and then the weighted sums of powers of the decays."""
        powers = np.power.outer(np.array(self.decays), np.arange(steps - 1))
        return np.append(1.0, self.weights @ powers)

    def correlate(self, normals: "Tensor", number: int, state: State) -> None:
        """Subtracts w_d s_d of each buffer s_d, which then becomes θ_d s_d + n_t."""
        if number == 1:
            for index in range(len(self.decays)):
                state[f"{index}"] = normals.new_zeros(normals.shape)
        for index, weight in enumerate(self.weights):
            normals.sub_(state[f"{index}"], alpha=weight)
        for index, decay in enumerate(self.decays):
            state[f"{index}"].mul_(decay).add_(normals)


class Tree(Correlated):
    """Noise of a binary tree (Dwork et al. 2010; Honaker 2015) with one normal a step.

    The noise of steps 1, ..., t has the sum S_t = S_(t - low(t)) + z_t, where low(t) is the lowest
    set bit of t. So S_t is a sum of one normal for each bit of t that is 1. For a separation above
    1, the claim covers regular participation only.
    """

    name: Literal["tree"] = "tree"

    def strategy(self, steps: int) -> Matrix:
        """Returns C whose row t is 1 in the last low(t) of t columns."""
        matrix = np.zeros((steps, steps))
        for number in range(1, steps + 1):
            matrix[number - 1, number & (number - 1) : number] = 1
        return matrix

    def correlate(self, normals: "Tensor", number: int, state: State) -> None:
        """Turns the normals z_t into S_t - S_(t-1), in place.

        S_t is z_t plus the sum of the parent t - low(t), if the parent is above 0. The state has,
        for each bit, the newest sum whose number has it as its lowest set bit. So it has the sums
        of the parent and of t - 1: no number between either and t has the same lowest set bit.
        Arguments are those of `Noise.correlate`.
        """
        previous = number - 1
        parent = number & previous  # without the lowest set bit, which is number & -number
        if parent:
            normals += state[f"{parent & -parent}"]
        total = normals.clone()
        if previous:
            normals -= state[f"{previous & -previous}"]
        state[f"{number & -number}"] = total


@functools.lru_cache(maxsize=64)
def _root_coefficients(count: int) -> tuple[float, ...]:
    """Computes (2k choose k) / 4^k for k < `count`: the series of 1 / √(1 - x)."""
    coefficients = [1.0]
    for k in range(1, count):
        coefficients.append(coefficients[-1] * (2 * k - 1) / (2 * k))
    return tuple(coefficients)
