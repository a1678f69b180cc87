"""Privacy loss distributions on a grid (Koskela et al. 2020), with ends that are proven.

A step is a pair of distributions, with the record and without it. Between points of a grid of
losses lie cells, with their mass under both. From above, the mass of a cell is split between its
ends so that both masses stay ("connect the dots", Doroshenko et al. 2022); from below, a cell is
told as one outcome, whose loss is rounded down.

Losses of steps add up, and Fourier transforms in floats are right to 1e-16 of the largest mass,
which is more than a small δ. So masses are weighted with e^(θ loss) before, where θ moves the
middle of the sum to the losses that matter, and weighted back after:

    δ(ε) = e^(K(θ) - θ ε) Σ_{l > ε} (1 - e^(ε - l)) e^(-θ (l - ε)) y(l),   K(θ) = log E e^(θ L),

with y the weighted distribution. What transforms may be wrong by (Higham 2002, Theorem 24.2), and
what lies beyond their window (Chernoff), is added to δ or taken from it.

Replacement with sampling is computed for gradients that point in opposite directions. That no other
pair is worse is conjectured (Lebeda et al. 2024), not proven; `NOTE` says so.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from ..stats.error_rates import Floats, root
from .accountant import Accountant
from .gaussian import Gaussian
from .rdp import Rdp, quick_epsilon
from .training import Adjacency, Training

_FAR = 13.5  # standard deviations of a step's noise: 1e-41 lies beyond
_TAIL = 45.0  # e^-45 of a weighted sum may lie beyond either end of its window
_UNIT = 2.0**-53  # of rounding in float64
_ROUNDING = 1e-12  # of a step, in its losses (and relatively to them), and relatively in its mass
_LEAST = 1e-300  # of δ or a sum, for its logarithm
_OVERFLOW = 709.0  # e to the power of more is infinite in float64
_SURE = 1 / 16  # noise at which one step shows whether it had the record: misses have 1e-15
_FLATTEST = 1e-9  # of weights θ: below, all losses weigh alike

NOTE = "replacement with sampling: opposite gradients are taken as the worst case"
FINEST = 1e-4  # grid width; wide enough losses get a wider one, so that the grid stays small
_LARGEST_GRID = 1e6  # cells over the losses that matter
_LARGEST_STEP = 1e6  # cells of one step, where a finer width is taken for it
_FEWEST_CELLS = 16  # that the standard deviation of a step's loss goes over
_FINER = 4  # from below, where the error of a cell is one of rounding down
_EXACT = Gaussian()


class Pld(Accountant):
    """Composed losses from above and from below: tight at any δ, and never without an answer."""

    name = "pld"

    def epsilon(self, training: Training, delta: float) -> float:
        if training.sample_rate == 1:
            return _EXACT.epsilon(training, delta)
        bound = _epsilon((training,), delta, True)
        if bound == math.inf and training.adjacency is not Adjacency.REPLACE:
            return Rdp().epsilon(training, delta)  # below the mass that is taken for infinite
        return bound

    def delta(self, training: Training, epsilon: float) -> float:
        if training.sample_rate == 1:
            return _EXACT.delta(training, epsilon)
        width = _width(training, 1e-10)
        return max(total.delta(epsilon) for total in _composed((training,), width, True))

    def composed(self, events: tuple[Training, ...], delta: float) -> float:
        return _epsilon(events, delta, True)

    def remark(self, training: Training) -> str:
        """A warning for sampling under replacement, whose worst case is not proven."""
        sampled = training.sample_rate < 1 and training.adjacency is Adjacency.REPLACE
        return NOTE if sampled else ""


@functools.cache
def advantage(training: Training) -> float:
    """Returns δ at ε = 0 of sampled steps, an upper bound on a coarse grid.

    The grid moves it by 1e-5 at most, unless ε is above 1e4 or so: then cells are wider, to have
    fewer of them. Without the record in any batch there is nothing to tell, so it is at most
    1 - (1 - q)^T, and hardly less if the noise is too small to hide one step.
    """
    rate, steps = training.sample_rate, training.steps
    in_some_batch = -math.expm1(steps * math.log1p(-rate)) if rate < 1 else 1.0
    if training.unit_noise <= _SURE:
        return in_some_batch
    reach = quick_epsilon(training.unit_noise, steps, rate, 1e-5)
    # The error of a cell's rounding grows with the root of the steps.
    width = _doubled(max(1e-2 / math.sqrt(steps), reach / _LARGEST_GRID / 10))
    sums = _composed((training,), width, pessimistic=True)
    return min(in_some_batch, max(total.delta(0.0) for total in sums))


@functools.cache
def least_epsilon(training: Training, delta: float) -> float:
    """A lower bound on ε at δ of a training with sampled steps."""
    return _epsilon((training,), delta, False)


def _epsilon(events: tuple[Training, ...], delta: float, pessimistic: bool) -> float:
    """ε at δ of all events, the larger order's: an upper bound if `pessimistic`, or an estimate."""
    width = max(_width(part, delta) for part in events) / (1 if pessimistic else _FINER)
    return max(part.epsilon(delta) for part in _composed(events, width, pessimistic))


