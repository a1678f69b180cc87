"""What `dpaudit plan`, `run`, `status`, `report` and `verify` print as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import terminal, tested
from .advice import show_advice
from .figures import Marked

# Of tables of bounds: what a narrow terminal does without, the first ones first.
_SPARE = ("together", "loss", "accuracy", "mu", "ratio", "eps any", "bound")
MARKED = "!: above its claim, which one true claim in many is by chance: dpaudit verify decides"

if TYPE_CHECKING:
    import pandas as pd

    from ..forecast.forecast import AuditOutlook, Outlook
    from ..plan.provenance import Code
    from ..report.answer import Answer
    from ..report.tables import Run
    from ..report.verdict import RunVerdict


def show_plan(name: str, outlook: Outlook) -> None:
    """A line per audit, what the columns mean, and the time that is left."""
    terminal.show_table(
        f"{name}: {outlook.trials:,} trials in {outlook.packs:,} packs, "
        f"{outlook.packs_done:,} packs done",
        ("audit", "trials", "packs", "done", "eps claim", "max eps", "power", "needed", "time"),
        [_planned(audit) for audit in outlook.audits],
    )
    exact = sum(not audit.sampled for audit in outlook.audits)
    if exact < len(outlook.audits):
        terminal.explain(
            "max eps: if every guess is right; power: chance of a bound of 90 % of a tight claim; "
            "needed: trials that would give it 4 times in 5"
        )
        _say_what_is_assumed([audit for audit in outlook.audits if audit.sampled])
        _say_what_rates_show(outlook)
        show_advice(outlook)
    _say_what_is_prepared(outlook)
    if exact < len(outlook.audits):
        trainers = f"{outlook.workers} trainer" + "s" * (outlook.workers > 1)
        terminal.say(
            f"left to do: about {terminal.duration(outlook.wall_seconds)} on this machine with "
            f"{trainers}, {terminal.duration(outlook.seconds)} with one"
        )
    if exact:
        terminal.say(f"exact, no trials: `dpaudit run` computes eps of {_audits(exact)}")
    if outlook.problem is not None:
        terminal.say(f"time unknown: the calibration pack fails on this machine: {outlook.problem}")


def _say_what_rates_show(outlook: Outlook) -> None:
    """Clopper-Pearson bounds on two rates end far below what some claims are."""
    short = [a for a in outlook.audits if (a.ceiling_of_rates or a.claim) < a.claim]
    if short:
        lowest = min(short, key=lambda audit: audit.ceiling_of_rates or 0.0)
        more = f", and of {len(short) - 1} more less than their claim" * (len(short) > 1)
        terminal.explain(
            f"eps-delta, paper-eps-delta: at most {lowest.ceiling_of_rates:.4f} of "
            f"{lowest.label} with {lowest.trials:,} trials, however good the attack{more}"
        )


def _say_what_is_prepared(outlook: Outlook) -> None:
    for each in outlook.preparations:
        first, *more = each.audits
        waiting = f"{first} and {len(more)} more wait" if more else f"{first} waits"
        terminal.say(
            f"{waiting} for a preparation: {each.done} of {each.parts} parts done, "
            f"about {terminal.duration(each.seconds)} with one trainer"
        )
    unknown = any(audit.sampled and math.isnan(audit.seconds) for audit in outlook.audits)
    if outlook.problem is None and unknown:
        terminal.explain("time ?: packs can be timed once what they wait for is done")


def show_code(code: Code) -> None:
    """What of the user's a sweep runs: its file is code as much as they are."""
    if code.modules:
        names = ", ".join(f"{name} ({digest[:12]})" for name, digest in code.modules.items())
        terminal.explain(
            f"runs code: {names}; with a sweep file of somebody else's, read them first, or say "
            "which may run: --trust"
        )


