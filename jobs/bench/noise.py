"""Noise that is added to a number or to a few numbers."""

import math
from typing import Any

import numpy as np
from numpy.random import Generator

from dpaudit_ray import Claim

from .entry import Entry, Release

SNIPER = "DP-Sniper"
COUNTS = [(0.0, 1.0)]  # a record more
ROUNDED = 0.25  # grid of a rounded release
PARALLEL = 20  # answers of one release
DELTA = 1e-5
# Of the Gaussian mechanism with ε = 1 at δ = 1e-5 and sensitivity 1 (Balle, Wang 2018).
ANALYTIC_NOISE = 3.730632
CLASSICAL_NOISE = math.sqrt(2 * math.log(1.25 / DELTA))
PEOPLE = 5  # who are counted by the truncated geometric mechanism
SHIFT = 3  # 1 + 2^-SHIFT is the ratio of its neighbouring probabilities
RATE = 0.3  # of records in a subsample


def laplace(scale: float) -> Release:
    """Adds Laplace noise to each number."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        return data + rng.laplace(0, scale, (n, *np.shape(data)))

    return release


def gaussian(noise: float) -> Release:
    """Adds Gaussian noise to each number."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        return data + rng.normal(0, noise, (n, *np.shape(data)))

    return release


def repeated_laplace(copies: int, scale: float) -> Release:
    """Releases the same number several times, each with its own noise."""

    def release(data: float, rng: Generator, n: int) -> Any:
        return data + rng.laplace(0, scale, (n, copies))

    return release


def rounded_laplace(data: float, rng: Generator, n: int) -> Any:
    """Rounds a noisy number to a grid, as the snapping mechanism does."""
    return np.round((data + rng.laplace(0, 1.0, n)) / ROUNDED) * ROUNDED


def clamped_laplace(data: float, rng: Generator, n: int) -> Any:
    """Limits a noisy number to the range of the true one."""
    return np.clip(data + rng.laplace(0, 1.0, n), 0, 1)


def few_bits(data: float, rng: Generator, n: int) -> Any:
    """Makes Laplace noise from a uniform number of 12 bits, so that few outputs are possible."""
    uniform = (rng.integers(2**12, size=n) + 0.5) / 2**12
    sign = rng.choice([-1.0, 1.0], n)
    return data - sign * np.log(uniform)


def discrete_laplace(data: float, rng: Generator, n: int) -> Any:
    """Adds the difference of two geometric numbers."""
    share = -math.expm1(-1.0)
    return data + rng.geometric(share, n) - rng.geometric(share, n)


def discrete_gaussian(data: float, rng: Generator, n: int) -> Any:
    """Adds an integer whose probability is that of a Gaussian density with σ = 2."""
    integers = np.arange(-40, 41)
    weights = np.exp(-(integers**2) / 8)
    return data + rng.choice(integers, size=n, p=weights / weights.sum())


def staircase(data: float, rng: Generator, n: int) -> Any:
    """Adds noise whose density falls in steps of the sensitivity (Geng, Viswanath 2014)."""
    inner = 1 / (1 + math.exp(0.5))  # width of the higher part of a step, optimal for ε = 1
    step = rng.geometric(-math.expm1(-1.0), n) - 1
    higher = inner / (inner + (1 - inner) * math.exp(-1.0))
    is_outer = rng.random(n) >= higher
    uniform = rng.random(n)
    place = np.where(is_outer, inner + (1 - inner) * uniform, inner * uniform)
    return data + rng.choice([-1.0, 1.0], n) * (step + place)


def truncated_geometric(data: int, rng: Generator, n: int) -> Any:
    """Draws a noisy count by integers alone (Balcer, Vadhan 2018, GeoSample)."""
    base = 2**SHIFT
    total = (2 * base + 1) * (base + 1) ** (PEOPLE - 1)
    cumulative = []
    for count in range(PEOPLE):
        apart = data - count if count < data else count - data + 1
        rest = PEOPLE - apart
        share = base**apart * (base + 1) ** rest
        cumulative.append(share if count < data else total - share)
    return np.searchsorted(cumulative, rng.integers(1, total + 1, n))


def subsampled(rate: float) -> Release:
    """Adds Laplace noise to a count of records that are sampled at a rate."""

    def release(data: int, rng: Generator, n: int) -> Any:
        return rng.binomial(data, rate, n) + rng.laplace(0, 1.0, n)

    return release


ONE = Claim(epsilon=1.0)
TENTH = Claim(epsilon=0.1)
AT_DELTA = Claim(epsilon=1.0, delta=DELTA)
SUBSAMPLED = Claim(epsilon=math.log1p(RATE * math.expm1(1.0)))

ENTRIES = (
    Entry("Laplace", laplace(10.0), COUNTS, TENTH, 0.1, SNIPER, trials=4_000_000),
    Entry("LaplaceParallel", repeated_laplace(PARALLEL, 200.0), COUNTS, TENTH, 0.1, SNIPER),
    Entry(
        "TruncatedGeometric",
        truncated_geometric,
        [(1, 0), (1, 2)],
        Claim(epsilon=math.log1p(2**-SHIFT)),
        0.117783,
        SNIPER,
        trials=1_000_000,
    ),
    Entry("discrete Laplace", discrete_laplace, COUNTS, ONE, 1.0, "Ghosh 2009"),
    Entry("staircase", staircase, COUNTS, ONE, 1.0, "Geng, Viswanath 2014"),
    Entry("rounded Laplace", rounded_laplace, COUNTS, ONE, 1.0, "Mironov 2012"),
    Entry("clamped Laplace", clamped_laplace, COUNTS, ONE, 1.0, "OpenDP"),
    Entry("subsampled Laplace", subsampled(RATE), [(0, 1)], SUBSAMPLED, 0.415735, "Li 2012"),
    Entry("Gaussian", gaussian(ANALYTIC_NOISE), COUNTS, AT_DELTA, 1.0, "Balle, Wang 2018", DELTA),
    Entry(
        "classical Gaussian",
        gaussian(CLASSICAL_NOISE),
        COUNTS,
        AT_DELTA,
        0.750977,
        "Dwork, Roth 2014",
        DELTA,
    ),
    Entry(
        "discrete Gaussian",
        discrete_gaussian,
        COUNTS,
        Claim(rho=0.125),
        2.01134,
        "Canonne 2020",
        DELTA,
    ),
    Entry("Laplace of half the scale", laplace(0.5), COUNTS, ONE, 2.0, "sensitivity of half"),
    Entry("Laplace of 12 bits", few_bits, COUNTS, ONE, math.inf, "Mironov 2012", bar=8.0),
    Entry("not subsampled", subsampled(1.0), [(0, 1)], SUBSAMPLED, 1.0, "wrong rate"),
    Entry(
        "Gaussian of half the noise",
        gaussian(ANALYTIC_NOISE / 2),
        COUNTS,
        AT_DELTA,
        2.15468,
        "sensitivity of half",
        DELTA,
    ),
)
