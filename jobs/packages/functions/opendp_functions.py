"""Measurements of OpenDP, n outputs each. It draws from the operating system, not from `rng`."""

from typing import Any

import opendp.prelude as dp
from numpy.random import Generator

dp.enable_features("contrib")


def number(data: Any, rng: Generator, n: int, noise: str, scale: float) -> Any:
    """Adds noise to a real number: `laplace` or `gaussian`."""
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    measurement = space >> getattr(dp.m, f"then_{noise}")(scale)
    return [measurement(float(data)) for _ in range(n)]


def integer(data: Any, rng: Generator, n: int, noise: str, scale: float) -> Any:
    """Adds noise to an integer: `laplace`, `geometric` or `gaussian`."""
    space = dp.atom_domain(T=int), dp.absolute_distance(T=int)
    measurement = space >> getattr(dp.m, f"then_{noise}")(scale)
    return [measurement(int(data)) for _ in range(n)]


def count(data: Any, rng: Generator, n: int, scale: float) -> Any:
    """Counts records."""
    space = dp.vector_domain(dp.atom_domain(T=float)), dp.symmetric_distance()
    measurement = space >> dp.t.then_count() >> dp.m.then_laplace(scale)
    return [measurement([float(value) for value in data]) for _ in range(n)]


def total(data: Any, rng: Generator, n: int, scale: float, low: float, high: float) -> Any:
    """Sums records that are limited to an interval."""
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    clamped = space >> dp.t.then_clamp((low, high)) >> dp.t.then_sum()
    measurement = clamped >> dp.m.then_laplace(scale)
    return [measurement([float(value) for value in data]) for _ in range(n)]


def noisy_max(
    data: Any, rng: Generator, n: int, scale: float, divergence: str = "max_divergence"
) -> Any:
    """Returns the index of the largest answer."""
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False))
    space = domain, dp.linf_distance(T=float)
    measurement = space >> dp.m.then_noisy_max(getattr(dp, divergence)(), scale)
    return [measurement([float(value) for value in data]) for _ in range(n)]


def randomized_bool(data: Any, rng: Generator, n: int, prob: float) -> Any:
    """Randomises a truth value."""
    measurement = dp.m.make_randomized_response_bool(prob)
    return [measurement(bool(data)) for _ in range(n)]


def randomized_category(data: Any, rng: Generator, n: int, prob: float, categories: int) -> Any:
    """Randomises one of several categories."""
    measurement = dp.m.make_randomized_response(list(range(categories)), prob)
    return [measurement(int(data)) for _ in range(n)]
