"""Tables of estimates, verdicts and plans, and the sentences that explain them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import and_more, percent, plain
from . import terminal
from .terminal import Columns, Figure, duration, marked, number, plural

if TYPE_CHECKING:
    from ..forecast.forecast import AuditOutlook, Outlook
    from ..plan.provenance import Code
    from ..report.quote import Quote
    from ..report.tables import Run
    from ..report.verdict import Answer, RunVerdict


_MANY = 40  # audits; if there are more, `dpaudit run` ends with a summary
_SUMMARISED = 10  # audits in that summary


def show_overview(
    run: Run,
    answer: Answer | None,
    details: bool = False,
) -> None:
    """Prints a line per audit.

    Args:
        run: the run.
        answer: verdicts; None if it takes too long to judge.
        details: show all bounds, not only the ε to quote.
    """
    from ..report import verdict, words
    from ..report.tables import overview
    from ..stats import Status
    from ..storage.scores import UTILITY

    rows = overview(run)
    quotes = verdict.quotes(run, answer)

    def column(name: str) -> list[Any]:
        """Returns one entry of every audit's row."""
        return [row[name] for row in rows]

    columns = {
        "audit": column("label"),
        "verdict": [audit.verdict for audit in answer.audits] if answer else None,
        "trials": [progress_figure(row) for row in rows] if any(column("trials")) else None,
        **quote_columns(quotes, head(quotes)),
    }
    for name in UTILITY:
        is_measured = not all(map(math.isnan, column(name)))
        columns[words.MEASURES[name]] = column(name) if is_measured else None
    sentences = words.lines_below(quotes)
    if not details:
        sentences.append("--details shows all other bounds and explains them")
    else:
        # A bound through another curve than the claim's is no evidence against it: its mark is *.
        bounds = []
        notes = []
        for row in rows:
            bound = number(row["epsilon_lower"])
            other_curve = row["assumes_other_curve"]
            is_above = row["epsilon_lower"] > row["epsilon_upper"] and not other_curve
            if other_curve:
                bound += f" {words.OTHER_CURVE_MARK}"
            bounds.append(marked(bound, is_above))
            flags = {"interim": row["interim"], "above its claim": row["above_claim"]}
            notes.append(", ".join(flag for flag, is_set in flags.items() if is_set))
        columns |= {
            "estimator": column("estimator"),
            "mu": column("mu_lower"),
            "eps alone": bounds,
            "assumption-free eps": column("epsilon_lower_free"),
            "note": notes if any(notes) else None,
        }
        assumed = {Status(row["status"]).assumes(row["mu_lower"]) for row in rows if row["status"]}
        sentences += words.explained(sorted(assumed - {quote.assumes for quote in quotes}))
        sentences += [words.AS_WRITTEN, words.MU, *words.conditions(assumed, run.sweep.cells)]
        if run.sweep.budget.audits:
            sentences.append(words.level(run.sweep.budget))
        if any(column("assumes_other_curve")):
            sentences.append(words.OTHER_CURVE)
        if any(bound.startswith("!") for bound in bounds):
            sentences.append("!: above its claim, as can happen by chance among many true claims")
        if any(column("above_claim")):
            sentences.append(words.ABOVE)
    terminal.show_table(f"{run.sweep.name}: {words.heading(quotes)}", columns, details)
    for sentence in sentences:
        terminal.explain(sentence)


def quote_columns(quotes: Sequence[Quote], name: str = "eps >=") -> Columns:
    """Returns columns of quoted bounds under the head `name`, their assumptions and claims."""
    from ..report.quote import claimed

    return {
        name: [marked(quote.text, quote.above) for quote in quotes],
        "assumes": [quote.assumes or "none yet" for quote in quotes],
        "claim": [Figure(claimed(quote.claim)) for quote in quotes],
    }


def show_summary(run: Run, answer: Answer | None) -> None:
    """Prints the number of audits by verdict, and a table of the most important ones.

    Violations come first, and then the bounds that are nearest to their claims. With at most
    `_MANY` audits, it prints the whole overview instead.
    """
    from ..report import verdict, words

    quotes = verdict.quotes(run, answer)
    if len(quotes) <= _MANY:
        show_overview(run, answer)
        return
    verdicts = [audit.verdict for audit in answer.audits] if answer else []

    def rank(index: int) -> tuple[bool, float, int]:
        """Returns a key that sorts violations first, then the largest shares of the claim."""
        quote = quotes[index]
        shown_of_claim = (quote.epsilon or 0.0) / quote.claim if quote.claim else 0.0
        is_violation = bool(verdicts) and verdicts[index] == verdict.Verdict.VIOLATION
        return not is_violation, -shown_of_claim, index

    indices = sorted(range(len(quotes)), key=rank)[:_SUMMARISED]
    chosen = [quotes[index] for index in indices]
    columns = {
        "audit": [quote.label for quote in chosen],
        "verdict": [verdicts[index] for index in indices] if verdicts else None,
        **quote_columns(chosen, head(chosen)),
    }
    counts = [f"{verdicts.count(v):,} {v}" for v in verdict.Verdict if v in verdicts]
    totals = f": {', '.join(counts)}" if counts else ""
    terminal.explain(f"{plural(len(quotes), 'audit')}{totals}")
    terminal.show_table(f"{run.sweep.name}, nearest to claims: {words.heading(chosen)}", columns)
    terminal.explain(
        f"{len(quotes) - len(indices):,} more: `dpaudit status {run.directory.location}` lists "
        f"all audits, `dpaudit report {run.directory.location}` draws a map of them"
    )


