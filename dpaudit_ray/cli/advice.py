"""What `dpaudit plan` says to do about an audit that will hardly show its claim."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import terminal

if TYPE_CHECKING:
    from ..forecast.forecast import AuditOutlook, Outlook

_SHOWN = 3  # pieces of advice
_FOR_RANK = 4.0  # ε up to which `rank` needs 1.5 times fewer trials than `accuracy`
_MANY = 20  # times as many trials: another design may be cheaper


def show_advice(outlook: Outlook) -> None:
    """A sentence for audits of little power; those with the same numbers share it."""
    from ..forecast.forecast import USUAL_POWER
    from ..stats import Status

    weak: dict[tuple[object, ...], list[AuditOutlook]] = {}
    for audit in outlook.audits:
        if audit.power is not None and audit.power < USUAL_POWER:
            alike = (audit.claim, audit.trials, audit.trainings, audit.trials_needed)
            weak.setdefault(alike, []).append(audit)
    for audits in list(weak.values())[:_SHOWN]:
        first, more = audits[0], f" and {len(audits) - 1} more" * (len(audits) > 1)
        seconds = sum(audit.needed_seconds for audit in audits)
        said = "; ".join(_sentences(first, seconds))
        terminal.explain(f"power {first.power:.0%}, {first.label}{more}: {said}")
    if len(weak) > _SHOWN:
        terminal.say(f"{len(weak) - _SHOWN} more designs of little power are not shown")
    if any(one.status is not Status.CERTIFIED for audits in weak.values() for one in audits):
        terminal.explain(
            "power takes the attack to see all that the claim allows, which most do not; against "
            "dp-sgd, biased-dimension at period 1 does"
        )


def _sentences(audit: AuditOutlook, seconds: float) -> Iterator[str]:
    """What it can show, and what would show more; `seconds` of a trainer it would take."""
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
    time = "" if math.isnan(seconds) else f", about {terminal.duration(seconds)} with one trainer"
    yield f"{needed:,} show 90 %: --set audit.trials={needed}{time}"
    if audit.claim <= _FOR_RANK:
        yield "estimators: [rank] takes 1.5 times fewer for a claim this small"
    if needed > _MANY * audit.trials:
        yield "`dpaudit plan --budget 1h` looks for a cheaper design, of more canaries each"
