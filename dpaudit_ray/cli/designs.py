"""What `dpaudit plan --budget` prints: designs side by side, and the one to take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from . import terminal

if TYPE_CHECKING:
    from ..forecast.forecast import AuditOutlook, Outlook
    from ..sweep.spec import Sweep

_SHOWN = 3  # audits that differ in their claim


def show_designs(sweep: Sweep, outlook: Outlook, budget: float) -> None:
    """For the first audits of a claim of their own."""
    asked: dict[float, tuple[AuditOutlook, tuple[float, float]]] = {}
    for audit, cell in zip(outlook.audits, sweep.cells, strict=True):
        known = audit.sampled and audit.training_seconds > 0 and 0 < audit.claim < math.inf
        if known:
            level = (cell.audit.delta, cell.audit.confidence)
            asked.setdefault(round(audit.claim, 3), (audit, level))
    if not asked:
        terminal.say("no design to compare: no training is left to be timed, or no claim is finite")
    for audit, level in list(asked.values())[:_SHOWN]:
        _show(audit, level, budget * outlook.workers)
    if asked:
        terminal.explain(
            "eps: typical of canaries as visible as the claim allows that do not interfere, read "
            "off mu but for one-run; `adversary: one-run` and `biased-dimension` with count have "
            "several canaries in each training"
        )
    if len(asked) > _SHOWN:
        terminal.say(f"{len(asked) - _SHOWN} more claims are not shown")


def _show(audit: AuditOutlook, level: tuple[float, float], budget: float) -> None:
    from ..forecast import designs

    seconds = audit.training_seconds
    found = designs.affordable(audit.claim, level, seconds, budget)
    if not found:
        terminal.say(
            f"{audit.label}: a training takes {terminal.duration(seconds)}, more than the budget"
        )
        return
    best = designs.recommended(found)
    terminal.show_table(
        f"{audit.label}: designs of at most {terminal.duration(budget)} of trainer time, "
        f"claim {audit.claim:.3f}",
        ("trainings", "canaries each", "method", "eps", "trainer time", ""),
        [
            (
                one.trainings, one.canaries, one.method, one.epsilon,
                terminal.duration(one.seconds), "recommended" if one == best else "",
            )
            for one in found
        ],
    )  # fmt: skip
