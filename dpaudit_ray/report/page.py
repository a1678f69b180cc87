"""The HTML report: one self-contained file, figures inside, and the figures as files beside it."""

from __future__ import annotations

import base64
import datetime
import math
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from ..plan.model import PlannedAudit
from ..plan.prefix import Trials
from ..printable import lines
from ..stats import Status
from ..storage.scores import UTILITY
from ..version import __version__
from . import figures, groups, hits, overviews, utility, words
from .profiles import Profile
from .tables import Run, all_estimates, best, overview

FILE = "report.html"


def write(run: Run, again: float | None = None) -> str:
    """Writes report.html and figures/ into the run directory; returns the report's address.

    With `again` a browser that shows the page loads it anew every so many seconds.
    """
    rows = overview(run)
    table = all_estimates(run)
    audits = [_audit(run, audit, table) for audit in run.plan.audits]
    template = jinja2.Environment(
        loader=jinja2.PackageLoader("dpaudit_ray.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
    ).get_template("report.html.j2")
    page = template.render(
        name=run.sweep.name,
        version=__version__,
        fingerprint=run.plan.fingerprint,
        written=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        rows=rows,
        measured=[name for name in UTILITY if any(row[name] == row[name] for row in rows)],
        pictures=[*_pictures(run), *_hit_rates(run, audits)],
        audits=audits,
        words=words,
        conditions=words.conditions({*table["status"], Status.IF_GAUSSIAN}, run.sweep.cells),
        level=words.single(run.sweep.budget) if run.sweep.budget.audits else "",
        best=best(run) if run.sweep.budget.parts > 1 else None,
        specification=run.sweep.canonical(),
        interim=any(row["interim"] for row in rows),
        mixed=any(audit.mixed for audit in run.plan.audits),
        again=again,
    )
    run.directory.write_text(FILE, page)
    return f"{run.directory.location}/{FILE}"


def _shown(value: Any) -> Any:
    """Text as it may be shown; what is markup was made here, from text that had been shown."""
    return lines(value) if type(value) is str else value


def _pictures(run: Run) -> list[dict[str, str]]:
    """The figures of the whole run, written and embedded."""
    panels = groups.panels(run)
    drawn = {
        ("overview", "Lower bound and claim of every audit"): overviews.bars_figure(panels),
        ("evolution", "Lower bounds and claims over steps"): overviews.evolution_figure(panels),
        ("amplification", "Last bound over first"): overviews.amplification_figure(run, panels),
    }
    if not any(cell.mechanism.sampled for cell in run.sweep.cells):
        name, what = "exact-gdp", "with μ read as Gaussian"
        panels = groups.panels(run, name)
        drawn |= {
            (f"evolution-{name}", f"ε over steps {what}"): overviews.evolution_figure(panels),
            (f"amplification-{name}", f"Last ε over first {what}"): overviews.amplification_figure(
                run, panels
            ),
        }
    found = []
    for (name, text), content in drawn.items():
        if content is not None:
            run.directory.write_figure(f"{name}.png", content)
            found.append({"text": text, "source": _embedded(content)})
    return found


def _hit_rates(run: Run, audits: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The rates of all audits side by side, where there are several."""
    known = [(audit["label"], audit["hits"]) for audit in audits if audit.get("hits")]
    if len(known) < 2:
        return []
    content = hits.figure(*zip(*known, strict=True))
    run.directory.write_figure("hits.png", content)
    text = "How often the bit of a trial is guessed right, from the trials before it"
    return [{"text": text, "source": _embedded(content)}]


def _audit(run: Run, audit: PlannedAudit, table: Any) -> dict[str, Any]:
    trials = Trials.of(audit, run.prefix(audit))
    shown = trials.shown
    mine = table[table["audit"] == audit.id]
    final = mine[mine["step"] == audit.horizons[-1]]
    level = run.settings(audit)
    entry: dict[str, Any] = {
        "id": audit.id,
        "label": audit.label,
        "delta": level.delta,
        "confidence": level.confidence,
        "done": run.done(audit),
        "trials": audit.trials,
        "estimates": final.drop_duplicates("estimator").to_dict("records"),
        "claims": {name: values[-1] for name, values in audit.claims.items()},
        "curve_free": _curve_free(final),
        "figure": None,
        "sampled": len(shown.members) > 0,
        "utility": utility.of(audit, trials),
    }
    if len(mine):
        png = figures.audit_figure(audit.label, mine, shown)
        run.directory.write_figure(f"{audit.id}.png", png)
        entry["figure"] = _embedded(png)
    if len(shown.members) and len(mine):
        diverged = ~np.isfinite(shown.scores[:, -1])
        entry |= {
            "trials_in": int(shown.members.sum()),
            "trials_out": int((~shown.members).sum()),
            "diverged_in": int((diverged & shown.members).sum()),
            "diverged_out": int((diverged & ~shown.members).sum()),
            "missed": int(trials.missed.sum()),
            "canaries": audit.in_a_training,
            "profile": None,
            "hits": None,
        }
        if audit.independent:  # bands and bounds of curves take trials for independent
            entry |= _profile(run, audit, trials)
    return entry


def _profile(run: Run, audit: PlannedAudit, trials: Trials) -> dict[str, Any]:
    curves = Profile.of(run, audit, trials.with_errors(), trials.members)
    png = curves.figure()
    run.directory.write_figure(f"{audit.id}-profile.png", png)
    sure = curves.claim.epsilons[0] == 0  # not of an accountant that may not be imported
    most = (1 + float(curves.claim.deltas[0])) / 2 if sure else math.nan
    return {
        "hits": hits.HitRate.of(trials, run.settings(audit).confidence, most),
        "profile": _embedded(png),
        "gaussian": curves.gaussian,
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


def _embedded(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
