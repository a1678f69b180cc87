"""Reports of one person each, noisy before they leave the device: local protocols."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from dpaudit_ray import Claim

from .entry import Entry, Release

WANG = "Wang 2017"
ARCOLEZI = "Arcolezi 2022"
RAPPOR = "DP-Sniper, RAPPOR"
VALUES = 8  # that a person may have
PAIR = [(0, 1)]
ONE = Claim(epsilon=1.0)
GREATEST = math.exp(1.0)  # ratio of probabilities at ε = 1
FILTER_BITS = 20
HASHES = 4  # bits that a value sets in the filter; those of both inputs differ


def one_hot(value: int, bits: int = VALUES) -> NDArray[np.bool_]:
    """Encodes a value by one bit of several."""
    return np.arange(bits) == value


def generalised_response(truthful: float) -> Release:
    """Reports the value with a probability, and else any other one (GRR)."""

    def release(data: int, rng: Generator, n: int) -> Any:
        other = (data + rng.integers(1, VALUES, n)) % VALUES
        return np.where(rng.random(n) < truthful, data, other)

    return release


@dataclass(frozen=True)
class BitFlips:
    """Reports every bit of an encoded value, one with other probabilities than zero.

    Attributes:
        one: probability that a one is reported as one.
        zero: probability that a zero is reported as one.
    """

    one: float
    zero: float

    def noisy(self, bits: NDArray[np.bool_], rng: Generator) -> NDArray[np.bool_]:
        """Returns noisy bits."""
        return rng.random(bits.shape) < np.where(bits, self.one, self.zero)

    def __call__(self, data: int, rng: Generator, n: int) -> Any:
        """Reports a value that is encoded by one bit."""
        return self.noisy(np.tile(one_hot(data), (n, 1)), rng)


def hashed_response(cells: int, truthful: float) -> Release:
    """Reports a random hash function, and a noisy hash of the value (BLH with two cells; OLH).

    Values have independent hashes. Of the hash function, the hashes of all values are released.
    """

    def release(data: int, rng: Generator, n: int) -> Any:
        hashes = rng.integers(cells, size=(n, VALUES))
        other = (hashes[:, data] + rng.integers(1, cells, n)) % cells
        report = np.where(rng.random(n) < truthful, hashes[:, data], other)
        return np.column_stack([hashes == report[:, None]])

    return release


def subset(size: int, included: float) -> Release:
    """Reports a set of values that has the true one with a probability (SS, Ye 2018)."""

    def release(data: int, rng: Generator, n: int) -> Any:
        is_included = rng.random(n) < included
        others = rng.permuted(np.tile(np.arange(VALUES - 1), (n, 1)), axis=1)
        chosen = others < (size - is_included)[:, None]
        return np.insert(chosen, data, is_included, axis=1)

    return release


def histogram(threshold: float | None, scale: float) -> Release:
    """Reports noisy cells, or which of them are above a threshold (SHE; THE)."""

    def release(data: int, rng: Generator, n: int) -> Any:
        noisy = one_hot(data) + rng.laplace(0, scale, (n, VALUES))
        return noisy if threshold is None else noisy > threshold

    return release


def rappor(permanent: float, instantaneous: BitFlips | None, reports: int = 1) -> Release:
    """Reports a filter's bits: kept for ever as noisy ones, and noisier in each report.

    Args:
        permanent: share of the bits that are replaced by fair coins.
        instantaneous: noise of each report; None to report the permanent bits.
        reports: number of reports of the same permanent bits.
    """
    kept = BitFlips(1 - permanent / 2, permanent / 2)

    def release(data: int, rng: Generator, n: int) -> Any:
        positions = np.arange(FILTER_BITS) // HASHES
        bits = kept.noisy(np.tile(positions == data, (n, 1)), rng)
        if instantaneous is None:
            return bits
        return np.concatenate([instantaneous.noisy(bits, rng) for _ in range(reports)], axis=1)

    return release


def longitudinal_response(permanent: float, truthful: float, reports: int) -> Release:
    """Reports a permanent noisy value several times, each time noisier (L-GRR, Arcolezi 2022)."""
    kept = generalised_response(permanent)

    def release(data: int, rng: Generator, n: int) -> Any:
        values = kept(data, rng, n)[:, None]
        others = (values + rng.integers(1, VALUES, (n, reports))) % VALUES
        return np.where(rng.random((n, reports)) < truthful, values, others)

    return release


def response_rate(epsilon: float, values: int = VALUES) -> float:
    """Returns the probability of the true value in a generalised response."""
    return math.exp(epsilon) / (math.exp(epsilon) + values - 1)


HALF = math.exp(0.5)
SYMMETRIC = BitFlips(HALF / (HALF + 1), 1 / (HALF + 1))
OPTIMISED = BitFlips(0.5, 1 / (GREATEST + 1))
INSTANTANEOUS = BitFlips(0.55, 0.45)
FIRST = Claim(epsilon=0.4001)
SET_SIZE = 2  # optimal for eight values and ε = 1
SET_ODDS = SET_SIZE * GREATEST
INCLUDED = SET_ODDS / (SET_ODDS + VALUES - SET_SIZE)
# The weights of twenty bits are small, and need many runs to be known.
LARGE_FIT = {"fit": 1_000_000, "model": "LogisticRegression"}
REPEATED = longitudinal_response(response_rate(2.0), 0.7, 3)

ENTRIES = (
    Entry("GRR", generalised_response(response_rate(1.0)), PAIR, ONE, 1.0, WANG),
    Entry("SUE", SYMMETRIC, PAIR, ONE, 1.0, WANG),
    Entry("OUE", OPTIMISED, PAIR, ONE, 1.0, WANG),
    Entry("BLH", hashed_response(2, response_rate(1.0, 2)), PAIR, ONE, 1.0, WANG),
    Entry("OLH", hashed_response(4, response_rate(1.0, 4)), PAIR, ONE, 1.0, WANG),
    Entry("SS", subset(SET_SIZE, INCLUDED), PAIR, ONE, 1.0, "Ye, Barg 2018"),
    Entry("SHE", histogram(None, 2.0), PAIR, ONE, 1.0, WANG),
    Entry("THE", histogram(0.75, 2.0), PAIR, ONE, 0.883191, WANG),
    Entry(
        "RAPPOR",
        rappor(0.75, INSTANTANEOUS),
        PAIR,
        FIRST,
        0.400083,
        RAPPOR,
        trials=4_000_000,
        options=LARGE_FIT,
    ),
    Entry(
        "OneTimeRAPPOR",
        rappor(0.95, None),
        PAIR,
        Claim(epsilon=0.8007),
        0.800667,
        RAPPOR,
        trials=2_000_000,
        options=LARGE_FIT,
    ),
    Entry("L-GRR", REPEATED, PAIR, Claim(epsilon=2.0), 1.99715, ARCOLEZI),
    Entry("RAPPOR, three reports", rappor(0.75, INSTANTANEOUS, 3), PAIR, FIRST, 1.17102, RAPPOR),
    Entry("L-GRR by its first report", REPEATED, PAIR, ONE, 1.99715, ARCOLEZI),
    Entry(
        "GRR of a smaller domain",
        generalised_response(response_rate(1.0, VALUES // 2)),
        PAIR,
        ONE,
        1.8473,
        "domain of half",
    ),
    Entry(
        "UE with all of ε for each bit",
        BitFlips(GREATEST / (GREATEST + 1), 1 / (GREATEST + 1)),
        PAIR,
        ONE,
        2.0,
        "a factor 2 forgotten",
    ),
    Entry("SS of a smaller set", subset(1, INCLUDED), PAIR, ONE, 1.8473, "size of another ε"),
)
