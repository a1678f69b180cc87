"""The one ε of an audit that people quote, wherever they look: terminal, page, notebook and files.

It is the bound of what stands for the audit at its last recorded step, at the level at which all
bounds of the run hold together. Which it is follows from the sweep, with one exception: a number
that rests on something unproved is not quoted above a claim that nothing refutes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from ..errors import percent, plain
from ..stats import Status
from .tables import EXACT, Run, assumption_free, may_exceed_claim, representative


@dataclasses.dataclass(frozen=True)
class Quote:
    """The lower bound of an audit that is quoted, and all that is said with it.

    `epsilon`, at `delta`, is None where there is none to quote; `reason` says why. Where it holds
    `together` with all other bounds of the run, it does so at `confidence`.
    """

    label: str
    epsilon: float | None
    delta: float
    confidence: float
    assumes: str
    claim: float  # by the accountant, at the same step
    accountant: str
    estimator: str
    step: int
    together: bool
    reason: str = ""

    @property
    def above(self) -> bool:
        return self.epsilon is not None and self.epsilon > self.claim

    @property
    def text(self) -> str:
        """The number as it is shown everywhere, `none` without one."""
        return "none" if self.epsilon is None else epsilon_text(self.epsilon)

    @property
    def level(self) -> str:
        share = percent(self.confidence)
        words = {EXACT: EXACT, "not final": f"not final: {share} holds only after all trials"}
        return f"δ = {plain(self.delta)}, {words.get(self.assumes, f'{share}, {self.assumes}')}"

    @property
    def exact(self) -> bool:
        """Whether no trials are behind it: then it is ε, and no lower bound."""
        return self.assumes == EXACT


def epsilon_text(epsilon: float, digits: int = 3) -> str:
    """Returns ε with so many decimals, or with two significant digits if it is below 0.01."""
    if epsilon == 0:
        return "0"
    if abs(epsilon) < _SMALLEST_PLAIN:
        return plain(epsilon, ".1e")
    return f"{epsilon:,.{digits}f}"


_SMALLEST_PLAIN = 0.01  # of an ε with three decimals
PROVED = ("assumption-free", "Gaussian steps", EXACT)  # what a certified ε assumes


def claimed(epsilon: float, digits: int = 3) -> str:
    """The ε of a claim as it is shown; `nothing` where all may leak."""
    return "nothing" if epsilon == math.inf else epsilon_text(epsilon, digits)


def quote(run: Run, index: int, refuted: bool = False) -> Quote:
    """The quote of an audit by its number; `refuted`: trials refute its claim."""
    audit, cell = run.plan.audits[index], run.sweep.cells[index]
    rows, first = run.last_rows(audit), representative(run, audit)
    accountant, step = next(iter(audit.claims)), audit.horizons[-1]
    row, sampled, level = rows.get(first), cell.mechanism.sampled, cell.audit
    none = Quote(audit.label, None, level.delta, level.confidence, "", audit.claim, accountant,
                 first, step, False)  # fmt: skip
    if row is None or (sampled and run.done(audit) == 0):
        return dataclasses.replace(none, reason="nothing is measured yet")
    if not sampled:
        epsilon = float(row["epsilon_lower"])
        return dataclasses.replace(none, epsilon=epsilon, assumes=EXACT, together=True)
    whole = _with(none, row, run.sweep.budget.confidence)
    if not whole.above or may_exceed_claim(row, refuted):
        return whole
    if (free := assumption_free(rows, row)) is not None:
        return _with(none, free, run.sweep.budget.confidence)
    reason = f"what {first} shows ({whole.assumes}) is above the claim, and does not refute it"
    return dataclasses.replace(whole, epsilon=None, reason=reason)


def _with(none: Quote, row: dict[Any, Any], confidence: float) -> Quote:
    """A quote with the bound of a row: at the level of all together where it has one."""
    together = float(row["epsilon_lower_together"])
    holds = not math.isnan(together)
    return dataclasses.replace(
        none,
        epsilon=together if holds else float(row["epsilon_lower"]),
        confidence=confidence if holds else none.confidence,
        assumes=Status(row["status"]).assumes(row["mu_lower"]),
        estimator=str(row["estimator"]),
        together=holds,
    )
