"""Tables of estimates, verdicts, plans and designs, and the sentences that explain them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import terminal
from .terminal import Bound, Figure, duration, number, plural

if TYPE_CHECKING:
    import pandas as pd

    from ..forecast.forecast import AuditOutlook, Outlook
    from ..plan.provenance import Code
    from ..report.quote import Quote
    from ..report.tables import Run
    from ..report.verdict import Answer, RunVerdict
    from ..sweep.spec import Sweep

_ABOVE_CLAIM = (
    "!: above its claim, which one true claim in many is by chance: dpaudit verify decides"
)
_VERDICT_COLUMNS = (
    "log10 e-value: against the claim, which is refuted once it reaches the threshold; refuted "
    "after: so many trials"
)
_MAX_ADVICE = 3  # sentences
_MAX_CLAIMS = 3  # for which designs are compared
_COSTLY_FACTOR = 20  # times as many trials: another design may be cheaper

Columns = dict[str, list[Any] | None]  # values by name; None for a column that is left out


# Estimates and the answer ------------------------------------------------------------------------


def show_overview(run: Run, answer: Answer | None, details: bool = False) -> None:
    """Prints a line per audit with the ε to quote; with `details` all that is known of it."""
    from ..report import verdict, words
    from ..report.tables import overview
    from ..storage.scores import UTILITY

    rows, quotes = overview(run), verdict.quotes(run, answer)

    def column(name: str) -> list[Any]:
        return [row[name] for row in rows]

    columns: Columns = {
        "audit": column("label"),
        "verdict": [str(audit.verdict) for audit in answer.audits] if answer else None,
        "trials": [progress_figure(row) for row in rows],
        "eps >=": [quoted(quote) for quote in quotes],
        "assumes": [quote.assumes or "none yet" for quote in quotes],
        "claim": column("epsilon_upper"),
    }
    columns |= {name: None if all(map(math.isnan, column(name))) else column(name)
                for name in UTILITY}  # fmt: skip
    if details:
        columns |= {
            "estimator": column("estimator"),
            "mu": column("mu_lower"),
            "eps alone": [_bound(row) for row in rows],
            "assumption-free eps": column("epsilon_lower_free"),
            "ratio": column("ratio"),
            "note": _notes(rows),
        }
    _show(f"{run.sweep.name}: {words.heading(quotes)}", columns)
    for sentence in words.below(quotes):
        terminal.explain(sentence)
    if details:
        _explain_words(run, rows, {quote.assumes for quote in quotes})


def show_answer(run: Run, answer: Answer | None) -> None:
    """Prints the run's verdict, why, and what would help.

    `answer` is None where the run has too many trials to be judged while somebody waits.
    """
    verify = f"`dpaudit verify {run.directory.location}`"
    if answer is None:
        terminal.explain(f"this run has too many trials to be judged here: {verify} does")
        return
    terminal.explain(answer.sentence)
    for line in answer.help:
        terminal.explain(f"  it would help: {line}")


def show_estimates(run: Run, table: pd.DataFrame) -> None:
    """Prints a block per audit with every step, estimator and claim of `Run.table`."""
    from ..stats import Status

    ratios = table["epsilon_lower"] / table["epsilon_upper"].where(table["epsilon_upper"] > 0)
    table = table.assign(ratio=ratios)
    for audit in run.plan.audits:
        of_audit = table[table["audit"] == audit.id]
        keys = zip(of_audit["step"], of_audit["accountant"], strict=True)
        claims = dict(zip(keys, of_audit["epsilon_upper"], strict=True))
        first, *others = audit.claims
        kept = of_audit[of_audit["accountant"] == first]
        rows = kept.to_dict("records")
        columns: Columns = {
            "step": kept["step"].tolist(),
            "trials": kept["trials"].tolist(),
            "estimator": kept["estimator"].tolist(),
            "mu": kept["mu_lower"].tolist(),
            "eps alone": [_bound(row) for row in rows],
            "assumes": [Status(row["status"]).assumes(row["mu_lower"]) for row in rows],
            "familywise": kept["epsilon_lower_together"].tolist(),
            "assumption-free eps": kept["epsilon_lower_free"].tolist(),
        }
        for name in audit.claims:
            head = f"<= {name}" if others else "claim"
            columns[head] = [claims[step, name] for step in kept["step"]]
        columns |= {"ratio": kept["ratio"].tolist(), "note": _notes(rows)}
        _show(audit.label, columns)
        terminal.say("")
    if any(len(audit.claims) > 1 for audit in run.plan.audits):
        terminal.explain("<= NAME: the claim, by that accountant; ratio: eps over the first claim")
    _explain_words(run, table.to_dict("records"))


def progress_figure(row: dict[str, Any]) -> Figure:
    """Trials that are done, and beside them those that are planned, where these are more."""
    done, planned = number(row["done"]), number(row["trials"])
    return Figure(planned if row["done"] == row["trials"] else f"{done}/{planned}")


def _show(title: str, columns: Columns) -> None:
    """Prints the columns that are there."""
    present = {name: values for name, values in columns.items() if values is not None}
    terminal.explain(title)
    terminal.show_table("", tuple(present), list(zip(*present.values(), strict=True)))


def quoted(quote: Quote) -> Bound | Figure:
    """The ε of a quote as tables show it."""
    return Figure("none") if quote.epsilon is None else Bound(quote.epsilon, quote.above)


def _bound(row: dict[Any, Any]) -> Bound:
    return Bound(row["epsilon_lower"], row["epsilon_lower"] > row["epsilon_upper"])


def _notes(rows: Sequence[dict[Any, Any]]) -> list[Any] | None:
    """The flags of single rows in words; None where no row has any."""
    flags = {"interim": "interim", "above_claim": "above its claim"}
    notes = [", ".join(text for key, text in flags.items() if row[key]) for row in rows]
    return notes if any(notes) else None


def _explain_words(
    run: Run, rows: Sequence[dict[Any, Any]], explained: Collection[str] = ()
) -> None:
    """Prints what the words in the rows mean, and the level of their bounds."""
    from ..report import words
    from ..stats import Status

    assumed = {Status(row["status"]).assumes(row["mu_lower"]) for row in rows if row["status"]}
    sentences = [*words.explained(sorted(assumed.difference(explained))), words.MU]
    sentences += words.conditions(assumed, run.sweep.cells)
    if run.sweep.budget.audits:
        sentences.append(words.level(run.sweep.budget))
    sentences += [_ABOVE_CLAIM] * any(_bound(row).above_claim for row in rows)
    sentences += [words.ABOVE] * any(row["above_claim"] for row in rows)
    for sentence in sentences:
        terminal.explain(sentence)


# Verdicts ----------------------------------------------------------------------------------------


def show_verdict(judged: RunVerdict, answer: Answer, details: bool = False) -> None:
    """Prints the verdict in a sentence, a line per audit, and with `details` on what it rests."""
    from ..report import verdict, words
    from ..report.quote import percent

    terminal.explain(answer.sentence)
    heading = words.heading([audit.quote for audit in answer.audits])
    if judged.audits:
        columns: Columns = {
            "audit": [a.label for a in judged.audits],
            "verdict": [a.verdict for a in judged.audits],
            "claimed\neps": [a.claim for a in judged.audits],
            "eps >=": [quoted(a.quote) for a in judged.audits],
            "claimed\nnoise": [a.noise_multiplier for a in judged.audits],
            "noise\nat most": [a.effective_noise or Figure("any") for a in judged.audits],
            f"chance\nto see {verdict.LESS_NOISE}".replace("% ", "%\n"): [
                Figure(percent(round(a.power, 2))) for a in judged.audits
            ],
        }
        if details:
            columns |= {
                "accountant": [a.accountant for a in judged.audits],
                "log10\ne-value": [a.evidence for a in judged.audits],
                "threshold": [a.needed for a in judged.audits],
                "trials": [a.trials for a in judged.audits],
                "refuted\nafter": [a.refuted_after or Figure("never") for a in judged.audits],
            }
        _show(heading, columns)
        for audit in judged.audits:
            if audit.lopsided:
                outside, inside = audit.diverged
                terminal.explain(
                    f"{audit.label}: {inside} trainings with the canary diverged and {outside} "
                    "without it, so diverging depends on the canary"
                )
        if details:
            _explain_verdict(judged)
    if judged.exact:
        exact = [(a.label, a.verdict, a.claim, a.epsilon, a.step) for a in judged.exact]
        heads = ("audit", "verdict", "claimed\neps", "exact\neps", "step")
        if not judged.audits:
            terminal.explain(heading)
        terminal.show_table("", heads, exact)
        if details:
            terminal.explain(
                f"exact, no trials: eps of {plural(len(judged.exact), 'audit')} is computed at "
                f"every recorded step; above the claim by more than {verdict.EXACT_TOLERANCE:g} is "
                "a violation"
            )


def _explain_verdict(judged: RunVerdict) -> None:
    from ..report import verdict

    terminal.explain(_VERDICT_COLUMNS)
    for audit in judged.audits:
        if audit.remark:
            terminal.explain(f"{audit.label}: {audit.remark}")
    if len(judged.audits) > 1:
        terminal.explain(
            f"all audits together: log10 e-value {judged.evidence:.3f}, threshold "
            f"{judged.needed:.3f}; it refutes the claims of a run even where that of no single "
            "audit does"
        )
    terminal.explain(
        f"wrong about a true claim in at most {1 - judged.confidence:.0%} of runs, whenever and "
        "however often it is asked; a claim is also refuted by tests for the declared number of "
        f"trials; CONSISTENT: each mechanism has an audit that would have noticed "
        f"{verdict.LESS_NOISE}"
    )


# Plans, advice, and designs for a budget ---------------------------------------------------------


def show_plan(name: str, outlook: Outlook) -> None:
    """Prints a line per audit, what the columns mean, and the time that is left."""
    from ..stats import Status

    columns = ("audit", "trials", "packs", "done", "eps claim", "max eps", "power", "needed",
               "time")  # fmt: skip
    rows = [
        (a.label, a.trials, a.packs, a.packs_done, a.claim, a.largest_certifiable,
         None if a.power is None else Figure(f"{a.power:.0%}"), a.trials_needed,
         duration(a.seconds) if a.sampled else None)
        for a in outlook.audits
    ]  # fmt: skip
    trials = sum(audit.trials for audit in outlook.audits)
    packs = sum(audit.packs for audit in outlook.audits)
    done = sum(audit.packs_done for audit in outlook.audits)
    title = f"{name}: {trials:,} trials in {packs:,} packs, {done:,} packs done"
    terminal.show_table(title, columns, rows)
    sampled = [audit for audit in outlook.audits if audit.sampled]
    if sampled:
        terminal.explain(
            "max eps: if every guess is right; power: chance of a bound of 90 % of a tight claim; "
            "needed: trials that would give it 4 times in 5"
        )
        assumed = [audit.label for audit in sampled if audit.status is not Status.CERTIFIED]
        if assumed:
            more = f" and {len(assumed) - 3} more" if len(assumed) > 3 else ""
            labels = ", ".join(assumed[:3])
            terminal.explain(f"max eps and power assume a Gaussian curve for {labels}{more}")
        show_advice(outlook)
    for preparation in outlook.preparations:
        first, *others = preparation.audits
        waiting = f"{first} and {len(others)} more wait" if others else f"{first} waits"
        terminal.say(
            f"{waiting} for a preparation: {preparation.done} of {preparation.parts} parts done, "
            f"about {duration(preparation.seconds)} with one trainer"
        )
    if outlook.problem is None and any(math.isnan(audit.seconds) for audit in sampled):
        terminal.explain("time ?: packs can be timed once what they wait for is done")
    if sampled:
        terminal.say(
            f"left to do: about {duration(outlook.seconds / outlook.workers)} on this machine with "
            f"{plural(outlook.workers, 'trainer')}, {duration(outlook.seconds)} with one"
        )
    if exact := len(outlook.audits) - len(sampled):
        terminal.say(f"exact, no trials: `dpaudit run` computes eps of {plural(exact, 'audit')}")
    if outlook.problem is not None:
        terminal.say(f"time unknown: the calibration pack fails on this machine: {outlook.problem}")


def show_code(code: Code) -> None:
    """Prints the user's modules that a sweep runs: its file is code as much as they are."""
    if code.modules:
        names = ", ".join(f"{name} ({digest[:12]})" for name, digest in code.modules.items())
        terminal.explain(
            f"runs code: {names}; with a sweep file of somebody else's, read them first, or say "
            "which may run: --trust"
        )


