"""Choosing the largest of noisy answers, and selection by exponential weights."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpaudit_ray import Claim

from .entry import Entry, Release

Draw = Callable[[Generator, tuple[int, int]], NDArray[np.float64]]
STATDP = "DP-Sniper, StatDP"
ANSWERS = {"vectors": 5}
TENTH = Claim(epsilon=0.1)
ONE = Claim(epsilon=1.0)
MEDIAN = [((0, 1, 1, 2, 3), (1, 1, 2, 3, 3))]  # a record of 0 becomes 3


def laplace(scale: float) -> Draw:
    """Draws Laplace noise."""
    return lambda rng, shape: rng.laplace(0, scale, shape)


def exponential(scale: float) -> Draw:
    """Draws noise that is never below 0."""
    return lambda rng, shape: rng.exponential(scale, shape)


def gumbel(scale: float) -> Draw:
    """Draws the noise that makes a noisy maximum an exponential mechanism."""
    return lambda rng, shape: rng.gumbel(0, scale, shape)


def index_of_largest(noise: Draw) -> Release:
    """Releases which of the noisy answers is the largest."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        return (data + noise(rng, (n, len(data)))).argmax(axis=1)

    return release


def largest(noise: Draw) -> Release:
    """Releases the largest noisy answer itself, for which there is no budget."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        return (data + noise(rng, (n, len(data)))).max(axis=1)

    return release


def index_and_gap(noise: Draw) -> Release:
    """Releases which noisy answer is the largest, and by how much (Ding 2019, for free)."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        noisy = data + noise(rng, (n, len(data)))
        rising = np.sort(noisy, axis=1)
        return np.column_stack([noisy.argmax(axis=1), rising[:, -1] - rising[:, -2]])

    return release


def permute_and_flip(epsilon: float) -> Release:
    """Accepts candidates in a random order, by a coin for each (McKenna, Sheldon 2020)."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        scores = np.asarray(data)
        accept = np.exp(epsilon / 2 * (scores - scores.max()))
        order = rng.permuted(np.tile(np.arange(len(scores)), (n, 1)), axis=1)
        is_accepted = rng.random((n, len(scores))) < accept[order]
        return order[np.arange(n), is_accepted.argmax(axis=1)]

    return release


def exponential_median(epsilon: float) -> Release:
    """Selects a median by how many records are on either side."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        records = np.asarray(data)
        values = np.arange(5)
        below = (records[:, None] < values).sum(axis=0)
        above = (records[:, None] > values).sum(axis=0)
        weights = np.exp(-epsilon / 2 * np.abs(above - below) / 2)
        return rng.choice(values, size=n, p=weights / weights.sum())

    return release


ENTRIES = (
    Entry(
        "RNM1", index_of_largest(laplace(20.0)), ANSWERS, TENTH, 0.0946149, STATDP, trials=4_000_000
    ),
    Entry(
        "RNM2", index_of_largest(exponential(20.0)), ANSWERS, TENTH, 0.1, STATDP, trials=4_000_000
    ),
    Entry("RNM3", largest(laplace(20.0)), ANSWERS, TENTH, 0.25, STATDP, trials=60_000_000),
    Entry(
        "RNM4",
        largest(exponential(20.0)),
        ANSWERS,
        TENTH,
        math.inf,
        STATDP,
        bar=1.0,
        trials=10_000_000,
    ),
    Entry("NoisyMax", index_of_largest(gumbel(2.0)), ANSWERS, ONE, 0.86484, "dp_auditorium"),
    Entry("exponential median", exponential_median(1.0), MEDIAN, ONE, 0.544734, "McSherry 2007"),
    Entry("permute and flip", permute_and_flip(1.0), ANSWERS, ONE, 1.0, "McKenna 2020"),
    Entry("noisy max with gap", index_and_gap(laplace(2.0)), ANSWERS, ONE, 1.0, "Ding 2019"),
    Entry(
        "NoisyMax of half the scale",
        index_of_largest(gumbel(1.0)),
        ANSWERS,
        ONE,
        1.81013,
        "a factor 2 forgotten",
    ),
    Entry(
        "permute and flip of half the scale",
        permute_and_flip(2.0),
        ANSWERS,
        ONE,
        2.0,
        "a factor 2 forgotten",
    ),
)
