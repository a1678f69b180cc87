"""Files of a script's verdict: a page of HTML, JUnit for CI, and SARIF for code scanning."""

import datetime
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .. import __version__
from ..errors import StorageError, lines
from ..report import page
from .finding_kinds import KINDS, Weight
from .script_findings import LAYERS, Finding, ScriptVerdict

_LEVELS = {Weight.VIOLATION: "error", Weight.WARNING: "warning", Weight.NOTE: "note"}
_LINE = re.compile(r"([\w.-]+\.py):(\d+)")


def html(verdict: ScriptVerdict) -> str:
    """Returns one page that needs no other file."""
    template = page.environment(trim_blocks=True, lstrip_blocks=True).get_template("script.html.j2")
    written = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return template.render(
        audit=verdict,
        layers=LAYERS,
        record=json.dumps(asdict(verdict), ensure_ascii=False),
        version=__version__,
        written=written,
    )


def junit(verdict: ScriptVerdict) -> str:
    """Returns a test case for each check: failed by a violation, or skipped if it is not done.

    A violation has a separate case if no check has its name.
    """
    cases: dict[tuple[int, str], list[str]] = {}  # failures by layer and name of a check
    skipped = {}
    for check in verdict.looks:
        key = check.layer, check.name
        cases[key] = []
        if not check.done:
            skipped[key] = check.line
    for violation in verdict.violations:
        failures = cases.setdefault((violation.layer, violation.look), [])
        failures.append(f"{violation.code} {violation}")
    suite = ElementTree.Element(
        "testsuite",
        name=f"dpaudit {verdict.script}",
        tests=str(len(cases)),
        errors="0",
        time=f"{verdict.seconds:.1f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    values = {"verdict": f"{verdict.verdict}: {verdict.headline}", "claim": verdict.claim_text}
    values |= {LAYERS[measured.layer]: str(measured) for measured in verdict.measured}
    for item in verdict.findings:
        if item.silenced:
            values[f"silenced {item.code}"] = f"{item.silenced}: {item}"
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=lines(value))
    for key, failures in cases.items():
        layer, name = key
        element = ElementTree.SubElement(suite, "testcase", classname=LAYERS[layer], name=name)
        if failures:
            failure = ElementTree.SubElement(element, "failure", message=lines(failures[0]))
            failure.text = lines("\n".join(failures))
        elif key in skipped:
            ElementTree.SubElement(element, "skipped", message=lines(skipped[key]))
    for count, tag in (("failures", "failure"), ("skipped", "skipped")):
        suite.set(count, str(len(suite.findall(f"testcase/{tag}"))))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def sarif(verdict: ScriptVerdict) -> str:
    """Returns the findings in SARIF 2.1.0, with a rule for each code."""
    names = {kind.code: kind.title for kind in KINDS.values()}
    codes = sorted({finding.code for finding in verdict.findings})
    rules = [{"id": code, "name": names[code]} for code in codes]
    driver = {"name": "dpaudit", "version": __version__, "rules": rules}
    results = [_sarif_result(verdict, finding) for finding in verdict.findings]
    run = {"tool": {"driver": driver}, "results": results}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1)


def _sarif_result(verdict: ScriptVerdict, finding: Finding) -> dict[str, Any]:
    """Converts a finding to a result of SARIF, at its line, or at the script if that is unknown."""
    file = verdict.script.partition(":")[0]
    region = {}
    if match := _LINE.search(finding.where):
        file = match[1]
        region = {"region": {"startLine": int(match[2])}}
    location = {"physicalLocation": {"artifactLocation": {"uri": file}} | region}
    result = {
        "ruleId": finding.code,
        "level": _LEVELS[finding.weight],
        "message": {"text": lines(str(finding))},
        "locations": [location],
    }
    if finding.silenced:
        result["suppressions"] = [{"kind": "external", "justification": finding.silenced}]
    return result


def write(path: Path, text: str) -> None:
    """Writes a file, and makes its folder. Raises StorageError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path} ({error.strerror}); name another file") from error
