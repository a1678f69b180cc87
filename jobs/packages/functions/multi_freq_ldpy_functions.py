"""Local randomisers of multi-freq-ldpy, n reports each. They draw from numpy's global generator."""

import importlib
from typing import Any

import numpy as np
from multi_freq_ldpy.pure_frequency_oracles.SS import SS_Client
from numba import njit
from numpy.random import Generator

PACKAGE = "multi_freq_ldpy"


def report(data: Any, rng: Generator, n: int, module: str, client: str, **arguments: Any) -> Any:
    """Randomises a value from 0 to k - 1."""
    function = getattr(importlib.import_module(f"{PACKAGE}.{module}"), client)
    _seed(rng)
    return [np.ravel(function(int(data), **arguments)) for _ in range(n)]


def subset(data: Any, rng: Generator, n: int, k: int, epsilon: float) -> Any:
    """Returns a randomised set of values, as k truth values."""
    _seed(rng)
    return [np.isin(np.arange(k), SS_Client(int(data), k, epsilon)) for _ in range(n)]


def _seed(rng: Generator) -> None:
    """Seeds numpy's global generator, and that of compiled code."""
    seed = int(rng.integers(2**32))
    np.random.seed(seed)
    _seed_compiled(seed)


@njit
def _seed_compiled(seed: int) -> None:
    np.random.seed(seed)
