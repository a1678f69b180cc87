"""Exact densities of θ_t in both worlds, without sampling.

A step moves θ and adds Gaussian noise, so its density is an integral over the one before,

    p_{t+1}(x) = ∫ p_t(y) N(x; moved(y), s²) dy,

computed by Gauss-Legendre quadrature on panels that are short against s and end where `moved`
is not smooth. On a panel the integrand is analytic, so the error falls exponentially with the
number of nodes (Nyström's method). All terms are positive: small densities are as accurate,
relative to their size, as large ones.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.polynomial import legendre
from scipy import sparse

from .process import Floats, Gradient, Process

ORDER = 12  # nodes per panel
REACH = 14.0  # standard deviations of noise that are kept: e^-98 lies outside
MAX_ENTRIES = 40_000_000  # of the transition matrix: 1 GB while it is built


@dataclasses.dataclass(frozen=True)
class Panels:
    """Intervals between increasing `edges`, float64 [n + 1], with ORDER nodes on each."""

    edges: Floats

    @functools.cached_property
    def nodes(self) -> Floats:
        """float64 [n, ORDER], increasing."""
        middles, halves = (self.edges[1:] + self.edges[:-1]) / 2, np.diff(self.edges) / 2
        return np.asarray(middles[:, None] + halves[:, None] * _unit()[0])

    @functools.cached_property
    def weights(self) -> Floats:
        """Quadrature weights of the nodes, float64 [n, ORDER]."""
        return np.asarray(np.diff(self.edges)[:, None] / 2 * _unit()[1])

    @classmethod
    def covering(cls, process: Process, steps: int, refine: int) -> Panels:
        """Panels wherever θ_1..θ_steps can be, `refine` times as many as are needed."""
        low, high = reach(process, steps)
        longest = process.step_noise / refine
        inner = longest
        if process.gradient is Gradient.LINEAR:  # noise is short against what a step stretches
            inner = longest / (1 + process.clip_norm / process.width)
        corners = [low, *(b for b in process.breaks if low < b < high), high]
        parts = []
        for left, right in itertools.pairwise(corners):
            stretched = abs((left + right) / 2 - process.threshold) < process.width
            count = math.ceil((right - left) / (inner if stretched else longest))
            parts.append(np.linspace(left, right, count + 1)[:-1])
        return cls(np.append(np.concatenate(parts), high))


@dataclasses.dataclass(frozen=True)
class Worlds:
    """Densities at the nodes, float64 [2, n, ORDER]: canary out, canary in."""

    panels: Panels
    densities: Floats


def reach(process: Process, steps: int) -> tuple[float, float]:
    """An interval outside which θ_1..θ_steps lie with negligible probability, in both worlds."""
    noise = math.hypot(process.first_noise, math.sqrt(steps - 1) * process.step_noise)
    far = REACH * noise + (steps - 1) * process.clip_norm
    return -far, process.canary + far


def entries(process: Process, steps: int) -> float:
    """About how many numbers the transition matrix of `evolve` will hold."""
    low, high = reach(process, steps)
    nodes = ORDER * (high - low) / process.step_noise
    return nodes * ORDER * (2 * REACH + 1)


def evolve(process: Process, horizons: tuple[int, ...], refine: int = 1) -> Iterator[Worlds]:
    """Yields the densities of θ_t at each horizon, in turn.

    Args:
        process: the landscape.
        horizons: increasing steps, the first at least 1.
        refine: how many times finer than usual the panels are, to see that nothing changes.
    """
    panels = Panels.covering(process, horizons[-1], refine)
    means = np.array([0.0, process.canary])
    densities = _normal(panels.nodes.ravel()[:, None] - means, process.first_noise)
    transition = _transition(process, panels) if horizons[-1] > 1 else None
    for step in range(1, horizons[-1] + 1):
        if step > 1 and transition is not None:
            densities = transition @ densities
        if step in horizons:
            yield Worlds(panels, densities.T.reshape(2, *panels.nodes.shape))


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


def _normal(x: Floats, scale: float) -> Floats:
    return np.asarray(np.exp(-0.5 * (x / scale) ** 2) / (scale * math.sqrt(2 * math.pi)))


@functools.cache
def _unit() -> tuple[Floats, Floats]:
    """Nodes and weights on [-1, 1]."""
    nodes, weights = legendre.leggauss(ORDER)
    return np.asarray(nodes), np.asarray(weights)