def head(quotes: Sequence[Quote]) -> str:
    """Returns the head of a column of quotes: `eps =` where all are exact."""
    return "eps =" if quotes and all(quote.exact for quote in quotes) else "eps >="


def show_answer(run: Run, answer: Answer | None) -> None:
    """Prints verdict, reason and next steps; `answer` is None if judging takes too long."""
    if answer is None:
        terminal.explain(
            "this run has too many trials to judge here; run "
            f"`dpaudit verify {run.directory.location}`"
        )
        return
    terminal.explain(answer.sentence)
    for line in answer.help:
        terminal.explain(f"  next step: {line}")


def progress_figure(row: dict[str, Any]) -> Figure:
    """Returns the number of finished trials, and of planned trials if that differs."""
    done = number(row["done"])
    if row["done"] == row["trials"]:
        return Figure(done)
    return Figure(f"{done}/{number(row['trials'])}")


def show_verdict(judged: RunVerdict, answer: Answer, details: bool) -> None:
    """Prints the verdict, the first next step, and a line per audit.

    Args:
        judged: the verdict with its numbers.
        answer: the verdict in words.
        details: show the numbers on which the verdict depends.
    """
    from ..report import verdict, words
    from ..report.quote import claimed

    quotes = [audit.quote for audit in answer.audits]
    heading = words.heading(quotes)
    sentences = words.lines_below(quotes)
    terminal.explain(answer.sentence)
    for line in answer.help[:1]:
        terminal.explain(f"  next step: {line}")
    if audits := judged.audits:
        columns = {
            "audit": [a.label for a in audits],
            "verdict": [a.verdict for a in audits],
            **quote_columns([a.quote for a in audits]),
            # None: no noise that was tried is refuted.
            "noise\nat most": [a.effective_noise or Figure("any") for a in audits],
        }
        if len(audits) > 1:  # the answer's sentence has those of a single audit
            sentences += [f"{a.label}: {a.failed_trials}" for a in audits if a.failed_trials]
        if details:
            power_head = f"power at\n{verdict.LESS_NOISE}".replace("% ", "%\n")
            columns |= {
                "claimed\nnoise": [a.noise_multiplier for a in audits],
                power_head: [Figure(percent(round(a.power, 2))) for a in audits],
                "log10\ne-value": [a.evidence for a in audits],
                "threshold": [a.needed for a in audits],
                "trials": [a.trials for a in audits],
                "refuted\nafter": [a.refuted_after or Figure("never") for a in audits],
            }
            sentences += [f"{audit.label}: {audit.remark}" for audit in audits if audit.remark]
            false_alarms = percent(round(1 - judged.confidence, 6))
            sentences.append(
                f"all audits together: log10 e-value {judged.evidence:.3f}, threshold "
                f"{judged.needed:.3f}; a claim is refuted if an e-value reaches its threshold, or "
                f"by tests at the declared number of trials; at most {false_alarms} of runs refute "
                "a true claim, however often they are judged; CONSISTENT: each mechanism has an "
                f"audit that would have detected {verdict.SHORTFALL}"
            )
        else:
            sentences.append("--details shows the tests behind the verdict")
        terminal.show_table(heading, columns, details)
    if exact := judged.exact:
        columns = {
            "audit": [a.label for a in exact],
            "verdict": [a.verdict for a in exact],
            "eps": [a.epsilon for a in exact],
            "claim": [Figure(claimed(a.claim)) for a in exact],
            "step": [a.step for a in exact],
        }
        terminal.show_table("" if audits else heading, columns)  # the first table has the heading
        if details:
            sentences.append(
                "exact, no trials: eps is computed at every recorded step; it is a violation if it "
                f"exceeds the claim by more than {plain(verdict.EXACT_TOLERANCE)}"
            )
    for sentence in sentences:
        terminal.explain(sentence)


