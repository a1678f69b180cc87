"""Tables of estimates and verdicts for `dpaudit run`, `status`, `report` and `verify`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import terminal
from .number_format import Bound, Figure, number, plural

if TYPE_CHECKING:
    import pandas as pd

    from ..report.answer import Answer
    from ..report.tables import Run
    from ..report.verdict import AuditVerdict, RunVerdict

# Columns that a narrow terminal does without, the first ones first.
_SPARE = ("together", "loss", "accuracy", "mu", "ratio", "eps any", "bound")
_SPARE_IN_VERDICTS = ("accountant", "needed", "refuted", "trials", "evidence")
_ABOVE_CLAIM = (
    "!: above its claim, which one true claim in many is by chance: dpaudit verify decides"
)
_VERDICT_COLUMNS = (
    "claim: eps at delta; noise: its multiplier, as claimed; found: what it is at most by the "
    "trials; evidence: log10 of the e-value against the claim, which is refuted once that is what "
    "is needed; refuted: after so many trials"
)


def show_overview(run: Run, answer: Answer | None) -> None:
    """Prints a line per audit and what the words beside the numbers mean."""
    from ..report.tables import best, overview
    from ..storage.scores import UTILITY

    rows = overview(run)
    estimators = {row["estimator"] for row in rows}
    by = f": lower bounds by {', '.join(estimators)}" if len(estimators) == 1 else ""
    columns: dict[str, list[Any] | None] = {
        "audit": [row["label"] for row in rows],
        "verdict": [str(audit.verdict) for audit in answer.audits] if answer else None,
        "trials": [progress_figure(row) for row in rows],
        "bound": [row["estimator"] for row in rows] if len(estimators) > 1 else None,
        "mu": [row["mu_lower"] for row in rows],
        "eps": [_bound(row) for row in rows],
        "status": [row["status"] or "none yet" for row in rows],
        "eps any": [row["epsilon_lower_free"] for row in rows],
        "claim": [row["epsilon_upper"] for row in rows],
        "ratio": [row["ratio"] for row in rows],
    }
    for name in UTILITY:
        values = [row[name] for row in rows]
        columns[name] = None if all(map(math.isnan, values)) else values
    columns["note"] = _notes(rows)
    terminal.explain_left_out(_show(f"{run.sweep.name}{by}", columns))
    _explain(run, rows)
    strongest = best(run)
    if strongest is not None and run.sweep.budget.parts > 1:
        terminal.explain(
            f"best certified, all together: eps >= {strongest['epsilon_lower_together']:.3f} "
            f"({strongest['label']}, {strongest['estimator']}, step {strongest['step']})"
        )


def show_answer(run: Run, answer: Answer | None) -> None:
    """Prints the run's verdict, why, and what would help: to be read if nothing else is."""
    if answer is None:
        terminal.explain(f"so many trials are judged by `dpaudit verify {run.directory.location}`")
        return
    terminal.explain(answer.sentence)
    if not answer.derived:
        terminal.explain(
            "  that is what verdict.json says: nobody derived it here, "
            f"`dpaudit verify {run.directory.location}` does"
        )
    for line in answer.help:
        terminal.explain(f"  it would help: {line}")


def show_estimates(run: Run, table: pd.DataFrame) -> None:
    """Prints a block per audit with every step, estimator and claim of `all_estimates`."""
    estimates = table.to_dict("records")
    left_out: dict[str, None] = {}
    for audit in run.plan.audits:
        of_audit = [row for row in estimates if row["audit"] == audit.id]
        claims = {(row["step"], row["accountant"]): row["epsilon_upper"] for row in of_audit}
        first, *others = audit.claims
        rows = [row for row in of_audit if row["accountant"] == first]
        columns: dict[str, list[Any] | None] = {
            "step": [row["step"] for row in rows],
            "trials": [row["trials"] for row in rows],
            "estimator": [row["estimator"] for row in rows],
            "mu": [row["mu_lower"] for row in rows],
            "eps": [_bound(row) for row in rows],
            "status": [row["status"] for row in rows],
            "together": [row["epsilon_lower_together"] for row in rows],
            "eps any": [row["epsilon_lower_free"] for row in rows],
        }
        for name in audit.claims:
            head = f"<= {name}" if others else "claim"
            columns[head] = [claims[row["step"], name] for row in rows]
        columns["ratio"] = [
            row["epsilon_lower"] / row["epsilon_upper"] if row["epsilon_upper"] > 0 else None
            for row in rows
        ]
        columns["note"] = _notes(rows)
        left_out |= dict.fromkeys(_show(audit.label, columns))
        terminal.say("")
    terminal.explain_left_out(tuple(left_out))
    if any(len(audit.claims) > 1 for audit in run.plan.audits):
        terminal.explain("<= NAME: the claim, by that accountant; ratio: eps over the first claim")
    _explain(run, estimates)


