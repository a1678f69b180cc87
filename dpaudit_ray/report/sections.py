"""Content of the report's page: a function for each section, all called by `all_sections`.

Each returns a mapping for the template `report.html.j2`, which has the words around it.
"""

import collections
import inspect
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from ..plan import outcomes
from ..plugins import Plugin
from ..stats import Status
from ..storage.scores import UTILITY
from . import charts, many_audits, pictures, verdict, words
from .measures import HitRate, Profile, utilities
from .membership_rates import Reading
from .tables import Run, overview

Content = dict[str, Any]  # values by their names in the template
_LISTED = 6  # values of an option that varies


def all_sections(run: Run, progress: verdict.Progress | None) -> Content:
    """Returns the content of the page; writes the figures of the run into its directory.

    Args:
        run: the run.
        progress: called with the number of judged audits and of all, if a verdict is computed.
    """
    audit_count = len(run.plan.audits)
    if audit_count > many_audits.FEW:
        content = _many(run, progress)
    else:
        # One after another: only one audit's trials are in memory at a time.
        audits = [_audit(run, index) for index in range(audit_count)]
        answer = verdict.current(run, progress)
        content = _answer(run, audits, answer) | _figures(run, audits) | {"many": False}
    return content | _options(run) | _reading(run) | _failed(run)


def _audit(run: Run, index: int) -> Content:
    """Returns the content on one audit, with its charts.

    The trade-off curve and the guesses are shown only if trials are independent.
    """
    audit, cell = run.pairs[index]
    trials = run.trials(audit)
    estimates = run.rows(audit)
    final = estimates[estimates["step"] == audit.horizons[-1]]
    rows = final.drop_duplicates("estimator").to_dict("records")
    for row in rows:
        row["assumes"] = Status(row["status"]).assumes(row["mu_lower"])
    content = {
        "id": audit.id,
        "label": audit.label,
        "delta": cell.audit.delta,
        "confidence": cell.audit.confidence,
        "estimates": rows,
        "other_curve": bool(final["assumes_other_curve"].any()),
        "claims": {name: values[-1] for name, values in audit.claims.items()},
        "sampled": cell.sampled,
        "canaries": audit.in_a_training,
        "paired": audit.paired,
        "utility": list(utilities(audit, trials)),
        # Entries that are not filled in below stay None.
        **dict.fromkeys(("counts", "charts", "curves", "hits", "membership", "roc")),
    }
    scored = trials.scored
    has_scores = bool(len(scored.members))
    if not len(estimates) or (cell.sampled and not has_scores):
        return content
    curves = None
    if has_scores:
        diverged = ~np.isfinite(scored.scores[:, -1])
        content["counts"] = {
            "inside": scored.members.sum(),
            "outside": (~scored.members).sum(),
            "diverged_inside": (diverged & scored.members).sum(),
            "diverged_outside": (diverged & ~scored.members).sum(),
            "missed": trials.missed.sum(),
        }
        reading = Reading.of_audit(run, index, trials)
        if reading is not None:
            content["membership"] = list(reading.sentences)
            content["roc"] = reading.curves
        if audit.independent:
            curves = Profile.from_trials(cell, audit, trials)
            content["curves"] = curves
            content["hits"] = HitRate.from_trials(trials, cell.audit.confidence)
            # For an accountant that may not be imported, δ(0) is not known.
            content["most"] = math.nan
            if curves.claim.epsilons[0] == 0:
                content["most"] = (1 + float(curves.claim.deltas[0])) / 2
    return content | {"charts": charts.of_audit(estimates, scored, curves)}


def _answer(
    run: Run,
    contents: list[Content],
    answer: verdict.Answer,
) -> Content:
    """Returns the verdict with its reasons, and the table of all audits.

    Args:
        run: the run.
        contents: further content on each audit.
        answer: the verdict in words.
    """
    rows = overview(run)
    audits = []
    for content, row, audit in zip(contents, rows, answer.audits, strict=True):
        result = {
            "row": row,
            "verdict": audit.verdict,
            "reason": audit.reason,
            "quote": audit.quote,
        }
        audits.append(content | result)
    quotes = [audit.quote for audit in answer.audits]
    measured = []
    for name in UTILITY:
        if not all(math.isnan(row[name]) for row in rows):
            measured.append(name)
    return {
        "answer": answer,
        "audits": audits,
        "relation": words.relation(quotes),
        "level": min(cell.audit.confidence for cell in run.sweep.cells),
        "heading": words.heading(quotes),
        "below": words.lines_below(quotes),
        "measured": measured,
        "interim": any(row["interim"] for row in rows),
    }


