"""Sections of the page: a function each, called in `all_sections`; the template shows the rest."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import math
from typing import Any

import numpy as np
import pandas as pd

from ..plan import outcomes
from ..plan.score_stream import Trials
from ..plugins import Plugin
from ..stats import Status
from ..storage.scores import UTILITY
from . import many_audits, verdict, words
from .figures import one_audit, whole_run
from .measures import HitRate, Profile, utilities
from .membership_rates import Reading
from .tables import Run, overview

Content = dict[str, Any]  # by the names that the template has for it
_LISTED = 6  # values of an option that varies


def all_sections(run: Run, progress: verdict.Progress | None = None) -> Content:
    """Everything that the page says; writes the figures of the run beside it."""
    number = len(run.plan.audits)
    if number > many_audits.FEW:
        content = _many(run, progress)
    else:
        audits = [_audit(run, index) for index in range(number)]  # trials of one at once
        answered = verdict.current(run, progress)
        content = _answer(run, audits, answered) | _figures(run, audits) | {"many": False}
    content |= _audited(run)
    return content | _reading(run) | _failed(run)


def _audit(run: Run, index: int) -> Content:
    """What is said of one audit; its curve and guesses are drawn where trials are independent."""
    audit, cell = run.plan.audits[index], run.sweep.cells[index]
    trials, estimates = Trials.joined(audit, run.prefix(audit)), run.rows(audit)
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
        "other_curve": bool(final["assumes_other_curve"].any()),
        "claims": {name: values[-1] for name, values in audit.claims.items()},
        "sampled": cell.mechanism.sampled,
        "canaries": audit.in_a_training,
        "paired": audit.paired,
        "utility": list(utilities(audit, trials)),
        **dict.fromkeys(("counts", "figure", "curves", "hits", "membership", "roc")),
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
    if sampled and (reading := Reading.of_audit(run, index, trials)) is not None:
        content["membership"], content["roc"] = list(reading.sentences), reading.curves
    if sampled and audit.independent:
        content["curves"] = curves = Profile.from_trials(cell, audit, trials)
        content["hits"] = HitRate.from_trials(trials, cell.audit.confidence)
        # Of an accountant that may not be imported, δ(0) is not known.
        allowed = (1 + float(curves.claim.deltas[0])) / 2
        content["most"] = allowed if curves.claim.epsilons[0] == 0 else math.nan
    figure = one_audit.audit_figure(audit.label, estimates, shown, curves)
    run.directory.write_figure(f"{audit.id}.png", figure)
    return content | {"figure": figure}


def _answer(run: Run, contents: list[Content], answered: verdict.Answer) -> Content:
    """The verdict with its reasons, and the table of all audits."""
    rows = overview(run)
    quotes = [audit.quote for audit in answered.audits]
    audits = [
        entry | {"row": row, "verdict": audit.verdict, "reason": audit.reason, "quote": audit.quote}
        for entry, row, audit in zip(contents, rows, answered.audits, strict=True)
    ]
    return {
        "answer": answered,
        "audits": audits,
        "relation": words.relation(quotes),
        "level": min(cell.audit.confidence for cell in run.sweep.cells),
        "heading": words.heading(quotes),
        "below": words.below(quotes),
        "measured": [name for name in UTILITY if any(row[name] == row[name] for row in rows)],
        "interim": any(row["interim"] for row in rows),
    }


def _audited(run: Run) -> Content:
    """What was audited: the options that were asked for, by key, and what each adversary does."""
    stated = dict[str, dict[str, None]]()
    for cell, audit in zip(run.sweep.cells, run.plan.audits, strict=True):
        pairs = ", in pairs that share their noise" * audit.paired
        trials = f"{audit.trials:,}{pairs}" if cell.mechanism.sampled else "none: ε is computed"
        facts = {"mechanism": cell.mechanism.identity(), "adversary": cell.adversary.identity()}
        (options,) = pd.json_normalize(facts | {"trials": trials}).to_dict("records")
        if not cell.unimported:
            does = (inspect.getdoc(type(cell.adversary)) or "").partition("\n")[0]
            options["adversary.name"] = f"{cell.adversary.name}: {does.replace('`', '')}"
        if isinstance(sampler := getattr(cell.mechanism, "sampling", None), Plugin):
            options["mechanism.sampling.name"] = sampler.address  # that of the default, too
        for key in sorted(map(str, options), key=lambda key: not key.endswith(".name")):
            stated.setdefault(key, {})[f"{options[key]}"] = None
    stated.pop("mechanism.revision", None)
    audited = {}
    for key, values in stated.items():
        more = [f"{len(values) - _LISTED} more"] * (len(values) > _LISTED)
        audited[key] = [*list(values)[:_LISTED], *more]
    return {"audited": audited}


def _many(run: Run, progress: verdict.Progress | None) -> Content:
    """The map and the table of many audits, and the numbers of what the browser draws."""
    answered = verdict.current(run, progress)
    entries: list[Content] = []
    for index, (audit, answer) in enumerate(zip(run.plan.audits, answered.audits, strict=True)):
        numbers = many_audits.numbers(run, index, answer)
        entries.append({"id": audit.id, "numbers": numbers})
    content = _answer(run, entries, answered)
    keys = many_audits.varied_keys(run)
    placed = many_audits.audit_map(keys, len(entries))
    drawn = {"map": dataclasses.asdict(placed), "audits": [it["numbers"] for it in entries]}
    counts = collections.Counter(str(audit.verdict) for audit in answered.audits)
    return content | {
        "many": True,
        "keys": keys,
        "map": placed,
        "facets": {str(kind): counts[kind] for kind in verdict.Verdict if counts[kind]},
        "data": many_audits.data(drawn),
        "sampled": any(cell.mechanism.sampled for cell in run.sweep.cells),
        "pictures": [],
    }


def _figures(run: Run, audits: list[Content]) -> Content:
    pictures = []
    curves = [audit["roc"] for audit in audits if audit["roc"] is not None]
    text = "Members that the scores of the first six audits find, with bands and claims"
    roc = [("membership", text, whole_run.roc_figure(curves))] if curves else []
    for name, text, figure in (*whole_run.all_figures(run), *roc):
        run.directory.write_figure(f"{name}.png", figure)
        pictures.append({"text": text, "figure": figure})
    return {"pictures": pictures}


def _reading(run: Run) -> Content:
    """What the words mean, and at which level bounds hold."""
    table, budget = run.table, run.sweep.budget
    pairs = table[["status", "mu_lower"]].itertuples(index=False)
    assumed = {Status(status).assumes(mu) for status, mu in pairs}
    reading = [*words.explained(sorted(assumed)), *words.conditions(assumed, run.sweep.cells)]
    reading.append(words.MU)
    if budget.audits:
        reading.append(words.level(budget))
    reading.append(words.AS_WRITTEN)
    if table["above_claim"].any():
        reading.append(words.ABOVE)
    if table["assumes_other_curve"].any():
        reading.append(words.OTHER_CURVE)
    marks = {"other_curve": words.OTHER_CURVE, "other_curve_mark": words.OTHER_CURVE_MARK}
    return {"reading": reading, **marks}


def _failed(run: Run) -> Content:
    """All that has failed and was not done since: packs by kind, single trials, preparations."""
    where, failed = (run.directory, run.plan), list[dict[str, str]]()
    recorded = outcomes.failed(*where)
    for kind in outcomes.by_kind(recorded, run.plan):
        packs = "" if kind.packs == 1 else f"{kind.packs:,} packs of "
        what = f"{kind.label}: {packs}trials {kind.first:,}-{kind.last:,} failed: {kind.message}"
        detail = next(first.traceback for first in recorded if first.kind == kind.kind)
        failed.append({"what": what, "detail": detail})
    parts = outcomes.part_lines(outcomes.failed_parts(*where), run.plan)
    lines = (*outcomes.missed_lines(*where), *parts)
    return {"failed": failed + [{"what": line, "detail": ""} for line in lines]}
