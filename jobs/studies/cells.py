"""Error rates of a bound, on mechanisms whose privacy loss is known exactly.

`python -m jobs.studies.cells ESTIMATOR [AUDITS [PAIRS [KIND...]]]` prints a table: a row for what
is done to scores (each of `KINDS`, if none is named), a column for each true ε at δ = 1e-5, and in
each cell the share of audits whose bound lies above the truth (nominal: 5 %) and the median bound.
Two trainings of a pair share noise for `paired`; for other estimators each is a trial of its own.
Seeds are fixed: the row's and column's numbers.
"""

from __future__ import annotations

import math
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import numpy.typing as npt
from scipy import special

from dpaudit_ray import stats
from dpaudit_ray.stats import gdp

DELTA, CONFIDENCE = 1e-5, 0.95
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
LOOKS = 10
Floats = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]


def gaussian(shared: float) -> Callable[[np.random.Generator, Bits, float], Floats]:
    """Gaussian steps; the two of a pair share so much of the noise's variance."""

    def scores(rng: np.random.Generator, bits: Bits, epsilon: float) -> Floats:
        common = math.sqrt(shared) * rng.normal(size=(len(bits), 1))
        noise = common + math.sqrt(1 - shared) * rng.normal(size=bits.shape)
        return np.asarray(noise + float(gdp.mu(epsilon, DELTA)) * bits)

    return scores


def responses(rng: np.random.Generator, bits: Bits, epsilon: float) -> Floats:
    """Randomised response, by one coin for both, times a cubed Cauchy variable of each."""
    wrong = rng.random((len(bits), 1)) > 1 / (1 + math.exp(-epsilon))
    return np.asarray(
        np.where(bits ^ wrong, 1.0, -1.0) * np.abs(rng.standard_cauchy(bits.shape)) ** 3
    )


def diverging(rng: np.random.Generator, bits: Bits, epsilon: float) -> Floats:
    """Half of the variance is shared, and one training in twenty diverges."""
    scores = gaussian(0.5)(rng, bits, epsilon)
    return np.where(rng.random(bits.shape) < 0.05, math.nan, scores)


KINDS: dict[str, Callable[[np.random.Generator, Bits, float], Floats]] = {
    "all noise shared": gaussian(1.0),
    "all shared, the best of 10 looks": gaussian(1.0),
    "the best of 10 looks": gaussian(0.0),
    ".9 of the variance shared": gaussian(0.9),
    "noise of its own": gaussian(0.0),
    "tied: rounded to halves": lambda *of: np.round(2 * gaussian(0.9)(*of)) / 2,
    "reversed": lambda *of: -gaussian(0.9)(*of),
    "cubed": lambda *of: gaussian(0.0)(*of) ** 3,
    "-exp(2z)": lambda *of: -np.exp(2 * gaussian(0.0)(*of)),
    "5 % diverge": diverging,
    "randomised response × Cauchy³": responses,
    "Cauchy tails": lambda *of: np.tan(np.pi * (special.ndtr(gaussian(0.0)(*of)) - 0.5)),
}


def rows(estimator: str) -> list[str]:
    """Returns the kinds of mechanisms that an estimator applies to."""
    method = stats.estimators()[estimator]
    kinds = [kind for kind in KINDS if method.by_pair or "shared" not in kind]
    kinds = [kind for kind in kinds if method.interim_valid or "looks" not in kind]
    through_curve = "curve" in stats.option_names(method)
    return [kind for kind in kinds if through_curve or KINDS[kind] is not responses]


def cell(estimator: str, kind: str, epsilon: float, audits: int, pairs: int) -> tuple[float, float]:
    """The share of audits that are wrong, and their median ε."""
    place = [list(KINDS).index(kind), EPSILONS.index(epsilon)]
    rng, wrong, shown = np.random.default_rng(place), 0, []
    by_pair = stats.estimators()[estimator].by_pair
    options = {"curve": "any"} if KINDS[kind] is responses else {}
    looks = LOOKS if "looks" in kind else 1
    for _ in range(audits):
        bits = rng.random((pairs if by_pair else 2 * pairs, 1)) < 0.5
        if by_pair:
            bits = np.concatenate([bits, ~bits], axis=1)
        scores = KINDS[kind](rng, bits, epsilon)
        state, best = stats.make(estimator, 2 * pairs, **options), 0.0
        for part in np.array_split(np.arange(len(bits)), looks):
            state.fold(scores[part].ravel(), bits[part].ravel())
            best = max(best, state.bound(DELTA, CONFIDENCE).epsilon_lower)
        wrong += best > epsilon
        shown.append(best)
    return wrong / audits, float(np.median(shown))


def main(estimator: str, audits: int = 10_000, pairs: int = 100, named: Sequence[str] = ()) -> None:
    """All cells, two at a time."""
    kinds = [kind for kind in rows(estimator) if not named or kind in named]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, context) as pool:
        cells = [
            [pool.submit(cell, estimator, kind, epsilon, audits, pairs) for epsilon in EPSILONS]
            for kind in kinds
        ]
        columns = " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS)
        lines = [
            f"| `{estimator}`, {audits:,} audits of {2 * pairs} trials | {columns} |",
            "| --- |" + " --- |" * len(EPSILONS),
        ]
        for kind, of_kind in zip(kinds, cells, strict=True):
            drawn = [done.result() for done in of_kind]
            shares = " | ".join(f"{100 * share:.2f} %, {median:.2f}" for share, median in drawn)
            lines.append(f"| {kind} | {shares} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]), named=sys.argv[4:])
