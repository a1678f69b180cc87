"""`dpaudit check`: whether a run directory is what it says, told by whoever has it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import Exit
from . import terminal
from .arguments import RunPath
from .trust import TrustedToRead

if TYPE_CHECKING:
    from ..report.check import Checked

_SHOWN = 20


def check(
    run: RunPath,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    trust: TrustedToRead = None,
) -> None:
    """Derives claims, bits, estimates and verdict again from sweep and scores: exit 2 if others.

    Writes nothing and runs no code of the sweep's author, so that a run can be handed over.
    """
    from ..report import check

    found = check.check_run(run)
    if as_json:
        terminal.show_json({"in_order": found.in_order} | dataclasses.asdict(found))
    else:
        _show(found)
    raise typer.Exit(Exit.COMPLETE if found.in_order else Exit.USAGE)


def _show(found: Checked) -> None:
    if not found.in_order:
        places = "a place" if found.different == 1 else f"{found.different:,} places"
        terminal.say(f"not what it says, in {places}: {found.location}")
    for each in found.differences[:_SHOWN]:
        terminal.say(f"  {each}")
    if found.different > _SHOWN:
        terminal.say(f"  and {found.different - _SHOWN:,} more places")
    for line in found.told:
        terminal.explain(f"told: {line}")
    for line in found.unchecked:
        terminal.explain(f"not checked: {line}")
    counts = ", ".join(_counted(count, name) for name, count in found.derived.items())
    derived = f"{counts or 'nothing'}{', the verdict' * bool(found.verdict)}"
    took = terminal.duration(found.seconds)
    if not found.in_order:
        terminal.explain(f"derived again: {derived}; in {took}")
        return
    state = (
        f"in order as far as it goes (partial, {found.partial})" if found.partial else "in order"
    )
    verdict = f" ({found.verdict})" if found.verdict else ""
    terminal.explain(
        f"{state}: {derived}{verdict} derived again in {took}, from scores as they were written"
    )


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name.removesuffix('s') if count == 1 else name}"
