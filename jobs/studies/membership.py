"""Misses and widths of intervals of membership: `python -m jobs.studies.membership`.

A study draws a matrix of scores of training runs whose law is known, and compares each interval
with the truth of that law. Prints a row for each law and number of training runs: misses of the TPR
at FPRs of 10 % and 1 %, of the AUC and of balanced accuracy, and mean widths of the intervals.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from dpaudit_ray.stats.membership import Membership

Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]
# Adds to standard normal noise [runs, records] what a law shows of the bits, in place of the noise
# if scores of a run depend on each other.
Scores = Callable[[np.random.Generator, Floats, Bits], Floats]
RATES = (0.1, 0.01)
RECORDS = 60
SHIFT = 1.0  # of members, in standard deviations of the noise
_LOST = -60.0  # mean of scores that are below all others
_FOUND = 60.0
_CONFIDENCE = 0.95


def fair(rng: np.random.Generator, shape: tuple[int, int]) -> Bits:
    """Has each record in with probability 1/2."""
    return np.asarray(rng.random(shape) < 0.5)


@dataclasses.dataclass(frozen=True)
class Law:
    """A law of scores, and its marginals: equally likely means of Gaussians of variance 1.

    Attributes:
        scores: draws scores.
        inside: means of members' scores [any].
        outside: means of others' scores [any].
        rounded: whether scores are rounded to whole numbers.
        bits: draws who is a member, by generator and shape.
    """

    scores: Scores
    inside: Floats
    outside: Floats = dataclasses.field(default_factory=lambda: np.zeros(1))
    rounded: bool = False
    bits: Callable[[np.random.Generator, tuple[int, int]], Bits] = fair

    def above(self, means: Floats, threshold: float) -> float:
        """Computes the chance of a score above a threshold."""
        if self.rounded:
            threshold = np.floor(threshold) + 0.5
        return float(special.ndtr(means - threshold).mean())

    def true_positive_rates(self, fpr: float) -> tuple[float, float]:
        """Computes the TPR without tied scores at the threshold, and with some up to the FPR."""
        if not self.rounded:
            span = -2 * _FOUND, 2 * _FOUND
            threshold = optimize.brentq(lambda t: self.above(self.outside, t) - fpr, *span)
            rate = self.above(self.inside, threshold)
            return rate, rate
        threshold = next(t for t in range(-100, 100) if self.above(self.outside, t) <= fpr)
        least = self.above(self.outside, threshold)
        more = self.above(self.outside, threshold - 1)
        without = self.above(self.inside, threshold)
        with_all = self.above(self.inside, threshold - 1)
        share = (fpr - least) / (more - least)
        return without, without + share * (with_all - without)

    @property
    def auc(self) -> float:
        """Computes the chance that a member scores above another of another training run."""
        if not self.rounded:
            gaps = self.inside[:, None] - self.outside
            return float(special.ndtr(gaps / np.sqrt(2)).mean())
        values = np.arange(-100, 101)
        above = np.array([self.above(self.inside, t) for t in values])
        others = np.array([self.above(self.outside, t) for t in values])
        chances = -np.diff(others, prepend=1.0)
        return float(chances @ (above + np.concatenate([[1.0], above[:-1]])) / 2)

    def balanced_accuracy(self, threshold: float) -> float:
        """Computes (TPR + 1 - FPR) / 2 at a threshold."""
        tpr = self.above(self.inside, threshold)
        fpr = self.above(self.outside, threshold)
        return (tpr + 1 - fpr) / 2


def alike(rng: np.random.Generator, noise: Floats, bits: Bits) -> Floats:
    """Shifts all members."""
    return noise + SHIFT * bits


def leaking(chance: float) -> Scores:
    """Returns scores by which a training run finds all its members with a chance, else none."""

    def scores(rng: np.random.Generator, noise: Floats, bits: Bits) -> Floats:
        leaks = rng.random((len(noise), 1)) < chance
        return np.where(leaks & bits, noise + _FOUND, noise)

    return scores


def in_common(rng: np.random.Generator, noise: Floats, bits: Bits) -> Floats:
    """Shares half of the noise's variance in each training run."""
    shared = rng.standard_normal((len(noise), 1))
    return np.asarray((noise + shared) / np.sqrt(2) + SHIFT * bits)


def skewed(rng: np.random.Generator, noise: Floats, bits: Bits) -> Floats:
    """Shifts all scores of a training run by the square of a log-normal number."""
    return np.asarray(noise + np.exp(2 * rng.standard_normal((len(noise), 1))) + SHIFT * bits)


def outlying(rng: np.random.Generator, noise: Floats, bits: Bits) -> Floats:
    """Shifts the non-members of one training run of twenty above most members."""
    outliers = rng.random((len(noise), 1)) < 0.05
    return noise + np.where(bits, SHIFT, 3.0 * outliers)


