"""Privacy loss distributions on a grid (Koskela et al. 2020), with bounds that are proven.

A step is a pair of distributions, with the record and without it. The cells between points of a
grid of losses have a mass under either. For bounds from above, the mass of a cell is split between
its ends so that both masses stay the same ("connect the dots", Doroshenko et al. 2022); for bounds
from below, a cell becomes one outcome, whose loss is rounded down.

Losses of steps add up, and Fourier transforms in floats have an error of 1e-16 of the largest mass,
which is more than a small δ. So masses are first weighted with e^(θ loss), where θ moves the middle
of the sum to the losses that matter, and weighted back afterwards:

    δ(ε) = e^(K(θ) - θ ε) Σ_{l > ε} (1 - e^(ε - l)) e^(-θ (l - ε)) y(l),   K(θ) = log E e^(θ L),

with y the weighted distribution. The error of transforms (Higham 2002, Theorem 24.2) and the mass
beyond their window (Chernoff) are added to δ or subtracted from it.

Replacement with sampling is computed for gradients that point in opposite directions. That no other
pair is worse is conjectured (Lebeda et al. 2024), not proven; `NOTE` states it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache

import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtr

from ..stats.error_rates import Floats, root
from .accountant import Accountant
from .gaussian import Gaussian
from .rdp import Rdp, quick_epsilon
from .training import Adjacency, Training

_FAR = 13.5  # standard deviations of a step's noise: beyond lies a mass of 1e-41
_TAIL = 45.0  # a mass of e^-45 of a weighted sum may lie beyond either end of its window
_UNIT = 2.0**-53  # unit of rounding in float64
_ROUNDING = 1e-12  # error of a step's losses (absolute and relative) and of its mass (relative)
_LEAST = 1e-300  # smallest δ or sum, for its logarithm
_OVERFLOW = 709.0  # e to the power of more is infinite in float64
# Noise with which a step shows whether it had the record, except with a probability of 1e-15.
_REVEALING_NOISE = 1 / 16
_SMALLEST_THETA = 1e-9  # with less, all losses have about the same weight

NOTE = "replacement with sampling: opposite gradients are taken as the worst case"
# Grid width, unless losses are spread so widely that the grid would be too large, or so narrowly
# that it would be too coarse.
FINEST = 1e-4
_LARGEST_GRID = 1e6  # largest number of cells over the losses that matter
_LARGEST_STEP = 1e6  # largest number of cells of one step, if they are finer than FINEST
_FEWEST_CELLS = 16  # cells in the standard deviation of a step's loss
# Factor by which the grid is finer for bounds from below: there, each cell's loss is rounded down.
_FINER = 4
_EXACT = Gaussian()


class Pld(Accountant):
    """Composed losses from above and from below: tight at any δ, and never without an answer."""

    name = "pld"

    def epsilon(self, training: Training, delta: float) -> float:
        """Returns ε by the exact formula if batches are known, else an upper bound by the grid."""
        if training.sample_rate == 1:  # all batches are known
            return _EXACT.epsilon(training, delta)
        bound = _epsilon((training,), delta, pessimistic=True)
        if bound == math.inf and training.adjacency is not Adjacency.REPLACE:
            return Rdp().epsilon(training, delta)  # δ is below the mass of infinite losses
        return bound

    def delta(self, training: Training, epsilon: float) -> float:
        """Returns δ by the exact formula if batches are known, else an upper bound by the grid."""
        if training.sample_rate == 1:
            return _EXACT.delta(training, epsilon)
        width = _width(training, 1e-10)  # fine enough for any δ that matters
        loss_sums = _composed((training,), width, pessimistic=True)
        return max(total.delta(epsilon) for total in loss_sums)

    def composed(
        self,
        events: tuple[Training, ...],
        delta: float,
    ) -> float:
        """Returns an upper bound on ε of all events together."""
        return _epsilon(events, delta, pessimistic=True)

    def remark(self, training: Training) -> str:
        """Returns a warning for sampling under replacement, whose worst case is not proven."""
        is_sampled = training.sample_rate < 1
        return NOTE if is_sampled and training.adjacency is Adjacency.REPLACE else ""


@cache
def advantage(training: Training) -> float:
    """Returns an upper bound on δ at ε = 0 of sampled steps, by a coarse grid.

    The grid adds at most 1e-5, unless ε is above 1e4 or so: then cells are wider, so that there are
    fewer. If no batch has the record, both worlds are equal, so δ is at most 1 - (1 - q)^T with
    rate q and T steps, and hardly less if the noise is too small to hide one step.
    """
    rate = training.sample_rate
    steps = training.steps
    in_some_batch = 1.0
    if rate < 1:
        in_some_batch = -math.expm1(steps * math.log1p(-rate))  # 1 - (1 - q)^T
    if training.unit_noise <= _REVEALING_NOISE:
        return in_some_batch
    largest_loss = quick_epsilon(training.unit_noise, steps, rate, 1e-5)
    # The error by the width of cells grows with the root of the number of steps.
    finest = 1e-2 / math.sqrt(steps)
    width = _shared_width(max(finest, largest_loss / _LARGEST_GRID / 10))
    loss_sums = _composed((training,), width, pessimistic=True)
    return min(in_some_batch, max(total.delta(0.0) for total in loss_sums))


@cache
def least_epsilon(training: Training, delta: float) -> float:
    """Returns a lower bound on ε at δ of a training run with sampled steps."""
    return _epsilon((training,), delta, pessimistic=False)


def _epsilon(
    events: tuple[Training, ...],
    delta: float,
    pessimistic: bool,
) -> float:
    """Bounds ε at δ of all events: the larger one of both orders of the two worlds.

    Args:
        events: kinds of steps, each with its number of steps.
        delta: δ, in (0, 1).
        pessimistic: whether ε is bounded from above, else from below.
    """
    width = max(_width(part, delta) for part in events)
    if not pessimistic:
        width /= _FINER
    return max(total.epsilon(delta) for total in _composed(events, width, pessimistic))


@lru_cache(maxsize=4)  # with little noise each takes 150 MB
def _composed(
    events: tuple[Training, ...],
    width: float,
    pessimistic: bool,
) -> "list[LossSum]":
    """Returns the loss of all events, with the record against without it, and the reverse.

    Args:
        events: kinds of steps, each with its number of steps.
        width: width of the grid of losses.
        pessimistic: rounds losses so that ε is bounded from above, else from below.
    """
    both_orders = (step_losses(part.after(1), width, pessimistic) for part in events)
    counts = [part.steps for part in events]
    sums = []
    for losses in zip(*both_orders, strict=True):  # those of all events, in one order
        parts = tuple(zip(losses, counts, strict=True))
        sums.append(LossSum(parts, pessimistic))
    return sums


@lru_cache(maxsize=64)  # a δ(ε) curve needs it at every ε
def _width(training: Training, delta: float) -> float:
    """Returns a grid width for losses that is fine enough for ε at `delta`.

    The grid of all steps has at most `_LARGEST_GRID` cells. If the losses of one step hardly
    differ, their standard deviation gets at least `_FEWEST_CELLS`, as long as the step has no more
    than `_LARGEST_STEP`. Widths are FINEST times a power of two.
    """
    noise = training.unit_noise
    rate = training.sample_rate
    # By RDP, the losses above this have less than a thousandth of δ.
    largest_loss = quick_epsilon(noise, training.steps, rate, delta / 1000)
    chi_square = math.expm1(min(1 / noise**2, 700.0))  # e^709 would overflow
    loss_deviation = rate * math.sqrt(chi_square)
    largest_step_loss = (14 + 1 / noise) / noise  # 14 standard deviations of the noise away
    finest = max(loss_deviation / _FEWEST_CELLS, largest_step_loss / _LARGEST_STEP)
    return _shared_width(largest_loss / _LARGEST_GRID, min(finest, FINEST))


def _shared_width(width: float, least: float = FINEST) -> float:
    """Rounds a grid width up to FINEST times a power of two, so that widths are shared."""
    doublings = math.ceil(math.log2(max(width, least) / FINEST))
    return FINEST * 2.0**doublings


@dataclass(frozen=True, eq=False)
class Losses:
    """Distribution of a step's loss on a grid.

    Attributes:
        masses: probability of each finite loss, float64 [n].
        first: index of the first loss; the i-th one is (first + i) * width + shift.
        width: distance between losses.
        shift: offset of the grid.
        infinite: probability of an infinite loss.
    """

    masses: Floats
    first: int
    width: float
    shift: float = 0.0
    infinite: float = 0.0
    _moments: dict[float, float] = field(default_factory=dict)  # log moments by θ

    @cached_property
    def points(self) -> Floats:
        """Finite losses, float64 [n]."""
        indices = self.first + np.arange(len(self.masses))
        return np.asarray(indices * self.width + self.shift)

    def log_moment(self, theta: float) -> float:
        """Computes log E e^(θ L) over finite losses."""
        if theta not in self._moments:
            tilted = theta * self.points
            top = float(tilted.max())  # subtracted, so that no power overflows
            total = float(np.exp(tilted - top) @ self.masses)
            if total > _LEAST:
                self._moments[theta] = top + math.log(total)
            else:  # with little noise, the largest losses have masses that underflow, or none
                logs = tilted + self._log_masses
                self._moments[theta] = float(logsumexp(logs))
        return self._moments[theta]

    def weighted(self, theta: float) -> Floats:
        """Returns the masses times e^(θ loss), scaled so that they sum to 1; float64 [n]."""
        exponents = theta * self.points - self.log_moment(theta)
        if exponents.max() < _OVERFLOW:
            return np.exp(exponents) * self.masses
        return np.exp(exponents + self._log_masses)

    @cached_property
    def _log_masses(self) -> Floats:
        """Natural logarithms of the masses, -inf for 0."""
        with np.errstate(divide="ignore"):
            return np.log(self.masses)


@lru_cache(maxsize=4)
def step_losses(
    training: Training,
    width: float,
    pessimistic: bool,
) -> tuple[Losses, ...]:
    """Discretises the loss of one step, with its record against without it, and the reverse.

    Args:
        training: one step; its number of steps is ignored.
        width: grid width of losses.
        pessimistic: whether losses are bounded from above, else from below.

    Returns:
        Both distributions; with replacement only one, since the reverse is the same.
    """
    noise = training.noise_multiplier
    rate = training.sample_rate
    replace = training.adjacency is Adjacency.REPLACE
    far = _FAR * noise
    ends = np.array([-far - replace, 1 + far])  # means are 0 and 1; with replacement also -1
    end_losses = _loss_at(ends, noise, rate)
    if replace:  # the gradient of the other record points in the opposite direction
        end_losses = end_losses - _loss_at(-ends, noise, rate)
    first = math.floor(end_losses[0] / width)
    last = math.ceil(end_losses[1] / width)
    losses = np.arange(first, last + 1) * width
    edges = np.clip(_output_with_loss(losses, noise, rate, replace), *ends)
    # From above, mass beyond the ends has an infinite loss; from below, it joins the outer cells.
    edges[[0, -1]] = ends if pessimistic else (-math.inf, math.inf)
    inside = _log_masses(edges, noise, rate, 1.0)
    outside = _log_masses(edges, noise, rate, -1.0) if replace else _log_between(edges / noise)
    discretise = split_losses if pessimistic else _rounded_down
    removal = discretise(inside, outside, first, width)
    if replace:
        return (removal,)
    addition = discretise(outside[::-1], inside[::-1], -last, width)
    return removal, addition


def _loss_at(x: Floats, noise: float, rate: float) -> Floats:
    """Computes the loss at x of (1 - q) N(0, σ²) + q N(1, σ²) against N(0, σ²), float64 [n].

    Args:
        x: outputs, float64 [n].
        noise: σ.
        rate: q, the sampling rate.
    """
    inside = math.log(rate) + (2 * x - 1) / (2 * noise**2)
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-rate), inside)


def _output_with_loss(
    loss: Floats,
    noise: float,
    rate: float,
    replace: bool,
) -> Floats:
    """Inverts the loss of a step: returns the output x that has it, infinite or NaN if none has.

    With noise σ and rate q, the loss of `add-remove` is log(1 - q + q exp((x - 1/2)/σ²)). That of
    `replace` is log((1 - q + q exp((2x - 1)/2σ²)) / (1 - q + q exp((-2x - 1)/2σ²))), so that
    sinh(x/σ² - loss/2) = y with y = (1 - q)/q exp(1/2σ²) sinh(loss/2). Logarithms avoid overflow.

    Args:
        loss: float64 [n].
        noise: σ, the standard deviation over the clipping norm.
        rate: q, the sampling rate.
        replace: whether one record is replaced, instead of added or removed.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if not replace:
            log_remainder = np.log(-np.expm1(np.log1p(-rate) - loss))
            position = noise**2 * (loss + log_remainder - math.log(rate)) + 0.5
            # It is NaN for losses below log(1 - q), which no output has.
            return np.where(np.isnan(position), -math.inf, position)
        half_loss = np.abs(loss) / 2  # x is computed for |loss|, and gets the sign of the loss
        log_sinh = half_loss + np.log(-np.expm1(-2 * half_loss)) - math.log(2)
        log_y = np.log1p(-rate) + log_sinh - math.log(rate) + 1 / (2 * noise**2)
        log_root = 0.5 * np.logaddexp(0.0, 2 * log_y)  # log √(1 + y²)
        log_asinh = np.logaddexp(log_y, log_root)
        small_y = np.exp(np.minimum(log_y, 0.0))
        asinh = np.where(log_y < -20, small_y, log_asinh)  # nearly y if that is small
        return np.asarray(np.sign(loss) * noise**2 * (half_loss + asinh))


