"""What the scores of each audit tell of membership, beside what its claim allows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ..plan.model import PlannedAudit
from ..plan.score_stream import Trials
from ..stats import membership
from ..stats.base import Members, Scores
from ..stats.curve import Curve
from ..stats.membership import Membership
from ..stats.reference_attacks import membership as lira
from .measures import claimed_curve
from .tables import Run

_MODELS = 100  # from which on LiRA is read: each record is in some of a half, and out of some
_POINT = ("fpr", "tpr", "tpr_low", "tpr_high", "claim")
_MOST = 1_000_000  # trials that are read
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
        """Of an audit by its number; None where fewer than 20 trials ran, or of one world."""
        audit, cell = run.plan.audits[index], run.sweep.cells[index]
        trials = Trials.joined(audit, run.prefix(audit)) if trials is None else trials
        bits = trials.shown.members
        if len(bits) < _FEWEST or bits.all() or not bits.any():
            return None
        if not cell.adversary.private_records:  # more would resolve nothing that is told
            trials = trials.first(max(_MOST // audit.together, 1) * audit.together)
        level, matrices = cell.audit.confidence, matrix(audit, trials)
        calibrated = cell.adversary.private_records and len(matrices[0]) >= _MODELS
        shown = lira(*matrices, confidence=level) if calibrated else Membership(*matrices, level)
        points = 60 if next(iter(audit.claims)) in ("gaussian", "rdp") else 12  # who answer at once
        return cls(audit.id, audit.label, shown, claimed_curve(cell, audit, points))

    @property
    def entry(self) -> dict[str, Any]:
        """All numbers, as JSON has them: `points` by FPR, with the `claim` at each."""
        shown, points = self.shown, list[dict[str, float]]()
        for fpr, rate in shown.points.items():
            claim = float(self.claim.true_positive_rate(fpr)[0])
            points.append(dict(zip(_POINT, (fpr, *dataclasses.astuple(rate), claim), strict=True)))
        return {
            "trainings": len(shown.scores),
            "confidence": shown.confidence,
            "points": points,
            "auc": dataclasses.asdict(shown.auc),
            "balanced_accuracy": dataclasses.asdict(shown.balanced_accuracy),
        }

    @property
    def sentences(self) -> Iterator[str]:
        """The same in words; the first is of the least FPR that is resolved."""
        shown = self.shown
        for fpr, rate in reversed(shown.points.items()):
            yield membership.sentence(fpr, rate, shown.confidence, self.claim)
        for name, rate in (("AUC", shown.auc), ("balanced accuracy", shown.balanced_accuracy)):
            if math.isnan(rate.value):
                yield f"{name} unknown: its threshold is fitted to other training runs"
            else:
                yield f"{name} {rate.value:.3f} ({rate.low:.3f} to {rate.high:.3f})"

    @property
    def curves(self) -> pd.DataFrame:
        """The ROC curve and its claim as a table: series, x, y, low, high."""
        roc, rates = self.shown.roc, np.geomspace(self.shown.least_fpr, 1, 100)
        tpr, low, high = np.array([dataclasses.astuple(rate) for rate in roc.values()]).T
        steps = pd.DataFrame({"x": [*roc], "y": tpr, "low": low, "high": [*high[1:], 1.0]})
        most = pd.DataFrame({"x": rates, "y": self.claim.true_positive_rate(rates)})
        parts = {self.label: steps, f"claim: {self.label}": most}
        return pd.concat(parts, names=["series"]).reset_index("series")


def matrix(audit: PlannedAudit, trials: Trials) -> tuple[Scores, Members]:
    """Returns last scores and bits, [training runs or pairs, records].

    ±inf become the nearest finite score, NaN the lowest. Trials of an unfinished training run are
    dropped if there is a complete one.
    """
    rows = max(len(trials.members) // audit.together, 1)
    trials = trials.first(rows * audit.together)
    scores, shape = trials.with_errors(), (rows, -1)
    finite = scores[np.isfinite(scores)] if np.isfinite(scores).any() else np.zeros(1)
    scores = np.clip(np.nan_to_num(scores, nan=-np.inf), finite.min(), finite.max())
    return scores.reshape(shape), trials.members.reshape(shape)


def entries(run: Run) -> dict[str, dict[str, Any]]:
    """`Reading.entry` of every audit that has one, by the audit's id."""
    readings = (Reading.of_audit(run, index) for index in range(len(run.plan.audits)))
    return {reading.id: reading.entry for reading in readings if reading is not None}


def table(run: Run) -> pd.DataFrame:
    """A row for each audit and resolved FPR; one without an FPR where none is resolved."""
    labels, rows = {audit.id: audit.label for audit in run.plan.audits}, list[dict[str, Any]]()
    for name, entry in entries(run).items():
        whole = {"audit": name, "label": labels[name], "trainings": entry["trainings"]}
        for key in ("auc", "balanced_accuracy"):
            whole[key] = entry[key]["value"]
            whole |= {f"{key}_{end}": entry[key][end] for end in ("low", "high")}
        rows += [whole | point for point in entry["points"] or [dict.fromkeys(_POINT, math.nan)]]
    return pd.DataFrame(rows)
