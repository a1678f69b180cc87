"""Error rates and power of verdicts on stated claims: healthy mechanisms and broken twins.

Run it from the clone's root: `python -m jobs.studies.claims --audits 1000 --seed 1`. Each row is of
so many audits of a mechanism whose privacy loss is known; its trials are drawn at once.
"""

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit_ray import stats
from dpaudit_ray.accounting import Claim
from dpaudit_ray.report.detection import ALTERNATIVE, chance_to_refute
from dpaudit_ray.stats import gdp
from dpaudit_ray.stats.claim_verdict import ClaimTest

Members = NDArray[np.bool_]
Scores = NDArray[np.floating]
Draw = Callable[[Members, np.random.Generator], Scores]
LEVEL = 0.05
RATE = 0.3  # of subsampling
ITEMS = 5  # of noisy max and of the exponential mechanism


def laplace(scale: float = 1.0, change: float = 1.0) -> Draw:
    return lambda members, rng: np.asarray(change * members + rng.laplace(0, scale, len(members)))


def gaussian(noise: float) -> Draw:
    return lambda members, rng: np.asarray(members + noise * rng.normal(size=len(members)))


def response(epsilon: float) -> Draw:
    """A randomised response."""

    def draw(members: Members, rng: np.random.Generator) -> Scores:
        is_wrong = rng.random(len(members)) < 1 / (1 + np.exp(epsilon))
        return (members ^ is_wrong).astype(float)

    return draw


def discrete_laplace(members: Members, rng: np.random.Generator) -> Scores:
    share = 1 - np.exp(-1)
    noise = rng.geometric(share, len(members)) - rng.geometric(share, len(members))
    return np.asarray(members + noise.astype(float))


def exponential(members: Members, rng: np.random.Generator) -> Scores:
    """Chooses an item by its utility, which is 1 more for the first if the canary is in."""
    utility = np.zeros((len(members), ITEMS))
    utility[:, 0] = members
    return (np.argmax(utility / 2 + rng.gumbel(size=utility.shape), axis=1) == 0).astype(float)


def noisy_max(members: Members, rng: np.random.Generator) -> Scores:
    values = rng.laplace(0, 2.0, (len(members), ITEMS))
    values[:, 0] += members
    return (np.argmax(values, axis=1) == 0).astype(float)


def subsampled(members: Members, rng: np.random.Generator) -> Scores:
    return laplace()(members & (rng.random(len(members)) < RATE), rng)


def twice(members: Members, rng: np.random.Generator) -> Scores:
    return np.asarray(laplace()(members, rng) + laplace()(members, rng))


def from_data(members: Members, rng: np.random.Generator) -> Scores:
    """Laplace noise over a domain that is read from the data: a rare record shows itself."""
    scores = laplace()(members, rng)
    scores[members & (rng.random(len(members)) < 0.05)] = 1e6
    return scores


def one_seed(members: Members, rng: np.random.Generator) -> Scores:
    return np.asarray(members + 0.25)


@dataclass(frozen=True)
class Row:
    """A mechanism, its claim, δ of the audit, and its true ε there."""

    name: str
    draw: Draw
    claim: Claim
    delta: float
    truth: float


def _claim(**fields: Any) -> Claim:
    return Claim(**fields)


