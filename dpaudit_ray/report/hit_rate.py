"""How often the bit of a trial is guessed right from the trials before it, beside what can be."""

from __future__ import annotations

import dataclasses

from ..plan import prefix
from ..plan.prefix import Trials
from ..stats import clopper_pearson_lower, clopper_pearson_upper
from ..stats.guess_count_bound import GuessCounter


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
        """Of hits."""
        return self.hits / self.guesses

    @classmethod
    def of(cls, trials: Trials, confidence: float, most: float) -> HitRate | None:
        """By the scores at the last step; None before the first guess."""
        counter = GuessCounter()
        for rows, missed in prefix.runs(trials.missed):
            if missed:
                counter.miss(rows.stop - rows.start)
            else:
                counter.fold(trials.scores[rows, -1], trials.members[rows])
        if counter.guesses == 0:
            return None
        counts, alpha = (counter.hits, counter.guesses), (1 - confidence) / 2
        low, high = (
            float(bound(*counts, alpha)) for bound in (clopper_pearson_lower, clopper_pearson_upper)
        )
        return cls(counter.guesses, counter.hits, low, high, most)