@functools.lru_cache(maxsize=4)  # with little noise each takes 150 MB
def _composed(events: tuple[Training, ...], width: float, pessimistic: bool) -> list[LossSum]:
    """The loss of all steps of all events: with the record against without it, and the reverse."""
    steps = (step_losses(part.after(1), width, pessimistic) for part in events)
    counts = [part.steps for part in events]
    sides = zip(*steps, strict=True)
    return [LossSum(tuple(zip(side, counts, strict=True)), pessimistic) for side in sides]


@functools.lru_cache(maxsize=64)  # a curve asks for it at every ε
def _width(training: Training, delta: float) -> float:
    """Grid width for the losses that matter at δ (by RDP): the finest one, doubled or halved."""
    noise, rate = training.unit_noise, training.sample_rate
    reach = quick_epsilon(noise, training.steps, rate, delta / 1000)
    spread = rate * math.sqrt(math.expm1(min(1 / noise**2, 700.0)))
    finer = max(spread / _FEWEST_CELLS, (14 + 1 / noise) / noise / _LARGEST_STEP)
    return _doubled(reach / _LARGEST_GRID, min(finer, FINEST))


def _doubled(wanted: float, least: float = FINEST) -> float:
    return float(FINEST * 2.0 ** math.ceil(math.log2(max(wanted, least) / FINEST)))


@dataclasses.dataclass(frozen=True, eq=False)
class Losses:
    """Masses, float64 [n], of losses (first + i) * width + shift; `never` is that of infinity."""

    masses: Floats
    first: int
    width: float
    shift: float = 0.0
    never: float = 0.0
    _moments: dict[float, float] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def points(self) -> Floats:
        """The losses, float64 [n]."""
        return np.asarray((self.first + np.arange(len(self.masses))) * self.width + self.shift)

    def log_moment(self, theta: float) -> float:
        """log E e^(θ L), of what is finite."""
        if theta not in self._moments:
            tilted = theta * self.points
            top = float(tilted.max())
            total = float(np.exp(tilted - top) @ self.masses)
            if total > _LEAST:
                self._moments[theta] = top + math.log(total)
            else:  # with little noise, the largest losses have masses that underflow, or none
                self._moments[theta] = float(special.logsumexp(tilted + self._log_masses))
        return self._moments[theta]

    def weighted(self, theta: float) -> Floats:
        """The masses in proportion to e^(θ loss), which sum to 1."""
        exponents = theta * self.points - self.log_moment(theta)
        if exponents.max() < _OVERFLOW:
            return np.asarray(np.exp(exponents) * self.masses)
        return np.asarray(np.exp(exponents + self._log_masses))

    @functools.cached_property
    def _log_masses(self) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.masses))


@functools.lru_cache(maxsize=4)
def step_losses(training: Training, width: float, pessimistic: bool) -> tuple[Losses, ...]:
    """Losses of one step with its record against without it, and the reverse, if it differs."""
    noise, rate = training.noise_multiplier, training.sample_rate
    replace = training.adjacency is Adjacency.REPLACE
    far = _FAR * noise
    ends = np.array([-far - replace, 1 + far])
    loss = _mixed(ends, noise, rate) - (_mixed(-ends, noise, rate) if replace else 0.0)
    first, last = math.floor(loss[0] / width), math.ceil(loss[1] / width)
    edges = np.clip(_place(np.arange(first, last + 1) * width, noise, rate, replace), *ends)
    edges[[0, -1]] = ends if pessimistic else (-math.inf, math.inf)
    inside = _log_masses(edges, noise, rate, 1.0)
    outside = _log_masses(edges, noise, rate, -1.0) if replace else _log_between(edges / noise)
    rounded = _split if pessimistic else _told
    removal = rounded(inside, outside, first, width)
    return (removal,) if replace else (removal, rounded(outside[::-1], inside[::-1], -last, width))


def _mixed(x: Floats, noise: float, rate: float) -> Floats:
    """Loss at x of (1 - q) N(0, σ²) + q N(1, σ²) against N(0, σ²)."""
    inside = math.log(rate) + (2 * x - 1) / (2 * noise**2)
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(np.log1p(-rate), inside))


