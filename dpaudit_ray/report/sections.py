"""One audit's section of the page: its numbers, its figures, and what they were drawn from."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pandas as pd

from ..plan.model import PlannedAudit
from ..plan.prefix import Trials
from . import figures, hits, utility
from .profiles import Profile
from .tables import Run


def of(run: Run, audit: PlannedAudit, table: pd.DataFrame) -> dict[str, Any]:
    """What the page says of one audit, its figures drawn and written."""
    trials = Trials.of(audit, run.prefix(audit))
    shown = trials.shown
    mine = table[table["audit"] == audit.id]
    final = mine[mine["step"] == audit.horizons[-1]]
    level = run.settings(audit)
    cell = run.sweep.cells[run.plan.audits.index(audit)]
    entry: dict[str, Any] = {
        "id": audit.id,
        "label": audit.label,
        "delta": level.delta,
        "confidence": level.confidence,
        "estimates": final.drop_duplicates("estimator").to_dict("records"),
        "claims": {name: values[-1] for name, values in audit.claims.items()},
        "curve_free": _curve_free(final),
        "figure": None,
        "sampled": cell.mechanism.sampled,
        "counts": None,
        "profile": None,
        "hits": None,
        "utility": utility.of(audit, trials),
    }
    if len(mine) and (len(shown.members) or not cell.mechanism.sampled):
        png = figures.audit_figure(audit.label, mine, shown)
        run.directory.write_figure(f"{audit.id}.png", png)
        entry["figure"] = embedded(png)
    if len(shown.members) and len(mine):
        entry["counts"] = _counts(trials, shown)
        entry["canaries"] = audit.in_a_training
        if audit.independent:  # bands and bounds of curves take trials for independent
            entry |= _profile(run, audit, trials)
    return entry


def _counts(trials: Trials, shown: Trials) -> dict[str, int]:
    """How many trainings of each world gave what."""
    diverged = ~np.isfinite(shown.scores[:, -1])
    return {
        "inside": int(shown.members.sum()),
        "outside": int((~shown.members).sum()),
        "diverged_inside": int((diverged & shown.members).sum()),
        "diverged_outside": int((diverged & ~shown.members).sum()),
        "missed": int(trials.missed.sum()),
    }


def _profile(run: Run, audit: PlannedAudit, trials: Trials) -> dict[str, Any]:
    curves = Profile.of(run, audit, trials.with_errors(), trials.members)
    png = curves.figure()
    run.directory.write_figure(f"{audit.id}-profile.png", png)
    sure = curves.claim.epsilons[0] == 0  # not of an accountant that may not be imported
    most = (1 + float(curves.claim.deltas[0])) / 2 if sure else math.nan
    return {
        "hits": hits.HitRate.of(trials, run.settings(audit).confidence, most),
        "profile": embedded(png),
        "gaussian": curves.gaussian,
        "saturated": curves.tradeoff.saturated,
        "fit": curves.tradeoff.mu,
        "gap": curves.tradeoff.gap,
    }


def _curve_free(final: pd.DataFrame) -> dict[str, Any]:
    """The bound without an assumption at the last step, and who gave it; from the run directory."""
    known = final[final["free_estimator"] != ""]
    if len(known) == 0:
        return {"epsilon": math.nan, "estimator": ""}
    row = known.iloc[0]
    return {"epsilon": row["epsilon_lower_free"], "estimator": row["free_estimator"]}


def embedded(png: bytes) -> str:
    """A figure as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
