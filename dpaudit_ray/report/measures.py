"""Numbers of one audit beside its bounds: how often its bits are guessed right, and what its models
are worth."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ..plan import score_stream
from ..plan.model import PlannedAudit
from ..plan.score_stream import ConsumedPack, Trials
from ..stats import clopper_pearson_lower, clopper_pearson_upper
from ..stats.guess_count_bound import GuessCounter
from ..storage.scores import UTILITY


@dataclasses.dataclass(frozen=True)
class HitRate:
    """`hits` of `guesses`, as `accuracy` counts them, and a two-sided interval for the rate.

    `most` is the rate of a perfect adversary where the claim is tight, (1 + δ(0)) / 2 for the
    claimed δ at ε = 0.
    """

    guesses: int
    hits: int
    low: float
    high: float
    most: float

    @property
    def rate(self) -> float:
        """Share of hits among guesses."""
        return self.hits / self.guesses

    @classmethod
    def from_trials(cls, trials: Trials, confidence: float, most: float) -> HitRate | None:
        """Counts by the scores at the last step; None before the first guess."""
        counter = GuessCounter()
        for rows, missed in score_stream.alike_in_a_row(trials.missed):
            if missed:
                counter.miss(rows.stop - rows.start)
            else:
                counter.fold(trials.scores[rows, -1], trials.members[rows])
        if counter.guesses == 0:
            return None
        counts, alpha = (counter.hits, counter.guesses), (1 - confidence) / 2
        low, high = clopper_pearson_lower(*counts, alpha), clopper_pearson_upper(*counts, alpha)
        return cls(counter.guesses, counter.hits, float(low), float(high), most)


@dataclasses.dataclass(frozen=True)
class Utility:
    """Mean of a measure at the last step over `trainings`, and its standard error.

    `diverged` more gave no finite value. `canary`: "in", "out", or "any" for all trainings.
    """

    measure: str
    canary: str
    trainings: int
    diverged: int
    mean: float
    error: float

    @classmethod
    def from_values(cls, measure: str, canary: str, values: npt.NDArray[np.float64]) -> Utility:
        """Averages the finite values, float64 [trainings]; the error takes two of them."""
        finite = values[np.isfinite(values)]
        n, lost = len(finite), len(values) - len(finite)
        mean = float(finite.mean()) if n else math.nan
        error = float(finite.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
        return cls(measure, canary, n, lost, mean, error)


def utilities(audit: PlannedAudit, trials: Trials) -> list[Utility]:
    """Each measure over all trainings, then by whether the canary was in where there is one.

    Failed trials have no model. The trials of one training share what was measured.
    """
    every = max(audit.in_a_training, 1)
    members, kept = trials.members[::every], ~trials.missed[::every]
    worlds = {"any": kept}
    if every == 1:
        worlds |= {"in": kept & members, "out": kept & ~members}
    return [
        Utility.from_values(name, canary, trials.utility[name][::every, -1][rows])
        for name in UTILITY
        if name in trials.utility
        for canary, rows in worlds.items()
    ]


def mean_utilities(audit: PlannedAudit, packs: Iterable[ConsumedPack]) -> dict[str, float]:
    """Mean of each measure over all trainings at the last step; NaN where it was not measured."""
    measured = utilities(audit, Trials.of(audit, packs))
    means = {utility.measure: utility.mean for utility in measured if utility.canary == "any"}
    return dict.fromkeys(UTILITY, math.nan) | means