def _place(loss: Floats, noise: float, rate: float, replace: bool) -> Floats:
    """Where a step has this loss; not a number or infinite where it has it nowhere."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if not replace:
            part = np.log(-np.expm1(np.log1p(-rate) - loss))
            place = noise**2 * (loss + part - math.log(rate)) + 0.5
            return np.asarray(np.where(np.isnan(place), -math.inf, place))
        half = np.abs(loss) / 2
        sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
        log = np.log1p(-rate) + sinh - math.log(rate) + 1 / (2 * noise**2)
        beyond = np.logaddexp(log, 0.5 * np.logaddexp(0.0, 2 * log))  # asinh(e^log)
        small = np.where(log < -20, np.exp(np.minimum(log, 0.0)), beyond)
        return np.asarray(np.sign(loss) * noise**2 * (half + small))


def _log_masses(edges: Floats, noise: float, rate: float, mean: float) -> Floats:
    """Logarithms of the masses of (1 - q) N(0, σ²) + q N(mean, σ²) between edges."""
    out, inside = _log_between(edges / noise), _log_between((edges - mean) / noise)
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(np.log1p(-rate) + out, math.log(rate) + inside))


def _log_between(z: Floats) -> Floats:
    """Logarithms of the normal masses between neighbours, without cancellation in either tail."""
    low, high = z[:-1], z[1:]
    mirrored = low + high > 0
    low, high = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
    top = special.log_ndtr(high)
    with np.errstate(divide="ignore"):
        return np.asarray(top + np.log(-np.expm1(np.minimum(special.log_ndtr(low) - top, 0.0))))


def _split(upper: Floats, lower: Floats, first: int, width: float) -> Losses:
    """From above: cells by the logarithms of their masses, split between their ends."""
    cells = np.exp(upper)
    starts = (first + np.arange(len(cells))) * width
    with np.errstate(invalid="ignore", over="ignore"):
        share = -np.expm1(lower - upper + starts) / -math.expm1(-width)
    risen = cells * np.clip(np.where(cells > 0, share, 0.0), 0.0, 1.0)
    masses = np.append(cells - risen, 0.0)
    masses[1:] += risen
    beyond = 2 * float(special.ndtr(-_FAR))
    masses[0] += beyond
    return Losses(masses, first, width, never=beyond)


def _told(upper: Floats, lower: Floats, first: int, width: float) -> Losses:
    """From below: every cell is one outcome, on the grid that takes least when rounded down."""
    some = np.isfinite(upper)
    cells, losses = np.exp(upper[some]), upper[some] - lower[some]
    rest = losses - np.floor(losses / width) * width
    order = np.argsort(rest)
    below = np.concatenate([[0.0], np.cumsum(cells[order])[:-1]])
    shift = float(rest[order[np.argmin(width * below - rest[order])]])
    places = np.maximum(np.floor((losses - shift) / width + 1e-9).astype(np.int64), first - 2)
    kept = places * width + shift <= losses + _ROUNDING * (1 + np.abs(losses))
    start = int(places.min())
    masses = np.bincount(places[kept] - start, cells[kept]).astype(np.float64)
    return Losses(masses, start, width, shift)


Parts = tuple[tuple[Losses, int], ...]  # steps of one kind, and how many there are


class LossSum:
    """The loss of many steps: δ and ε, from above where steps are, else from below."""

    def __init__(self, parts: Parts, pessimistic: bool) -> None:
        self._parts, self._pessimistic = parts, pessimistic
        self._never = sum(count * step.never for step, count in parts)
        self._steps = sum(count for _, count in parts)
        # What rounding in floats may have moved the losses of all steps by.
        self._slip = _ROUNDING * sum(
            count * (1 + float(np.abs(step.points).max())) for step, count in parts
        )

    def delta(self, epsilon: float) -> float:
        """A bound on δ at ε, in [0, 1]."""
        shifted = epsilon - self._slip if self._pessimistic else epsilon + self._slip
        theta = self._best(lambda theta: self._log_moment(theta) - theta * shifted)
        return min(self._delta(theta, shifted), 1.0)

    def epsilon(self, delta: float) -> float:
        """A bound on ε at δ, at least 0."""
        if delta <= self._never:
            return math.inf
        log = math.log(delta - self._never)
        theta = self._best(lambda theta: (self._log_moment(theta) - log) / theta)
        most = (self._log_moment(theta) - log) / theta  # Chernoff's, above both ends

        def excess(epsilon: float) -> float:
            return math.log(max(self._delta(theta, epsilon), _LEAST) / delta)

        if most <= 0 or (self._pessimistic and excess(0.0) <= 0):
            return 0.0
        if excess(most) >= 0:
            return most + self._slip if self._pessimistic else 0.0
        low, step = most, 1 / theta  # far below, other weights would be needed
        while low > 0 and excess(low) <= 0:
            low, step = max(low - step, 0.0), 2 * step
        if excess(low) <= 0:
            return 0.0
        fine = 1e-12 * max(most, 1.0)
        end = root(excess, low, most, xtol=fine)
        side = 1 if self._pessimistic else -1
        while side * excess(end) > 0:
            end, fine = end + side * fine, 2 * fine
        return max(end + side * self._slip, 0.0)

    def _delta(self, theta: float, epsilon: float) -> float:
        log, points, masses, wrong = self._weighted(theta)
        past = points[np.searchsorted(points, epsilon, side="right") :] - epsilon
        weights = -np.expm1(-past) * np.exp(-theta * past)
        total = float(weights @ masses[len(masses) - len(past) :])
        spared = wrong * float(np.linalg.norm(weights)) + 2 * math.exp(-_TAIL)
        rounding = self._steps * _ROUNDING
        scale = math.exp(min(log - theta * epsilon, 700.0))
        if self._pessimistic:
            return max(total + spared, 0.0) * scale * (1 + rounding) + self._never
        return max(total - spared, 0.0) * scale * (1 - rounding)

    def _log_moment(self, theta: float) -> float:
        return sum(count * step.log_moment(theta) for step, count in self._parts)

    def _best(self, worth: Callable[[float], float]) -> float:
        """The power of 2 with the least `worth`, which falls up to a point, if ever, and rises."""
        theta = self._flat
        while theta * self._parts[0][0].width < 1 and worth(2 * theta) < worth(theta):
            theta *= 2
        while theta > _FLATTEST and worth(theta / 2) < worth(theta):
            theta /= 2
        return theta

    @functools.cached_property
    def _flat(self) -> float:
        """θ at which losses within their spread weigh about alike."""
        return float(2.0 ** math.floor(-math.log2(self._spread(0.0))))

    def _spread(self, theta: float) -> float:
        """Standard deviation of the weighted loss; a cell at least."""
        total = 0.0
        for step, count in self._parts:
            masses = step.weighted(theta)
            mean = float(masses @ step.points)
            total += count * float(masses @ (step.points - mean) ** 2)
        return max(math.sqrt(total), self._parts[0][0].width)

    def _window(self, theta: float) -> tuple[float, float]:
        """Where all but e^-45 of the weighted loss lies, on either side, by Chernoff's bound."""
        now, spread = self._log_moment(theta), self._spread(theta)
        ends = []
        for side, reached in ((-1, np.min), (1, np.max)):
            steps = [side * 4.0**power / spread for power in range(-5, 3)]
            reach = [(self._log_moment(theta + h) - now + _TAIL) / h for h in steps]
            furthest = sum(count * float(reached(step.points)) for step, count in self._parts)
            ends.append(max(furthest, *reach) if side < 0 else min(furthest, *reach))
        return ends[0], ends[1]

    @functools.lru_cache(maxsize=4)  # noqa: B019 (of all sums together: arrays are large)
    def _weighted(self, theta: float) -> tuple[float, Floats, Floats, float]:
        """K(θ), losses and weighted masses in the window, and how far these may be off in norm."""
        from scipy import fft

        width = self._parts[0][0].width
        low, high = self._window(theta)
        shift = sum(count * step.shift for step, count in self._parts)
        start = math.floor((low - shift) / width)
        size = fft.next_fast_len(math.ceil((high - low) / width) + 3, real=True)
        gamma = 8 * _UNIT * math.log2(2 * size)  # of a transform, relatively in norm
        product, wrong, offset = np.ones(size // 2 + 1, np.complex128), 0.0, 0
        for step, count in self._parts:
            masses = step.weighted(theta)
            folded = np.bincount(np.arange(len(masses)) % size, masses, size)
            with np.errstate(divide="ignore", invalid="ignore"):
                product *= np.exp(count * np.log(fft.rfft(folded)))
            norm = float(np.linalg.norm(folded))
            wrong += count * gamma * norm * math.exp(count * gamma * norm * math.sqrt(size))
            offset += count * step.first
        y = fft.irfft(np.nan_to_num(product), size)
        wrong += (20 * self._steps * _UNIT + gamma) * (float(np.linalg.norm(y)) + wrong)
        points = (start + np.arange(size)) * width + shift
        return self._log_moment(theta), points, np.roll(y, -((start - offset) % size)), wrong