def show_plan(name: str, outlook: Outlook) -> None:
    """Prints a line per audit, the meaning of the columns, and the remaining time."""
    from ..report.quote import claimed

    audits = outlook.audits
    trials = sum(a.trials for a in audits)
    packs = sum(a.packs for a in audits)
    done = sum(a.packs_done for a in audits)
    terminal.show_table(
        f"{name}: {plural(trials, 'trial')} in {plural(packs, 'pack')}, {done:,} packs done",
        {
            "audit": [a.label for a in audits],
            "trials": [a.trials for a in audits],
            "packs": [a.packs for a in audits],
            "done": [a.packs_done for a in audits],
            "eps claim": [Figure(claimed(a.claim)) for a in audits],
            "max eps": [a.largest_certifiable for a in audits],
            # None where ε is computed without trials.
            "power": [None if a.power is None else _power(a) for a in audits],
            "needed": [a.trials_needed for a in audits],
            "time": [duration(a.seconds) if a.sampled else None for a in audits],
        },
    )
    sampled = [audit for audit in audits if audit.sampled]
    if sampled:
        _explain_power(sampled)
    for state, seconds in outlook.preparations:
        terminal.say(
            f"a preparation for {and_more(state.audits)}: {state.done} of {state.parts} parts "
            f"done, {duration(seconds)} with one trainer"
        )
    if outlook.problem is None and any(math.isnan(audit.seconds) for audit in sampled):
        terminal.explain("time ?: packs can be timed once their preparations are done")
    if sampled:
        terminal.say(
            f"remaining: about {duration(outlook.seconds / outlook.workers)} on this machine with "
            f"{plural(outlook.workers, 'trainer')}, {duration(outlook.seconds)} with one"
        )
    if exact := len(audits) - len(sampled):
        terminal.say(f"exact, no trials: `dpaudit run` computes eps of {plural(exact, 'audit')}")
    if outlook.problem is not None:
        terminal.say(f"time unknown: the calibration pack fails on this machine: {outlook.problem}")


def show_cost(core_hours: float, price: float | None, most: float | None) -> None:
    """Prints the core-hours that remain, their price, and whether the sweep's limit allows them.

    Args:
        core_hours: core-hours that remain; NaN if they are unknown.
        price: price of a core-hour, in any currency.
        most: the limit, `resources.max_core_hours`.
    """
    if not core_hours > 0:
        return
    cost = "" if price is None else f", which cost {core_hours * price:.3g} at {price:g} each"
    terminal.say(f"core-hours: {core_hours:.3g}{cost}")
    if most is not None and core_hours > most:
        terminal.explain(
            f"resources.max_core_hours is {most:g}: `dpaudit run` stops there, and takes "
            f"{plural(math.ceil(core_hours / most), 'attempt')}; raise it, or lower audit.trials"
        )


def show_code(code: Code) -> None:
    """Prints the user's modules that a sweep runs, which a reader should trust or read first."""
    if code.modules:
        names = ", ".join(f"{name} ({digest[:12]})" for name, digest in code.modules.items())
        terminal.explain(
            f"runs code: {names}; if you did not write the sweep file, read these modules first, "
            "or name those that may run: --trust"
        )


def _explain_power(audits: list[AuditOutlook]) -> None:
    """Prints the meaning of the columns, and a next step for the audit of the least power."""
    from ..forecast.forecast import USUAL_POWER
    from ..stats import Status

    terminal.explain(
        "max eps: the bound if every guess is correct; power: probability of a bound of 90 % of a "
        "tight claim, by an attack that sees all that the claim allows (`run` gives the power of "
        "the actual attack to detect less noise); needed: trials for a power of 80 %"
    )
    assumed = [audit.label for audit in audits if audit.status is not Status.CERTIFIED]
    if assumed:
        terminal.explain(f"max eps and power assume a Gaussian curve for {and_more(assumed)}")
    weak = [audit for audit in audits if (audit.power or 0.0) < USUAL_POWER]
    if weak:
        weak.sort(key=lambda audit: audit.power or 0.0)  # advice is for the weakest one
        labels = and_more([audit.label for audit in weak])
        advice = "; ".join(_advice(weak[0]))
        terminal.explain(f"power {_power(weak[0])}, {labels}: {advice}")


def _power(audit: AuditOutlook) -> Figure:
    return Figure(percent(round(audit.power or 0.0, 2)))


def _advice(audit: AuditOutlook) -> Iterator[str]:
    """Yields what the trials of an audit can show, and how to show more."""
    from ..report.quote import epsilon_text

    if audit.claim == 0:
        yield "the claim is ε = 0, so no bound comes near it; `verify` tests the claim"
        return
    if not audit.claim < math.inf:
        yield "nothing is claimed: add noise, or use another accountant"
        return
    bound = "nothing"
    if audit.likely:
        claim = epsilon_text(audit.claim, digits=2)
        bound = f"{epsilon_text(audit.likely, digits=2)} of the {claim}"
    yield f"{audit.trials:,} trials show {bound}, 4 times in 5"
    needed = audit.trials_needed
    if needed is None:
        yield "more trials cannot show 90 % of such a claim: use more noise or fewer steps"
        return
    change = f"--set audit.trials={needed}"
    if audit.packs_done and not audit.grows:
        change += ", with another name and seed, since results of this run are known"
    yield f"{needed:,} show 90 %: {change}"
