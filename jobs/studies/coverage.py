"""How often every method is wrong, measured on mechanisms whose privacy loss is known exactly.

One trial of this "mechanism" is a whole audit: R secret bits, R scores, one bound. Its score is
that bound, recorded at several R, so the orchestrator that runs audits also runs their study.
Run it from the clone's root, then `python -m jobs.studies.table RUN_DIRECTORY`.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy import special

from dpaudit_ray import stats
from dpaudit_ray.adversaries.base import Adversary
from dpaudit_ray.mechanisms.base import Claimed, Mechanism, Session
from dpaudit_ray.stats import gdp

Worlds = Literal["gaussian", "randomised-response", "laplace"]


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

    def claimed(self, adversary: Adversary, horizon: int) -> Claimed:
        """The Gaussian release with the same ε."""
        return Claimed(1 / max(float(gdp.mu(self.epsilon, self.delta)), 1e-9), 1)

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
        bits, scores = self._trials(rng, horizons)
        return [self._reported(scores[:size], bits[:size]) for size in horizons]

    def _trials(
        self, rng: np.random.Generator, horizons: tuple[int, ...]
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
        bits = rng.random(max(horizons)) < 0.5
        return bits, draw(self.worlds, self.epsilon, bits, self.delta, rng)

    def _reported(self, scores: npt.NDArray[np.float64], bits: npt.NDArray[np.bool_]) -> float:
        state = stats.make(self.method, planned=len(bits))
        best = 0.0
        for part in np.array_split(np.arange(len(bits)), self.looks):
            state.fold(scores[part], bits[part])
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
    truthful = rng.random(n) < special.expit(epsilon)
    return np.where(truthful, bits, ~bits).astype(float)
