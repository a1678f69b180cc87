"""Error rate of the bound by order statistics, on canaries whose privacy loss is known.

`python -m jobs.studies.order_statistics [AUDITS]` prints a table: a row for what is done to scores
and how many canaries there are, a column for each true ε at δ = 1e-5, and in each cell the share of
audits whose bound lies above the truth (nominal: 5 %) and the median bound. Every audit is one
training. Seeds are fixed: row, column and number of canaries.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import numpy.typing as npt
from scipy import special

from dpaudit_ray.stats import gdp
from dpaudit_ray.stats.one_run import balanced, hits_of
from dpaudit_ray.stats.one_run_fdp import SHARE, gaussian_mu

DELTA, CONFIDENCE = 1e-5, 0.95
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
CANARIES = (200, 1000, 5000)
STEPS = 5
_AT_ONCE = 1_000_000  # scores that are drawn together
Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]
World = Callable[[np.random.Generator, Bits, float], Floats]


def apart(rng: np.random.Generator, bits: Bits, mu: float) -> Floats:
    """Each canary by itself: scores [audits, canaries] of bits."""
    return mu * bits + rng.standard_normal(bits.shape)


def training(rng: np.random.Generator, bits: Bits, mu: float) -> Floats:
    """Sums of all steps, in which are gradients of records that follow the model so far.

    A record's part at a canary's parameter grows with what was shown of its neighbour, and with
    what all have in common.
    """
    theta = np.zeros(bits.shape)
    for _ in range(STEPS):
        others = np.tanh(np.roll(theta, 1, axis=1)) + np.tanh(3 * theta.mean(1, keepdims=True))
        theta += others + mu / math.sqrt(STEPS) * bits + rng.standard_normal(bits.shape)
    return theta


def drifting(rng: np.random.Generator, bits: Bits, mu: float) -> Floats:
    """Draws scores to which each training run adds one number."""
    return apart(rng, bits, mu) + 3 * rng.standard_normal((len(bits), 1))


def diverging(rng: np.random.Generator, bits: Bits, mu: float) -> Floats:
    """One canary in twenty has no score."""
    return np.where(rng.random(bits.shape) < 0.05, math.nan, apart(rng, bits, mu))


def heavy(rng: np.random.Generator, bits: Bits, mu: float) -> Floats:
    """A monotone map that gives scores Cauchy tails, cubed."""
    return np.asarray(np.tan(math.pi * (special.ndtr(apart(rng, bits, mu)) - 0.5)) ** 3)


def responses(rng: np.random.Generator, bits: Bits, mu: float) -> Floats:
    """Randomised response that is μ-GDP and no less, times a cubed Cauchy variable."""
    right = rng.random(bits.shape) < special.ndtr(mu / 2)
    return np.where(bits == right, 1.0, -1.0) * np.abs(rng.standard_cauchy(bits.shape)) ** 3


def together(rng: np.random.Generator, bits: Bits, mu: float) -> Floats:
    """Draws scores that the bound does not cover: twenty canaries in a row have the same noise."""
    noise = rng.standard_normal((len(bits), bits.shape[1] // 20))
    return np.asarray(mu * bits + np.repeat(noise, 20, axis=1))


KINDS: dict[str, World] = {
    "canaries apart": apart,
    "a training: others' gradients left in": training,
    "the same drift in all scores": drifting,
    "tied: rounded to whole numbers": lambda *of: np.round(apart(*of)),
    "reversed": lambda *of: -apart(*of),
    "5 % without a score": diverging,
    "Cauchy tails": heavy,
    "randomised response × Cauchy³": responses,
    "not covered: twenty share their noise": together,
}


@functools.cache
def lower(right: int, guesses: int, canaries: int) -> float:
    """The bound on ε that `order-statistics` gives with the option `guesses`."""
    return float(gdp.epsilon(gaussian_mu(right, guesses, canaries, CONFIDENCE), DELTA))


def rights(scores: Floats, bits: Bits, guesses: int) -> npt.NDArray[np.int64]:
    """Counts correct guesses as `hits_of` does, for all audits at once, int64 [audits]."""
    if np.isnan(scores).any():
        counted = [
            hits_of(row, inside, *balanced(row, guesses))[0]
            for row, inside in zip(scores, bits, strict=True)
        ]
        return np.array(counted)
    above, below = (guesses + 1) // 2, guesses // 2
    order = np.argpartition(scores, [below - 1, scores.shape[1] - above], axis=1)
    said_out = np.take_along_axis(bits, order[:, :below], axis=1)
    said_in = np.take_along_axis(bits, order[:, scores.shape[1] - above :], axis=1)
    return np.asarray(said_in.sum(axis=1) + (~said_out).sum(axis=1))


def cell(row: int, column: int, canaries: int, audits: int) -> tuple[float, float]:
    """The share of audits that are wrong, and their median ε."""
    world, epsilon = list(KINDS.values())[row], EPSILONS[column]
    mu, rng = float(gdp.mu(epsilon, DELTA)), np.random.default_rng([row, column, canaries])
    guesses, counts = math.ceil(SHARE * canaries), []
    for batch in np.array_split(np.arange(audits), -(-audits * canaries // _AT_ONCE)):
        bits = rng.random((len(batch), canaries)) < 0.5
        counts.append(rights(world(rng, bits, mu), bits, guesses))
    right = np.sort(np.concatenate(counts))
    low, high = 0, audits  # a bound rises with its count, so few have to be computed
    while low < high:
        middle = (low + high) // 2
        above = lower(int(right[middle]), guesses, canaries) > epsilon
        low, high = (low, middle) if above else (middle + 1, high)
    return 1 - low / audits, lower(int(right[audits // 2]), guesses, canaries)


def main(audits: int = 10_000) -> None:
    """All cells, two at a time."""
    rows = [(row, canaries) for row in range(len(KINDS)) for canaries in CANARIES]
    places = [(row, column, n) for row, n in rows for column in range(len(EPSILONS))]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        cells = [pool.submit(cell, *place, audits) for place in places]
        found = [done.result() for done in cells]
    columns = " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS)
    lines = [f"| {audits:,} audits | canaries | {columns} |", "| --- | --- |" + " --- |" * 5]
    for number, (row, canaries) in enumerate(rows):
        of_row = found[len(EPSILONS) * number : len(EPSILONS) * (number + 1)]
        shares = " | ".join(f"{100 * share:.2f} %, {median:.2f}" for share, median in of_row)
        lines.append(f"| {list(KINDS)[row]} | {canaries} | {shares} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
