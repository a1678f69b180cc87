"""The table of the six attacks: `python -m jobs.nasr2021.table RUN...`, a row for each claim.

A cell has the rate of right guesses, its two-sided 95 % interval, and the bounds on ε by `accuracy`
and by `paper-eps-delta`, cut to two digits.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import pandas as pd
from scipy import stats

import dpaudit_ray as da
from dpaudit_ray.stats.guess_count_bound import GuessCounter
from jobs.paper_figures import last


def cut(value: float) -> str:
    """Two digits, never rounded up."""
    digits = 2 if value < 1 else 1
    return f"{math.floor(value * 10**digits) / 10**digits:.{digits}f}" if value >= 0.01 else "0"


def rate(trials: pd.DataFrame) -> str:
    """Right guesses of the trials of an audit at one step, with an interval rounded outwards."""
    counter = GuessCounter()
    counter.fold(trials["score"].to_numpy(float), trials["member"].to_numpy(bool))
    low, high = stats.binomtest(counter.hits, counter.guesses).proportion_ci(0.95)
    low, high = math.floor(100 * low) / 100, math.ceil(100 * high) / 100
    return f"{counter.hits / counter.guesses:.2f} ({low:.2f}–{high:.2f})"


def rows(run: da.Result) -> Iterator[tuple[float, str, str, str, str]]:
    """Claim, attack, rate, and the two bounds of every audit."""
    table = last(run.estimates).set_index(["audit", "estimator"])
    for audit, trials in last(run.scores).groupby("audit", sort=False):
        ours, published = (table.loc[(audit, name)] for name in ("accuracy", "paper-eps-delta"))
        bounds = (cut(bound["epsilon_lower"]) for bound in (ours, published))
        yield (ours["epsilon_upper"], ours["adversary.name"], rate(trials), *bounds)


if __name__ == "__main__":
    for location in sys.argv[1:]:
        for claim, *cell in rows(da.open(location)):
            sys.stdout.write(" | ".join([f"{claim:.3f}", *cell]) + "\n")
