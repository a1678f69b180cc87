"""Error rates of verdicts on honest releases, and how much of their true ε is certified.

Run it from the clone's root: `python -m jobs.studies.releases --runs 1000 --seed 1`. In each run a
classifier learns from outputs of its own, and its scores of the trials are judged as an audit by
`mechanism: release` judges them; nothing is stored. With `--known`, an output's score is its true
log likelihood ratio: of all scores it shows the most, and it costs no learning. All mechanisms take
turns, so the table that is printed when `--minutes` have passed has as many runs of each.
"""

import argparse
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.integrate import quad
from scipy.stats import laplace as laplace_law

from dpaudit_ray import audit, stats
from dpaudit_ray.accounting import Claim
from dpaudit_ray.adversaries.learned import Learned
from dpaudit_ray.adversaries.log_ratio import LogRatio
from dpaudit_ray.mechanisms.release.mechanism import Release
from dpaudit_ray.stats import gdp
from dpaudit_ray.stats.claim_verdict import ClaimTest
from dpaudit_ray.stats.error_rates import Floats

Draws = Callable[[Any, Generator, int], Any]
LEVEL = 0.05
RATE = 0.3  # of subsampling
DELTA = 1e-6
SIGMA = 1 / float(gdp.mu(1.0, DELTA))
ANSWERS = (np.zeros(3), np.array([1.0, 0.0, 0.0]))  # a record changes the first by 1
COUNTS = (0.0, 1.0)


def laplace(data: Any, rng: Generator, n: int) -> Any:
    return data + rng.laplace(0, 1.0, n)


def response(data: Any, rng: Generator, n: int) -> Any:
    lies = rng.random(n) < 1 / (1 + math.e)
    return np.where(lies, 1 - data, data)


def gaussian(data: Any, rng: Generator, n: int) -> Any:
    return data + SIGMA * rng.normal(size=n)


def discrete_laplace(data: Any, rng: Generator, n: int) -> Any:
    share = 1 - math.exp(-1)
    return data + rng.geometric(share, n) - rng.geometric(share, n)


def exponential(data: Any, rng: Generator, n: int) -> Any:
    """Chooses an item by half of its utility."""
    return (data / 2 + rng.gumbel(size=(n, len(data)))).argmax(axis=1)


def noisy_max(data: Any, rng: Generator, n: int) -> Any:
    return (data + rng.laplace(0, 2.0, (n, len(data)))).argmax(axis=1)


def subsampled(data: Any, rng: Generator, n: int) -> Any:
    is_drawn = rng.random(n) < RATE
    return data * is_drawn + rng.laplace(0, 1.0, n)


def choice_ratios() -> Floats:
    """Returns log ratios of the chances of each item of `exponential` on ANSWERS, float64 [3]."""
    before, after = (np.exp(scores / 2) / np.exp(scores / 2).sum() for scores in ANSWERS)
    return np.asarray(np.log(after / before))


def noisy_max_ratios() -> Floats:
    """Returns the same of `noisy_max`, by quadrature."""

    def chance(scores: Sequence[float], item: int) -> float:
        others = [score for index, score in enumerate(scores) if index != item]

        def density(x: float) -> float:
            below = [float(laplace_law.cdf(x - other, scale=2.0)) for other in others]
            return float(laplace_law.pdf(x - scores[item], scale=2.0)) * math.prod(below)

        edges = (-60.0, 0.0, 1.0, 60.0)
        parts = [quad(density, low, high)[0] for low, high in itertools.pairwise(edges)]
        return sum(parts)

    before, after = ANSWERS
    return np.array([math.log(chance(after, i) / chance(before, i)) for i in range(len(before))])


@dataclass
class Study:
    """A mechanism, its claim and its true ε, and what runs of it have shown.

    Attributes:
        name: of the mechanism.
        release: returns n outputs of one input.
        pair: the neighbouring inputs.
        claim: what is claimed.
        truth: true ε at each δ at which a bound is computed.
        log_ratio: returns the log likelihood ratios of outputs, the second input over the first.
        refuted: runs whose claim was refuted.
        above: runs with a bound above the claim, by δ.
        shares: certified over true ε of each run, by δ.
    """

    name: str
    release: Draws
    pair: tuple[Any, Any]
    claim: Claim
    truth: dict[float, float]
    log_ratio: Callable[[Any], Floats]
    refuted: int = 0
    above: dict[float, int] = field(default_factory=dict)
    shares: dict[float, list[float]] = field(default_factory=dict)

    def run(self, trials: int, rng: Generator, known: bool = False) -> None:
        """Audits the release once more.

        Args:
            trials: their number; the classifier learns from as many runs of its own.
            rng: randomness of all runs.
            known: whether scores are true log likelihood ratios; else a classifier's.
        """

        def draw(member: bool, runs: int, rng: Generator) -> Any:
            return self.release(self.pair[int(member)], rng, runs)

        score = self._known_score
        if not known:
            score = Learned(fit=trials).scorer(draw, self.pair, rng)
        members = rng.random(trials) < 0.5
        scores = np.empty(trials)
        for member in (False, True):
            rows = np.flatnonzero(members == member)
            scores[rows] = score(draw(member, len(rows), rng))
        test = ClaimTest(self.claim.curve, trials, log_odds=True, delta=min(self.truth))
        test.fold(scores, members)
        test.look(now=True)
        self.refuted += test.refuted_after(LEVEL) is not None
        judge = stats.make("one-run", trials, independent=True, log_odds=True)
        judge.fold(scores, members)
        for delta, truth in self.truth.items():
            bound = judge.bound(delta, 1 - LEVEL).epsilon_lower
            is_above = bound > self.claim.epsilon_at(delta)
            self.above[delta] = self.above.get(delta, 0) + is_above
            self.shares.setdefault(delta, []).append(bound / truth)

    def _known_score(self, outputs: Any) -> Floats:
        """Returns log likelihood ratios without the last bits, which differ by input in floats."""
        return np.round(self.log_ratio(outputs), 9)

    def rows(self) -> Iterator[str]:
        """Yields a row of the table for each δ."""
        for delta, shares in self.shares.items():
            runs = len(shares)
            low, middle, high = np.quantile(shares, [0.1, 0.5, 0.9])
            yield (
                f"| {self.name} | {self.claim.words} | {delta:g} | {runs} | {self.refuted} | "
                f"{self.above[delta]} | {middle:.3f} ({low:.2f} to {high:.2f}) |"
            )


