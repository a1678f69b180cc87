"""`dpaudit status`: how far a run is, and what it says so far."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import leftovers, reading, tables, terminal
from .arguments import RunPath
from .trust import TrustedToRead

if TYPE_CHECKING:
    from ..report.answer import Answer
    from ..report.tables import Run


def status(
    run: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    trust: TrustedToRead = None,
    wide: terminal.Wide = False,
) -> None:
    """Progress, estimates, verdict, failures by kind and who drives, without a cluster."""
    from ..report import answer

    opened = reading.opened(run)
    said = answer.quick(opened)
    if as_json:
        terminal.show_json(_entries(opened, said))
    else:
        _show(opened, said)


def _entries(opened: Run, said: Answer | None) -> dict[str, Any]:
    from ..plan import failures, missed, preparing
    from ..report.tables import best, overview
    from ..storage import lease

    where = opened.directory, opened.plan
    driver = lease.holder(opened.directory)
    return {
        "name": opened.sweep.name,
        "verdict": dataclasses.asdict(said) if said else None,
        "complete": opened.directory.complete,
        "driver": dataclasses.asdict(driver) if driver else None,
        "missed": [
            dataclasses.asdict(each) | {"outputs": missed.place(opened.directory, each)}
            for each in missed.read(*where)
        ],
        "preparations": preparing.entries(*where),
        "audits": overview(opened),
        "best_certified": best(opened),
        "decided": {
            opened.plan.audits[index].id: trials for index, trials in opened.decided.items()
        },
        "failures": [dataclasses.asdict(failure) for failure in failures.read(*where)],
    }


def _show(opened: Run, said: Answer | None) -> None:
    from ..orchestration.workers import recorded_machines
    from ..plan import missed, preparing
    from ..report import words
    from ..storage import lease

    tables.show_overview(opened, said)
    terminal.explain(words.AS_WRITTEN)
    for index, trials in opened.decided.items():
        terminal.say(f"{opened.plan.audits[index].label}: ended by stop_when after {trials} trials")
    where = opened.directory, opened.plan
    for line in [*preparing.shown(*where), *leftovers.failed(opened), *missed.lines(*where)]:
        terminal.say(line)
    if len(kinds := recorded_machines(opened.directory)) > 1:
        terminal.say(f"trained on several kinds of machine: {'; '.join(kinds)}")
    tables.show_answer(opened, said)
    driver = lease.holder(opened.directory)
    if opened.directory.complete:
        terminal.say("complete")
    elif driver is not None and not driver.silent:
        terminal.say(f"not complete; {driver}")
    else:
        last = f"; {driver}" if driver else ""
        terminal.say(f"not complete{last}: {leftovers.remedy(opened, opened.decided)}")