def _planned(audit: AuditOutlook) -> tuple[object, ...]:
    power = None if audit.power is None else f"{audit.power:.0%}"
    time = terminal.duration(audit.seconds) if audit.sampled else None
    return (audit.label, audit.trials, audit.packs, audit.packs_done, audit.claim,
            audit.largest_certifiable, power, audit.trials_needed, time)  # fmt: skip


def _say_what_is_assumed(audits: Sequence[AuditOutlook]) -> None:
    """Of the ε that a plan promises; all are converted from the μ of `accuracy`."""
    from ..report import words
    from ..stats import Status

    assumed = [audit.label for audit in audits if audit.status is not Status.CERTIFIED]
    if assumed:
        more = f" and {len(assumed) - 3} more" if len(assumed) > 3 else ""
        terminal.explain(f"max eps and power are if-gaussian for {', '.join(assumed[:3])}{more}")
        terminal.explain(words.IF_GAUSSIAN)


def show_overview(run: Run, answer: Answer | None) -> None:
    """A line per audit, what the words beside the numbers mean, and the run's verdict."""
    from ..report.tables import best, overview
    from ..storage.scores import UTILITY

    rows = overview(run)
    names = {row["estimator"] for row in rows}

    def measured(name: str) -> list[float] | None:
        values = [row[name] for row in rows]
        return None if all(map(math.isnan, values)) else values

    by = f": lower bounds by {', '.join(names)}" if len(names) == 1 else ""
    table = {
        "audit": [row["label"] for row in rows],
        "verdict": [str(one.verdict) for one in answer.audits] if answer else None,
        "trials": [_done(row) for row in rows],
        "bound": [row["estimator"] for row in rows] if len(names) > 1 else None,
        "mu": [row["mu_lower"] for row in rows],
        "eps": [_against_its_claim(row) for row in rows],
        "status": [row["status"] or "none yet" for row in rows],
        "eps any": [row["epsilon_lower_free"] for row in rows],
        "claim": [row["epsilon_upper"] for row in rows],
        "ratio": [row["ratio"] for row in rows],
        **{name: measured(name) for name in UTILITY},
        "note": _notes(rows),
    }
    terminal.explain_left_out(_show(f"{run.sweep.name}{by}", table))
    _explain(run, rows)
    if (found := best(run)) is not None and run.sweep.budget.parts > 1:
        terminal.explain(
            f"best certified, all together: eps >= {found['epsilon_lower_together']:.3f} "
            f"({found['label']}, {found['estimator']}, step {found['step']})"
        )


def show_answer(run: Run, answer: Answer | None) -> None:
    """The run's verdict, why, and what would help: what is to be read if nothing else is."""
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
    """A block per audit with every step, estimator and claim; `table` is that of all estimates."""
    shown = table.to_dict("records")
    left_out: dict[str, None] = {}
    for audit in run.plan.audits:
        mine = [row for row in shown if row["audit"] == audit.id]
        claims = {(row["step"], row["accountant"]): row["epsilon_upper"] for row in mine}
        first, *others = audit.claims
        rows = [row for row in mine if row["accountant"] == first]
        blocks = {
            "step": [row["step"] for row in rows],
            "trials": [row["trials"] for row in rows],
            "estimator": [row["estimator"] for row in rows],
            "mu": [row["mu_lower"] for row in rows],
            "eps": [_against_its_claim(row) for row in rows],
            "status": [row["status"] for row in rows],
            "together": [row["epsilon_lower_together"] for row in rows],
            "eps any": [row["epsilon_lower_free"] for row in rows],
            **{
                f"<= {name}" if others else "claim": [claims[row["step"], name] for row in rows]
                for name in audit.claims
            },
            "ratio": [_ratio(row) for row in rows],
            "note": _notes(rows),
        }
        left_out |= dict.fromkeys(_show(audit.label, blocks))
        terminal.say("")
    terminal.explain_left_out(tuple(left_out))
    if any(len(audit.claims) > 1 for audit in run.plan.audits):
        terminal.explain("<= NAME: the claim, by that accountant; ratio: eps over the first claim")
    _explain(run, shown)


