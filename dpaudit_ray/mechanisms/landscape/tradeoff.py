"""What the best test makes of two densities: its μ, and the true ε at δ.

A density is a polynomial on each panel, so the mass below any point is exact too. Two worlds
are (ε, δ)-close when

    δ ≥ ∫ max(p_in - e^ε p_out, 0)   and the same with the worlds exchanged

(the hockey-stick divergence). The integral runs over intervals that end where p_in / p_out
crosses e^ε.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.polynomial import legendre
from scipy import optimize, special

from ...stats import gdp
from .density import ORDER, Panels, Worlds
from .process import Floats

RAREST = 1e-20  # error rates below are not looked at: no noise is kept that far out
_FLOOR = 1e-300
_AT_LEFT = (-1.0) ** np.arange(ORDER + 1)  # Legendre polynomials at -1; all are 1 at 1
_LEVEL = 1e-10  # differences in μ that are rounding


@dataclasses.dataclass(frozen=True)
class Power:
    """What an adversary who sees θ_t can do, up to the accuracy of the grid.

    `epsilon` is the true ε at δ of the pair; `mu` is the largest z(1 - FPR) - z(FNR) of a test
    "θ_t > `threshold`", and `epsilon_gdp` is μ read as that of a Gaussian mechanism.
    """

    epsilon: float
    mu: float
    threshold: float
    epsilon_gdp: float


def power(worlds: Worlds, delta: float) -> Power:
    """The exact strength of the pair at δ in (0, 1)."""
    outside, inside = (Mass(worlds.panels, density) for density in worlds.densities)
    mu, threshold = best_threshold(outside, inside)
    epsilon = max(_epsilon(outside, inside, delta), _epsilon(inside, outside, delta))
    return Power(epsilon, mu, threshold, float(gdp.epsilon(max(mu, 0.0), delta)))


@dataclasses.dataclass(frozen=True)
class Mass:
    """A density, float64 [n, ORDER] at the nodes of `panels`, and its integrals."""

    panels: Panels
    density: Floats

    @functools.cached_property
    def _sums(self) -> tuple[Floats, Floats]:
        """Mass to the left and to the right of every panel edge, float64 [n + 1] each."""
        each = (self.density * self.panels.weights).sum(axis=1)
        left = np.concatenate([[0.0], np.cumsum(each)])
        right = np.concatenate([np.cumsum(each[::-1])[::-1], [0.0]])
        return left, right

    def split(self, points: Floats) -> tuple[Floats, Floats]:
        """P(θ ≤ x) and P(θ > x), float64 [k] each, both accurate where they are small."""
        edges = self.panels.edges
        panel = np.clip(np.searchsorted(edges, points) - 1, 0, len(edges) - 2)
        half = np.diff(edges)[panel] / 2
        unit = np.clip((points - edges[panel]) / half - 1, -1.0, 1.0)
        terms = (self.density[panel] @ _to_integral()) * half[:, None]
        here = legendre.legvander(unit, ORDER)
        left, right = self._sums
        below = left[panel] + (terms * (here - _AT_LEFT)).sum(axis=1)
        above = right[panel + 1] + (terms * (1.0 - here)).sum(axis=1)
        return np.asarray(np.maximum(below, 0.0)), np.asarray(np.maximum(above, 0.0))


def best_threshold(outside: Mass, inside: Mass) -> tuple[float, float]:
    """The largest μ of a test "θ > x", and x."""
    points = outside.panels.edges
    mu = _mu(outside, inside, points)
    good = np.flatnonzero(mu >= mu.max() - _LEVEL)  # all of a gap that the two halves leave
    best = int(good[len(good) // 2])
    around = points[max(best - 1, 0)], points[min(best + 1, len(points) - 1)]
    found = optimize.minimize_scalar(
        lambda x: -_mu(outside, inside, np.array([x]))[0],
        bounds=around,
        method="bounded",
        options={"xatol": 1e-6 * (around[1] - around[0])},
    )
    if -found.fun > mu[best] + _LEVEL:
        return float(-found.fun), float(found.x)
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
    low = np.where(below < above, below, above)
    z = special.ndtri(np.clip(low, _FLOOR, 0.5))
    return np.asarray(np.where(below < above, z, -z))


def hockey_stick(p: Mass, q: Mass, epsilon: float) -> float:
    """∫ max(p - e^ε q, 0): the δ at ε in the direction that p is the likelier world."""
    return _Crossings.of(p, q).delta(epsilon)


def _epsilon(p: Mass, q: Mass, delta: float) -> float:
    """The smallest ε ≥ 0 at which the hockey-stick divergence is at most δ."""
    crossings = _Crossings.of(p, q)

    def excess(epsilon: float) -> float:
        return crossings.delta(epsilon) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-10))


@dataclasses.dataclass(frozen=True)
class _Crossings:
    """Finds where p / q crosses e^ε: between which nodes, then on a straight line in the log."""

    p: Mass
    q: Mass
    nodes: Floats  # where either density is large enough to matter, float64 [k]
    ratio: Floats  # log p / q there

    @classmethod
    def of(cls, p: Mass, q: Mass) -> _Crossings:
        shown, hidden = p.density.ravel(), q.density.ravel()
        matters = shown > RAREST * shown.max()
        ratio = np.log(shown[matters]) - np.log(np.maximum(hidden[matters], _FLOOR))
        return cls(p, q, p.panels.nodes.ravel()[matters], ratio)

    def delta(self, epsilon: float) -> float:
        excess = self.ratio - epsilon
        inside = excess > 0
        if not np.any(inside):
            return 0.0
        at = np.flatnonzero(inside[1:] != inside[:-1])
        share = excess[at] / (excess[at] - excess[at + 1])
        ends = self.nodes[at] + share * (self.nodes[at + 1] - self.nodes[at])
        whole = [-np.inf] * bool(inside[0]), [np.inf] * bool(inside[-1])
        ends = np.concatenate([whole[0], ends, whole[1]])
        shown, hidden = (_masses(of, ends.reshape(-1, 2)) for of in (self.p, self.q))
        return shown - float(np.exp(epsilon)) * hidden


def _masses(of: Mass, intervals: Floats) -> float:
    """P(θ in one of these intervals), float64 [k, 2]; each from the side where nothing cancels."""
    edges = of.panels.edges
    below, above = of.split(np.clip(intervals, edges[0], edges[-1]).ravel())
    low, high = below.reshape(-1, 2), above.reshape(-1, 2)
    each = np.where(low[:, 1] < high[:, 0], low[:, 1] - low[:, 0], high[:, 0] - high[:, 1])
    return float(each.sum())


@functools.cache
def _to_integral() -> Floats:
    """[ORDER, ORDER + 1]: values at the nodes of [-1, 1] to Legendre terms of an antiderivative."""
    nodes = legendre.leggauss(ORDER)[0]
    terms = np.linalg.inv(legendre.legvander(nodes, ORDER - 1))
    return np.asarray(np.stack([legendre.legint(column) for column in terms.T]))
