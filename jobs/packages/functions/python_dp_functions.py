"""Algorithms of PyDP, n outputs each. PyDP draws from the operating system, not from `rng`."""

from typing import Any

from numpy.random import Generator
from pydp.algorithms import laplacian


def bounded(data: Any, rng: Generator, n: int, name: str, **arguments: Any) -> Any:
    """Computes a statistic of numbers within bounds."""
    algorithm = getattr(laplacian, name)
    values = [float(value) for value in data]
    return [algorithm(dtype="float", **arguments).quick_result(values) for _ in range(n)]


def count(data: Any, rng: Generator, n: int, epsilon: float) -> Any:
    """Counts records."""
    values = [int(value) for value in data]
    return [laplacian.Count(epsilon=epsilon, dtype="int").quick_result(values) for _ in range(n)]
