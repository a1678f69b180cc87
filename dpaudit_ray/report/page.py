"""The HTML report: one self-contained file, figures inside, and the figures as files beside it."""

from __future__ import annotations

import base64
import datetime
import hashlib
from typing import Any

import markupsafe

from ..stats import Status
from ..storage.scores import UTILITY
from ..version import __version__
from . import (
    accuracies,
    answer,
    distributions,
    failed,
    groups,
    hits,
    markup,
    overviews,
    sections,
    trends,
    words,
)
from .sections import embedded
from .tables import Run, all_estimates, best, overview

FILE = "report.html"


def write(run: Run, again: float | None = None) -> str:
    """Writes report.html and figures/ into the run directory; returns the report's address.

    With `again` a browser that shows the page loads it anew every so many seconds.
    """
    rows = overview(run)
    table = all_estimates(run)
    said = answer.keep(run)
    audits = [sections.of(run, audit, table) for audit in run.plan.audits]
    for row, audit, one in zip(rows, audits, said.audits, strict=True):
        audit |= {"row": row, "verdict": one.verdict, "reason": one.reason}
    environment = markup.environment()
    script = environment.get_template("report.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template("report.html.j2").render(
        script=markupsafe.Markup(script),
        only=f"sha256-{digest}",  # no other script runs, whatever a label says
        name=run.sweep.name,
        version=__version__,
        fingerprint=run.plan.fingerprint,
        written=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        answer=said,
        measured=[name for name in UTILITY if any(row[name] == row[name] for row in rows)],
        pictures=[*_pictures(run), *_hit_rates(run, audits), *_accuracies(run, audits)],
        audits=audits,
        failed=failed.of(run),
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


def _pictures(run: Run) -> list[dict[str, str]]:
    """The figures of the whole run, written and embedded."""
    panels = groups.panels(run)
    drawn = {
        ("overview", "Lower bound and claim of every audit"): overviews.bars_figure(panels),
        ("evolution", "Lower bounds and claims over steps"): overviews.evolution_figure(panels),
        ("amplification", "Last bound over first"): overviews.amplification_figure(run, panels),
    }
    drawn["trend", "Last bounds and claims over what the sweep varies"] = trends.figure(run)
    sampled = any(cell.mechanism.sampled for cell in run.sweep.cells)
    stated = {k: v for cell in run.sweep.cells for k, v in cell.mechanism.exact_estimators.items()}
    for name, what in () if sampled else stated.items():
        if not what or name not in set(run.estimates["estimator"]):
            continue
        panels = groups.panels(run, name)
        drawn |= {
            (f"evolution-{name}", f"ε over steps {what}"): overviews.evolution_figure(
                panels, logarithmic=name == "closed-form"
            ),
            (f"trend-{name}", f"ε over what the sweep varies {what}"): trends.figure(run, name),
            (f"amplification-{name}", f"Last ε over first {what}"): overviews.amplification_figure(
                run, panels
            ),
        }
    found = []
    told = enumerate(distributions.figures(run), start=1)
    drawn |= {(f"distribution-{i}", f"How often: {text}"): png for i, (text, png) in told}
    for (name, text), content in drawn.items():
        if content is not None:
            run.directory.write_figure(f"{name}.png", content)
            found.append({"text": text, "source": embedded(content)})
    return found


def _hit_rates(run: Run, audits: list[dict[str, Any]]) -> list[dict[str, str]]:
    """The rates of all audits side by side, where there are several."""
    known = [(audit["label"], audit["hits"]) for audit in audits if audit.get("hits")]
    if len(known) < 2:
        return []
    content = hits.figure(*zip(*known, strict=True))
    run.directory.write_figure("hits.png", content)
    text = "How often the bit of a trial is guessed right, from the trials before it"
    return [{"text": text, "source": embedded(content)}]


def _accuracies(run: Run, audits: list[dict[str, Any]]) -> list[dict[str, str]]:
    """What models of all audits are worth side by side, where several are measured."""
    content = accuracies.figure({audit["label"]: audit["utility"] for audit in audits})
    if content is None:
        return []
    run.directory.write_figure("accuracy.png", content)
    text = "Accuracy of each audit's models, or of what is rebuilt from them"
    return [{"text": text, "source": embedded(content)}]
