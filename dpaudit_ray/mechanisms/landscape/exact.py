"""Exact densities of θ_t in both worlds, without sampling, and what the best test makes of them.

A step moves θ and adds Gaussian noise, so its density is an integral over the one before,

    p_{t+1}(x) = ∫ p_t(y) N(x; moved(y), s²) dy,

by Gauss-Legendre quadrature on panels that are short against s and end where `moved` is not smooth
(Nyström's method): the error falls exponentially with the number of nodes. All terms are positive,
so small densities are as accurate, relative to their size, as large ones. A density is a polynomial
on each panel, so the mass below any point is exact too. Two worlds are (ε, δ)-close when

    δ ≥ ∫ max(p_in - e^ε p_out, 0)   and the same with the worlds exchanged

(the hockey-stick divergence), over intervals that end where p_in / p_out crosses e^ε.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.polynomial import legendre
from scipy import optimize, sparse, special

from ...stats import gdp
from .process import Floats, Process

ORDER = 12  # nodes per panel
REACH = 14.0  # standard deviations of noise that are kept: e^-98 lies outside
MAX_ENTRIES = 40_000_000  # of the transition matrix: 1 GB while it is built

RAREST = 1e-20  # error rates below are not looked at: no noise is kept that far out
_FLOOR = 1e-300
_AT_LEFT = (-1.0) ** np.arange(ORDER + 1)  # Legendre polynomials at -1; all are 1 at 1
_LEVEL = 1e-10  # differences in μ that are rounding

TUNED_AT = 1e-5  # δ at which widths are compared
_RATES = np.arange(1, 20) / 20  # false-positive rates whose thresholds are tried
_SPACING = math.log(2) / 2  # of the widths that are tried, in their logarithm

_NODES, _WEIGHTS = legendre.leggauss(ORDER)  # on [-1, 1]
# [ORDER, ORDER + 1]: values at these nodes to Legendre terms of an antiderivative.
_TO_INTEGRAL = np.stack(
    [legendre.legint(c) for c in np.linalg.inv(legendre.legvander(_NODES, ORDER - 1)).T]
)


@dataclasses.dataclass(frozen=True)
class Panels:
    """Intervals between increasing `edges`, float64 [n + 1], with ORDER nodes on each."""

    edges: Floats

    @functools.cached_property
    def nodes(self) -> Floats:
        """float64 [n, ORDER], increasing."""
        middles, halves = (self.edges[1:] + self.edges[:-1]) / 2, np.diff(self.edges) / 2
        return np.asarray(middles[:, None] + halves[:, None] * _NODES)

    @functools.cached_property
    def weights(self) -> Floats:
        """Quadrature weights of the nodes, float64 [n, ORDER]."""
        return np.asarray(np.diff(self.edges)[:, None] / 2 * _WEIGHTS)

    @classmethod
    def covering(cls, process: Process, steps: int, refine: int) -> Panels:
        """Panels wherever θ_1..θ_steps can be, `refine` times as many as are needed."""
        low, high = reach(process, steps)
        longest = inner = process.step_noise / refine
        if process.gradient == "linear":  # noise is short against what a step stretches
            inner = longest / (1 + process.clip_norm / process.width)
        corners = [low, *(b for b in process.breaks if low < b < high), high]
        parts = []
        for left, right in itertools.pairwise(corners):
            stretched = abs((left + right) / 2 - process.threshold) < process.width
            count = math.ceil((right - left) / (inner if stretched else longest))
            parts.append(np.linspace(left, right, count + 1)[:-1])
        return cls(np.append(np.concatenate(parts), high))


@dataclasses.dataclass(frozen=True)
class Mass:
    """A density, float64 [n, ORDER] at the nodes of `panels`, and its integrals."""

    panels: Panels
    density: Floats

    @functools.cached_property
    def _sums(self) -> tuple[Floats, Floats]:
        """Mass to the left and to the right of every panel edge, float64 [n + 1] each."""
        masses = (self.density * self.panels.weights).sum(axis=1)
        left = np.concatenate([[0.0], np.cumsum(masses)])
        return left, np.concatenate([np.cumsum(masses[::-1])[::-1], [0.0]])

    def split(self, points: Floats) -> tuple[Floats, Floats]:
        """P(θ ≤ x) and P(θ > x), float64 [k] each, both accurate where they are small."""
        edges = self.panels.edges
        panel = np.clip(np.searchsorted(edges, points) - 1, 0, len(edges) - 2)
        half = np.diff(edges)[panel] / 2
        terms = (self.density[panel] @ _TO_INTEGRAL) * half[:, None]
        here = legendre.legvander(np.clip((points - edges[panel]) / half - 1, -1.0, 1.0), ORDER)
        left, right = self._sums
        below = left[panel] + (terms * (here - _AT_LEFT)).sum(axis=1)
        above = right[panel + 1] + (terms * (1.0 - here)).sum(axis=1)
        return np.asarray(np.maximum(below, 0.0)), np.asarray(np.maximum(above, 0.0))


def reach(process: Process, steps: int) -> tuple[float, float]:
    """An interval outside which θ_1..θ_steps lie with negligible probability, in both worlds."""
    noise = math.hypot(process.first_noise, math.sqrt(steps - 1) * process.step_noise)
    far = REACH * noise + (steps - 1) * process.clip_norm
    return -far, process.canary + far


def entries(process: Process, steps: int) -> float:
    """About how many numbers the transition matrix of `evolve` will hold."""
    low, high = reach(process, steps)
    return ORDER * (high - low) / process.step_noise * ORDER * (2 * REACH + 1)


def evolve(
    process: Process, horizons: tuple[int, ...], refine: int = 1
) -> Iterator[tuple[Mass, Mass]]:
    """Yields densities at each horizon, canary out and in, on panels `refine` times as fine."""
    panels = Panels.covering(process, horizons[-1], refine)
    means, scale = np.array([0.0, process.canary]), process.first_noise
    away = (panels.nodes.ravel()[:, None] - means) / scale
    densities = np.exp(-0.5 * away**2) / (scale * math.sqrt(2 * math.pi))
    transition = _transition(process, panels) if horizons[-1] > 1 else None
    for step in range(1, horizons[-1] + 1):
        if step > 1 and transition is not None:
            densities = transition @ densities
        if step in horizons:
            outside, inside = densities.T.reshape(2, *panels.nodes.shape)
            yield Mass(panels, outside), Mass(panels, inside)


def _transition(process: Process, panels: Panels) -> sparse.csc_array:
    """[nodes, nodes]: densities after a step from those before it, kernel times weight."""
    nodes, weights = panels.nodes.ravel(), panels.weights.ravel()
    centres, noise = process.moved(nodes), process.step_noise
    first = np.searchsorted(nodes, centres - REACH * noise)
    counts = np.searchsorted(nodes, centres + REACH * noise) - first
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    rows = np.arange(starts[-1], dtype=np.int32)
    rows += np.repeat((first - starts[:-1]).astype(np.int32), counts)
    values = nodes[rows]  # from here on in place: this is what bounds the memory
    values -= np.repeat(centres, counts)
    values *= values
    values *= -0.5 / noise**2
    np.exp(values, out=values)
    values *= np.repeat(weights / (noise * math.sqrt(2 * math.pi)), counts)
    return sparse.csc_array((values, rows, starts), shape=(len(nodes), len(nodes)))


@dataclasses.dataclass(frozen=True)
class Power:
    """The true ε at δ, the largest μ of tests "θ_t > `threshold`", and its ε if it is Gaussian."""

    epsilon: float
    mu: float
    threshold: float
    epsilon_gdp: float


def power(outside: Mass, inside: Mass, delta: float) -> Power:
    """The exact strength of the pair at δ in (0, 1)."""
    mu, threshold = strongest_threshold(outside, inside)
    epsilon = max(_epsilon(outside, inside, delta), _epsilon(inside, outside, delta))
    return Power(epsilon, mu, threshold, float(gdp.epsilon(max(mu, 0.0), delta)))


def strongest_threshold(outside: Mass, inside: Mass) -> tuple[float, float]:
    """Returns the largest μ of a test "θ > x", and x."""
    points = outside.panels.edges
    mu = _mu(outside, inside, points)
    good = np.flatnonzero(mu >= mu.max() - _LEVEL)  # all of a gap that the two halves leave
    best = int(good[len(good) // 2])
    around = points[max(best - 1, 0)], points[min(best + 1, len(points) - 1)]
    refined = _least(
        lambda x: -_mu(outside, inside, np.array([x]))[0], around, 1e-6 * (around[1] - around[0])
    )
    if -refined.fun > mu[best] + _LEVEL:
        return float(-refined.fun), float(refined.x)
    return float(mu[best]), float(points[best])


def _mu(outside: Mass, inside: Mass, points: Floats) -> Floats:
    """z(1 - FPR) - z(FNR) of each test "θ > x", 0 where an error is too rare to be computed."""
    true_out, false_in = outside.split(points)
    false_out, true_in = inside.split(points)
    rates = np.stack([false_in, true_out, true_in, false_out])
    mu = _z(true_out, false_in) - _z(false_out, true_in)
    return np.asarray(np.where(np.all(rates > RAREST, axis=0), mu, 0.0))


def _z(below: Floats, above: Floats) -> Floats:
    """Φ⁻¹ of a probability that is given with its complement; uses the smaller one."""
    z = special.ndtri(np.clip(np.where(below < above, below, above), _FLOOR, 0.5))
    return np.asarray(np.where(below < above, z, -z))


def _epsilon(p: Mass, q: Mass, delta: float) -> float:
    """The smallest ε ≥ 0 at which the hockey-stick divergence is at most δ."""
    divergence = hockey_stick(p, q)
    if divergence(0.0) <= delta:
        return 0.0
    high = 1.0
    while divergence(high) > delta:
        high *= 2
    return float(optimize.brentq(lambda e: divergence(e) - delta, 0.0, high, xtol=1e-10))


def hockey_stick(p: Mass, q: Mass) -> Callable[[float], float]:
    """∫ max(p - e^ε q, 0) of ε; between two nodes, log p / q is taken for a straight line."""
    shown, hidden = p.density.ravel(), q.density.ravel()
    matters = shown > RAREST * shown.max()
    nodes = p.panels.nodes.ravel()[matters]
    ratio = np.log(shown[matters]) - np.log(np.maximum(hidden[matters], _FLOOR))

    def divergence(epsilon: float) -> float:
        excess = ratio - epsilon
        if not np.any(inside := excess > 0):
            return 0.0
        at = np.flatnonzero(inside[1:] != inside[:-1])
        share = excess[at] / (excess[at] - excess[at + 1])
        ends = nodes[at] + share * (nodes[at + 1] - nodes[at])
        first, last = [-np.inf] * bool(inside[0]), [np.inf] * bool(inside[-1])
        intervals = np.concatenate([first, ends, last]).reshape(-1, 2)
        return _masses(p, intervals) - float(np.exp(epsilon)) * _masses(q, intervals)

    return divergence


def _masses(world: Mass, intervals: Floats) -> float:
    """P(θ in one of these intervals), float64 [k, 2]; each from the side where nothing cancels."""
    edges = world.panels.edges
    below, above = world.split(np.clip(intervals, edges[0], edges[-1]).ravel())
    low, high = below.reshape(-1, 2), above.reshape(-1, 2)
    masses = np.where(low[:, 1] < high[:, 0], low[:, 1] - low[:, 0], high[:, 0] - high[:, 1])
    return float(masses.sum())


def final_power(process: Process, steps: int, delta: float = TUNED_AT) -> Power:
    """The power of an adversary who sees θ_`steps`."""
    return power(*next(evolve(process, (steps,))), delta)


@functools.lru_cache(maxsize=64)
def best_threshold(process: Process, steps: int) -> float:
    """The threshold h whose final model has the largest μ; that of `process` is among those tried.

    The others are the most powerful tests of θ_1 at rates α: h = std(θ_1) Φ⁻¹(1 - α), what Alg. 5
    tries. Its printed range for α starts at 0, which is h = ∞; here α runs over 0.05 .. 0.95.
    """

    def mu(threshold: float) -> float:
        return final_power(dataclasses.replace(process, threshold=threshold), steps).mu

    tests = process.first_noise * special.ndtri(1 - _RATES)
    return max([process.threshold, *map(float, tests)], key=mu)


@functools.lru_cache(maxsize=64)
def best_width(process: Process, steps: int) -> float:
    """The half-width w of a linear g whose final model has the largest true ε at `TUNED_AT`.

    ε has several local maxima in w. So widths from a quarter of a step's noise to 64 times that
    of the first step are scanned, and the best is refined.
    """

    def loss(log_width: float) -> float:
        return -final_power(dataclasses.replace(process, width=math.exp(log_width)), steps).epsilon

    low, high = math.log(process.step_noise / 4), math.log(64 * process.first_noise)
    scanned = np.linspace(low, high, math.ceil((high - low) / _SPACING) + 1)
    losses = [loss(log_width) for log_width in scanned]
    best = int(np.argmin(losses))
    around = scanned[max(best - 1, 0)], scanned[min(best + 1, len(scanned) - 1)]
    refined = _least(loss, around, 1e-2)
    return math.exp(refined.x if refined.fun < losses[best] else scanned[best])


def _least(function: Callable[[float], float], bounds: tuple[float, float], within: float) -> Any:
    options = {"xatol": within}
    return optimize.minimize_scalar(function, bounds=bounds, method="bounded", options=options)
