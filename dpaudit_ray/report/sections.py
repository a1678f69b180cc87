"""Sections of the page: what it says of a run, and of each of its audits.

A new section is a function here, its name in `all_sections`, and the lines of the template that
show what it returns.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np

from ..adversaries.base import FinalModelAdversary, TrajectoryAdversary
from ..plan import outcomes
from ..plan.score_stream import Trials
from ..stats import Status
from ..storage.scores import UTILITY
from ..sweep.cell import Cell
from . import verdict, words
from .figures import one_audit, whole_run
from .measures import HitRate, Profile, utilities
from .tables import Run, overview

Content = dict[str, Any]  # by the names that the template has for it
_SYMBOLS = {"noise_multiplier": "noise multiplier σ", "clip_norm": "clipping norm C"}
_SEES = {FinalModelAdversary: " Sees the last model.", TrajectoryAdversary: " Sees every step."}
_LISTED = 6  # values of an option that varies


def all_sections(run: Run) -> Content:
    """Everything that the page says; writes the figures of the run beside it."""
    audits = [_audit(run, index) for index in range(len(run.plan.audits))]  # trials of one at once
    return _answer(run, audits) | _audited(run) | _figures(run) | _reading(run) | _failed(run)


def _audit(run: Run, index: int) -> Content:
    """What is said of one audit; its curve and guesses are drawn where trials are independent."""
    audit, cell = run.plan.audits[index], run.sweep.cells[index]
    trials, estimates = Trials.of(audit, run.prefix(audit)), run.rows(audit)
    shown, final = trials.shown, estimates[estimates["step"] == audit.horizons[-1]]
    content: Content = {
        "id": audit.id,
        "label": audit.label,
        "delta": cell.audit.delta,
        "confidence": cell.audit.confidence,
        "estimates": [
            row | {"assumes": Status(row["status"]).assumes(row["mu_lower"])}
            for row in final.drop_duplicates("estimator").to_dict("records")
        ],
        "claims": {name: values[-1] for name, values in audit.claims.items()},
        "sampled": cell.mechanism.sampled,
        "canaries": audit.in_a_training,
        "utility": utilities(audit, trials),
        **dict.fromkeys(("counts", "figure", "curves", "hits")),
    }
    curves, sampled = None, bool(len(shown.members))
    if not len(estimates) or (cell.mechanism.sampled and not sampled):
        return content
    if sampled:
        diverged = ~np.isfinite(shown.scores[:, -1])
        content["counts"] = {
            "inside": int(shown.members.sum()),
            "outside": int((~shown.members).sum()),
            "diverged_inside": int((diverged & shown.members).sum()),
            "diverged_outside": int((diverged & ~shown.members).sum()),
            "missed": int(trials.missed.sum()),
        }
    if sampled and audit.independent:
        content["curves"] = curves = Profile.from_trials(cell, audit, trials)
        content["hits"] = HitRate.from_trials(trials, cell.audit.confidence)
        # Of an accountant that may not be imported, δ(0) is not known.
        allowed = (1 + float(curves.claim.deltas[0])) / 2
        content["most"] = allowed if curves.claim.epsilons[0] == 0 else math.nan
    figure = one_audit.audit_figure(audit.label, estimates, shown, curves)
    run.directory.write_figure(f"{audit.id}.png", figure)
    return content | {"figure": figure}


# Of the run --------------------------------------------------------------------------------------


def _answer(run: Run, contents: list[Content]) -> Content:
    """The verdict with its reasons, and the table of all audits."""
    answered, rows = verdict.current(run), overview(run)
    quotes = [audit.quote for audit in answered.audits]
    audits = [
        entry | {"row": row, "verdict": audit.verdict, "reason": audit.reason, "quote": audit.quote}
        for entry, row, audit in zip(contents, rows, answered.audits, strict=True)
    ]
    return {
        "answer": answered,
        "audits": audits,
        "heading": words.heading(quotes),
        "below": words.below(quotes),
        "measured": [name for name in UTILITY if any(row[name] == row[name] for row in rows)],
        "interim": any(row["interim"] for row in rows),
    }


def _audited(run: Run) -> Content:
    """What was audited: the options that were asked for, and what each adversary does and sees."""
    audited: dict[str, dict[str, None]] = {}
    for cell, audit in zip(run.sweep.cells, run.plan.audits, strict=True):
        options = cell.mechanism.identity()
        if (sampling := getattr(cell.mechanism, "sampling", None)) is not None:
            options["sampling"] = sampling.identity()  # also the default one
        trials = f"{audit.trials:,}" if cell.mechanism.sampled else "none: ε is computed"
        facts = {"mechanism": options.pop("name")} | options | {"revision": "", "trials": trials}
        for key, value in (facts | {"adversary": _adversary(cell)}).items():
            audited.setdefault(_SYMBOLS.get(key, key), {})[_plain(value)] = None
    del audited["revision"]
    shown = {name: list(values)[:_LISTED] for name, values in audited.items()}
    for name, values in audited.items():
        shown[name] += [f"{len(values) - _LISTED} more"] * (len(values) > _LISTED)
    return {"audited": shown}


def _adversary(cell: Cell) -> str:
    """Name, what it does, and what it sees of a training, where that is known here."""
    name = _plain(cell.adversary.identity())
    if cell.unimported:
        return name
    does = (inspect.getdoc(type(cell.adversary)) or "").partition("\n")[0]
    sees = next((text for base, text in _SEES.items() if isinstance(cell.adversary, base)), "")
    return f"{name}: {does}{sees}"


def _plain(value: Any) -> str:
    """An option as text: a plug-in by its name, with its options behind."""
    if not isinstance(value, dict):
        return f"{value}"
    options = ", ".join(f"{key} {_plain(v)}" for key, v in value.items() if key != "name")
    return f"{value.get('name', '')} {options}".strip()


def _figures(run: Run) -> Content:
    pictures = []
    for name, text, figure in whole_run.all_figures(run):
        run.directory.write_figure(f"{name}.png", figure)
        pictures.append({"text": text, "figure": figure})
    return {"pictures": pictures}


def _reading(run: Run) -> Content:
    """What the words mean, and at which level bounds hold."""
    table, budget = run.table, run.sweep.budget
    pairs = table[["status", "mu_lower"]].itertuples(index=False)
    assumed = {Status(status).assumes(mu) for status, mu in pairs}
    reading = [*words.explained(sorted(assumed)), *words.conditions(assumed, run.sweep.cells)]
    reading += [words.MU] + [words.level(budget)] * bool(budget.audits) + [words.AS_WRITTEN]
    return {"reading": reading + [words.ABOVE] * bool(table["above_claim"].any())}


def _failed(run: Run) -> Content:
    """All that has failed and was not done since: packs by kind, single trials, preparations."""
    failed = list[dict[str, str]]()

    def add(label: str, what: str, message: str = "", detail: str = "") -> None:
        failed.append({"label": label, "what": what, "message": message, "detail": detail})

    recorded = outcomes.failed(run.directory, run.plan)
    for kind in outcomes.by_kind(recorded, run.plan):
        packs = "a pack" if kind.packs == 1 else f"{kind.packs:,} packs"
        what = f"{packs} of trials {kind.first:,}-{kind.last:,} failed" if kind.trials else "failed"
        detail = next(first.traceback for first in recorded if first.kind == kind.kind)
        add(kind.label, what, kind.message, detail)
    labels = {audit.id: audit.label for audit in run.plan.audits}
    for miss in outcomes.read(run.directory, run.plan).missed:
        what = f"{miss.trials:,} trials were missed" if miss.trials > 1 else "a trial was missed"
        detail = f"what was printed is in {run.directory.output_folder(miss.audit)}"
        add(labels[miss.audit], f"{what}, trial {miss.first:,} first", miss.message, detail)
    for line in outcomes.part_lines(outcomes.failed_parts(run.directory, run.plan), run.plan):
        add("preparation", line)
    return {"failed": failed}
