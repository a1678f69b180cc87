"""What the words beside a bound mean: said once, printed below tables and in the report."""

from __future__ import annotations

from ..stats.budget import SweepBudget

CERTIFIED = "certified: exceeds the truth in at most 1 - confidence of all audits"
IF_GAUSSIAN = (
    "if-gaussian: mu is certified; eps is that of a Gaussian mechanism of this mu, "
    "certified by nobody"
)
ANY = "any: eps certified without any assumption on the mechanism's trade-off curve"
INTERIM = "interim: holds for that many trials, not for looking until it suits"
MIXED = (
    "mixed-code: the code was changed while the audit ran; these numbers are of no version of it"
)
ABOVE = "above its claim: the trials contradict what the mechanism promises; see dpaudit verify"


def single(budget: SweepBudget) -> str:
    """At which level the printed bounds hold, and where another one is used."""
    levels = {audit.confidence for audit in budget.audits}
    own = "its audit's confidence" if len(levels) > 1 else _percent(budget.confidence)
    one = f"each bound holds at {own} by itself"
    if budget.parts == 1:
        return one
    return (
        f"{one}; marks, and the best of several, are from bounds at {_percent(budget.each)}: "
        f"all {budget.parts:,} together hold at {_percent(budget.confidence)}"
    )


def _percent(confidence: float) -> str:
    return f"{100 * confidence:.6g} %"