def show_advice(outlook: Outlook) -> None:
    """Prints a sentence for audits of little power; those with the same numbers share it."""
    from ..forecast.forecast import USUAL_POWER
    from ..stats import Status

    weak: dict[tuple[object, ...], list[AuditOutlook]] = {}
    for audit in outlook.audits:
        if audit.power is not None and audit.power < USUAL_POWER:
            numbers = (audit.claim, audit.trials, audit.trainings, audit.trials_needed)
            weak.setdefault(numbers, []).append(audit)
    for audits in list(weak.values())[:_MAX_ADVICE]:
        first, more = audits[0], f" and {len(audits) - 1} more" * (len(audits) > 1)
        advice = "; ".join(_advice(first, sum(audit.needed_seconds for audit in audits)))
        terminal.explain(f"power {first.power:.0%}, {first.label}{more}: {advice}")
    if len(weak) > _MAX_ADVICE:
        terminal.say(f"{len(weak) - _MAX_ADVICE} more designs of little power are not shown")
    if any(audit.status is not Status.CERTIFIED for audits in weak.values() for audit in audits):
        terminal.explain(
            "power takes the attack to see all that the claim allows, which these need not"
        )


def _advice(audit: AuditOutlook, seconds: float) -> Iterator[str]:
    """Sentences on the power of an audit, and on what would raise it in `seconds` of a trainer."""
    if audit.claim == 0:
        yield "nothing is claimed to leak, so no bound comes near; `verify` tests the claim"
        return
    if not audit.claim < math.inf:
        yield "the claim is infinite, so no bound comes near; more noise, or another accountant"
        return
    shown = f"{audit.likely:.2f} of the {audit.claim:.2f}" if audit.likely else "nothing"
    yield f"{audit.trials:,} trials show {shown}, 4 times in 5"
    needed = audit.trials_needed
    if needed is None:
        if audit.simulated:
            yield "four times as many do not show 90 % of such a claim either"
        else:
            yield "no number of trials shows 90 % of such a claim: take more noise, or fewer steps"
        return
    change = f"--set audit.trials={needed}"
    if audit.packs_done and not audit.grows:
        change += ", with another name and seed, since trials of this run were seen"
    time = "" if math.isnan(seconds) else f", about {duration(seconds)} with one trainer"
    yield f"{needed:,} show 90 %: {change}{time}"
    if needed > _COSTLY_FACTOR * audit.trials:
        yield "`dpaudit plan --budget 1h` looks for a cheaper design, of more canaries each"


