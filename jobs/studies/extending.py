"""Error rate of bounds if an audit is extended until its bound pleases.

As in `coverage`, one trial is a whole audit of known privacy loss: it is run to its first number of
trials, looked at, extended, looked at again. Its score is the largest bound that was read: larger
than the truth if any of them was, which is when whoever wants a violation stops.
Run it from the clone's root, then `python -m jobs.studies.table RUN_DIRECTORY`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dpaudit_ray.orchestration.estimates import Estimates
from dpaudit_ray.plan.model import PlannedAudit
from dpaudit_ray.stats import Status
from dpaudit_ray.stats.budget import SweepBudget
from dpaudit_ray.storage.scores import PackScores
from dpaudit_ray.sweep.audit import AuditSpec
from dpaudit_ray.sweep.cell import Cell

from .coverage import Coverage, Nobody


class Extending(Coverage):
    """`sizes` are the numbers of trials declared in turn; `method` is what the sweep asked for.

    `certified` reads the first certified row of every look, as tables and reports do; without, the
    row of the method itself, whatever its status says. The method must not plan for its trials.
    """

    name: str = "jobs.studies.extending:Extending"
    certified: bool = True

    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        """The last number of trials."""
        return (self.sizes[-1],)

    def _audit(self, rng: np.random.Generator, horizons: tuple[int, ...]) -> list[float]:
        bits, scores, _ = self._trials(rng, horizons)
        first, extended = self._declared(1), self._declared(len(self.sizes))
        best, done = 0.0, 0
        for looks, size in enumerate(self.sizes):
            pack = PackScores(done, bits[done:size], (1,), scores[done:size, None])
            first.fold(pack)
            extended.fold(pack)
            best = max(best, self._read((extended if looks else first).rows()))
            done = size
        return [best]

    def _declared(self, times: int) -> Estimates:
        """The estimators of an audit that was declared so many times."""
        declared = tuple(self.sizes[:times])
        level = {"delta": self.delta, "confidence": self.confidence}
        audit = AuditSpec.model_validate(
            {"trials": declared[-1], "estimators": [self.method], **level}
        )
        claims = {"gaussian": (math.inf,)}
        plan = PlannedAudit("study", "", "", declared[-1], (1,), claims, (), declared)
        cell = Cell(mechanism=self, adversary=Nobody(), audit=audit, label="")
        return Estimates(plan, cell, SweepBudget())

    def _read(self, rows: list[dict[str, Any]]) -> float:
        """The bound that is read off one look, of the kind that the method gives: on μ or on ε."""
        asked = rows[0]
        if self.certified:
            kind = [r for r in rows if math.isnan(r["mu_lower"]) == math.isnan(asked["mu_lower"])]
            asked = next(row for row in kind if Status(row["status"]).holds)
        return float(asked["epsilon_lower" if math.isnan(asked["mu_lower"]) else "mu_lower"])


def errors(study: Extending, truth: float, audits: int, seed: int) -> int:
    """Returns the number of audits that read a bound above the truth at some look."""
    bits = np.zeros(audits, dtype=np.bool_)  # of the study, which nothing depends on
    found: npt.NDArray[np.float64] = study.run(bits, seed, study.horizons(None))
    return int((found > truth + 1e-9).sum())
