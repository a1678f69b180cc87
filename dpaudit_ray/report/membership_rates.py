"""What the scores of each audit tell of membership, beside what its claim allows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ..plan.score_stream import Trials
from ..stats import membership
from ..stats.curve import Curve
from ..stats.membership import Membership
from .measures import claimed_curve
from .quote import percent
from .tables import Run

_POINT = ("fpr", "tpr", "tpr_low", "tpr_high", "claim")
_FEWEST = 20  # trials: below, no FPR up to 1/2 is resolved


@dataclasses.dataclass(frozen=True)
class Reading:
    """An audit's membership at its last step, and the curve of its claim."""

    id: str
    label: str
    shown: Membership
    claim: Curve

    @classmethod
    def of_audit(cls, run: Run, index: int, trials: Trials | None = None) -> Reading | None:
        """Of an audit by its number, with its `trials` where they are at hand.

        None where no trials are run, or there are fewer than 20, or of one world alone.
        """
        audit, cell = run.plan.audits[index], run.sweep.cells[index]
        if not cell.mechanism.sampled:
            return None
        trials = Trials.joined(audit, run.prefix(audit)) if trials is None else trials
        scores, members = trials.with_errors(), trials.members
        if len(scores) < _FEWEST or members.all() or not members.any():
            return None
        shape = (max(len(scores) // audit.together, 1), -1)  # pairs share their noise
        shown = Membership(scores.reshape(shape), members.reshape(shape), cell.audit.confidence)
        return cls(audit.id, audit.label, shown, claimed_curve(cell, audit))

    def allowed(self, fpr: float) -> float:
        """The largest TPR that the claim allows at an FPR."""
        return float(self.claim.true_positive_rate(fpr)[0])

    @property
    def entry(self) -> dict[str, Any]:
        """All numbers, as JSON has them: `points` by FPR, with the `claim` at each."""
        shown = self.shown
        return {
            "trainings": shown.trainings,
            "confidence": shown.confidence,
            "points": [
                dict(zip(_POINT, (fpr, *dataclasses.astuple(rate), self.allowed(fpr)), strict=True))
                for fpr, rate in shown.points.items()
            ],
            "auc": dataclasses.asdict(shown.auc),
            "balanced_accuracy": dataclasses.asdict(shown.balanced_accuracy),
        }

    @property
    def sentences(self) -> Iterator[str]:
        """The same in words; the first is of the least FPR that is resolved."""
        shown = self.shown
        for fpr, rate in reversed(shown.points.items()):
            yield membership.sentence(fpr, rate, shown.confidence, self.claim)
        numbers = {"AUC": shown.auc, "balanced accuracy": shown.balanced_accuracy}
        for name, number in numbers.items():
            span = f"{number.low:.3f} to {number.high:.3f}"
            yield f"{name} {number.value:.3f} ({percent(shown.confidence)}: {span})"

    @property
    def curves(self) -> pd.DataFrame:
        """The ROC curve and its claim as a table: series, x, y, low, high."""
        roc, rates = self.shown.roc, np.geomspace(self.shown.least_fpr, 1, 100)
        tpr, low, high = np.array([dataclasses.astuple(rate) for rate in roc.values()]).T
        steps = {"x": [*roc], "y": tpr, "low": low, "high": [*high[1:], 1.0]}
        most = {"x": rates, "y": self.claim.true_positive_rate(rates)}
        series = (self.label, steps), (f"claim: {self.label}", most)
        return pd.concat([pd.DataFrame({"series": name} | columns) for name, columns in series])


def entries(run: Run) -> dict[str, dict[str, Any]]:
    """`Reading.entry` of every audit that has one, by the audit's id."""
    readings = (Reading.of_audit(run, index) for index in range(len(run.plan.audits)))
    return {reading.id: reading.entry for reading in readings if reading is not None}


def table(run: Run) -> pd.DataFrame:
    """A row for each audit and resolved FPR; one without an FPR where none is resolved."""
    labels, rows = {audit.id: audit.label for audit in run.plan.audits}, list[dict[str, Any]]()
    for name, entry in entries(run).items():
        whole: dict[str, Any] = {"audit": name, "label": labels[name]}
        whole["trainings"] = entry["trainings"]
        for key in ("auc", "balanced_accuracy"):
            number = entry[key]
            whole |= {key: number["value"], f"{key}_low": number["low"]}
            whole[f"{key}_high"] = number["high"]
        rows += [whole | point for point in entry["points"] or [dict.fromkeys(_POINT, math.nan)]]
    return pd.DataFrame(rows)
