"""The one ε of an audit that is quoted everywhere: in the terminal, page, notebook and files.

It is the bound by the audit's first estimator at its last recorded step, at the level at which all
bounds of the run hold simultaneously. The sweep decides which bound it is, with one exception: a
number that assumes something unproved is not quoted above a claim that nothing refutes.
"""

import math
from dataclasses import dataclass, replace

from ..errors import percent, plain
from ..stats import Status
from .tables import EXACT, Row, Run, assumption_free, may_exceed_claim, representative

_SMALLEST_PLAIN = 0.01  # a smaller ε would have one significant digit among three decimals
PROVED = ("assumption-free", "Gaussian steps", EXACT)  # the assumptions of a certified ε


@dataclass(frozen=True)
class Quote:
    """The quoted lower bound of an audit, with its meaning.

    Attributes:
        label: the audit's label.
        epsilon: the bound; None if no bound is to be quoted.
        delta: δ of the bound.
        confidence: confidence of the bound.
        assumes: assumption of the bound, in the words of `Status.assumes`.
        claim: ε that the accountant claims for the same step.
        accountant: the audit's first accountant.
        estimator: the estimator of the bound.
        step: the recorded step.
        together: whether the bound holds simultaneously with all other bounds of the run.
        reason: why there is no ε to quote.
    """

    label: str
    epsilon: float | None
    delta: float
    confidence: float
    assumes: str
    claim: float
    accountant: str
    estimator: str
    step: int
    together: bool
    reason: str = ""

    @property
    def above(self) -> bool:
        """Whether the quoted ε is above the claim."""
        return self.epsilon is not None and self.epsilon > self.claim

    @property
    def text(self) -> str:
        """The quoted ε as it is shown everywhere, `none` without one."""
        return "none" if self.epsilon is None else epsilon_text(self.epsilon)

    @property
    def level(self) -> str:
        """δ in words, and unless the bound is exact, its confidence and assumption."""
        share = percent(self.confidence)
        meaning = f"{share}, {self.assumes}"
        if self.exact:
            meaning = EXACT
        elif self.assumes == "not final":  # of `Status.INTERIM`
            meaning = f"not final: {share} holds only after all trials"
        return f"δ = {plain(self.delta)}, {meaning}"

    @property
    def exact(self) -> bool:
        """Whether ε is computed without trials: then it is ε itself, not a lower bound."""
        return self.assumes == EXACT


def epsilon_text(epsilon: float, digits: int = 3) -> str:
    """Returns ε with this number of decimals; below 0.01, with two significant digits."""
    if epsilon == 0:
        return "0"
    if abs(epsilon) < _SMALLEST_PLAIN:
        return plain(epsilon, ".1e")
    return f"{epsilon:,.{digits}f}"


def claimed(epsilon: float, digits: int = 3) -> str:
    """Returns the ε of a claim as text; `nothing` if it is infinite, since nothing is claimed."""
    return "nothing" if epsilon == math.inf else epsilon_text(epsilon, digits)


def quote(run: Run, index: int, refuted: bool = False) -> Quote:
    """Returns the quote of an audit.

    Args:
        run: the run.
        index: number of the audit.
        refuted: whether trials refute its claim.
    """
    audit, cell = run.pairs[index]
    rows = run.last_rows(audit)
    estimator = representative(run, audit)
    # The quote has all fields except the bound, and fields that follow from it.
    without_bound = Quote(
        label=audit.label,
        epsilon=None,
        delta=cell.audit.delta,
        confidence=cell.audit.confidence,
        assumes="",
        claim=audit.claim,
        accountant=audit.accountant,
        estimator=estimator,
        step=audit.horizons[-1],
        together=False,
    )
    row = rows.get(estimator)
    if row is None or (cell.sampled and run.done(audit) == 0):
        return replace(without_bound, reason="nothing has been measured yet")
    if not cell.sampled:
        epsilon = float(row["epsilon_lower"])
        return replace(without_bound, epsilon=epsilon, assumes=EXACT, together=True)
    first = _with_row(without_bound, row, run.sweep.budget.confidence)
    if not first.above or may_exceed_claim(row, refuted):
        return first
    free = assumption_free(rows, row)
    if free is not None:
        return _with_row(without_bound, free, run.sweep.budget.confidence)
    reason = f"the bound of {estimator} ({first.assumes}) exceeds the claim, but does not refute it"
    return replace(first, epsilon=None, reason=reason)


def _with_row(without_bound: Quote, row: Row, confidence: float) -> Quote:
    """Returns a quote of a row's bound, familywise at `confidence` if it has such a bound.

    Args:
        without_bound: a quote without a bound, for the other fields.
        row: a row of the table of bounds.
        confidence: confidence of bounds that hold simultaneously.
    """
    familywise = float(row["epsilon_lower_together"])
    holds = not math.isnan(familywise)
    return replace(
        without_bound,
        epsilon=familywise if holds else float(row["epsilon_lower"]),
        confidence=confidence if holds else without_bound.confidence,
        assumes=Status(row["status"]).assumes(row["mu_lower"]),
        estimator=str(row["estimator"]),
        together=holds,
    )