def diverging(rng: np.random.Generator, noise: Floats, bits: Bits) -> Floats:
    """Gives members of one training run of ten no score."""
    diverged = rng.random((len(noise), 1)) < 0.1
    return np.where(diverged & bits, np.nan, noise + SHIFT * bits)


def uneven(rng: np.random.Generator, shape: tuple[int, int]) -> Bits:
    """Has members in one record of twenty of a training run, or in all but one of twenty."""
    chances = np.where(rng.random((shape[0], 1)) < 0.5, 0.05, 0.95)
    return np.asarray(rng.random(shape) < chances)


def halves(rng: np.random.Generator, shape: tuple[int, int]) -> Bits:
    """Has members in exactly half of the records, or of the training runs if they have one."""
    runs, records = shape
    if records == 1:
        return np.asarray(rng.permutation(runs)[:, None] % 2 == 0)
    places = rng.permuted(np.tile(np.arange(records), (runs, 1)), axis=1)
    return np.asarray(places % 2 == 0)


def _means(*counted: tuple[float, int]) -> Floats:
    """Returns each mean, repeated by its count."""
    means, counts = zip(*counted, strict=True)
    return np.repeat(np.array(means, np.float64), counts)


# Quantiles of the skewed shift: the marginal law is their mixture, to four digits.
_SKEWED = np.exp(2 * special.ndtri((np.arange(2000) + 0.5) / 2000))
_MEMBERS = np.array([SHIFT])
LAWS = {
    "all alike": Law(alike, _MEMBERS),
    "one run of 20 leaks": Law(leaking(0.05), _means((0, 19), (_FOUND, 1))),
    "one run of 4 leaks": Law(leaking(0.25), _means((0, 3), (_FOUND, 1))),
    "shift in common": Law(in_common, _MEMBERS),
    "the same, half in": Law(in_common, _MEMBERS, bits=halves),
    "skewed shift in common": Law(skewed, _SKEWED + SHIFT, _SKEWED),
    "ties": Law(lambda *given: np.round(alike(*given)), _MEMBERS, rounded=True),
    "one run of 20 has outlying non-members": Law(outlying, _MEMBERS, _means((0, 19), (3, 1))),
    "members diverge in one run of 10": Law(diverging, _means((SHIFT, 9), (_LOST, 1))),
    "5 % or 95 % of a run are members": Law(alike, _MEMBERS, bits=uneven),
}


def cell(name: str, runs: int, records: int, studies: int, seed: int) -> tuple[Floats, Floats]:
    """Counts misses and averages widths of all studies: each [TPR, TPR, AUC, accuracy]."""
    law = LAWS[name]
    rng = np.random.default_rng([seed, list(LAWS).index(name), runs, records])
    misses, widths = np.zeros((2, len(RATES) + 2))
    truths = [*(law.true_positive_rates(fpr) for fpr in RATES), (law.auc,)]
    done = 0
    while done < studies:
        bits = law.bits(rng, (runs, records))
        scores = law.scores(rng, rng.standard_normal(bits.shape), bits)
        if bits.all() or not bits.any():
            continue  # there is no interval
        found = Membership(scores, bits)
        rates = [found.true_positive_rate(fpr) for fpr in RATES]
        threshold = found.fitted_threshold
        accuracy = () if threshold is None else (law.balanced_accuracy(threshold),)
        for number, (interval, numbers) in enumerate(
            zip([*rates, found.auc, found.balanced_accuracy], [*truths, accuracy], strict=True)
        ):
            covers = [interval.low - 1e-9 <= truth <= interval.high + 1e-9 for truth in numbers]
            misses[number] += not all(covers)
            widths[number] += (interval.high - interval.low) / studies
        done += 1
    return misses, widths


def main(studies: int, seed: int, names: list[str]) -> None:
    """Prints the table, by two processes."""
    shapes = [(4, RECORDS), (20, RECORDS), (100, RECORDS), (100, 1), (400, 1)]
    cells = [(name, *shape) for name, shape in itertools.product(names, shapes)]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        results = [pool.submit(cell, *key, studies, seed) for key in cells]
        titles = "TPR .1 | TPR .01 | AUC | bal. acc."
        lines = [f"| {studies} studies | runs x records | misses: {titles} | widths: {titles} |"]
        lines.append("| --- | --- |" + " --- |" * 8)
        for (name, runs, records), result in zip(cells, results, strict=True):
            misses, widths = result.result()
            shares = " | ".join(f"{100 * miss / studies:.1f} %" for miss in misses)
            numbers = " | ".join(f"{width:.3f}" for width in widths)
            lines.append(f"| {name} | {runs} x {records} | {shares} | {numbers} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m jobs.studies.membership", description=__doc__)
    parser.add_argument("--studies", type=int, default=1000, help="of each law and size")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("laws", nargs="*", default=list(LAWS), help="names of laws; all if none")
    given = parser.parse_args()
    main(given.studies, given.seed, given.laws)
