"""Membership rates of each audit, with those that its claim allows."""

import math
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
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

_MODELS = 100  # training runs from which on LiRA is used: each record is in about half of them
_POINT = ("fpr", "tpr", "tpr_low", "tpr_high", "claim")
_MOST = 1_000_000  # trials that are read
_FEWEST = 20  # trials; fewer resolve no FPR up to 1/2


@dataclass(frozen=True)
class Reading:
    """Membership rates of an audit at its last step.

    Attributes:
        id: the audit's id.
        label: the audit's label.
        rates: the audit's rates.
        claim: the claimed curve.
    """

    id: str
    label: str
    rates: Membership
    claim: Curve

    @classmethod
    def of_audit(
        cls,
        run: Run,
        index: int,
        trials: Trials | None = None,
    ) -> "Reading | None":
        """Reads the scores of an audit; None for fewer than 20 trials, or if one world is empty.

        Args:
            run: the run.
            index: number of the audit.
            trials: trials of the audit, if they are already in memory.
        """
        audit, cell = run.pairs[index]
        if trials is None:
            trials = run.trials(audit)
        bits = trials.scored.members
        if len(bits) < _FEWEST or bits.all() or not bits.any():
            return None
        private_records = cell.adversary.private_records
        if not private_records:  # more trials would change no digit that is shown
            most = max(_MOST // audit.together, 1) * audit.together
            trials = trials.part(slice(most))
        scores, members = matrix(audit, trials)
        if private_records and len(scores) >= _MODELS:
            rates = lira(scores, members, confidence=cell.audit.confidence)
        else:
            rates = Membership(scores, members, cell.audit.confidence)
        fast = audit.accountant in ("gaussian", "rdp")  # other accountants take long for each point
        claim = claimed_curve(cell, audit, points=60 if fast else 12)
        return cls(audit.id, audit.label, rates, claim)

    @property
    def entry(self) -> dict[str, Any]:
        """All rates as in JSON: `points` by FPR, with the `claim` at each."""
        points = []
        for fpr, rate in self.rates.points.items():
            claim = float(self.claim.true_positive_rate(fpr)[0])
            values = (fpr, *astuple(rate), claim)
            points.append(dict(zip(_POINT, values, strict=True)))
        return {
            "trainings": len(self.rates.scores),
            "confidence": self.rates.confidence,
            "points": points,
            "auc": asdict(self.rates.auc),
            "balanced_accuracy": asdict(self.rates.balanced_accuracy),
        }

    @property
    def sentences(self) -> Iterator[str]:
        """All rates as sentences; the first is on the least FPR that is resolved."""
        for fpr, rate in reversed(self.rates.points.items()):
            yield membership.sentence(fpr, rate, self.rates.confidence, self.claim)
        summary = {"AUC": self.rates.auc, "balanced accuracy": self.rates.balanced_accuracy}
        for name, rate in summary.items():
            if math.isnan(rate.value):
                yield f"{name} unknown: its threshold is fitted to other training runs"
            else:
                yield f"{name} {rate.value:.3f} ({rate.low:.3f} to {rate.high:.3f})"

    @property
    def curves(self) -> pd.DataFrame:
        """The ROC curve and its claim as a table with columns series, x, y, low, high."""
        rates = [astuple(rate) for rate in self.rates.roc.values()]
        observed = pd.DataFrame(rates, columns=["y", "low", "high"])
        observed["x"] = list(self.rates.roc)  # false-positive rates
        observed["high"] = observed["high"].shift(-1, fill_value=1.0)  # holds up to the next FPR
        x = np.geomspace(self.rates.least_fpr, 1, 100)
        allowed = pd.DataFrame({"x": x, "y": self.claim.true_positive_rate(x)})
        tables = {self.label: observed, f"claim: {self.label}": allowed}
        return pd.concat(tables, names=["series"]).reset_index("series")


def matrix(audit: PlannedAudit, trials: Trials) -> tuple[Scores, Members]:
    """Returns last scores and bits, [training runs or pairs, records].

    ±inf become the nearest finite score, NaN the lowest. Trials of an unfinished training run are
    dropped if there is a complete one.

    Args:
        audit: the audit.
        trials: trials of the audit.
    """
    rows = max(len(trials.members) // audit.together, 1)
    trials = trials.part(slice(rows * audit.together))
    scores = trials.with_errors()
    finite = scores[np.isfinite(scores)]
    low = high = 0.0
    if len(finite):
        low, high = finite.min(), finite.max()
    without_nan = np.where(np.isnan(scores), low, scores)
    scores = without_nan.clip(low, high).reshape(rows, -1)
    return scores, trials.members.reshape(rows, -1)


def entries(run: Run) -> dict[str, dict[str, Any]]:
    """Returns `Reading.entry` of each audit that has one, by the audit's id."""
    readings = (Reading.of_audit(run, index) for index in range(len(run.plan.audits)))
    return {reading.id: reading.entry for reading in readings if reading is not None}


def table(run: Run) -> pd.DataFrame:
    """Returns a row for each audit and resolved FPR; one without an FPR if none is resolved."""
    rows = []
    labels = {audit.id: audit.label for audit in run.plan.audits}
    for name, entry in entries(run).items():
        summary = {
            "audit": name,
            "label": labels[name],
            "trainings": entry["trainings"],
        }
        for key in ("auc", "balanced_accuracy"):
            summary[key] = entry[key]["value"]
            summary[f"{key}_low"] = entry[key]["low"]
            summary[f"{key}_high"] = entry[key]["high"]
        for point in entry["points"] or [dict.fromkeys(_POINT, math.nan)]:
            rows.append(summary | point)
    return pd.DataFrame(rows)
