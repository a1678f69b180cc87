"""Votes of teachers, rounds of federated averaging, and noise that is correlated over steps."""

import math
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.linalg import toeplitz

from dpaudit_ray import Claim

from .entry import Entry, Release

DELTA = 1e-5
PATE = "Papernot 2018"
KAIROUZ = "Kairouz 2021"
CHOQUETTE = "Choquette-Choo 2023"
FEDAVG = "McMahan 2018"
ADAPTIVE = "Andrew 2021"
VOTES = [((40, 39, 1, 0, 0), (39, 40, 1, 0, 0))]  # a teacher changes its vote
NOISE = 2.0
CLIENTS, COORDINATES = 10, 20
STEPS = 8
BANDS = 3
ROUND = Claim(mu=1 / NOISE)


def noisy_vote(laplace_scale: float = 0.0, gaussian_noise: float = 0.0) -> Release:
    """Releases the label with most votes, after noise."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        shape = (n, len(data))
        noise = rng.laplace(0, laplace_scale, shape) + rng.normal(0, gaussian_noise, shape)
        return (data + noise).argmax(axis=1)

    return release


def checked_vote(threshold: float) -> Release:
    """Releases the label of most votes itself if they are noisily above a threshold."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        is_sure = np.max(data) + rng.laplace(0, 1.0, n) > threshold
        return np.where(is_sure, np.argmax(data), -1)

    return release


def updates_of(canary: float) -> NDArray[np.float64]:
    """Returns the updates of clients, the last of which is the canary's, [clients, coordinates]."""
    updates = np.zeros((CLIENTS, COORDINATES))
    updates[:-1] = np.sin(np.arange((CLIENTS - 1) * COORDINATES)).reshape(CLIENTS - 1, -1) / 10
    updates[-1] = canary / math.sqrt(COORDINATES)
    return updates


def clipped(updates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Limits the norm of each update to 1."""
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    return updates / np.maximum(norms, 1)


def federated_round(noise: float, clips: bool = True) -> Release:
    """Releases the noisy mean of updates, with noise for a sum of clipped ones."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        total = clipped(data).sum(axis=0) if clips else data.sum(axis=0)
        return (total + rng.normal(0, noise, (n, COORDINATES))) / CLIENTS

    return release


def adaptive_round(count_noise: float) -> Release:
    """Releases a clipped sum, and how many norms are below 1, from which the next bound follows."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        total = clipped(data).sum(axis=0)
        below = np.sum(np.linalg.norm(data, axis=1) <= 1) - len(data) / 2  # moves by a half
        sums = total + rng.normal(0, NOISE, (n, COORDINATES))
        counts = below + rng.normal(0, count_noise, n)
        return np.column_stack([sums, counts])

    return release


def tree(noise: float) -> Release:
    """Releases the sum up to each step by nodes of a binary tree, each with its own noise."""

    def release(data: Any, rng: Generator, n: int) -> Any:
        totals = np.zeros((n, STEPS))
        size = 1
        while size <= STEPS:
            nodes = np.asarray(data).reshape(-1, size).sum(axis=1)
            noisy = nodes + rng.normal(0, noise, (n, len(nodes)))
            for step in range(1, STEPS + 1):
                if step & size:  # the node ends where larger ones do not reach
                    totals[:, step - 1] += noisy[:, step // size - 1]
            size *= 2
        return totals

    return release


def banded(noise: float) -> Release:
    """Adds noise that is correlated by the inverse of a banded matrix (Choquette-Choo 2023)."""
    band = np.where(np.arange(STEPS) < BANDS, 0.5 ** np.arange(STEPS), 0)
    correlation = np.linalg.inv(toeplitz(band, np.eye(STEPS)[0]))

    def release(data: Any, rng: Generator, n: int) -> Any:
        return data + rng.normal(0, noise, (n, STEPS)) @ correlation.T

    return release


FIRST_STEP = np.eye(STEPS)[0]
ROUNDS = [(updates_of(0.0), updates_of(1.0))]
LOUD_ROUNDS = [(updates_of(0.0), updates_of(3.0))]
STREAM = [(np.zeros(STEPS), FIRST_STEP)]
NODES = 4.0  # of the tree that contain the first step
SENSITIVITY = math.sqrt(1 + 1 / 4 + 1 / 16)  # of a step, by the columns of the banded matrix
BAND_CLAIM = Claim(mu=SENSITIVITY / NOISE)

EXACT = Claim(epsilon=1.0)
ADAPTIVE_CLAIM = Claim(mu=math.sqrt(1 / NOISE**2 + 1))
LARGE_UPDATE = [(updates_of(0.0), updates_of(2.0))]
TWICE_AT_ONCE = [(np.zeros(STEPS), np.eye(STEPS)[:2].sum(axis=0))]
TWICE_CLAIM = Claim(mu=math.sqrt(2) * SENSITIVITY / NOISE)
VOTE_CLAIM = Claim(mu=math.sqrt(2) / 4)

ENTRIES = (
    Entry("PATE, LNMax", noisy_vote(laplace_scale=2.0), VOTES, EXACT, 0.493448, PATE),
    Entry("PATE, GNMax", noisy_vote(gaussian_noise=4.0), VOTES, VOTE_CLAIM, 0.282479, PATE, DELTA),
    Entry("PATE, exact votes", checked_vote(39.0), VOTES, EXACT, math.inf, PATE, bar=9.0),
    Entry("FedAvg", federated_round(NOISE), ROUNDS, ROUND, 1.99309, FEDAVG, DELTA),
    Entry(
        "FedAvg, unclipped",
        federated_round(NOISE, clips=False),
        LOUD_ROUNDS,
        ROUND,
        7.05141,
        FEDAVG,
        DELTA,
    ),
    Entry(
        "FedAvg, updates reversed",
        federated_round(NOISE),
        [(updates_of(-1.0), updates_of(1.0))],
        ROUND,
        4.37718,
        "dp_auditorium",
        DELTA,
    ),
    Entry(
        "adaptive clipping",
        adaptive_round(1.0),
        LARGE_UPDATE,
        ADAPTIVE_CLAIM,
        4.98331,
        ADAPTIVE,
        DELTA,
    ),
    Entry(
        "adaptive clipping, exact count",
        adaptive_round(0.0),
        LARGE_UPDATE,
        ADAPTIVE_CLAIM,
        math.inf,
        ADAPTIVE,
        DELTA,
        bar=9.0,
    ),
    Entry(
        "tree aggregation",
        tree(NOISE),
        STREAM,
        Claim(mu=math.sqrt(NODES) / NOISE),
        4.37718,
        KAIROUZ,
        DELTA,
    ),
    Entry("tree, one node counted", tree(NOISE), STREAM, ROUND, 4.37718, KAIROUZ, DELTA),
    Entry("BandMF", banded(NOISE), STREAM, BAND_CLAIM, 2.32082, CHOQUETTE, DELTA),
    Entry(
        "BandMF, records too close",
        banded(NOISE),
        TWICE_AT_ONCE,
        TWICE_CLAIM,
        4.29751,
        CHOQUETTE,
        DELTA,
    ),
)