def show_designs(sweep: Sweep, outlook: Outlook, budget: float) -> None:
    """Prints designs that `budget` seconds pay for, for the first audits whose claims differ."""
    by_claim: dict[float, tuple[AuditOutlook, tuple[float, float]]] = {}
    for audit, cell in zip(outlook.audits, sweep.cells, strict=True):
        if audit.sampled and audit.training_seconds > 0 and 0 < audit.claim < math.inf:
            level = (cell.audit.delta, cell.audit.confidence)
            by_claim.setdefault(round(audit.claim, 3), (audit, level))
    if not by_claim:
        terminal.say("no design to compare: no training is left to be timed, or no claim is finite")
        return
    for audit, level in list(by_claim.values())[:_MAX_CLAIMS]:
        _show_designs_for(audit, level, budget * outlook.workers)
    terminal.explain(
        "eps: typical of canaries as visible as the claim allows that do not interfere, read "
        "off mu but for one-run; `adversary: one-run` and `biased-dimension` with count have "
        "several canaries in each training"
    )
    if len(by_claim) > _MAX_CLAIMS:
        terminal.say(f"{len(by_claim) - _MAX_CLAIMS} more claims are not shown")


def _show_designs_for(audit: AuditOutlook, level: tuple[float, float], budget: float) -> None:
    from ..forecast import designs

    seconds = audit.training_seconds
    affordable = designs.affordable(audit.claim, level, seconds, budget)
    if not affordable:
        terminal.say(f"{audit.label}: a training takes {duration(seconds)}, more than the budget")
        return
    best = designs.recommended(affordable)
    rows = [
        (d.trainings, d.canaries, d.method, d.epsilon, duration(d.seconds),
         "recommended" if d == best else "")
        for d in affordable
    ]  # fmt: skip
    terminal.show_table(
        f"{audit.label}: designs of at most {duration(budget)} of trainer time, "
        f"claim {audit.claim:.3f}",
        ("trainings", "canaries each", "method", "eps", "trainer time", ""),
        rows,
    )