def _log_masses(
    edges: Floats,
    noise: float,
    rate: float,
    mean: float,
) -> Floats:
    """Computes log masses of (1 - q) N(0, σ²) + q N(mean, σ²) between edges, float64 [edges - 1].

    Args:
        edges: float64, rising.
        noise: σ.
        rate: q, the sampling rate.
        mean: mean of a step with the record.
    """
    out = _log_between(edges / noise)
    inside = _log_between((edges - mean) / noise)
    with np.errstate(divide="ignore"):
        log_out = np.log1p(-rate) + out
        return np.asarray(np.logaddexp(log_out, math.log(rate) + inside))


def _log_between(z: Floats) -> Floats:
    """Computes log masses of N(0, 1) between neighbours of z, exactly in both tails."""
    low, high = z[:-1], z[1:]
    is_upper = low + high > 0  # these are mirrored into the lower tail
    log_low = log_ndtr(np.where(is_upper, -high, low))
    log_high = log_ndtr(np.where(is_upper, -low, high))
    log_ratio = np.minimum(log_low - log_high, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(log_high + np.log(-np.expm1(log_ratio)))


def split_losses(
    log_numerator: Floats,
    log_denominator: Floats,
    first: int,
    width: float,
    infinite: float = 2 * float(ndtr(-_FAR)),
) -> Losses:
    """Discretises a loss from above: splits the mass of each cell between its ends.

    Args:
        log_numerator: log masses of the cells under the first distribution, [n].
        log_denominator: log masses under the second one, [n]; the loss is the log of the ratio.
        first: index of the lower end of the first cell.
        width: width of a cell.
        infinite: mass beyond all cells, which may have any loss. It is added to both the smallest
            loss and the infinite one.
    """
    cells = np.exp(log_numerator)
    starts = (first + np.arange(len(cells))) * width
    with np.errstate(invalid="ignore", over="ignore"):
        share = -np.expm1(log_denominator - log_numerator + starts) / -math.expm1(-width)
    share = np.clip(np.where(cells > 0, share, 0.0), 0.0, 1.0)
    to_upper_end = cells * share
    masses = np.append(cells - to_upper_end, 0.0)
    masses[1:] += to_upper_end
    masses[0] += infinite
    return Losses(masses, first, width, infinite=infinite)


def _rounded_down(
    log_numerator: Floats,
    log_denominator: Floats,
    first: int,
    width: float,
) -> Losses:
    """Discretises a loss from below: each cell is one outcome, rounded down to the grid.

    The grid is shifted so that rounding subtracts least. Arguments are those of `split_losses`.
    """
    has_mass = np.isfinite(log_numerator)
    log_cells = log_numerator[has_mass]
    cells = np.exp(log_cells)
    losses = log_cells - log_denominator[has_mass]
    # On a grid that is shifted by s, rounding subtracts the remainder less s from each loss, and a
    # cell more if the remainder is below s: on average width * P(remainder < s) - s, up to a
    # constant.
    remainders = losses - np.floor(losses / width) * width
    order = np.argsort(remainders)
    rising = remainders[order]
    mass_before = np.cumsum(cells[order])[:-1]
    mass_below = np.concatenate([[0.0], mass_before])
    shift = float(rising[np.argmin(width * mass_below - rising)])
    indices = np.floor((losses - shift) / width + 1e-9).astype(np.int64)
    indices = np.maximum(indices, first - 2)  # losses far below all cells are dropped
    tolerance = _ROUNDING * (1 + np.abs(losses))
    is_below = indices * width + shift <= losses + tolerance  # else the mass would round up
    start = int(indices.min())
    masses = np.bincount(indices[is_below] - start, cells[is_below])
    return Losses(masses.astype(float), start, width, shift)


Parts = tuple[tuple[Losses, int], ...]  # steps of one kind, and how many there are


class LossSum:
    """Loss of many steps, and bounds on its δ and ε.

    Args:
        parts: losses of one step of each kind, and the number of such steps.
        pessimistic: whether losses are bounded from above, and so δ and ε; else from below.
    """

    def __init__(self, parts: Parts, pessimistic: bool) -> None:
        """Adds up infinite masses and errors of rounding over all steps."""
        self._parts = parts
        self._width = parts[0][0].width
        self._side = 1 if pessimistic else -1  # bounds are above the true δ and ε, or below
        self._infinite = sum(count * step.infinite for step, count in parts)
        self._steps = sum(count for _, count in parts)
        # Largest error of the losses of all steps by rounding in floats.
        largest_sum = 0.0
        for step, count in parts:
            largest_sum += count * (1 + float(np.abs(step.points).max()))
        self._loss_error = _ROUNDING * largest_sum

    def delta(self, epsilon: float) -> float:
        """Bounds δ at ε, in [0, 1], with the weight θ that suits ε best."""
        shifted = epsilon - self._side * self._loss_error  # allows for rounding of losses

        def log_delta(theta: float) -> float:
            """Returns the log of Chernoff's bound on δ, E e^(θ (L - ε))."""
            return self._log_moment(theta) - theta * shifted

        return min(self._delta_by(self._best_theta(log_delta), shifted), 1.0)

    def epsilon(self, delta: float) -> float:
        """Bounds ε at δ, at least 0: searches where the bound on δ, which falls in ε, meets δ.

        The search begins at Chernoff's bound, above the result, and uses its weight θ.
        """
        if delta <= self._infinite:
            return math.inf
        log_delta = math.log(delta - self._infinite)

        def chernoff(theta: float) -> float:
            """Returns the ε at which E e^(θ (L - ε)) is the δ of finite losses."""
            return (self._log_moment(theta) - log_delta) / theta

        theta = self._best_theta(chernoff)
        most = chernoff(theta)  # above both bounds

        def excess(epsilon: float) -> float:
            """Returns the log of the bound on δ at ε, over δ."""
            bound = max(self._delta_by(theta, epsilon), _LEAST)
            return math.log(bound / delta)

        side = self._side
        if most <= 0 or (side > 0 and excess(0.0) <= 0):
            return 0.0
        if excess(most) >= 0:
            return most + self._loss_error if side > 0 else 0.0
        low = most
        step = 1 / theta  # far below, other weights would be needed
        while low > 0 and excess(low) <= 0:
            low = max(low - step, 0.0)
            step *= 2
        if excess(low) <= 0:
            return 0.0
        tolerance = 1e-12 * max(most, 1.0)
        bound = root(excess, low, most, xtol=tolerance)
        while side * excess(bound) > 0:  # until it lies on the proven side of the root
            bound += side * tolerance
            tolerance *= 2
        return max(bound + side * self._loss_error, 0.0)

    def _delta_by(self, theta: float, epsilon: float) -> float:
        """Bounds δ at ε by losses weighted with e^(θ loss): any θ gives a valid bound.

        It is the formula of the module, with a margin for the error of transforms and for the mass
        beyond the window.
        """
        log_moment, points, masses, error = self._composed_masses(theta)
        first = np.searchsorted(points, epsilon, side="right")
        excesses = points[first:] - epsilon
        weights = -np.expm1(-excesses) * np.exp(-theta * excesses)
        total = float(weights @ masses[first:])
        window_error = 2 * math.exp(-_TAIL)  # beyond either end
        margin = error * float(np.linalg.norm(weights)) + window_error
        scale = math.exp(min(log_moment - theta * epsilon, 700.0))  # e^709 would overflow
        side = self._side
        rounding = 1 + side * (self._steps * _ROUNDING)
        bound = max(total + side * margin, 0.0) * scale * rounding
        return bound + self._infinite if side > 0 else bound

    def _log_moment(self, theta: float) -> float:
        """Computes K(θ) of all steps: log moments add up."""
        return sum(count * step.log_moment(theta) for step, count in self._parts)

    def _best_theta(self, cost: Callable[[float], float]) -> float:
        """Returns the weight θ, a power of 2, with the least `cost`, which falls and then rises."""
        theta = self._widest_theta
        while theta * self._width < 1 and cost(2 * theta) < cost(theta):
            theta *= 2
        while theta > _SMALLEST_THETA and cost(theta / 2) < cost(theta):
            theta /= 2
        return theta

    @cached_property
    def _widest_theta(self) -> float:
        """Weight θ, a power of 2, at which losses within their spread have about equal weights."""
        return 2.0 ** math.floor(-math.log2(self._spread(0.0)))

    def _spread(self, theta: float) -> float:
        """Computes the standard deviation of the weighted loss of all steps, at least a cell."""
        total = 0.0
        for step, count in self._parts:
            masses = step.weighted(theta)
            mean = float(masses @ step.points)
            total += count * float(masses @ (step.points - mean) ** 2)
        return max(math.sqrt(total), self._width)

    def _window(self, theta: float) -> tuple[float, float]:
        """Bounds the weighted loss of all steps on both sides, except a mass of e^-45 on each."""
        log_moment = self._log_moment(theta)
        spread = self._spread(theta)

        def chernoff(h: float) -> float:
            """Returns the loss beyond which, in the direction of h, e^-45 of the mass may lie."""
            return (self._log_moment(theta + h) - log_moment + _TAIL) / h

        low = high = 0.0  # smallest and largest sum
        for step, count in self._parts:
            low += count * float(step.points.min())
            high += count * float(step.points.max())
        for power in range(-5, 3):  # each tilt is valid: the best one is the tightest
            tilt = 4.0**power / spread
            low = max(low, chernoff(-tilt))
            high = min(high, chernoff(tilt))
        return low, high

    @lru_cache(maxsize=4)  # noqa: B019 (of all sums together: arrays are large)
    def _composed_masses(
        self,
        theta: float,
    ) -> tuple[float, Floats, Floats, float]:
        """Composes all steps, weighted with e^(θ loss), by Fourier transforms.

        Returns:
            K(θ), losses and weighted masses in the window, [size] each, and a bound on the error
            of these masses in norm.
        """
        from scipy import fft

        low, high = self._window(theta)
        shift = sum(count * step.shift for step, count in self._parts)
        start = math.floor((low - shift) / self._width)  # index of the window's first cell
        cells = math.ceil((high - low) / self._width) + 3
        size = fft.next_fast_len(cells, real=True)
        gamma = 8 * _UNIT * math.log2(2 * size)  # relative error of a transform, in norm
        product = np.ones(size // 2 + 1, np.complex128)
        error = 0.0
        offset = 0
        for step, count in self._parts:
            masses = step.weighted(theta)
            # Transforms are circular, so masses may be folded into the window: its cells are right
            # in the sum, except for what lies beyond it.
            positions = np.arange(len(masses)) % size
            folded = np.bincount(positions, masses, size)
            with np.errstate(divide="ignore", invalid="ignore"):
                log_spectrum = np.log(fft.rfft(folded))
                product *= np.exp(count * log_spectrum)
            step_error = count * gamma * float(np.linalg.norm(folded))
            error += step_error * math.exp(step_error * math.sqrt(size))
            offset += count * step.first
        composed = fft.irfft(np.nan_to_num(product), size)
        relative_error = 20 * self._steps * _UNIT + gamma
        error += relative_error * (float(np.linalg.norm(composed)) + error)
        points = (start + np.arange(size)) * self._width + shift
        # Composed masses begin at the sum of all first losses, `offset`.
        masses = np.roll(composed, -((start - offset) % size))
        return self._log_moment(theta), points, masses, error