def shift_ratio(outputs: Any) -> Floats:
    """Returns log ratios of outputs whose noise is Laplace noise of scale 1, discrete or not."""
    return np.asarray(np.abs(outputs) - np.abs(outputs - 1))


def subsampled_ratio(outputs: Any) -> Floats:
    """Returns log ratios of `subsampled`: the second input is drawn with RATE, else like none."""
    return np.log1p(RATE * np.expm1(shift_ratio(outputs)))


def studies() -> list[Study]:
    """Returns the mechanisms, all of which keep their claim."""
    pure = Claim(epsilon=1.0)
    both = {0.0: 1.0, DELTA: 1.0}
    chosen = choice_ratios()
    largest = noisy_max_ratios()
    drawn = math.log1p(RATE * math.expm1(1.0))

    def response_ratio(outputs: Any) -> Floats:
        return np.where(outputs == 1, 1.0, -1.0)

    def gaussian_ratio(outputs: Any) -> Floats:
        return np.asarray((outputs - 0.5) / SIGMA**2)

    def of(ratios: Floats) -> dict[float, float]:
        return dict.fromkeys(both, float(np.abs(ratios).max()))

    approximate = Claim(epsilon=1.0, delta=DELTA)
    subsampling = Claim(epsilon=drawn)
    of_drawn = dict.fromkeys(both, drawn)
    return [
        Study("Laplace", laplace, COUNTS, pure, both, shift_ratio),
        Study("randomised response", response, COUNTS, pure, both, response_ratio),
        Study("Gaussian", gaussian, COUNTS, approximate, {DELTA: 1.0}, gaussian_ratio),
        Study("discrete Laplace", discrete_laplace, COUNTS, pure, both, shift_ratio),
        Study("exponential mechanism", exponential, ANSWERS, pure, of(chosen), chosen.take),
        Study("noisy max", noisy_max, ANSWERS, pure, of(largest), largest.take),
        Study("subsampled Laplace", subsampled, COUNTS, subsampling, of_drawn, subsampled_ratio),
    ]


def speed(trials: int, rounds: int) -> Iterator[str]:
    """Yields trials per processor second: a loop, one call of numpy, trials alone, a whole audit.

    All four take turns, and draw a Laplace count for one of two inputs at random.
    """
    mechanism = Release(
        path="jobs.studies.releases:laplace",
        pairs="jobs.studies.releases:counts",
        claim=Claim(epsilon=1.0),
    )
    adversary = LogRatio(path="jobs.studies.releases:laplace_ratio")

    def loop(rng: Generator) -> None:
        for member in rng.random(trials) < 0.5:
            laplace_ratio([COUNTS[int(member)] + rng.laplace(0, 1.0)], COUNTS)

    def one_call(rng: Generator) -> None:
        members = rng.random(trials) < 0.5
        laplace_ratio(members + rng.laplace(0, 1.0, trials), COUNTS)

    def trials_alone(rng: Generator) -> None:
        session = mechanism.open(adversary, 0, 0, gpu=False)
        session.run(rng.random(trials) < 0.5, int(rng.integers(2**31)), (1,))

    def whole_audit(rng: Generator) -> None:
        with tempfile.TemporaryDirectory() as folder:
            audit(
                laplace,
                pairs=[COUNTS],
                claim=Claim(epsilon=1.0),
                adversary=laplace_ratio,
                trials=trials,
                seed=int(rng.integers(2**31)),
                storage_path=folder,
            )

    rng = np.random.default_rng(0)
    ways = (loop, one_call, trials_alone, whole_audit)
    seconds: dict[str, list[float]] = {way.__name__: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            began = time.process_time()
            way(rng)
            seconds[way.__name__].append(time.process_time() - began)
    for name, took in seconds.items():
        least, most = (round(trials / end) for end in (max(took), min(took)))
        yield f"| {name} | {round(trials / np.median(took)):,} | {least:,} to {most:,} |"


def counts() -> list[tuple[float, float]]:
    return [COUNTS]


def laplace_ratio(outputs: Any, pair: Any) -> Any:
    """Scores outputs of `laplace` by the log of their likelihood ratio."""
    values = np.asarray(outputs)
    return np.abs(values - pair[0]) - np.abs(values - pair[1])


def say(line: str) -> None:
    """Prints a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which it ends")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--known", action="store_true", help="score by true likelihood ratios")
    parser.add_argument("--speed", action="store_true", help="measure trials per second instead")
    options = parser.parse_args()
    if options.speed:
        for row in speed(trials=100_000, rounds=3):
            say(row)
        return
    rng = np.random.default_rng(options.seed)
    entries = studies()
    began = time.monotonic()
    for _ in range(options.runs):
        for entry in entries:
            entry.run(options.trials, rng, known=options.known)
        if time.monotonic() - began > 60 * options.minutes:
            break
    say("| mechanism | claim | δ | runs | violations | above | certified / true (10 % to 90 %) |")
    say("| --- | --- | --- | --- | --- | --- | --- |")
    for entry in entries:
        for row in entry.rows():
            say(row)


if __name__ == "__main__":
    main()
