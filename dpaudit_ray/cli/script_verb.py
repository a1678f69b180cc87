"""Audits of scripts on the command line: options in, files and pages out."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SpecError
from . import terminal
from .terminal import duration

if TYPE_CHECKING:
    from ..report.verdict import Verdict
    from ..scripts.script_audit import Options
    from ..scripts.script_findings import ScriptVerdict
    from ..scripts.script_runs import Target


def script_options(
    budget: str, delta: float | None, layers: str, gib: float | None, seed: int, secret_size: bool
) -> Options:
    """Raises SpecError for a value outside its bounds."""
    from ..forecast.designs import parse_duration
    from ..scripts.script_audit import Options

    names = {name.strip() for name in layers.split(",")}
    if not names <= {"0", "1", "2"}:
        raise SpecError("--layers", f"is {layers!r}; name some of 0,1,2")
    if delta is not None and not 0 < delta < 1:
        raise SpecError("--delta", f"must lie between 0 and 1, got {delta:g}")
    if gib is not None and not gib > 0:
        raise SpecError("--memory", f"must be above 0, got {gib:g}")
    return Options(parse_duration(budget), tuple(sorted(map(int, names))), gib, seed, secret_size)


def audit_and_show(
    target: Target,
    options: Options,
    address: str | None,
    junit: Path | None,
    html: Path | None,
    as_json: bool,
) -> Verdict:
    """Audits the script, writes its files, and shows what the audit says."""
    from ..scripts import report_export

    judged = _audit(target, options, address)
    page = html or Path(f"{target.script.stem}-{target.function}-audit.html")
    report_export.write(page, report_export.html(judged))
    if junit is not None:
        report_export.write(junit, report_export.junit(judged))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        report_export.write(Path(summary), report_export.markdown(judged), append=True)
    if as_json:
        terminal.show_json(dataclasses.asdict(judged))
    else:
        _show_script(judged)
        terminal.say(f"report: {page}")
    return judged.verdict


def _audit(target: Target, options: Options, address: str | None) -> ScriptVerdict:
    from ..scripts.script_audit import Audit
    from ..scripts.script_runs import LocalRunner, RayRunner

    if not (address or os.environ.get("RAY_ADDRESS")):
        return Audit(target, LocalRunner(target), options, terminal.add).verdict()
    from ..orchestration import ray_executor

    with ray_executor.connected(address) as ray:
        return Audit(target, RayRunner(ray, target), options, terminal.add).verdict()


def _show_script(judged: ScriptVerdict) -> None:
    from ..scripts import report_export

    terminal.say(f"{judged.verdict}: {judged.script}, {report_export.claim(judged)}")
    for finding in judged.findings:
        terminal.explain(f"{finding.weight} L{finding.layer} {finding.look}, {finding.where}")
        terminal.explain(f"  expected: {finding.expected}")
        terminal.explain(f"  seen: {finding.seen}")
        if finding.remedy:
            terminal.explain(f"  what to do: {finding.remedy}")
    for look in judged.looks:
        terminal.explain(f"L{look.layer} {look.name}: {look.line}")
    for line in judged.help:
        terminal.explain(f"it would help: {line}")
    terminal.explain(
        f"{judged.effort} in {duration(judged.seconds)}; a promise that is kept is "
        f"called broken in at most {1 - judged.confidence:.0%} of audits"
    )
