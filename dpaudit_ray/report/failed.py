"""What failed in a run, as its page says it: packs by kind, single trials, preparations."""

from __future__ import annotations

import dataclasses

from ..plan import failures, missed, preparing
from .tables import Run


@dataclasses.dataclass(frozen=True)
class Failed:
    """Failures of one kind: what happened to what, and what is known of the first."""

    label: str
    what: str
    message: str
    detail: str


def of(run: Run) -> list[Failed]:
    """All that has failed and was not done since."""
    known = failures.read(run.directory, run.plan)
    found = [
        Failed(
            kind.label,
            f"{_packs(kind.packs)} of trials {kind.first:,}-{kind.last:,} failed"
            if kind.trials
            else "failed",
            kind.message,
            next(each.traceback for each in known if each.kind == kind.kind),
        )
        for kind in failures.by_kind(known, run.plan)
    ]
    labels = {audit.id: audit.label for audit in run.plan.audits}
    for each in missed.read(run.directory, run.plan):
        more = f"{each.trials:,} trials were missed" if each.trials > 1 else "a trial was missed"
        where = f"what was printed is in {missed.place(run.directory, each)}"
        found.append(
            Failed(labels[each.audit], f"{more}, trial {each.first:,} first", each.message, where)
        )
    for line in preparing.lines(preparing.read(run.directory, run.plan), run.plan):
        found.append(Failed("preparation", line, "", ""))
    return found


def _packs(number: int) -> str:
    return "a pack" if number == 1 else f"{number:,} packs"
