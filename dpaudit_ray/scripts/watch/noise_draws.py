"""Measures a step's noise from its draws: size, correlations, and distance from the normal law."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..protocol import Correlation, LawDistance
from .tensors import Release, Vector, difference, squared_lengths

# Numbers of noise to draw per step, as far as the bounds of draws and seconds below allow.
_NUMBERS_DRAWN = 20_000
_FEWEST_DRAWS = 4
_MOST_DRAWS = 64
_SECONDS = 3.0
_MOST_COMPARED = 4096  # numbers of each tensor whose noise is compared over steps and tensors
_MOST_NUMBERS = 200_000  # numbers of the last steps that are compared with the normal law
_FEWEST_COMPARED = 16  # entries of two vectors that are compared
_FEWEST_NEIGHBOURS = 32  # entries of a vector that is compared with itself, shifted
_MOST_SHIFTED = 16_384  # numbers of two steps that are compared with a shift
_GAP_SHARE = 0.25  # share of draws above which a number that is zero counts as left out
_LEAST_PRODUCT = 1e-30  # a product of squares counts as at least this, as it divides
_ROUNDING = 1e-12  # relative: a smaller spread than this is rounding of equal numbers


@dataclasses.dataclass(frozen=True)
class NoiseDraws:
    """Differences between a step's release and the releases with other draws of its noise.

    Attributes:
        count: number of draws.
        squares: summed squared distance of the draws from their mean, by tensor.
        mean: mean of the differences. It is minus the noise of the step, plus the mean of the
            draws' noise, which is smaller. Numbers that are zero in every draw are left out, as
            they are not released.
        constant: which numbers of each tensor no draw changed; empty if there are too few draws.
        has_gaps: a number is zero in many releases, and not in others.
    """

    count: int
    squares: list[float]
    mean: Release
    constant: Sequence[npt.NDArray[np.bool_]] = ()
    has_gaps: bool = False


def draw_once(actual: Release, other: Release) -> NoiseDraws:
    """Returns the noise of two draws: the step's own one, and another one.

    Args:
        actual: the step's release.
        other: its release with the other draw.
    """
    change = difference(other, actual)
    # Two numbers are each half of their difference away from their mean.
    squares = [square / 2 for square in squared_lengths(change)]
    return NoiseDraws(2, squares, change)


def draw_noise(actual: Release, draw: Callable[[int], Release]) -> NoiseDraws:
    """Draws a step's noise again, until there are _NUMBERS_DRAWN numbers or time is over.

    Args:
        actual: the step's release.
        draw: returns the step's release with the draw of noise that has this number.
    """
    size = max(1, sum(map(len, actual)))
    needed = -(-_NUMBERS_DRAWN // size)  # rounded up
    planned = int(np.clip(needed, _FEWEST_DRAWS, _MOST_DRAWS))
    total = [np.zeros_like(part) for part in actual]  # sum of the differences
    squared = [0.0] * len(actual)  # sum of their squared lengths
    constant = [np.ones(len(part), dtype=np.bool_) for part in actual]
    zeros = [np.zeros(len(part), dtype=np.int64) for part in actual]  # draws in which a number is 0
    end = time.monotonic() + _SECONDS
    draws = 0
    while draws < planned and (draws < _FEWEST_DRAWS or time.monotonic() < end):
        release = draw(draws)
        change = difference(release, actual)
        squares = squared_lengths(change)
        for index, part in enumerate(change):
            total[index] += part
            squared[index] += squares[index]
            constant[index] &= part == 0
            zeros[index] += release[index] == 0
        draws += 1
        if squared[-1] > 0 and len(actual[-1]) == 1:
            planned = _MOST_DRAWS  # a tensor of a single number has only one number per draw
    mean = [part / draws for part in total]
    spread = []  # squared distances from the mean
    for square, part in zip(squared, mean, strict=True):
        around_mean = square - draws * float(np.dot(part, part))
        spread.append(around_mean if around_mean > _ROUNDING * square else 0.0)
    counts = np.concatenate(zeros)
    # A few zeros are not a gap, as numbers of 16 bits are at times rounded to zero.
    has_gaps = bool(((counts > _GAP_SHARE * draws) & (counts < draws)).any())
    if not has_gaps:
        for index, count in enumerate(zeros):
            is_released = count < draws
            if is_released.any():
                mean[index] = mean[index][is_released]
    return NoiseDraws(draws, spread, mean, constant, has_gaps)


class StepNoise:
    """Compares the noise of steps and of tensors with each other, and with the normal law."""

    def __init__(self) -> None:
        """Begins without steps."""
        # Each step so far: its number, and its standardised noise.
        self._noise: list[tuple[int, Vector]] = []

    def strongest_correlations(self, draws: NoiseDraws, step: int) -> tuple[Correlation, ...]:
        """Returns the correlation of each kind that chance explains least; stores the step's noise.

        Each tensor is divided by the standard deviation of its noise. Tensors without noise, or of
        one number, are left out.

        Args:
            draws: draws of the step's noise.
            step: number of the step.
        """
        parts = []
        for part, square in zip(draws.mean, draws.squares, strict=True):
            # Variance of a number of the step's noise, which is measured from the draws' mean.
            variance = square / ((draws.count - 1) * len(part)) * (1 + 1 / draws.count)
            varies = variance > 0 and len(part) > 1
            parts.append(-part[:_MOST_COMPARED] / np.sqrt(variance) if varies else np.zeros(0))
        noise = np.concatenate(parts)
        # Pairs of this step and an earlier one, of two tensors, and of entries of a tensor.
        steps = []
        for earlier, old in self._noise:
            if len(old) == len(noise) >= _FEWEST_COMPARED:
                steps.append(_correlation("steps", (earlier, step), old, noise))
                for first, second in ((old, noise), (noise, old)):
                    steps.append(_shifted("steps", (earlier, step), first, second))
        self._noise.append((step, noise))
        tensors = []
        for i, j in itertools.combinations(range(len(parts)), 2):
            n = min(len(parts[i]), len(parts[j]))
            if n >= _FEWEST_COMPARED:
                tensors.append(_correlation("tensors", (i, j), parts[i][:n], parts[j][:n]))
        neighbours = []
        for i, part in enumerate(parts):
            if len(part) >= _FEWEST_NEIGHBOURS:
                neighbours.append(_shifted("neighbours", (i, i), part, part))
        return tuple(_strongest(kind) for kind in (steps, tensors, neighbours) if kind)

    def law_distance(self) -> LawDistance | None:
        """Returns the Kolmogorov distance of all steps' standardised noise from the normal law.

        Returns None if there is no noise.
        """
        numbers = np.concatenate([noise for _, noise in self._noise])[-_MOST_NUMBERS:]
        if not len(numbers):
            return None
        normal = torch.special.ndtr(torch.from_numpy(np.sort(numbers))).numpy()
        # The empirical distribution function, which jumps at each number: after it and before it.
        empirical = np.arange(len(numbers) + 1) / len(numbers)
        distance = float(np.abs([empirical[1:] - normal, empirical[:-1] - normal]).max())
        return LawDistance(distance, len(numbers))


def _correlation(
    kind: Any,
    between: tuple[int, int],
    first: Vector,
    second: Vector,
) -> Correlation:
    """Returns the correlation of two vectors with mean 0.

    Args:
        kind: kind of the pair; see `Correlation`.
        between: the two steps or tensors.
        first: the one's vector.
        second: the other's vector, of the same length.
    """
    norm = float(np.sqrt(np.dot(first, first) * np.dot(second, second)))
    value = float(np.dot(first, second)) / norm if norm > 0 else 0.0
    return Correlation(kind, between, len(first), value, pairs=1)


def _shifted(
    kind: Any,
    between: tuple[int, int],
    first: Vector,
    second: Vector,
) -> Correlation:
    """Returns the correlation of a vector with another shifted one that chance explains least.

    Entry i of `first` is compared with entry i + shift of `second`, for each shift.

    Args:
        kind: kind of the pair; see `Correlation`.
        between: the two steps or tensors.
        first: the one's vector.
        second: the other's vector, of the same length.
    """
    n = min(len(first), _MOST_SHIFTED)
    a, b = first[:n], second[:n]
    shifts = np.arange(1, n - _FEWEST_COMPARED + 1)
    # Sums of a[i] b[i + shift] for all shifts. Vectors are padded with n zeros, as a transform is
    # periodic and would add products of one's end and the other's beginning.
    transform_of_a = np.fft.rfft(a, 2 * n)
    transform_of_b = np.fft.rfft(b, 2 * n)
    products = np.fft.irfft(np.conj(transform_of_a) * transform_of_b, 2 * n)[shifts]
    overlaps = n - shifts  # how many entries are compared
    squares_of_a = np.cumsum(a**2)[overlaps - 1]
    squares_of_b = np.cumsum(b[::-1] ** 2)[overlaps - 1]
    lengths = np.sqrt(np.maximum(squares_of_a * squares_of_b, _LEAST_PRODUCT))
    # By chance, a correlation of n numbers is about 1 / √n.
    scores = np.abs(products) / lengths * np.sqrt(overlaps)
    shift = int(shifts[np.argmax(scores)])
    strongest = _correlation(kind, between, a[:-shift], b[shift:])
    return dataclasses.replace(strongest, shift=shift, pairs=len(shifts))


def _strongest(correlations: Sequence[Correlation]) -> Correlation:
    """Returns the correlation that chance explains least, with the number of all pairs.

    By chance, a correlation of n numbers is about 1 / √n.
    """
    strongest = max(correlations, key=lambda c: abs(c.value) * c.numbers**0.5)
    return dataclasses.replace(strongest, pairs=sum(c.pairs for c in correlations))