def _options(run: Run) -> Content:
    """Returns the options of the sweep by key, with a sentence on each adversary."""
    by_key = collections.defaultdict[str, dict[str, None]](dict)  # values in their order
    for audit, cell in run.pairs:
        trials = "none: ε is computed"
        if cell.sampled:
            pairs = ", in pairs that share their noise" if audit.paired else ""
            trials = f"{audit.trials:,}{pairs}"
        mechanism = cell.mechanism
        adversary = cell.adversary
        nested = {"mechanism": mechanism.identity(), "adversary": adversary.identity()}
        (options,) = pd.json_normalize(nested | {"trials": trials}).to_dict("records")
        if not cell.unimported:
            summary = (inspect.getdoc(type(adversary)) or "").partition("\n")[0]
            options["adversary.name"] = f"{adversary.name}: {summary.replace('`', '')}"
        sampling = getattr(mechanism, "sampling", None)
        if isinstance(sampling, Plugin):
            options["mechanism.sampling.name"] = sampling.address  # also if it is the default
        # Names come first: False sorts before True.
        for key in sorted(map(str, options), key=lambda key: not key.endswith(".name")):
            by_key[key][f"{options[key]}"] = None
    by_key.pop("mechanism.revision", None)
    audited = {}
    for key, values in by_key.items():
        listed = list(values)[:_LISTED]
        if len(values) > _LISTED:
            listed.append(f"{len(values) - _LISTED} more")
        audited[key] = listed
    return {"audited": audited}


def _many(run: Run, progress: verdict.Progress | None) -> Content:
    """Returns the content of a page on many audits: a map of them, a table, and their numbers.

    The browser draws figures from the numbers, and filters by `facets`: how many audits have each
    verdict.
    """
    answer = verdict.current(run, progress)
    audit_numbers = [
        many_audits.numbers(run, index, audit) for index, audit in enumerate(answer.audits)
    ]
    rows = [{"id": numbers["id"], "numbers": numbers} for numbers in audit_numbers]
    keys = many_audits.varied_keys(run)
    audit_map = many_audits.audit_map(keys, len(rows))
    for_browser = {"map": asdict(audit_map), "audits": audit_numbers}
    counts = collections.Counter(audit.verdict for audit in answer.audits)
    return _answer(run, rows, answer) | {
        "many": True,
        "keys": keys,
        "map": audit_map,
        "facets": {str(kind): counts[kind] for kind in verdict.Verdict if counts[kind]},
        "data": many_audits.page_json(for_browser),
        "sampled": any(cell.sampled for cell in run.sweep.cells),
        # A page on few audits has ready charts, by `_figures`; here the browser draws all.
        "pictures": [],
        "charts": many_audits.page_json({}),
    }


def _figures(run: Run, audits: list[Content]) -> Content:
    """Returns all charts by their place in the page; writes the run's figures as PNG files."""
    curves = [audit["roc"] for audit in audits if audit["roc"] is not None]
    of_run = list(pictures.of_run(run, curves))
    for picture in of_run:
        run.directory.write_figure(f"{picture.name}.png", picture.png)
    by_place = {picture.name: picture.charts for picture in of_run}
    by_place |= {audit["id"]: audit["charts"] for audit in audits if audit["charts"]}
    return {"pictures": of_run, "charts": many_audits.page_json(by_place)}


def _reading(run: Run) -> Content:
    """Returns the meaning of words and marks, and the level of the bounds."""
    table = run.table
    pairs = zip(table["status"], table["mu_lower"], strict=True)
    assumed = {Status(status).assumes(mu) for status, mu in pairs}
    reading = [*words.explained(sorted(assumed)), *words.conditions(assumed, run.sweep.cells)]
    reading.append(words.MU)
    if run.sweep.budget.audits:
        reading.append(words.level(run.sweep.budget))
    reading.append(words.AS_WRITTEN)
    if table["above_claim"].any():
        reading.append(words.ABOVE)
    if table["assumes_other_curve"].any():
        reading.append(words.OTHER_CURVE)
    return {
        "reading": reading,
        "other_curve": words.OTHER_CURVE,
        "other_curve_mark": words.OTHER_CURVE_MARK,
    }


def _failed(run: Run) -> Content:
    """Returns all failures that were not run again since: packs, single trials, preparations."""
    files = run.directory, run.plan
    recorded = outcomes.failed(*files)
    failed = []
    for kind in outcomes.by_kind(recorded, run.plan):
        packs = "" if kind.packs == 1 else f"{kind.packs:,} packs of "
        traceback = next(failure.traceback for failure in recorded if failure.kind == kind.kind)
        what = f"{kind.label}: {packs}trials {kind.first:,}-{kind.last:,} failed: {kind.message}"
        failed.append({"what": what, "detail": traceback})
    parts = outcomes.part_lines(outcomes.failed_parts(*files), run.plan)
    for line in (*outcomes.missed_lines(*files), *parts):
        failed.append({"what": line, "detail": ""})
    return {"failed": failed}
