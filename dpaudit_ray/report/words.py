"""What the words beside a bound mean: said once, printed below tables and in the report."""

from __future__ import annotations

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
# What each ε assumes, by the words of `Status.assumes`; the others say it themselves.
ASSUMPTIONS = {
    "Gaussian steps": "the bound, like the claim, is for releasing all steps",
    "assumes Gaussian": "holds if the mechanism's trade-off curve is Gaussian, which is not proved",
    "assumes claimed family": "holds if the mechanism is the claimed one, up to its noise",
    "assumes independence": "holds if no canary of a training tells of another's bit, and the "
    "curve is Gaussian, neither of which is proved",
    OWN: "holds given what its estimator assumes",
    "approximate": "holds in the limit of many trials",
    "credible": "holds under a prior",
    "as published": "by a paper's procedure, which misses its level",
    "not final": "trials are missing, and the confidence holds only after the last of them",
    "extended": "trials were added after looking, for which it does not hold",
}
# Heads for people: an estimator is called accuracy, too, and an adversary loss.
MEASURES = {"accuracy": "test accuracy", "loss": "test loss", "determined": "determined"}
MU = (
    "mu: by how many deviations of Gaussian noise the canary shows; certified whatever the curve, "
    "but where eps assumes independence"
)
# The mark of a bound with `assumes_other_curve`, and its footnote.
OTHER_CURVE_MARK = "*"
OTHER_CURVE = (
    f"{OTHER_CURVE_MARK}: assumes a Gaussian curve, which this claim or its mechanism is not known "
    "to have; above the claim, it refutes nothing"
)
AS_WRITTEN = (
    "bounds are as estimates.parquet has them; `dpaudit check` derives them again from the scores"
)
ABOVE = (
    "above its claim: so is a bound that holds together with all others of the run; the verdict "
    "goes by a test of the whole claim, and is never CONSISTENT beside such a bound"
)


def heading(quotes: Sequence[Quote]) -> str:
    """At which δ and confidence the quotes of a run are, and by which accountants its claims."""
    deltas = {quote.delta for quote in quotes}
    delta = f"delta = {plain(deltas.pop())}" if len(deltas) == 1 else "each audit's delta"
    levels = {percent(quote.confidence) for quote in quotes if quote.together and not quote.exact}
    confidence = "".join(f", {level} confidence" for level in levels)
    accountants = ", ".join(dict.fromkeys(quote.accountant for quote in quotes))
    return f"eps at {delta}{confidence}, claims by {accountants}"


def relation(quotes: Sequence[Quote]) -> str:
    """Returns the sign between ε and the quotes: none where some are exact and some are bounds."""
    exact = {quote.exact for quote in quotes if quote.epsilon is not None}
    if exact == {True}:
        return "="
    return "" if len(exact) > 1 else "≥"


def explained(assumed: Iterable[str]) -> Iterator[str]:
    """What these words of `Status.assumes` mean, each once."""
    for word in dict.fromkeys(assumed):
        if word in ASSUMPTIONS:
            yield f"{word}: {ASSUMPTIONS[word]}"


def below(quotes: Sequence[Quote]) -> list[str]:
    """Two sentences at most: what the quotes assume, and why there is none."""
    lines = ["; ".join(explained(quote.assumes for quote in quotes if quote.epsilon is not None))]
    if missing := [quote for quote in quotes if quote.epsilon is None and quote.assumes]:
        more = f" (and {len(missing) - 1} more)" * (len(missing) > 1)
        lines.append(f"none, {missing[0].label}{more}: {missing[0].reason}")
    return [line for line in lines if line] + list(over_canaries(quotes))


def over_canaries(quotes: Sequence[Quote]) -> Iterator[str]:
    """How ε varies over the canaries that were drawn for an audit: range, mean and its interval."""
    groups = collections.defaultdict[str, list[float]](list)
    for quote in quotes:
        audit, _, drawn = quote.label.rpartition(LABEL_SEPARATOR)
        if drawn.startswith(CANARY) and quote.epsilon is not None:
            groups[audit].append(quote.epsilon)
    for audit, bounds in groups.items():
        if (n := len(bounds)) > 1:
            error = statistics.stdev(bounds) / n**0.5 * float(special.stdtrit(n - 1, 0.975))
            yield (
                f"{audit}: of {n} canaries drawn, ε ≥ {epsilon_text(min(bounds))} to "
                f"{epsilon_text(max(bounds))}; the mean of such bounds is "
                f"{epsilon_text(statistics.mean(bounds))} ± {epsilon_text(error)} (95 %)"
            )


def conditions(assumed: Collection[str], cells: Collection[Cell]) -> list[str]:
    """What estimators of somebody's own assume, where `assumed` has that, and what claims do."""
    assumptions, remarks = set[str](), set[str]()
    for cell in cells:
        for spec in cell.audit.estimators:
            if OWN in assumed and not spec.unimported and spec.method.assumes:
                assumptions.add(f"{spec.name} assumes: {spec.method.assumes}")
        training = cell.mechanism.claimed(cell.adversary, cell.horizons[-1]).training
        for name in cell.audit.accountants:
            unread = ":" in name and imports.is_data(name)
            if not unread and (remark := accounting.remark(training, name)):
                remarks.add(f"claim by {name}: {remark}")
    return [*sorted(assumptions), *sorted(remarks)]


def level(budget: SweepBudget) -> str:
    """At which level the quoted bounds hold, and the others."""
    several = len({audit.confidence for audit in budget.audits}) > 1
    confidence = "its audit's confidence" if several else percent(budget.confidence)
    alone = f"alone, each bound holds at {confidence}"
    if budget.parts == 1:
        return alone
    return (
        f"{alone}; familywise, which is what is quoted, each holds at {percent(budget.each)}, and "
        f"all {budget.parts:,} together at {percent(budget.confidence)}"
    )
