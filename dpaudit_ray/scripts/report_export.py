"""A script's audit as a page of HTML, as a JUnit file, and as a summary for pages of CI."""

from __future__ import annotations

import datetime
from pathlib import Path
from xml.etree import ElementTree

from ..errors import StorageError, lines
from ..report import page
from ..version import __version__
from .script_findings import BLIND_SPOTS, ScriptVerdict

LAYERS = {0: "one run looked into", 1: "canaries in steps", 2: "canaries in whole runs"}


def html(verdict: ScriptVerdict) -> str:
    """One page that needs nothing else."""
    options = {"trim_blocks": True, "lstrip_blocks": True}
    template = page.environment(**options).get_template("script.html.j2")
    written = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return template.render(
        audit=verdict, layers=LAYERS, blind=BLIND_SPOTS, version=__version__, written=written
    )


def junit(verdict: ScriptVerdict) -> str:
    """A test case per look; a look that found a violation failed, one that saw nothing is skipped.

    A finding of a kind that no look is named after has a case of its own.
    """
    cases: dict[tuple[int, str], tuple[str, list[str]]] = {}  # why it is skipped, and failures
    for look in verdict.looks:
        cases[look.layer, look.name] = ("" if look.done else look.line, [])
    for violation in verdict.violations:
        _, messages = cases.setdefault((violation.layer, violation.look), ("", []))
        messages.append(str(violation))
    failures = sum(bool(messages) for _, messages in cases.values())
    suite = ElementTree.Element(
        "testsuite", name=f"dpaudit {verdict.script}", tests=str(len(cases)),
        failures=str(failures), errors="0",
        skipped=str(sum(bool(why) and not messages for why, messages in cases.values())),
        time=f"{verdict.seconds:.1f}",
    )  # fmt: skip
    properties = ElementTree.SubElement(suite, "properties")
    values = {"verdict": f"{verdict.verdict}: {verdict.headline}"}
    values |= {f"L{measured.layer}": str(measured) for measured in verdict.measured}
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=lines(value))
    for (layer, name), (why, messages) in cases.items():
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"L{layer} {LAYERS[layer]}", name=name
        )
        if messages:
            failure = ElementTree.SubElement(case, "failure", message=lines(messages[0]))
            failure.text = lines("\n".join(messages))
        elif why:
            ElementTree.SubElement(case, "skipped", message=lines(why))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def markdown(verdict: ScriptVerdict) -> str:
    """A summary as pages of CI show it."""
    text = [f"## {verdict.verdict}: {_cell(verdict.script)}", ""]
    text += [_cell(verdict.headline), ""]
    if verdict.findings:
        text += ["| | finding | where | expected | seen |", "|---|---|---|---|---|"]
        for item in verdict.findings:
            cells = map(_cell, (item.look, item.where, item.expected, item.seen))
            text.append(f"| {item.weight} | {' | '.join(cells)} |")
        text.append("")
    text += ["| layer | look | |", "|---|---|---|"]
    text += [
        f"| L{look.layer} | {_cell(look.name)} | {_cell(look.line)} |" for look in verdict.looks
    ]
    text += ["", *(f"- L{item.layer}: {_cell(str(item))}" for item in verdict.measured)]
    text += ["", *(f"- {_cell(line)}" for line in verdict.help)]
    text.append(f"\nNo audit of this kind sees: {BLIND_SPOTS}.")
    text.append(f"\n{verdict.effort}; {verdict.error}.")
    return "\n".join(text) + "\n"


def write(path: Path, text: str, *, append: bool = False) -> None:
    """Writes a file, or adds to one that others write to as well. Raises StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if append else "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StorageError(f"cannot write {path} ({error.strerror}); name another file") from error


def _cell(text: str) -> str:
    """Text of others in a table: one line, no markup of its own."""
    shown = lines(text).replace("\n", " ")
    for mark in "\\`*_<>|[]":
        shown = shown.replace(mark, f"\\{mark}")
    return shown