def _show(title: str, columns: dict[str, list[Any] | None]) -> tuple[str, ...]:
    """The columns that there are, side by side; returns those that there is no room for."""
    present = {name: values for name, values in columns.items() if values is not None}
    spare = tuple(name for name in _SPARE if name in present)
    rows = list(zip(*present.values(), strict=True))
    return terminal.show_table(title, tuple(present), rows, spare)


def _against_its_claim(row: dict[Any, Any]) -> float | Marked:
    bound: float = row["epsilon_lower"]
    return Marked(bound) if bound > row["epsilon_upper"] else bound


def _ratio(row: dict[Any, Any]) -> float | None:
    """Of the bound to the first claim."""
    return row["epsilon_lower"] / row["epsilon_upper"] if row["epsilon_upper"] > 0 else None


def _done(row: dict[str, Any]) -> str:
    done, planned = (terminal.number(row[key]) for key in ("done", "trials"))
    return planned if row["done"] == row["trials"] else f"{done}/{planned}"


def _notes(rows: Sequence[dict[Any, Any]]) -> list[Any] | None:
    """What is to be known of single rows; None where there is nothing."""
    flags = {"interim": "interim", "above_claim": "above its claim"}
    notes = [", ".join(text for key, text in flags.items() if row[key]) for row in rows]
    return notes if any(notes) else None


def _explain(run: Run, rows: Sequence[dict[Any, Any]]) -> None:
    """The words that the rows use, and the level of their bounds."""
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
    if any(isinstance(_against_its_claim(row), Marked) for row in rows):
        terminal.explain(MARKED)
    if any(row["interim"] for row in rows):
        terminal.explain(words.INTERIM)
    if any(row["above_claim"] for row in rows):
        terminal.explain(words.ABOVE)


def show_verdict(found: RunVerdict) -> None:
    """The verdict, a line per audit, and on what it rests."""
    from ..report import power, verdict

    title = str(found.verdict)
    if found.audits:
        rows = [tested.row(audit) for audit in found.audits]
        left_out = terminal.show_table(title, tested.COLUMNS, rows, tested.SPARE)
        terminal.explain_left_out(left_out)
        terminal.explain(tested.WORDS)
        if any(audit.mixed for audit in found.audits):
            terminal.explain(verdict.MIXED)
        for audit in found.audits:
            if audit.lopsided:
                outside, inside = audit.diverged
                terminal.say(
                    f"{audit.label}: {inside} trainings with the canary diverged and {outside} "
                    "without it, so diverging depends on the canary"
                )
        for audit in found.audits:
            if audit.remark:
                terminal.explain(f"{audit.label}: {audit.remark}")
        if len(found.audits) > 1:
            terminal.explain(
                f"all audits together: evidence {found.evidence:.3f}, {found.needed:.3f} needed"
            )
        if (why := tested.why_rows_differ(found)) is not None:
            terminal.explain(why)
        terminal.explain(
            f"wrong about a true claim in at most {1 - found.confidence:.0%} of runs, whenever and "
            "however often it is asked; a claim is also refuted by tests for the declared number "
            f"of trials; power: the chance to find {power.ALTERNATIVE:g} of the "
            "claimed noise"
        )
        title = ""
    if found.exact:
        exact = [tested.computed(audit) for audit in found.exact]
        left_out = terminal.show_table(title, tested.EXACT_COLUMNS, exact, tested.SPARE)
        terminal.explain_left_out(left_out)
        terminal.explain(
            f"exact, no trials: eps of {_audits(len(found.exact))} is computed at every recorded "
            f"step; above the claim by more than {verdict.EXACT_TOLERANCE:g} is a violation"
        )


def _audits(number: int) -> str:
    return f"{number} audit" + "s" * (number > 1)