def show_verdict(judged: RunVerdict) -> None:
    """Prints the verdict, a line per audit, and on what it rests."""
    from ..report import power, verdict

    title = str(judged.verdict)
    if judged.audits:
        columns = ("audit", "verdict", "accountant", "claim", "noise", "found", "evidence",
                   "needed", "trials", "refuted", "power")  # fmt: skip
        rows = [_verdict_row(audit) for audit in judged.audits]
        terminal.explain_left_out(terminal.show_table(title, columns, rows, _SPARE_IN_VERDICTS))
        terminal.explain(_VERDICT_COLUMNS)
        if any(audit.mixed for audit in judged.audits):
            terminal.explain(verdict.MIXED)
        for audit in judged.audits:
            if audit.lopsided:
                outside, inside = audit.diverged
                terminal.say(
                    f"{audit.label}: {inside} trainings with the canary diverged and {outside} "
                    "without it, so diverging depends on the canary"
                )
        for audit in judged.audits:
            if audit.remark:
                terminal.explain(f"{audit.label}: {audit.remark}")
        if len(judged.audits) > 1:
            terminal.explain(
                f"all audits together: evidence {judged.evidence:.3f}, {judged.needed:.3f} needed"
            )
        if (why := why_rows_differ(judged)) is not None:
            terminal.explain(why)
        terminal.explain(
            f"wrong about a true claim in at most {1 - judged.confidence:.0%} of runs, whenever "
            "and however often it is asked; a claim is also refuted by tests for the declared "
            f"number of trials; power: the chance to find {power.ALTERNATIVE:g} of the claimed "
            "noise"
        )
        title = ""
    if judged.exact:
        exact_rows = [
            (a.label, a.verdict, a.accountant, a.claim, a.epsilon, a.step) for a in judged.exact
        ]
        exact_columns = ("audit", "verdict", "accountant", "claim", "exact", "step")
        terminal.explain_left_out(
            terminal.show_table(title, exact_columns, exact_rows, _SPARE_IN_VERDICTS)
        )
        terminal.explain(
            f"exact, no trials: eps of {plural(len(judged.exact), 'audit')} is computed at every "
            f"recorded step; above the claim by more than {verdict.EXACT_TOLERANCE:g} is a "
            "violation"
        )


def why_rows_differ(judged: RunVerdict) -> str | None:
    """Why a run's verdict is that of no row; None where that needs no word."""
    from ..report.verdict import Verdict

    verdicts = [audit.verdict for audit in judged.audits]
    verdicts += [audit.verdict for audit in judged.exact]
    unclear = verdicts.count(Verdict.INCONCLUSIVE)
    if judged.verdict is Verdict.CONSISTENT and unclear:
        which = "an audit that cannot" if unclear == 1 else f"{unclear} audits that cannot"
        return (
            "CONSISTENT: each mechanism has an audit that would have found missing noise, beside "
            f"{which} (INCONCLUSIVE)"
        )
    if judged.verdict is Verdict.VIOLATION and Verdict.VIOLATION not in verdicts:
        return "VIOLATION: by the evidence of all audits together, and of none alone"
    return None


def progress_figure(row: dict[str, Any]) -> Figure:
    """Trials that are done, and beside them those that are planned, where these are more."""
    done, planned = number(row["done"]), number(row["trials"])
    return Figure(planned if row["done"] == row["trials"] else f"{done}/{planned}")


def _verdict_row(audit: AuditVerdict) -> tuple[object, ...]:
    return (
        audit.label, audit.verdict, audit.accountant, audit.claim, audit.noise_multiplier,
        audit.effective_noise or Figure("any"), audit.evidence, audit.needed, audit.trials,
        audit.refuted_after or Figure("never"), Figure(f"{audit.power:.0%}"),
    )  # fmt: skip


def _show(title: str, columns: dict[str, list[Any] | None]) -> tuple[str, ...]:
    """Prints the columns that are there, and returns those for which there was no room."""
    present = {name: values for name, values in columns.items() if values is not None}
    rows = list(zip(*present.values(), strict=True))
    return terminal.show_table(title, tuple(present), rows, _SPARE)


def _bound(row: dict[Any, Any]) -> Bound:
    return Bound(row["epsilon_lower"], row["epsilon_lower"] > row["epsilon_upper"])


def _notes(rows: Sequence[dict[Any, Any]]) -> list[Any] | None:
    """The flags of single rows in words; None where no row has any."""
    flags = {"interim": "interim", "above_claim": "above its claim"}
    notes = [", ".join(text for key, text in flags.items() if row[key]) for row in rows]
    return notes if any(notes) else None


def _explain(run: Run, rows: Sequence[dict[Any, Any]]) -> None:
    """Prints what the words in the rows mean, and the level of their bounds."""
    from ..report import words
    from ..stats import Status

    statuses = {row["status"] for row in rows}
    terminal.explain(words.CERTIFIED)
    for condition in words.conditions(statuses, run.sweep.cells):
        terminal.explain(condition)
    if Status.MIXED in statuses:
        terminal.explain(words.MIXED)
    terminal.explain(words.ANY)
    if run.sweep.budget.audits:
        terminal.explain(words.single(run.sweep.budget))
    if any(_bound(row).above_claim for row in rows):
        terminal.explain(_ABOVE_CLAIM)
    if any(row["interim"] for row in rows):
        terminal.explain(words.INTERIM)
    if any(row["above_claim"] for row in rows):
        terminal.explain(words.ABOVE)
