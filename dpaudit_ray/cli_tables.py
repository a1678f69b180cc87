"""What `dpaudit plan` and `dpaudit verify` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import terminal

if TYPE_CHECKING:
    from .forecast import AuditOutlook, Outlook
    from .verdict import AuditVerdict, ExactVerdict, RunVerdict


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
        terminal.say(
            "max eps: if every guess is right; power: chance to certify 90 % of a tight claim; "
            "needed: trials that would do so 4 times in 5"
        )
        trainers = f"{outlook.workers} trainer" + "s" * (outlook.workers > 1)
        terminal.say(
            f"left to do: about {terminal.duration(outlook.wall_seconds)} on this machine with "
            f"{trainers}, {terminal.duration(outlook.seconds)} with one"
        )
    if exact:
        terminal.say(f"exact, no trials: `dpaudit run` computes eps of {_audits(exact)}")
    if outlook.problem is not None:
        terminal.say(f"time unknown: the calibration pack fails on this machine: {outlook.problem}")


def _planned(audit: AuditOutlook) -> tuple[object, ...]:
    power = None if audit.power is None else f"{audit.power:.0%}"
    time = terminal.duration(audit.seconds) if audit.sampled else None
    return (audit.label, audit.trials, audit.packs, audit.packs_done, audit.claim,
            audit.largest_certifiable, power, audit.trials_needed, time)  # fmt: skip


def show_verdict(found: RunVerdict) -> None:
    """The verdict, a line per audit, and on what it rests."""
    from . import verdict

    title = str(found.verdict)
    if found.audits:
        terminal.show_table(
            title,
            ("audit", "verdict", "accountant", "eps claim", "noise", "noise at most",
             "log10 evidence", "needed", "trials", "refuted after", "power"),
            [_tested(audit) for audit in found.audits],
        )  # fmt: skip
        terminal.say(
            f"wrong about a true claim in at most {1 - found.confidence:.0%} of runs, whenever and "
            f"however often it is asked; power: the chance to find {verdict.ALTERNATIVE:g} of the "
            "claimed noise"
        )
        title = ""
    if found.exact:
        columns = ("audit", "verdict", "accountant", "eps claim", "eps exact", "step")
        terminal.show_table(title, columns, [_computed(audit) for audit in found.exact])
        terminal.say(
            f"exact, no trials: eps of {_audits(len(found.exact))} is computed at every recorded "
            f"step; above the claim by more than {verdict.EXACT_TOLERANCE:g} is a violation"
        )


def _tested(audit: AuditVerdict) -> tuple[object, ...]:
    return (audit.label, audit.verdict, audit.accountant, audit.claim, audit.noise_multiplier,
            audit.effective_noise or "any", audit.evidence, audit.needed, audit.trials,
            audit.refuted_after or "never", f"{audit.power:.0%}")  # fmt: skip


def _computed(audit: ExactVerdict) -> tuple[object, ...]:
    return (audit.label, audit.verdict, audit.accountant, audit.claim, audit.epsilon, audit.step)


def _audits(number: int) -> str:
    return f"{number} audit" + "s" * (number > 1)
