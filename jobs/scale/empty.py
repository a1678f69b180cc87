"""Trials that train nothing, so that all the time a sweep takes is the orchestrator's own."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from dpaudit_ray.accounting import Training
from dpaudit_ray.adversaries.base import Adversary
from dpaudit_ray.mechanisms.base import Mechanism, Session
from dpaudit_ray.plan import finished_trials


class Nobody(Adversary):
    """There is nothing to attack: scores are drawn by the mechanism."""

    name: str = "jobs.scale.empty:Nobody"


class Empty(Mechanism):
    """Scores of a Gaussian mechanism without its training; a pack takes `seconds` of sleep.

    `number` only tells the audits of a sweep apart; `steps` are all recorded.
    """

    uses_torch: ClassVar[bool] = False

    name: str = "jobs.scale.empty:Empty"
    seconds: float = Field(default=0.0, ge=0)
    number: int = 0
    steps: int = Field(default=1, ge=1)

    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        """Every step."""
        return tuple(range(1, self.steps + 1))

    def check(self, adversary: Adversary) -> None:
        """Any adversary will do."""

    def check_inputs(self) -> None:
        """Nothing is read."""

    def claimed(self, adversary: Adversary, horizon: int) -> Training:
        """Returns the claim of one release: the bit plus unit noise."""
        return Training(1.0, 1)

    def open(self, adversary: Adversary, seed: int, craft_seed: int, gpu: bool) -> Session:
        """Nothing to prepare."""
        return self

    def run(
        self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]
    ) -> npt.NDArray[np.float64]:
        """See `Session.run`."""
        if self.seconds:
            time.sleep(self.seconds)
        noise = np.random.default_rng(seed).standard_normal((len(members), len(horizons)))
        return noise + members[:, None]


def audits_of(packs: int) -> int:
    """Audits that are too small for their packs to be gathered: files then tell when each came."""
    return math.ceil(packs / (finished_trials.FEWEST_PACKS - 1))


def sweep(  # noqa: PLR0913 (what is rare goes by name)
    name: str,
    trials: int,
    pack_size: int,
    *,
    audits: int = 1,
    trainers: int = 2,
    seconds: float = 0.0,
    steps: int = 1,
    estimators: tuple[str, ...] = ("accuracy",),
) -> Mapping[str, Any]:
    """A sweep of `audits` audits that share `trials` empty trials.

    `trainers` share two CPUs: nothing is computed, so more of them than cores only keep each
    other from waiting for the disk.
    """
    return {
        "name": name,
        "seed": 0,
        "mechanism": {"name": "jobs.scale.empty:Empty", "seconds": seconds, "steps": steps},
        "adversary": {"name": "jobs.scale.empty:Nobody"},
        "audit": {"trials": trials // audits, "delta": 1e-5, "estimators": list(estimators)},
        "grid": {"mechanism.number": list(range(audits))},
        "resources": {
            "pack_size": pack_size,
            "num_cpus": 2 / trainers,
            "max_concurrent_trainers": trainers,
        },
    }


def exact(name: str, audits: int) -> Mapping[str, Any]:
    """Returns a sweep of `audits` audits whose ε is computed, without trials."""
    return {
        "name": name,
        "seed": 0,
        "mechanism": {"name": "landscape", "backend": "exact", "steps": 10, "batch_size": 2},
        "adversary": {"name": "landscape"},
        "audit": {"trials": 1, "delta": 1e-5},
        "grid": {"mechanism.noise_multiplier": [1 + number / 100 for number in range(audits)]},
    }
