"""Error rates of every method, measured on mechanisms whose privacy loss is known exactly.

One trial of this "mechanism" is a whole audit: R secret bits, R scores, one bound. Its score is
that bound, recorded at several R, so the orchestrator that runs audits also runs their study.
Run it from the clone's root, then `python -m jobs.studies.table RUN_DIRECTORY`.
"""

from __future__ import annotations

import functools
import math
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy import optimize, special

from dpaudit_ray import stats
from dpaudit_ray.accounting import Training
from dpaudit_ray.adversaries.base import Adversary
from dpaudit_ray.mechanisms.base import Mechanism, Session
from dpaudit_ray.stats import gdp

Worlds = Literal[
    "gaussian",
    "randomised-response",
    "laplace",
    "subsampled-gaussian",  # one step, in with probability RATE: one-sided
    "rarely-in",  # says "in" in half of the in-runs, e^-ε times as often in out-runs: one-sided
    "told-response",  # tells its bit with probability δ, else randomised response: the worst (ε, δ)
]
Faults = Literal["none", "diverges-inside", "diverges", "fails"]
RATE = 0.3  # of the subsampled Gaussian
FAULT_RATE = 0.05  # of runs that diverge (in both worlds, or inside only), or fail


class Nobody(Adversary):
    """There is nothing to attack: scores come from the mechanism itself."""

    name: str = "jobs.studies.coverage:Nobody"


class Coverage(Mechanism):
    """Audits of a mechanism of known ε at δ, by one method.

    `looks` > 1 asks for the bound at that many equally spaced sizes and keeps the largest: what
    somebody reports who looks all the time and stops when it suits.
    """

    name: str = "jobs.studies.coverage:Coverage"
    worlds: Worlds = "gaussian"
    faults: Faults = "none"
    epsilon: float = Field(default=1.0, ge=0)
    method: str = "accuracy"
    sizes: list[int] = Field(default_factory=lambda: [100, 1000, 5000])
    looks: int = Field(default=1, ge=1)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    confidence: float = Field(default=0.95, gt=0, lt=1)

    packs: ClassVar[int] = 100

    @property
    def auto_pack_size(self) -> int:
        """Audits per pack."""
        return self.packs

    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        """The audit sizes R."""
        return tuple(self.sizes)

    def check(self, adversary: Adversary) -> None:
        """Any adversary will do."""

    def check_inputs(self) -> None:
        """Nothing is read."""

    def claimed(self, adversary: Adversary, horizon: int) -> Training:
        """The Gaussian release with the same ε."""
        return Training(1 / max(float(gdp.mu(self.epsilon, self.delta)), 1e-9), 1)

    def open(self, adversary: Adversary, seed: int, craft_seed: int, gpu: bool) -> Session:
        """Nothing to prepare."""
        return self

    def run(
        self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]
    ) -> npt.NDArray[np.float64]:
        """One audit per trial: the bound it reports at every size."""
        children = np.random.SeedSequence(seed).spawn(len(members))
        return np.array([self._audit(np.random.default_rng(c), horizons) for c in children])

    def _audit(self, rng: np.random.Generator, horizons: tuple[int, ...]) -> list[float]:
        bits, scores, failed = self._trials(rng, horizons)
        return [self._reported(scores[:n], bits[:n], failed[:n]) for n in horizons]

    def _trials(
        self, rng: np.random.Generator, horizons: tuple[int, ...]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Bits, scores, and which trials gave no output."""
        bits = rng.random(max(horizons)) < 0.5
        scores = draw(self.worlds, self.epsilon, bits, self.delta, rng)
        faulty = rng.random(len(bits)) < (FAULT_RATE if self.faults != "none" else 0.0)
        failed = faulty if self.faults == "fails" else np.zeros_like(faulty)
        if self.faults == "diverges-inside":
            faulty = faulty & bits
        scores[faulty] = math.nan
        return bits, scores, failed

    def _reported(
        self,
        scores: npt.NDArray[np.float64],
        bits: npt.NDArray[np.bool_],
        failed: npt.NDArray[np.bool_],
    ) -> float:
        state = stats.make(self.method, planned=len(bits), independent=True)
        best = 0.0
        for part in np.array_split(np.arange(len(bits)), self.looks):
            cuts = np.flatnonzero(np.diff(failed[part])) + 1
            for run in np.split(part, cuts):
                if failed[run].any():
                    state.miss(bits[run])
                else:
                    state.fold(scores[run], bits[run])
            estimate = state.bound(self.delta, self.confidence)
            best = max(best, value_of(estimate))
        return best


def value_of(estimate: stats.Estimate) -> float:
    """μ where a method bounds μ, else ε: what the method itself proves, before any conversion."""
    return estimate.epsilon_lower if math.isnan(estimate.mu_lower) else estimate.mu_lower


def draw(
    worlds: Worlds,
    epsilon: float,
    bits: npt.NDArray[np.bool_],
    delta: float,
    rng: np.random.Generator,
) -> npt.NDArray[np.float64]:
    """One score per bit from a mechanism of exactly this ε (at δ for the Gaussian one)."""
    n = len(bits)
    if worlds == "gaussian":
        return rng.normal(size=n) + float(gdp.mu(epsilon, delta)) * bits
    if worlds == "laplace":
        return rng.laplace(size=n) + epsilon * bits  # scale 1, sensitivity ε
    if worlds == "subsampled-gaussian":
        shift = bits & (rng.random(n) < RATE) & (epsilon > 0)
        return subsampled_noise(epsilon, delta) * rng.normal(size=n) + shift
    if worlds == "rarely-in":
        return (rng.random(n) < np.where(bits, 0.5, 0.5 * math.exp(-epsilon))).astype(float)
    truthful = rng.random(n) < special.expit(epsilon)
    scores = np.where(truthful, bits, ~bits).astype(float)
    if worlds == "told-response":
        scores = np.where(rng.random(n) < delta, np.where(bits, 2.0, -1.0), scores)
    return scores


@functools.cache
def subsampled_noise(epsilon: float, delta: float) -> float:
    """Noise at which one step, in with probability RATE and shifted by 1, has ε at δ."""
    if epsilon == 0:
        return 1.0

    def excess(noise: float) -> float:
        # P_in(x > t) - e^ε P_out(x > t) where the likelihood ratio of in to out is e^ε.
        odds = math.log((math.expm1(epsilon) + RATE) / RATE)
        t = noise**2 * odds + 0.5
        out, shifted = special.ndtr(-t / noise), special.ndtr((1 - t) / noise)
        return float(RATE * shifted + (1 - RATE - math.exp(epsilon)) * out) - delta

    return float(optimize.brentq(excess, 0.02, 100.0))
