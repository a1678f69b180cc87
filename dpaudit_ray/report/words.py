"""What the words beside a bound mean: said once, printed below tables and in the report."""

from __future__ import annotations

from collections.abc import Collection

from .. import accounting, imports
from ..stats import Status
from ..stats.budget import SweepBudget
from ..sweep.cell import Cell

CERTIFIED = "certified: exceeds the truth in at most 1 - confidence of all audits"
IF_GAUSSIAN = (
    "if-gaussian: mu is certified; eps is that of a Gaussian mechanism of this mu, "
    "certified by nobody"
)
IF_CLAIMED = (
    "if-claimed-family: the hit rate is certified; eps is that of the claimed mechanism with the "
    "most noise that allows it, certified where the mechanism is that one up to its noise"
)
IF_ASSUMED = "if-assumed: eps is certified given what its estimator assumes"
ANY = "any: eps certified without any assumption on the mechanism's trade-off curve"
AS_WRITTEN = (
    "bounds are as estimates.parquet has them; `dpaudit check` derives them again from the scores"
)
INTERIM = "interim: holds for that many trials, not for looking until it suits"
ABOVE = (
    "above its claim: so is a bound that holds together with all others of the run; the verdict "
    "goes by a test of the whole claim, and is never CONSISTENT beside such a bound"
)
BEYOND = (
    "above by itself: at most 1 - confidence of all bounds are, where every claim is true; "
    "together with the others this one is not above its claim"
)


def conditions(statuses: Collection[str], cells: Collection[Cell]) -> list[str]:
    """What the ε of these statuses are certified given, and what the claims take for granted.

    Of claims: by which accountants, and what, at the last step of each audit.
    """
    of_status = {
        Status.IF_GAUSSIAN: IF_GAUSSIAN,
        Status.IF_CLAIMED: IF_CLAIMED,
        Status.IF_ASSUMED: IF_ASSUMED,
    }
    sentences = [text for status, text in of_status.items() if status in statuses]
    assumptions, remarks = set[str](), set[str]()
    for cell in cells:
        for spec in cell.audit.estimators:
            if not spec.unread and spec.method.assumes:
                assumptions.add(f"{spec.name} assumes: {spec.method.assumes}")
        training = cell.mechanism.claimed(cell.adversary, cell.horizons[-1]).training
        for name in cell.audit.accountants:
            if ":" in name and imports.is_data(name):
                continue
            if remark := accounting.remark(training, name):
                remarks.add(f"claim by {name}: {remark}")
    if Status.IF_ASSUMED in statuses:
        sentences += sorted(assumptions)
    return [*sentences, *sorted(remarks)]


def level(budget: SweepBudget) -> str:
    """At which level the printed bounds hold, and where another one is used."""
    several = len({audit.confidence for audit in budget.audits}) > 1
    confidence = "its audit's confidence" if several else _percent(budget.confidence)
    alone = f"each bound holds at {confidence} by itself"
    if budget.parts == 1:
        return alone
    return (
        f"{alone}; marks, and the best of several, are from bounds at {_percent(budget.each)}: "
        f"all {budget.parts:,} together hold at {_percent(budget.confidence)}"
    )


def _percent(confidence: float) -> str:
    return f"{100 * confidence:.6g} %"
