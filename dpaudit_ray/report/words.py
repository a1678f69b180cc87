"""Explanations of bounds and their assumptions, printed below tables and in the report."""

import collections
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence

from scipy import special

from .. import accounting, imports
from ..errors import percent, plain
from ..stats.budget import SweepBudget
from ..sweep.cell import CANARY, Cell
from ..sweep.grid import LABEL_SEPARATOR
from .quote import Quote, epsilon_text

OWN = "own assumption"
# Explanations of the words of `Status.assumes`; other words need none.
ASSUMPTIONS = {
    "Gaussian steps": "the bound, like the claim, is for releasing all steps",
    "assumes Gaussian": "holds if the mechanism's trade-off curve is Gaussian, which is not proved",
    "assumes claimed family": "holds if the mechanism is the claimed one, up to its noise",
    "assumes independence": "holds if no canary of a training run reveals another's bit, and the "
    "curve is Gaussian; neither is proved",
    OWN: "holds if its estimator's own assumption is true",
    "approximate": "holds in the limit of many trials",
    "credible": "holds under a prior",
    "as published": "holds less often than stated: a paper's own procedure",
    "not final": "trials are missing, and the bound holds only after the last trial",
    "extended": "does not hold at its level: trials were added after results were read",
}
# Words of reports; their explanations show under a pointer.
GLOSSARY = ASSUMPTIONS | {
    "VIOLATION": "the trials refute the claim",
    "CONSISTENT": "no violation was found; a 30 % shortfall would probably have been detected",
    "INCONCLUSIVE": "no violation was found, but a 30 % shortfall could have gone undetected",
    "verdict": "the result of a test of the entire claim; no single bound decides it",
    "ε": "the privacy loss that this adversary has shown: quote this number",
    "claim": "the largest privacy loss that the accountant allows",
    "ε / claim": "the share of the claim that this adversary has shown",
    "assumes": "the condition under which the bound holds",
    "trials": "training runs with a secret bit: done / planned",
    "assumption-free": "holds for any mechanism",
}
# Column heads of utilities: there is an estimator `accuracy`, too, and an adversary `loss`.
MEASURES = {"accuracy": "test accuracy", "loss": "test loss", "determined": "determined"}
MU = (
    "mu: the canary's effect, in standard deviations of Gaussian noise; certified for any curve, "
    "unless eps assumes independence"
)
# The mark of a bound with `assumes_other_curve`, and its footnote.
OTHER_CURVE_MARK = "*"
OTHER_CURVE = (
    f"{OTHER_CURVE_MARK}: assumes a Gaussian curve, but this claim or its mechanism is not known "
    "to have one; such a bound refutes nothing, even above the claim"
)
AS_WRITTEN = (
    "bounds are read from estimates.parquet; `dpaudit check` recomputes them from the scores"
)
ABOVE = (
    "above its claim: a bound that holds simultaneously with all others exceeds its claim; a test "
    "of the entire claim decides the verdict, which is then never CONSISTENT"
)


def heading(quotes: Sequence[Quote]) -> str:
    """Returns δ and confidence of the quotes of a run, and the accountants of its claims."""
    deltas = {quote.delta for quote in quotes}
    delta = f"delta = {plain(deltas.pop())}" if len(deltas) == 1 else "each audit's delta"
    levels = {percent(quote.confidence) for quote in quotes if quote.together and not quote.exact}
    confidence = "".join(f", {level} confidence" for level in levels)
    accountants = ", ".join(dict.fromkeys(quote.accountant for quote in quotes))
    return f"eps at {delta}{confidence}, claims by {accountants}"


def relation(quotes: Sequence[Quote]) -> str:
    """Returns the sign between ε and the quotes: empty if some are exact and some are bounds."""
    exact = {quote.exact for quote in quotes if quote.epsilon is not None}
    if exact == {True}:
        return "="
    return "" if len(exact) > 1 else "≥"


def explained(assumed: Iterable[str]) -> Iterator[str]:
    """Yields explanations of these words of `Status.assumes`, each once."""
    for word in dict.fromkeys(assumed):
        if word in ASSUMPTIONS:
            yield f"{word}: {ASSUMPTIONS[word]}"


def lines_below(quotes: Sequence[Quote]) -> list[str]:
    """Returns sentences on quotes: assumptions, missing quotes, and ranges over canaries."""
    lines = []
    assumptions = "; ".join(explained(q.assumes for q in quotes if q.epsilon is not None))
    if assumptions:
        lines.append(assumptions)
    absent = [quote for quote in quotes if quote.epsilon is None and quote.assumes]
    if absent:
        label = absent[0].label
        if len(absent) > 1:
            label += f" (and {len(absent) - 1} more)"
        lines.append(f"none, {label}: {absent[0].reason}")
    return [*lines, *over_canaries(quotes)]


def over_canaries(quotes: Sequence[Quote]) -> Iterator[str]:
    """Yields range and mean of ε over the canaries of an audit, with the mean's interval."""
    by_audit = collections.defaultdict(list)
    for quote in quotes:
        audit, _, canary = quote.label.rpartition(LABEL_SEPARATOR)
        if canary.startswith(CANARY) and quote.epsilon is not None:
            by_audit[audit].append(quote.epsilon)
    for audit, bounds in by_audit.items():
        n = len(bounds)
        if n > 1:
            error = statistics.stdev(bounds) / n**0.5 * special.stdtrit(n - 1, 0.975)
            low, high = epsilon_text(min(bounds)), epsilon_text(max(bounds))
            yield (
                f"{audit}: ε ≥ {low} to {high} for {n} sampled canaries; the mean of the bounds is "
                f"{epsilon_text(statistics.mean(bounds))} ± {epsilon_text(error)} (95 %)"
            )


def conditions(
    assumed: Collection[str],
    cells: Collection[Cell],
) -> list[str]:
    """Returns assumptions of user-defined estimators, and remarks of accountants on claims.

    Args:
        assumed: words of `Status.assumes` of the listed bounds.
        cells: the audits of the sweep.
    """
    assumptions, remarks = set[str](), set[str]()
    for cell in cells:
        for spec in cell.audit.estimators:
            if OWN in assumed and not spec.unimported and spec.method.assumes:
                assumptions.add(f"{spec.name} assumes: {spec.method.assumes}")
        claimed = cell.claimed()
        for name in cell.audit.accountants:
            if imports.stays_unimported(name):
                continue  # the accountant's module is not trusted
            remark = accounting.remark(claimed, name)
            if remark:
                remarks.add(f"claim by {name}: {remark}")
    return [*sorted(assumptions), *sorted(remarks)]


def level(budget: SweepBudget) -> str:
    """Returns the level of a bound alone, and of the quoted familywise bounds."""
    several = len({audit.confidence for audit in budget.audits}) > 1
    confidence = "its audit's confidence" if several else percent(budget.confidence)
    alone = f"alone, each bound holds at {confidence}"
    if budget.parts == 1:
        return alone
    return (
        f"{alone}; each familywise bound, as quoted, holds at {percent(budget.each)}, and all "
        f"{budget.parts:,} simultaneously at {percent(budget.confidence)}"
    )
