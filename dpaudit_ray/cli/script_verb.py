"""`dpaudit audit`: audits a training script, shows progress, and prints the verdict."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..errors import SpecError
from . import terminal
from .arguments import ANY_ERROR, SCRIPTS, Address, AsJson, exit_code, verb
from .terminal import duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..scripts.script_audit import Options
    from ..scripts.script_findings import ScriptVerdict
    from ..scripts.script_runs import Target

app = typer.Typer()
_LINE_SECONDS = 5.0  # between two lines of a log
_LABEL_WIDTH = 11  # columns
_REFRESH_SECONDS = 0.25  # between two updates of the line on a terminal


@verb(
    app,
    SCRIPTS,
    "audit train.py --budget 10min -- --epochs 1",
    f"0 no violation found, 1 violation, {ANY_ERROR}, 5 inconclusive",
    page="audit-your-script",
)
def audit(  # noqa: PLR0913 (options of a command line)
    script: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT.py[:FUNCTION]",
            help="Script, e.g. train.py, or a function: train.py:main.",
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments of the script, after --."),
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Stop after this time, e.g. 90s or 10min.")
    ] = "10min",
    delta: Annotated[
        float | None,
        typer.Option(
            metavar="DELTA",
            help="δ of the claim. Required unless the script or @audited(delta=...) states it.",
        ),
    ] = None,
    layers: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Run these checks: 0 inspect one run, 1 test steps with canaries, 2 test whole "
            "runs.",
        ),
    ] = "0,1,2",
    as_json: AsJson = False,
    address: Address = None,
    python: Annotated[
        str | None,
        typer.Option(metavar="PROGRAM", help="Run the script by this Python, e.g. env/bin/python."),
    ] = None,
    memory: Annotated[
        float | None, typer.Option(min=0.1, metavar="GIB", help="Limit the memory of a run.")
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed the random choices of the audit.")
    ] = 0,
    secret_size: Annotated[
        bool, typer.Option("--secret-size", help="Treat the number of records as secret, too.")
    ] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="CODE=REASON", help="Silence findings, e.g. DPA044='a test run'."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a JUnit file.")] = None,
    sarif: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a SARIF file for code scanning.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the report here. Default: SCRIPT-FUNCTION-audit.html."
        ),
    ] = None,
) -> None:
    """Audit a training script: test whether its training violates the claimed ε and δ."""
    from ..scripts import verdict_files
    from ..scripts.finding_kinds import parse_reasons
    from ..scripts.interpreters import Interpreter
    from ..scripts.script_audit import Options, parse_duration
    from ..scripts.script_runs import Target

    if delta is not None and not 0 < delta < 1:
        raise SpecError("--delta", f"must lie between 0 and 1, got {delta:g}; write it as 1e-5")
    target = Target.from_text(script, delta, arguments=arguments or ())
    if target is None:
        raise SpecError(
            "",
            f"{script} is not a script; write path/to/script.py or script.py:function; "
            f"`dpaudit verify {script}` judges a run",
        )
    if python:
        target = replace(target, python=Interpreter.for_script(python, target.script))
    names = {name.strip() for name in layers.split(",")}
    if not names <= {"0", "1", "2"}:
        raise SpecError("--layers", f"is {layers!r}; name some of 0,1,2")
    chosen = tuple(sorted(map(int, names)))
    seconds = parse_duration(budget)
    options = Options(seconds, chosen, memory, seed, secret_size, parse_reasons(ignore or []))
    verdict = _audit(target, options, address)
    name = f"{target.script.stem}-{target.function}-audit.html"
    page = html or Path(name.replace("--", "-"))
    verdict_files.write(page, verdict_files.html(verdict))
    if junit is not None:
        verdict_files.write(junit, verdict_files.junit(verdict))
    if sarif is not None:
        verdict_files.write(sarif, verdict_files.sarif(verdict))
    if as_json:
        terminal.show_json({"headline": verdict.headline} | asdict(verdict))
    else:
        _show(verdict, page)
    raise typer.Exit(exit_code(verdict.verdict))


def _audit(target: Target, options: Options, address: str | None) -> ScriptVerdict:
    """Runs an audit on this machine, or on a Ray cluster if an address is configured.

    Args:
        target: the script.
        options: limits and choices of the audit.
        address: address of a cluster's head; RAY_ADDRESS if None.
    """
    from ..scripts.script_audit import Audit
    from ..scripts.script_runs import LocalRunner, RayRunner

    with _progress(options.budget) as report:
        if not (address or os.environ.get("RAY_ADDRESS")):
            return Audit(target, LocalRunner(target), options, report).verdict()
        if target.python:
            raise SpecError("--python", "is for runs on this machine; leave out --address")
        from ..orchestration import ray_executor

        with ray_executor.connected(address) as ray:
            return Audit(target, RayRunner(ray, target), options, report).verdict()


@contextlib.contextmanager
def _progress(budget: float) -> Iterator[Callable[[str], None]]:
    """Shows the phase of an audit and its time on standard error; yields what sets the phase.

    A terminal has one line that changes, a log has a new line every few seconds.
    """
    started = time.monotonic()
    phase = "loading the script"
    ended = threading.Event()

    def set_phase(text: str) -> None:
        """Names the phase in all lines from now on."""
        nonlocal phase
        phase = text

    def line() -> str:
        """Returns the phase with the time that the audit has taken so far."""
        return f"{phase} ({duration(time.monotonic() - started)} of {duration(budget)})"

    def write() -> None:
        """Writes until the audit has ended: lines to a log, or one changing line to a terminal."""
        console = Console(stderr=True)
        if not console.is_terminal:
            while not ended.wait(_LINE_SECONDS):
                terminal.add(line())
            return
        with console.status(Text(line())) as status:
            while not ended.wait(_REFRESH_SECONDS):
                status.update(Text(line()))

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield set_phase
    finally:
        ended.set()
        writer.join(1.0)  # a terminal that is paused does not stop the audit


def _show(verdict: ScriptVerdict, page: Path) -> None:
    """Prints verdict, claim, findings or strength, and what was not checked in this script."""
    from ..scripts.script_findings import LAYERS

    terminal.explain(f"{verdict.verdict}  {verdict.headline}")
    terminal.say("")
    _put("Claim", verdict.claim_text)
    for finding in verdict.findings:
        _put(finding.label, f"{finding.where}: {finding.seen}")
        _put("", f"expected: {finding.expected}")
        if finding.remedy:
            _put("", f"fix: {finding.remedy}")
        if finding.silenced:
            _put("", f"silenced because: {finding.silenced}")
        _put("", f"{finding.code}, {finding.look}")
    if verdict.sentence:
        _put("Strength", verdict.sentence)
    _put_all("Measured", map(str, verdict.measured))
    _put_all("Missing", verdict.help)
    terminal.say("")
    done = []
    undone = []
    for check in verdict.looks:
        if check.done:
            name = check.name if check.layer == 0 else LAYERS[check.layer]
            done.append(f"{name}: {check.said}")
        elif check.applies:
            undone.append(f"{check.name}: {check.said}")
    _put_all("Checked", done)
    _put_all("Not done", undone)
    terminal.say("")
    terminal.say("Not checked in this script")
    _put_all("", verdict.unchecked)
    if verdict.violations:
        _put("", "checks after the first violation; there may be more violations")
    terminal.say("")
    terminal.say(verdict.error)
    terminal.say(f"Report: {page} ({verdict.effort})")


def _put_all(label: str, texts: Iterable[str]) -> None:
    """Prints texts below each other, the first one after the label."""
    for text in texts:
        _put(label, text)
        label = ""


def _put(label: str, text: str) -> None:
    """Prints a sentence after its label; later lines are indented as the first."""
    terminal.explain(f"{label:<{_LABEL_WIDTH}}{text}", indent=_LABEL_WIDTH)