PURE = _claim(epsilon=1.0)
AT_DELTA = _claim(epsilon=1.0, delta=1e-5)
SIGMA = 1 / float(gdp.mu(1.0, 1e-5))
SUBSAMPLED = float(np.log1p(RATE * np.expm1(1.0)))
BEST_OF_ITEMS = float(np.log(np.exp(0.5) * ITEMS / (ITEMS - 1 + np.exp(0.5))))
HEALTHY = [
    Row("Laplace", laplace(), PURE, 0.0, 1.0),
    Row("Laplace at 1e-6", laplace(), _claim(epsilon=1.0, delta=1e-6), 1e-6, 1.0),
    Row("randomised response", response(1.0), PURE, 0.0, 1.0),
    Row("Gaussian by (ε, δ)", gaussian(SIGMA), AT_DELTA, 1e-5, 1.0),
    Row("discrete Laplace", discrete_laplace, PURE, 0.0, 1.0),
    Row("exponential mechanism", exponential, PURE, 0.0, BEST_OF_ITEMS),
    Row("noisy max", noisy_max, PURE, 0.0, 1.0),
    Row("subsampled Laplace", subsampled, _claim(epsilon=SUBSAMPLED), 0.0, SUBSAMPLED),
]
BROKEN = [
    Row("noise of scale .6", laplace(0.6), PURE, 0.0, 1 / 0.6),
    Row("budget spent twice", twice, PURE, 0.0, 2.0),
    Row("sensitivity of half", laplace(change=2.0), PURE, 0.0, 2.0),
    Row("domain from the data", from_data, PURE, 0.0, np.inf),
    Row("one seed", one_seed, PURE, 0.0, np.inf),
]
# Each with its mechanism at a multiple of the claimed noise.
POWER: list[tuple[Claim, Callable[[float], Draw]]] = [
    (PURE, lambda noise: response(1 / noise)),
    (_claim(laplace=1.0), laplace),
    (_claim(mu=0.5), lambda noise: gaussian(2 * noise)),
    (_claim(rho=0.125), lambda noise: gaussian(2 * noise)),
    (AT_DELTA, lambda noise: response(1 / noise)),
    (_claim(points=[[1.0, 1e-5], [1.2, 0.0]]), lambda noise: response(1 / noise)),
]


def test_of(claim: Claim, draw: Draw, trials: int, rng: np.random.Generator) -> ClaimTest:
    """Runs an audit of a claim and returns its test."""
    members = rng.random(trials) < 0.5
    curves = None if claim.worst_is_gaussian else lambda noise: claim.weakened(noise).curve
    test = ClaimTest(claim.curve, trials, curves)
    test.fold(draw(members, rng), members)
    test.look(now=True)
    return test


def row(entry: Row, audits: int, trials: int, rng: np.random.Generator) -> str:
    """Returns a row of the table: violations, bounds above the claim, certified over true ε."""
    refuted = []
    above = 0
    shares = []
    for _ in range(audits):
        members = rng.random(trials) < 0.5
        scores = entry.draw(members, rng)
        test = ClaimTest(entry.claim.curve, trials)
        test.fold(scores, members)
        test.look(now=True)
        after = test.refuted_after(LEVEL)
        judge = stats.make("one-run", trials, independent=True)
        judge.fold(scores, members)
        bound = judge.bound(entry.delta, 1 - LEVEL)
        if after is not None:
            refuted.append(after)
        above += bound.epsilon_lower > entry.claim.epsilon_at(entry.delta)
        shares.append(bound.epsilon_lower / entry.truth)
    needed = f"{np.median(refuted):.0f}" if refuted else "-"
    return f"| {entry.name} | {len(refuted)} | {above} | {np.median(shares):.2f} | {needed} |"


def say(line: str) -> None:
    """Prints a row as soon as it is known."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--said", type=int, default=60, help="audits whose chance is averaged")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--power", action="store_true", help="print the last table only")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    if not arguments.power:
        verdicts(arguments.audits, arguments.trials, rng)
    if arguments.said:
        power(arguments.said, arguments.audits, rng)


def verdicts(audits: int, trials: int, rng: np.random.Generator) -> None:
    """Prints the tables of healthy mechanisms and of broken twins."""
    say("| mechanism | violations | bounds above | certified / true | trials needed |")
    for entry in HEALTHY:
        say(row(entry, audits, trials, rng))
    for entry in BROKEN:
        say(row(entry, max(audits // 10, 1), trials, rng))


def power(printed: int, audits: int, rng: np.random.Generator) -> None:
    """Prints the chance that audits print to notice less noise, and the share that notices it."""
    say("| claim | trials | said | true |")
    for claim, mechanism in POWER:
        for trials in (200, 500, 1000):
            said = []
            for _ in range(printed):
                said.append(chance_to_refute(test_of(claim, mechanism(1.0), trials, rng), LEVEL))
            runs = max(audits // 5, 1)
            found = 0
            for _ in range(runs):
                test = test_of(claim, mechanism(ALTERNATIVE), trials, rng)
                found += test.refuted_after(LEVEL) is not None
            error = np.std(said) / math.sqrt(printed)
            share = found / runs
            said_mean = f"{np.mean(said):.2f} ± {error:.2f}"
            say(f"| {claim.words} | {trials} | {said_mean} | {share:.2f} |")


if __name__ == "__main__":
    main()
