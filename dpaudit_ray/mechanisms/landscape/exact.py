"""Exact densities of θ_t with and without the canary, and the power of the best test on them.

A step moves θ and adds Gaussian noise, so its density is an integral over the one before,

    p_{t+1}(x) = ∫ p_t(y) N(x; step(y), s²) dy,

by Gauss-Legendre quadrature on panels that are short compared with s and end where the step is not
smooth (Nyström's method): the error falls exponentially with the number of nodes. All terms are
positive, so the relative error of small densities is as low as that of large ones. A density is a
polynomial on each panel, so the mass below any point is exact, too. The two worlds, "out" and
"in" (without and with the canary), are (ε, δ)-close if

    δ ≥ ∫ max(p_in - e^ε p_out, 0)   and the same with the worlds exchanged

(the hockey-stick divergence), over intervals that end where p_in / p_out crosses e^ε.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.polynomial import legendre
from scipy import optimize, sparse, special

from ...stats import gdp
from ..base import Horizons
from .process import Floats, Process

ORDER = 12  # nodes per panel
REACH = 14.0  # standard deviations of noise that are covered: e^-98 lies outside
MAX_ENTRIES = 40_000_000  # entries of the transition matrix: 1 GB while it is built

RAREST = 1e-20  # error rate; rarer errors are ignored, as noise that far out is not covered
_FLOOR = 1e-300  # stands for probabilities and densities of 0, whose logarithm would be infinite
_ROOT_2_PI = math.sqrt(2 * math.pi)
_ROUNDING = 1e-10  # differences in μ that are due to rounding

TUNED_AT = 1e-5  # δ at which widths are compared
_FALSE_POSITIVE_RATES = np.arange(1, 20) / 20  # of the tests whose thresholds are tried
_LOG_SPACING = math.log(2) / 2  # between the logarithms of widths that are tried

_NODES, _WEIGHTS = legendre.leggauss(ORDER)  # on [-1, 1]
_AT_LEFT = (-1.0) ** np.arange(ORDER + 1)  # Legendre polynomials at -1; all are 1 at 1
# [ORDER, ORDER + 1]: from values at the nodes to Legendre coefficients of an antiderivative.
_TO_COEFFICIENTS = np.linalg.inv(legendre.legvander(_NODES, ORDER - 1))
_TO_INTEGRAL = np.stack([legendre.legint(column) for column in _TO_COEFFICIENTS.T])


@dataclass(frozen=True)
class Panels:
    """Intervals between increasing `edges`, float64 [n + 1], with ORDER nodes on each."""

    edges: Floats

    @cached_property
    def nodes(self) -> Floats:
        """Quadrature nodes, float64 [n, ORDER], increasing."""
        lower, upper = self.edges[:-1], self.edges[1:]
        middles = (upper + lower) / 2
        halves = (upper - lower) / 2
        return middles[:, None] + halves[:, None] * _NODES

    @cached_property
    def weights(self) -> Floats:
        """Quadrature weights of the nodes, float64 [n, ORDER]."""
        widths = np.diff(self.edges)
        return widths[:, None] / 2 * _WEIGHTS

    @classmethod
    def covering(cls, process: Process, steps: int, refine: int) -> "Panels":
        """Returns panels for θ_1..θ_steps, as long as a step's noise, or shorter on the slope.

        Args:
            process: the landscape and its steps.
            steps: number of steps.
            refine: divisor of the panels' length: 1, or more to estimate the error.
        """
        low, high = reach(process, steps)
        longest = process.step_noise / refine
        longest_on_slope = longest
        if process.gradient == "linear":
            # A step stretches distances on the slope by this factor.
            longest_on_slope = longest / (1 + process.clip_norm / process.width)
        breaks = [edge for edge in process.breaks if low < edge < high]
        edges = []
        for start, end in itertools.pairwise([low, *breaks, high]):
            is_slope = abs((start + end) / 2 - process.threshold) < process.width
            longest_here = longest_on_slope if is_slope else longest
            count = math.ceil((end - start) / longest_here)
            edges.append(np.linspace(start, end, count + 1)[:-1])
        return cls(np.append(np.concatenate(edges), high))


@dataclass(frozen=True)
class Mass:
    """A density, float64 [n, ORDER] at the nodes of `panels`, and its integrals."""

    panels: Panels
    density: Floats

    @cached_property
    def _sums(self) -> tuple[Floats, Floats]:
        """Mass below and above every panel edge, float64 [n + 1] each."""
        masses = (self.density * self.panels.weights).sum(axis=1)
        below = np.append(0.0, np.cumsum(masses))
        above = np.append(0.0, np.cumsum(masses[::-1]))
        return below, above[::-1]

    def split(self, points: Floats) -> tuple[Floats, Floats]:
        """Returns P(θ ≤ x) and P(θ > x) of points x [k], both accurate if they are small."""
        edges = self.panels.edges
        panel = np.searchsorted(edges, points) - 1
        panel = np.clip(panel, 0, len(edges) - 2)
        half = np.diff(edges)[panel] / 2
        # The mass in a panel, as a function of the position in it, is a Legendre series.
        coefficients = (self.density[panel] @ _TO_INTEGRAL) * half[:, None]
        position = (points - edges[panel]) / half - 1  # -1 at the lower edge, 1 at the upper one
        polynomials = legendre.legvander(np.clip(position, -1.0, 1.0), ORDER)
        in_panel_below = coefficients * (polynomials - _AT_LEFT)
        in_panel_above = coefficients * (1.0 - polynomials)
        below_edges, above_edges = self._sums
        below = below_edges[panel] + in_panel_below.sum(axis=1)
        above = above_edges[panel + 1] + in_panel_above.sum(axis=1)
        return np.maximum(below, 0.0), np.maximum(above, 0.0)


def reach(process: Process, steps: int) -> tuple[float, float]:
    """Returns an interval outside which θ_1..θ_steps lie with negligible probability."""
    later_noise = math.sqrt(steps - 1) * process.step_noise
    noise = math.hypot(process.first_noise, later_noise)
    distance = REACH * noise + (steps - 1) * process.clip_norm
    return -distance, process.canary + distance


def matrix_entries(process: Process, steps: int) -> float:
    """Estimates how many numbers the transition matrix of `evolve` will have.

    A column is a quadrature node; panels are as long as a step's noise, with ORDER nodes each. A
    column has entries for the nodes of one panel, and of REACH panels on both sides of it.
    """
    low, high = reach(process, steps)
    columns = ORDER * (high - low) / process.step_noise
    return columns * ORDER * (2 * REACH + 1)


def evolve(
    process: Process,
    horizons: Horizons,
    refine: int = 1,
) -> Iterator[tuple[Mass, Mass]]:
    """Yields the densities at each horizon without the canary and with it.

    Args:
        process: the landscape and its steps.
        horizons: steps, increasing.
        refine: as in `Panels.covering`.
    """
    panels = Panels.covering(process, horizons[-1], refine)
    nodes = panels.nodes.ravel()
    means = np.array([0.0, process.canary])
    deviation = process.first_noise
    distances = (nodes[:, None] - means) / deviation
    densities = np.exp(-0.5 * distances**2) / (deviation * _ROOT_2_PI)
    transition = _transition(process, panels) if horizons[-1] > 1 else None
    for step in range(1, horizons[-1] + 1):
        if step > 1 and transition is not None:
            densities = transition @ densities
        if step in horizons:
            outside, inside = densities.T.reshape(2, *panels.nodes.shape)
            yield Mass(panels, outside), Mass(panels, inside)


def _transition(process: Process, panels: Panels) -> sparse.csc_array:
    """Returns the matrix [nodes, nodes] that turns densities at nodes into densities a step later.

    An entry is the Gaussian kernel times the quadrature weight.
    """
    nodes = panels.nodes.ravel()
    noise = process.step_noise
    centres = process.after_step(nodes)
    # Column j has the nodes within REACH deviations of where a step moves node j: rows first[j],
    # first[j] + 1, and so on.
    first = np.searchsorted(nodes, centres - REACH * noise)
    counts = np.searchsorted(nodes, centres + REACH * noise) - first
    # Where the entries of each column begin among all entries.
    starts = np.append(0, np.cumsum(counts)).astype(np.int32)
    # A column's entries are in consecutive rows, so a row is the entry's number plus an offset.
    rows = np.arange(starts[-1], dtype=np.int32)
    offsets = first - starts[:-1]
    rows += np.repeat(offsets.astype(np.int32), counts)
    # From here on `values` changes in place, up to the Gaussian density: this bounds the memory.
    values = nodes[rows]
    values -= np.repeat(centres, counts)
    values *= values
    values *= -0.5 / noise**2
    np.exp(values, out=values)
    scaled_weights = panels.weights.ravel() / (noise * _ROOT_2_PI)
    values *= np.repeat(scaled_weights, counts)
    shape = (len(nodes), len(nodes))
    return sparse.csc_array((values, rows, starts), shape=shape)


@dataclass(frozen=True)
class Power:
    """Measures of how well θ_t distinguishes the two worlds.

    Attributes:
        epsilon: the true ε at δ.
        mu: the largest μ of a test "θ_t > x".
        threshold: the x of that test.
        epsilon_gdp: ε at δ if the pair were Gaussian with this μ.
    """

    epsilon: float
    mu: float
    threshold: float
    epsilon_gdp: float


def power(outside: Mass, inside: Mass, delta: float) -> Power:
    """Computes how well a pair of densities can be distinguished, for δ in (0, 1).

    Args:
        outside: density of θ_t without the canary.
        inside: density of θ_t with the canary.
        delta: δ of both ε.
    """
    mu, threshold = strongest_threshold(outside, inside)
    epsilon = max(_epsilon(outside, inside, delta), _epsilon(inside, outside, delta))
    epsilon_gdp = gdp.epsilon(max(mu, 0.0), delta)
    return Power(epsilon, mu, threshold, float(epsilon_gdp))


def strongest_threshold(outside: Mass, inside: Mass) -> tuple[float, float]:
    """Returns the largest μ of a test "θ > x", and x."""
    points = outside.panels.edges
    mu = _mu(outside, inside, points)
    # All points of a gap between the two densities have the same μ: the middle one is chosen.
    largest = np.flatnonzero(mu >= mu.max() - _ROUNDING)
    best = int(largest[len(largest) // 2])

    def loss(point: float) -> float:
        """Returns minus μ of the test "θ > point"."""
        (mu_at_point,) = _mu(outside, inside, np.array([point]))
        return -float(mu_at_point)

    refined = _minimum_near(loss, points, best, relative=1e-6)
    if -refined.fun > mu[best] + _ROUNDING:
        return float(-refined.fun), float(refined.x)
    return float(mu[best]), float(points[best])


def _mu(outside: Mass, inside: Mass, points: Floats) -> Floats:
    """Returns z(1 - FPR) - z(FNR) of tests "θ > x"; 0 if an error is too rare to be computed."""
    true_out, false_in = outside.split(points)  # probabilities of the guesses "out" and "in"
    false_out, true_in = inside.split(points)
    rarest = np.min([false_in, true_out, true_in, false_out], axis=0)
    mu = _normal_quantile(true_out, false_in) - _normal_quantile(false_out, true_in)
    return np.where(rarest > RAREST, mu, 0.0)


def _normal_quantile(below: Floats, above: Floats) -> Floats:
    """Returns Φ⁻¹(below), computed from the smaller of `below` and `above` = 1 - `below`."""
    smaller = np.minimum(below, above)
    z = special.ndtri(np.clip(smaller, _FLOOR, 0.5))
    return np.asarray(np.where(below < above, z, -z))


def _epsilon(p: Mass, q: Mass, delta: float) -> float:
    """Returns the smallest ε ≥ 0 at which the hockey-stick divergence is at most δ.

    Args:
        p: density of one world.
        q: density of the other.
        delta: δ, above 0.
    """
    divergence = hockey_stick(p, q)
    if divergence(0.0) <= delta:
        return 0.0
    high = 1.0
    while divergence(high) > delta:
        high *= 2
    root = optimize.brentq(lambda epsilon: divergence(epsilon) - delta, 0.0, high, xtol=1e-10)
    return float(root)


def hockey_stick(
    p: Mass,
    q: Mass,
) -> Callable[[float], float]:
    """Returns ∫ max(p - e^ε q, 0) as a function of ε.

    log p / q is taken to be linear between two nodes. So the intervals on which p exceeds e^ε q end
    at a known point between the nodes where the sign changes.
    """
    is_relevant = p.density.ravel() > RAREST * p.density.max()
    nodes = p.panels.nodes.ravel()[is_relevant]
    p_density = p.density.ravel()[is_relevant]
    q_density = np.maximum(q.density.ravel()[is_relevant], _FLOOR)
    log_ratio = np.log(p_density) - np.log(q_density)

    def divergence(epsilon: float) -> float:
        """Integrates p - e^ε q over the intervals in which it is positive."""
        excess = log_ratio - epsilon
        is_positive = excess > 0
        if not is_positive.any():
            return 0.0
        before = np.flatnonzero(is_positive[1:] != is_positive[:-1])  # nodes before a change
        after = before + 1
        share = excess[before] / (excess[before] - excess[after])
        ends = nodes[before] + share * (nodes[after] - nodes[before])
        if is_positive[0]:
            ends = np.append(-np.inf, ends)
        if is_positive[-1]:
            ends = np.append(ends, np.inf)
        intervals = ends.reshape(-1, 2)
        factor = float(np.exp(epsilon))
        return _masses(p, intervals) - factor * _masses(q, intervals)

    return divergence


def _masses(world: Mass, intervals: Floats) -> float:
    """Returns P(θ in one of the intervals [k, 2]).

    Each is a difference of masses below its ends, or above them: whichever are smaller, so that
    less is lost by cancellation.
    """
    edges = world.panels.edges
    points = np.clip(intervals, edges[0], edges[-1]).ravel()
    below, above = world.split(points)
    below_start, below_end = below.reshape(-1, 2).T
    above_start, above_end = above.reshape(-1, 2).T
    by_lower_tail = below_end - below_start
    by_upper_tail = above_start - above_end
    masses = np.where(below_end < above_start, by_lower_tail, by_upper_tail)
    return float(masses.sum())


def final_power(process: Process, steps: int) -> Power:
    """Returns the power, for δ = `TUNED_AT`, of an adversary who gets θ after `steps` steps."""
    ((outside, inside),) = evolve(process, (steps,))
    return power(outside, inside, TUNED_AT)


@lru_cache(maxsize=64)
def best_threshold(process: Process, steps: int) -> float:
    """Returns the threshold h with which the final model has the largest μ.

    It tries the threshold of `process`, and those of the most powerful tests of θ_1 at rates α:
    h = std(θ_1) Φ⁻¹(1 - α), as in Alg. 5. There, the printed range of α starts at 0, which is
    h = ∞; here α is 0.05 .. 0.95.
    """

    def mu(threshold: float) -> float:
        """Returns the μ of the final model if the loss has this threshold."""
        return final_power(replace(process, threshold=threshold), steps).mu

    tests = process.first_noise * special.ndtri(1 - _FALSE_POSITIVE_RATES)
    thresholds = [process.threshold, *map(float, tests)]
    return max(thresholds, key=mu)


@lru_cache(maxsize=64)
def best_width(process: Process, steps: int) -> float:
    """Returns the half-width w of a linear g with which the final model has the largest ε.

    ε, at δ = `TUNED_AT`, has several local maxima in w. So widths from a quarter of a step's noise
    to 64 times the noise of the first step are scanned, and the best one is refined.
    """

    def loss(log_width: float) -> float:
        """Returns minus the ε of the final model for this width."""
        changed = replace(process, width=math.exp(log_width))
        return -final_power(changed, steps).epsilon

    low = math.log(process.step_noise / 4)
    high = math.log(64 * process.first_noise)
    intervals = math.ceil((high - low) / _LOG_SPACING)
    log_widths = np.linspace(low, high, intervals + 1)
    losses = [loss(log_width) for log_width in log_widths]
    best = int(np.argmin(losses))
    refined = _minimum_near(loss, log_widths, best, absolute=1e-2)
    if refined.fun < losses[best]:
        return math.exp(refined.x)
    return math.exp(log_widths[best])


def _minimum_near(
    function: Callable[[float], float],
    points: Floats,
    index: int,
    absolute: float = 0.0,
    relative: float = 0.0,
) -> Any:
    """Minimizes a function between the two neighbours of a point; returns SciPy's result.

    Args:
        function: the function to minimize.
        points: rising points, float64 [n].
        index: index of the point among these.
        absolute: tolerance of the minimum's place.
        relative: further tolerance, as a share of the neighbours' distance.
    """
    low = points[max(index - 1, 0)]
    high = points[min(index + 1, len(points) - 1)]
    options = {"xatol": absolute + relative * (high - low)}
    return optimize.minimize_scalar(function, bounds=(low, high), method="bounded", options=options)
