"""What is left of a script's audit: a page, a JUnit file, and a summary for pages of CI."""

from __future__ import annotations

import dataclasses
import datetime
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ..errors import StorageError
from ..printable import lines
from ..report import markup
from ..version import __version__
from .script_findings import Look, ScriptVerdict

LAYERS = {0: "one run looked into", 1: "every step a trial", 2: "runs as trials"}


def claim(found: ScriptVerdict) -> str:
    """The promise, in words."""
    if math.isnan(found.claim):
        return f"no ε at δ = {found.delta:g}"
    return f"ε = {found.claim:.4g} at δ = {found.delta:g} ({found.accountant})"


def html(found: ScriptVerdict) -> str:
    """One page that needs nothing else."""
    options = {"trim_blocks": True, "lstrip_blocks": True}
    template = markup.environment(**options).get_template("script.html.j2")
    written = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return template.render(
        found=found, claim=claim(found), layers=LAYERS, version=__version__, written=written
    )


def junit(found: ScriptVerdict) -> str:
    """A test case per look; a look that found a violation failed, one that saw nothing is skipped.

    A finding of a kind that no look is named after has a case of its own.
    """
    cases: dict[tuple[int, str], tuple[str, list[str]]] = {}
    for look in found.looks:
        cases[look.layer, look.name] = (_why(look), [])
    for one in found.violations:
        cases.setdefault((one.layer, one.look), ("", []))[1].append(str(one))
    failures = sum(bool(messages) for _, messages in cases.values())
    suite = ElementTree.Element(
        "testsuite", name=f"dpaudit {found.script}", tests=str(len(cases)),
        failures=str(failures), errors="0",
        skipped=str(sum(bool(why) and not messages for why, messages in cases.values())),
        time=f"{found.seconds:.1f}",
    )  # fmt: skip
    for (layer, name), (why, messages) in cases.items():
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"L{layer} {LAYERS[layer]}", name=name
        )
        if messages:
            failure = ElementTree.SubElement(case, "failure", message=_plain(messages[0]))
            failure.text = _plain("\n".join(messages))
        elif why:
            ElementTree.SubElement(case, "skipped", message=_plain(why))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def markdown(found: ScriptVerdict) -> str:
    """A summary as pages of CI show it."""
    said = [
        f"## {found.verdict}: {_cell(found.script)}",
        "",
        f"Promise: {_cell(claim(found))}.",
        "",
    ]
    if found.findings:
        said += ["| | finding | where | expected | seen |", "|---|---|---|---|---|"]
        said += [
            f"| {one.weight} | {_cell(one.look)} | {_cell(one.where)} | {_cell(one.expected)} "
            f"| {_cell(one.seen)} |"
            for one in found.findings
        ]
        said.append("")
    said += ["| layer | look | |", "|---|---|---|"]
    said += [
        f"| L{one.layer} | {_cell(one.name)} | {_cell(one.said if one.done else _why(one))} |"
        for one in found.looks
    ]
    said += ["", *(f"- {_cell(line)}" for line in found.help)]
    said.append(
        f"\n{found.effort} in {found.seconds:.0f} s; a promise that is kept is called broken in "
        f"at most {1 - found.confidence:.0%} of audits."
    )
    return "\n".join(said) + "\n"


def write(path: Path, text: str) -> None:
    """Raises StorageError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path} ({error.strerror}); name another file") from error


def append(path: Path, text: str) -> None:
    """Adds to a file that others write to as well. Raises StorageError."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StorageError(f"cannot write {path} ({error.strerror})") from error


def plain(found: ScriptVerdict) -> dict[str, Any]:
    """As JSON has it."""
    return dataclasses.asdict(found)


def _why(look: Look) -> str:
    return "" if look.done else f"not done: {look.said}"


def _cell(text: str) -> str:
    """Text of others in a table: one line, no markup of its own."""
    shown = _plain(text).replace("\n", " ")
    for mark in "\\`*_<>|[]":
        shown = shown.replace(mark, f"\\{mark}")
    return shown


def _plain(text: str) -> str:
    return lines(text)
