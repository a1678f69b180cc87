"""How often the bit of a trial is guessed right from the trials before it, beside what can be."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from ..plan.prefix import Trials
from ..stats import clopper_pearson_lower, clopper_pearson_upper
from ..stats.guessing import GuessCounter
from .figures import COLOURS, STYLE, png


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
        ends = np.flatnonzero(np.diff(trials.missed)) + 1
        for rows in np.split(np.arange(len(trials.missed)), ends):
            if len(rows) and trials.missed[rows[0]]:
                counter.miss(len(rows))
            elif len(rows):
                counter.fold(trials.scores[rows, -1], trials.members[rows])
        if counter.guesses == 0:
            return None
        counts, alpha = (counter.hits, counter.guesses), (1 - confidence) / 2
        low, high = (
            float(bound(*counts, alpha)) for bound in (clopper_pearson_lower, clopper_pearson_upper)
        )
        return cls(counter.guesses, counter.hits, low, high, most)


def figure(labels: Sequence[str], rates: Sequence[HitRate]) -> bytes:
    """A PNG: a rate with its interval for each audit, and the most that its claim allows."""
    places = np.arange(len(rates))[::-1]
    values = np.array([each.rate for each in rates])
    spread = np.array([[each.rate - each.low, each.high - each.rate] for each in rates]).T
    with mpl.rc_context(STYLE):
        drawn = Figure(figsize=(9, 0.9 + 0.34 * len(rates)), layout="constrained")
        axes = drawn.subplots()
        axes.errorbar(values, places, xerr=spread, fmt="o", color=COLOURS[0], ms=4, capsize=3,
                      label="right guesses")  # fmt: skip
        axes.plot([each.most for each in rates], places, "|", color="black", ms=18, mew=2,
                  label="the most that the claim allows")  # fmt: skip
        axes.axvline(0.5, color="grey", lw=0.8, ls=":")
        axes.set_yticks(places, labels)
        axes.set_xlabel("rate of right guesses")
        axes.grid(axis="y", visible=False)
        drawn.legend(loc="outside upper right", ncols=2, frameon=False)
        return png(drawn)
