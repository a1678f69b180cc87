"""Output of `dpaudit plan`: time and power of audits, advice, and designs for a budget."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from . import terminal
from .number_format import Figure, duration, plural

if TYPE_CHECKING:
    from ..forecast.forecast import AuditOutlook, Outlook
    from ..plan.provenance import Code
    from ..sweep.spec import Sweep

_MAX_ADVICE = 3  # sentences
_MAX_CLAIMS = 3  # for which designs are compared
_RANK_MAX_EPSILON = 4.0  # up to which `rank` needs 1.5 times fewer trials than `accuracy`
_COSTLY_FACTOR = 20  # times as many trials: another design may be cheaper


def show_plan(name: str, outlook: Outlook) -> None:
    """Prints a line per audit, what the columns mean, and the time that is left."""
    columns = ("audit", "trials", "packs", "done", "eps claim", "max eps", "power", "needed",
               "time")  # fmt: skip
    terminal.show_table(
        f"{name}: {outlook.trials:,} trials in {outlook.packs:,} packs, "
        f"{outlook.packs_done:,} packs done",
        columns,
        [_row(audit) for audit in outlook.audits],
    )
    sampled = [audit for audit in outlook.audits if audit.sampled]
    if sampled:
        terminal.explain(
            "max eps: if every guess is right; power: chance of a bound of 90 % of a tight claim; "
            "needed: trials that would give it 4 times in 5"
        )
        _explain_assumption(sampled)
        _explain_ceiling(outlook)
        show_advice(outlook)
    _explain_preparations(outlook)
    if sampled:
        terminal.say(
            f"left to do: about {duration(outlook.wall_seconds)} on this machine with "
            f"{plural(outlook.workers, 'trainer')}, {duration(outlook.seconds)} with one"
        )
    if exact := len(outlook.audits) - len(sampled):
        terminal.say(f"exact, no trials: `dpaudit run` computes eps of {plural(exact, 'audit')}")
    if outlook.problem is not None:
        terminal.say(f"time unknown: the calibration pack fails on this machine: {outlook.problem}")


def _row(audit: AuditOutlook) -> tuple[object, ...]:
    power = None if audit.power is None else Figure(f"{audit.power:.0%}")
    return (audit.label, audit.trials, audit.packs, audit.packs_done, audit.claim,
            audit.largest_certifiable, power, audit.trials_needed,
            duration(audit.seconds) if audit.sampled else None)  # fmt: skip


def _explain_assumption(audits: Sequence[AuditOutlook]) -> None:
    """Prints where ε rests on an assumption: all are converted from the μ of `accuracy`."""
    from ..report import words
    from ..stats import Status

    assumed = [audit.label for audit in audits if audit.status is not Status.CERTIFIED]
    if assumed:
        more = f" and {len(assumed) - 3} more" if len(assumed) > 3 else ""
        terminal.explain(f"max eps and power are if-gaussian for {', '.join(assumed[:3])}{more}")
        terminal.explain(words.IF_GAUSSIAN)


def _explain_ceiling(outlook: Outlook) -> None:
    """Prints where Clopper-Pearson bounds on two rates cannot reach the claim."""
    short = [a for a in outlook.audits if (a.ceiling_of_rates or a.claim) < a.claim]
    if short:
        lowest = min(short, key=lambda audit: audit.ceiling_of_rates or 0.0)
        more = f", and of {len(short) - 1} more less than their claim" * (len(short) > 1)
        terminal.explain(
            f"eps-delta, paper-eps-delta: at most {lowest.ceiling_of_rates:.4f} of "
            f"{lowest.label} with {lowest.trials:,} trials, however good the attack{more}"
        )


def _explain_preparations(outlook: Outlook) -> None:
    for preparation in outlook.preparations:
        first, *more = preparation.audits
        waiting = f"{first} and {len(more)} more wait" if more else f"{first} waits"
        terminal.say(
            f"{waiting} for a preparation: {preparation.done} of {preparation.parts} parts done, "
            f"about {duration(preparation.seconds)} with one trainer"
        )
    unknown = any(audit.sampled and math.isnan(audit.seconds) for audit in outlook.audits)
    if outlook.problem is None and unknown:
        terminal.explain("time ?: packs can be timed once what they wait for is done")


def show_code(code: Code) -> None:
    """Prints the user's modules that a sweep runs: its file is code as much as they are."""
    if code.modules:
        names = ", ".join(f"{name} ({digest[:12]})" for name, digest in code.modules.items())
        terminal.explain(
            f"runs code: {names}; with a sweep file of somebody else's, read them first, or say "
            "which may run: --trust"
        )


