"""Compares attacks of Nasr et al. (2021), from a run of pairs over several canaries.

`python -m jobs.nasr2021.order RUN` prints two tables: how far the canary moves the score under each
attack, and how much two attacks differ in that, with intervals over canaries that hold together.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import special, stats

import dpaudit_ray as da

LEVEL = 0.95  # of all differences together
Shifts = Mapping[str, npt.NDArray[np.float64]]


def shift(scores: npt.NDArray[np.float64], members: npt.NDArray[np.bool_]) -> float:
    """Returns mean "in" minus mean "out" of scores, float64 [pairs, 2], in their deviations.

    Scores become normal scores by their ranks, so their unit does not matter. The noise that both
    trainings of a pair share falls out of the difference.
    """
    ranks = stats.rankdata(scores).reshape(scores.shape)
    normal = special.ndtri(ranks / (scores.size + 1))
    return float((normal[members] - normal[~members]).mean())


def shifts(result: da.Result) -> Shifts:
    """Returns for each attack the shift of every canary that was drawn, float64 [canaries]."""
    of_attack: dict[str, list[float]] = {}
    for audit, table in result.scores.groupby("audit"):
        place = next(i for i, plan in enumerate(result.run.plan.audits) if plan.id == audit)
        last = table[table["step"] == table["step"].max()].sort_values("trial")
        pairs = (last[column].to_numpy().reshape(-1, 2) for column in ("score", "member"))
        name = result.run.sweep.cells[place].adversary.name
        of_attack.setdefault(name, []).append(shift(*pairs))
    return {name: np.array(values) for name, values in of_attack.items()}


def differences(drawn: Shifts) -> pd.DataFrame:
    """Mean shifts of two attacks compared: Welch's intervals over canaries, Bonferroni for all."""
    both = list(itertools.combinations(drawn, 2))
    rows = []
    for first, second in both:
        test = stats.ttest_ind(drawn[first], drawn[second], equal_var=False)
        low, high = test.confidence_interval(1 - (1 - LEVEL) / len(both))
        mean = drawn[first].mean() - drawn[second].mean()
        rows.append(
            {"first": first, "second": second, "difference": mean, "low": low, "high": high}
        )
    return pd.DataFrame(rows)


def main(location: str) -> None:
    drawn = shifts(da.open(location))
    lines = ["| attack | canaries | mean shift | least to largest |", "| --- | --- | --- | --- |"]
    for name, values in drawn.items():
        spread = f"{values.min():.3f} to {values.max():.3f}"
        lines.append(f"| `{name}` | {len(values)} | {values.mean():.3f} | {spread} |")
    lines += [
        "",
        f"| difference | mean | all intervals together, {LEVEL:.0%} |",
        "| --- | --- | --- |",
    ]
    for row in differences(drawn).itertuples():
        interval = f"{row.low:.3f} to {row.high:.3f}"
        lines.append(f"| `{row.first}` − `{row.second}` | {row.difference:.3f} | {interval} |")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
