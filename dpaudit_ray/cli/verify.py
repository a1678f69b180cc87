"""`dpaudit verify`: the verdict on a run directory, or on a script of one's own."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import Exit, SpecError
from . import completion, tables, terminal
from .trust import TrustedToRead

if TYPE_CHECKING:
    from ..report.verdict import Verdict
    from ..scripts.audit import Options
    from ..scripts.findings import ScriptVerdict
    from ..scripts.locate import Target

_WHAT = typer.Argument(
    metavar="RUN|SCRIPT.py:FUNCTION",
    help="A run directory or its address; or a script and the function that trains: train.py:main.",
    autocompletion=completion.runs,
)


@dataclasses.dataclass(frozen=True)
class _Asked:
    """Options that only a script takes, as they were given."""

    budget: str | None = None
    delta: float | None = None
    layers: str | None = None
    address: str | None = None
    gib: float | None = None
    seed: int | None = None
    secret_size: bool | None = None
    junit: Path | None = None
    html: Path | None = None


def verify(  # noqa: PLR0913 (options of a command line)
    what: Annotated[str, _WHAT],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    trust: TrustedToRead = None,
    wide: terminal.Wide = False,
    budget: Annotated[
        str | None, typer.Option(help="Script: time it may take: 90s, 10min, 1h. Default 10min.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Script: δ, where no @audited(delta=...) tells.")
    ] = None,
    layers: Annotated[
        str | None, typer.Option(help="Script: 0 one run, 1 steps, 2 runs. Default 0,1,2.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Script: a Ray cluster to join.")] = None,
    memory: Annotated[
        float | None, typer.Option("--memory", help="Script: GiB that a run may take.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Script: of all coins. Default 0.")] = None,
    secret_size: Annotated[
        bool | None,
        typer.Option("--secret-size", help="Script: the number of records is secret, too."),
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Script: writes a JUnit file.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Script: the page. Default SCRIPT-audit.html.")
    ] = None,
) -> None:
    """Says whether trials contradict the claim: exit 1 violation, 0 none, 5 inconclusive."""
    asked = _Asked(budget, delta, layers, address, memory, seed, secret_size, junit, html)
    from ..scripts import locate

    target = locate.parse(what, delta)
    if target is not None:
        found = _script(target, asked, as_json)
    else:
        given = [name for name, value in dataclasses.asdict(asked).items() if value is not None]
        if given:
            raise SpecError(
                f"--{given[0].replace('_', '-')}", f"is for scripts, and {what} is a run directory"
            )
        found = _run(what, as_json)
    raise typer.Exit(_code(found))


def _code(verdict: Verdict) -> Exit:
    from ..report.verdict import Verdict

    return {
        Verdict.VIOLATION: Exit.VIOLATION,
        Verdict.CONSISTENT: Exit.COMPLETE,
        Verdict.INCONCLUSIVE: Exit.INCONCLUSIVE,
    }[verdict]


def _run(location: str, as_json: bool) -> Verdict:
    from ..report import verdict
    from . import reading

    found = verdict.of(reading.opened(location))
    if as_json:
        terminal.show_json(dataclasses.asdict(found))
    else:
        tables.show_verdict(found)
    return found.verdict


def _script(target: Target, asked: _Asked, as_json: bool) -> Verdict:
    from ..scripts import papers
    from ..scripts.audit import Audit
    from ..scripts.runners import Here, OnRay

    options = _options(asked)
    tell = terminal.add
    with contextlib.ExitStack() as stack:
        if asked.address or os.environ.get("RAY_ADDRESS"):
            from ..orchestration import ray_executor

            ray = stack.enter_context(ray_executor.connected(asked.address))
            found = Audit(target, OnRay(ray, target), options, tell).verdict()
        else:
            found = Audit(target, Here(target), options, tell).verdict()
    page = asked.html or Path(f"{target.script.stem}-{target.function}-audit.html")
    papers.write(page, papers.html(found))
    if asked.junit is not None:
        papers.write(asked.junit, papers.junit(found))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        papers.append(Path(summary), papers.markdown(found))
    if as_json:
        terminal.show_json(papers.plain(found))
    else:
        _show(found)
        terminal.say(f"report: {page}")
    return found.verdict


def _options(asked: _Asked) -> Options:
    from ..forecast.designs import parsed
    from ..scripts.audit import Options

    layers: tuple[int, ...] = (0, 1, 2)
    if asked.layers is not None:
        names = [name.strip() for name in asked.layers.split(",")]
        if not names or not set(names) <= {"0", "1", "2"}:
            raise SpecError("--layers", f"is {asked.layers!r}; name some of 0,1,2")
        layers = tuple(sorted({int(name) for name in names}))
    if asked.delta is not None and not 0 < asked.delta < 1:
        raise SpecError("--delta", f"must lie between 0 and 1, got {asked.delta:g}")
    if asked.gib is not None and not asked.gib > 0:
        raise SpecError("--memory", f"must be above 0, got {asked.gib:g}")
    budget = parsed(asked.budget) if asked.budget is not None else 600.0
    size = bool(asked.secret_size)
    return Options(budget, layers, asked.gib, asked.seed or 0, size)


def _show(found: ScriptVerdict) -> None:
    from ..scripts import papers

    terminal.say(f"{found.verdict}: {found.script}, {papers.claim(found)}")
    for one in found.findings:
        terminal.explain(f"{one.weight} L{one.layer} {one.look}, {one.where}")
        terminal.explain(f"  expected: {one.expected}")
        terminal.explain(f"  seen: {one.seen}")
        if one.remedy:
            terminal.explain(f"  what to do: {one.remedy}")
    for look in found.looks:
        said = look.said if look.done else f"not done: {look.said}"
        terminal.explain(f"L{look.layer} {look.name}: {said}")
    for line in found.help:
        terminal.explain(f"it would help: {line}")
    terminal.explain(
        f"{found.effort} in {terminal.duration(found.seconds)}; a promise that is kept is "
        f"called broken in at most {1 - found.confidence:.0%} of audits"
    )
