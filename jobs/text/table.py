"""The table of a run: `python -m jobs.text.table RUN...`, a row for trainings that differ by seed.

Bounds are median, least and most over these trainings. TPR at an FPR of 1 % is of all of their
scores, with a 95 % interval that counts trainings. `--control` tosses the coins again: no training
knew these, so the same scores must show nothing of them.
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

import numpy as np

import dpaudit_ray as da
from dpaudit_ray.stats.membership import Membership


def main(*locations: str, control: bool = False) -> None:
    """Prints the tables."""
    rng = np.random.default_rng(0)
    for location in locations:
        result = da.open(location, trust="jobs.text")
        table = result.estimates
        group = table["label"].map(lambda label: re.sub(r", seed=\d+", "", label))
        names = list(dict.fromkeys(table["estimator"]))
        lines = [f"| audit | trainings | claim | {' | '.join(names)} | TPR at 1 % |"]
        lines.append("|" + " --- |" * (len(names) + 4))
        audits = [audit.id for audit in result.run.plan.audits]
        for label, rows in table.groupby(group, sort=False):
            ids = dict.fromkeys(rows["audit"])
            pairs = {audit: result.matrix(audits.index(audit)) for audit in ids}
            ended = {audit: pair for audit, pair in pairs.items() if pair[0].size}
            if not ended:
                continue
            rows = rows[rows["audit"].isin(ended)].copy()
            if control:
                ended = {audit: (x, rng.random(x.shape) < 0.5) for audit, (x, _) in ended.items()}
                rows["epsilon_lower"] = [
                    control_bound(*ended[row.audit], row) for row in rows.itertuples()
                ]
            cells = [f"{rows['epsilon_upper'].iloc[0]:.3g}"]
            for name in names:
                bounds = rows.loc[rows["estimator"] == name, "epsilon_lower"]
                spread = f" ({bounds.min():.2f} to {bounds.max():.2f})" * (len(bounds) > 1)
                cells.append(f"{bounds.median():.2f}{spread}")
            shown = Membership(*map(np.concatenate, zip(*ended.values(), strict=True)))
            rate = shown.true_positive_rate(0.01)
            cells.append(f"{rate.value:.3f} ({rate.low:.3f} to {rate.high:.3f})")
            lines.append(f"| {label} | {len(shown.scores)} | {' | '.join(cells)} |")
        sys.stdout.write("\n".join(lines) + "\n")


def control_bound(scores: np.ndarray, members: np.ndarray, row: Any) -> float:
    """Computes the lower bound on ε that a row's estimator gives with other bits.

    Args:
        scores: float [training runs, canaries].
        members: the bits, bool of the same shape.
        row: of the table of estimates.
    """
    runs = np.arange(len(scores)).repeat(scores.shape[1])
    bound = da.stats.estimate(
        scores.ravel(), members.ravel(), row.delta, row.confidence, row.estimator, runs=runs
    )
    return bound.epsilon_lower


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m jobs.text.table", description=__doc__)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--control", action="store_true", help="with coins that no training knew")
    given = parser.parse_args()
    main(*given.runs, control=given.control)
