"""Share of claims, true and false ones, that `verify` refutes, and after how many trials.

One trial of this "mechanism" is a whole audit whose scores are as far apart as noise of `share` of
the claim's makes them. Its score is the number of trials after which the claim was refuted,
0 where it stood.
Run it from the clone's root, then `python -m jobs.studies.table RUN_DIRECTORY`.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from dpaudit_ray.plan import score_stream
from dpaudit_ray.stats import gdp
from dpaudit_ray.stats.claim_verdict import ClaimTest
from dpaudit_ray.stats.curve import gaussian
from dpaudit_ray.storage.scores import PackScores

from .coverage import Coverage

REFUTED, STANDS = 1.0, 0.0
NEVER = 0.0  # in place of the number of trials: a score that is not finite would be a failed trial


class Verdicts(Coverage):
    """Claim tests of `sizes[-1]` declared trials, looked at `looks` times, at level 5 %.

    `epsilon` is that of the claim at δ; a `share` of 1 makes it true and tight.
    """

    name: str = "jobs.studies.verdicts:Verdicts"
    share: float = Field(default=1.0, gt=0)

    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        """Returns the steps of two numbers: is a claim refuted, and after which share of trials."""
        return (1, 2)

    def _audit(self, rng: np.random.Generator, horizons: tuple[int, ...]) -> list[float]:
        mu, planned = float(gdp.mu(self.epsilon, self.delta)), self.sizes[-1]
        test = ClaimTest(gaussian(mu), planned)
        study = self.model_copy(update={"epsilon": float(gdp.epsilon(mu / self.share, self.delta))})
        bits, scores, failed = study._trials(rng, (planned,))
        for part in np.array_split(np.arange(planned), self.looks):
            for run in np.split(part, np.flatnonzero(np.diff(failed[part])) + 1):
                lost, members = bool(failed[run].any()), bits[run]
                whole = PackScores(int(run[0]), members, (1,), scores[run, None])
                score_stream.feed(
                    test, score_stream.MissedPack(int(run[0]), members) if lost else whole
                )
            test.look(now=True)
        refuted = test.refuted_after(1 - self.confidence)
        return [STANDS, NEVER] if refuted is None else [REFUTED, float(refuted)]