def show_advice(outlook: Outlook) -> None:
    """Prints a sentence for audits of little power; those with the same numbers share it."""
    from ..forecast.forecast import USUAL_POWER
    from ..stats import Status

    weak: dict[tuple[object, ...], list[AuditOutlook]] = {}
    for audit in outlook.audits:
        if audit.power is not None and audit.power < USUAL_POWER:
            numbers = (audit.claim, audit.trials, audit.trainings, audit.trials_needed)
            weak.setdefault(numbers, []).append(audit)
    for audits in list(weak.values())[:_MAX_ADVICE]:
        first, more = audits[0], f" and {len(audits) - 1} more" * (len(audits) > 1)
        seconds = sum(audit.needed_seconds for audit in audits)
        advice = "; ".join(_advice(first, seconds))
        terminal.explain(f"power {first.power:.0%}, {first.label}{more}: {advice}")
    if len(weak) > _MAX_ADVICE:
        terminal.say(f"{len(weak) - _MAX_ADVICE} more designs of little power are not shown")
    if any(audit.status is not Status.CERTIFIED for audits in weak.values() for audit in audits):
        terminal.explain(
            "power takes the attack to see all that the claim allows, which most do not; against "
            "dp-sgd, biased-dimension at period 1 does"
        )


def _advice(audit: AuditOutlook, seconds: float) -> Iterator[str]:
    """Sentences on the power of an audit, and on what would raise it in `seconds` of a trainer."""
    if audit.claim == 0:
        yield "nothing is claimed to leak, so no bound comes near; `verify` tests the claim"
        return
    if not audit.claim < math.inf:
        yield "the claim is infinite, so no bound comes near; more noise, or another accountant"
        return
    if audit.trainings <= 1:
        yield (
            "power is that of one bit from each training, and all trials are canaries of one; "
            "`dpaudit plan --budget 10min` compares what such designs show"
        )
        return
    shown = f"{audit.likely:.2f} of the {audit.claim:.2f}" if audit.likely else "nothing"
    yield f"{audit.trials:,} trials show {shown}, 4 times in 5"
    needed = audit.trials_needed
    if needed is None:
        yield "no number of trials shows 90 % of such a claim: take more noise, or fewer steps"
        return
    time = "" if math.isnan(seconds) else f", about {duration(seconds)} with one trainer"
    yield f"{needed:,} show 90 %: --set audit.trials={needed}{time}"
    if audit.claim <= _RANK_MAX_EPSILON:
        yield "estimators: [rank] takes 1.5 times fewer for a claim this small"
    if needed > _COSTLY_FACTOR * audit.trials:
        yield "`dpaudit plan --budget 1h` looks for a cheaper design, of more canaries each"


def show_designs(sweep: Sweep, outlook: Outlook, budget: float) -> None:
    """Prints designs that `budget` seconds pay for, for the first audits whose claims differ."""
    by_claim: dict[float, tuple[AuditOutlook, tuple[float, float]]] = {}
    for audit, cell in zip(outlook.audits, sweep.cells, strict=True):
        if audit.sampled and audit.training_seconds > 0 and 0 < audit.claim < math.inf:
            level = (cell.audit.delta, cell.audit.confidence)
            by_claim.setdefault(round(audit.claim, 3), (audit, level))
    if not by_claim:
        terminal.say("no design to compare: no training is left to be timed, or no claim is finite")
        return
    for audit, level in list(by_claim.values())[:_MAX_CLAIMS]:
        _show_designs_for(audit, level, budget * outlook.workers)
    terminal.explain(
        "eps: typical of canaries as visible as the claim allows that do not interfere, read "
        "off mu but for one-run; `adversary: one-run` and `biased-dimension` with count have "
        "several canaries in each training"
    )
    if len(by_claim) > _MAX_CLAIMS:
        terminal.say(f"{len(by_claim) - _MAX_CLAIMS} more claims are not shown")


def _show_designs_for(audit: AuditOutlook, level: tuple[float, float], budget: float) -> None:
    from ..forecast import designs

    seconds = audit.training_seconds
    affordable = designs.affordable(audit.claim, level, seconds, budget)
    if not affordable:
        terminal.say(f"{audit.label}: a training takes {duration(seconds)}, more than the budget")
        return
    best = designs.recommended(affordable)
    rows = [
        (
            design.trainings, design.canaries, design.method, design.epsilon,
            duration(design.seconds), "recommended" if design == best else "",
        )
        for design in affordable
    ]  # fmt: skip
    terminal.show_table(
        f"{audit.label}: designs of at most {duration(budget)} of trainer time, "
        f"claim {audit.claim:.3f}",
        ("trainings", "canaries each", "method", "eps", "trainer time", ""),
        rows,
    )
