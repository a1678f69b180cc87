"""Sums, counts and means as people program them, with the mistakes of dp-recorder's catalogue."""

import math
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpaudit_ray import Claim

from .entry import Entry, Release

RECORDER = "dp-recorder"
AUDITORIUM = "dp_auditorium"
ONE = Claim(epsilon=1.0)
SHARES = (0.0, 0.25, 0.5, 1.0)
ONE_MORE = [((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))]
LARGE_RECORD = [((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 3.0))]
CLASSES = [((0, 1, 1), (0, 1, 1, 2))]  # a class with one record
PUBLIC_RECORDS = 3  # beyond which records are counted


def shares() -> NDArray[np.float64]:
    """Returns the records whose neighbours have strange values."""
    return np.array(SHARES)


def noisy_count(data: Any, rng: Generator, n: int) -> Any:
    """Counts records."""
    return len(data) + rng.laplace(0, 1.0, n)


def noisy_sum(data: Any, rng: Generator, n: int) -> Any:
    """Sums values between 0 and 1, and takes a missing one for 0."""
    return np.clip(np.nan_to_num(data), 0, 1).sum() + rng.laplace(0, 1.0, n)


def sum_with_missing(data: Any, rng: Generator, n: int) -> Any:
    """Sums clipped values, but a missing one stays missing."""
    return np.clip(data, 0, 1).sum() + rng.laplace(0, 1.0, n)


def sum_of_raw(data: Any, rng: Generator, n: int) -> Any:
    """Sums values as they are, with noise for values between 0 and 1."""
    return np.sum(data) + rng.laplace(0, 1.0, n)


def count_and_sum(data: Any, rng: Generator, n: int) -> Any:
    """Spends all of ε on a count, and again on a sum."""
    truth = np.array([len(data), np.clip(data, 0, 1).sum()])
    return truth + rng.laplace(0, 1.0, (n, 2))


def classes_from_data(data: Any, rng: Generator, n: int) -> Any:
    """Counts the records of each class that the data have."""
    _, counts = np.unique(data, return_counts=True)
    return list(counts + rng.laplace(0, 1.0, (n, len(counts))))


def scale_from_data(data: Any, rng: Generator, n: int) -> Any:
    """Scales noise by how many records are not public, which may be none."""
    return np.sum(data) + rng.laplace(0, 1.0, n) * (len(data) - PUBLIC_RECORDS)


def mean_of_known_size(data: Any, rng: Generator, n: int) -> Any:
    """Averages values between 0 and 1 with noise for their number, which is a secret."""
    return np.mean(data) + rng.laplace(0, 1 / len(data), n)


def mean_of_noisy_size(data: Any, rng: Generator, n: int) -> Any:
    """Divides a noisy sum by a noisy count, each with half of ε."""
    total = np.sum(data) + rng.laplace(0, 2.0, n)
    return total / np.maximum(len(data) + rng.laplace(0, 2.0, n), 1)


def of_each_record(release: Release, limit: int) -> Release:
    """Releases a sum of at most so many records of a person."""

    def limited(data: Any, rng: Generator, n: int) -> Any:
        return release([value for person in data for value in person[:limit]], rng, n)

    return limited


PERSON = [(((0.5,), (0.5,)), ((0.5,), (0.5,), (1.0, 1.0)))]

ENTRIES = (
    Entry("count", noisy_count, ONE_MORE, ONE, 1.0, RECORDER),
    Entry("sum", noisy_sum, {"table": shares}, ONE, 1.0, RECORDER),
    Entry("mean of noisy size", mean_of_noisy_size, ONE_MORE, ONE, 1.0, AUDITORIUM),
    Entry(
        "sum with missing values",
        sum_with_missing,
        {"table": shares},
        ONE,
        math.inf,
        RECORDER,
        bar=9.0,
    ),
    Entry("sum of raw values", sum_of_raw, LARGE_RECORD, ONE, 3.0, RECORDER),
    Entry("count and sum", count_and_sum, ONE_MORE, ONE, 2.0, RECORDER),
    Entry("sum of two records each", of_each_record(sum_of_raw, 2), PERSON, ONE, 2.0, "PipelineDP"),
    Entry(
        "classes from data",
        classes_from_data,
        CLASSES,
        ONE,
        math.inf,
        RECORDER,
        bar=7.0,
        trials=100_000,
    ),
    Entry("noise scale from data", scale_from_data, ONE_MORE, ONE, math.inf, RECORDER, bar=9.0),
    Entry("mean of known size", mean_of_known_size, ONE_MORE, ONE, math.inf, AUDITORIUM, bar=2.0),
)
