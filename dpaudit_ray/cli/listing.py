"""`dpaudit list`: what can be named in a sweep file, and the options of each."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import SpecError, closest
from . import completion, terminal

if TYPE_CHECKING:
    from ..sweep.catalogue import Entry

_WHERE = {
    "accountants": "audit.accountants",
    "adversaries": "adversary.name",
    "data": "mechanism.data.name",
    "estimators": "audit.estimators",
    "mechanisms": "mechanism.name",
    "models": "mechanism.model.name",
    "optimizers": "mechanism.optimizer.name",
    "sampling": "mechanism.sampling.name",
    "schedules": "mechanism.schedule.name",
}
_KIND = typer.Argument(
    help=f"{', '.join(_WHERE)}; all kinds by default.", autocompletion=completion.one_of(_WHERE)
)
_NAME = typer.Argument(help="One of them, to see its options.")


def listing(
    kind: Annotated[str | None, _KIND] = None,
    name: Annotated[str | None, _NAME] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Names that a sweep file can use: a line for each, and the options of one."""
    from ..sweep import catalogue

    kinds = list(_WHERE) if kind is None else [_known(kind)]
    found = {one: catalogue.entries(one) for one in kinds}
    if name is not None:
        _show(kinds[0], _named(kinds[0], name, found[kinds[0]]), as_json)
    elif as_json:
        shown = {one: [_plain(entry) for entry in entries] for one, entries in found.items()}
        terminal.show_json(shown if kind is None else shown[kinds[0]])
    elif kind is None:
        for one in kinds:
            names = ", ".join(entry.name for entry in found[one])
            terminal.explain(f"{one} ({_WHERE[one]}): {names}")
        terminal.explain(
            "`dpaudit list KIND` says a line of each, `dpaudit list KIND NAME` its options; one "
            "of your own is named package.module:Class"
        )
    else:
        lines = [(entry.name, entry.line) for entry in found[kinds[0]]]
        terminal.show_table("", ("name", "what it is"), lines)
        terminal.explain(f"goes to {_WHERE[kinds[0]]}; `dpaudit list {kinds[0]} NAME` has options")


def _known(kind: str) -> str:
    singular = {
        one.removesuffix("ies") + "y" if one.endswith("ies") else one[:-1]: one for one in _WHERE
    }
    if (found := singular.get(kind, kind)) in _WHERE:
        return found
    meant = closest(kind, _WHERE)
    hint = f"; did you mean {meant}?" if meant else ";"
    raise SpecError("KIND", f"unknown kind {kind!r}{hint} known: {', '.join(_WHERE)}")


def _named(kind: str, name: str, entries: list[Entry]) -> Entry:
    by_name = {entry.name: entry for entry in entries}
    if name in by_name:
        return by_name[name]
    meant = closest(name, by_name)
    hint = f"; did you mean {meant}?" if meant else ";"
    raise SpecError("NAME", f"{name!r} is none of the {kind}{hint} known: {', '.join(by_name)}")


def _show(kind: str, entry: Entry, as_json: bool) -> None:
    if as_json:
        terminal.show_json(_plain(entry) | {"text": entry.text})
        return
    terminal.say(f"{entry.name} ({_WHERE[kind]})\n\n{entry.text}\n")
    if not entry.options:
        terminal.say("no options")
        return
    rows = [
        (one.name, one.takes, "required" if one.required else _written(one.default))
        for one in entry.options
    ]
    terminal.show_table("", ("option", "takes", "default"), rows)


def _written(value: Any) -> str:
    """A default as one would write it in the file."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(entry: Entry) -> dict[str, Any]:
    options = [dataclasses.asdict(option) for option in entry.options]
    return {"name": entry.name, "line": entry.line, "options": options}
