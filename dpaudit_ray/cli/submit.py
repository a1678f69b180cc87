"""`dpaudit submit`: a sweep as a Ray job, started, followed and resumed by one command."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from ..errors import Exit
from ..printable import printable
from ..sweep.yamlfile import parse_changes
from . import completion, terminal
from .arguments import Set
from .trust import Trusted

_NAMED = 20  # files that are not sent
_SWEEP = "A sweep file in the working directory."
_PYTHON = "The head's python that has this package, where it is not the first on its PATH."


def submit(  # noqa: PLR0913 (options of a command line)
    sweep: Annotated[str, typer.Argument(help=_SWEEP, autocompletion=completion.sweeps)],
    address: Annotated[
        str,
        typer.Option(
            help="The dashboard of the Ray head.",
            envvar="RAY_API_SERVER_ADDRESS",
        ),
    ],
    storage_path: Annotated[
        str, typer.Option(help="Results go to PATH/name: a folder that all nodes mount, or s3://.")
    ],
    changes: Set = None,
    working_dir: Annotated[str, typer.Option(help="What is sent to the cluster.")] = ".",
    exclude: Annotated[
        list[str] | None, typer.Option(help="Not sent: a name or path with wildcards.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Follow the log and exit as the sweep does.")] = True,
    accept_changed_code: Annotated[
        bool, typer.Option("--accept-changed-code", help="Go on with other code; marks estimates.")
    ] = False,
    python: Annotated[str, typer.Option(help=_PYTHON)] = "python",
    trust: Trusted = None,
) -> None:
    """Runs a sweep as a Ray job; again: resumes it, or follows it while it runs."""
    from ..orchestration.submission import Cluster, SweepJob
    from ..orchestration.working_dir_package import Withheld, WorkingDirPackage
    from ..sweep import spec

    prepared = spec.load(sweep, parse_changes(changes))
    package = WorkingDirPackage(Path(working_dir), tuple(exclude or ()))
    for reason in Withheld:
        if names := [printable(str(path)) for path in package.withheld(reason)]:
            rest = f" and {len(names) - _NAMED} more" * (len(names) > _NAMED)
            terminal.complain(f"not sent, {reason.value}: {', '.join(names[:_NAMED])}{rest}")
    job = SweepJob.prepare(prepared, sweep, storage_path, package, changes or ())
    more = ["--accept-changed-code"] * accept_changed_code
    more += [] if trust is None else ["--trust", trust]
    job = dataclasses.replace(job, options=tuple(more), python=python)
    cluster = Cluster(address, terminal.complain)
    submission = cluster.submit(job)
    stop = cluster.stop_command(submission)
    terminal.complain(f"stop it: {stop}; the same command resumes it then")
    if not wait:
        return
    try:
        code = cluster.follow(submission, terminal.pass_on)
    except KeyboardInterrupt:
        terminal.complain("the job goes on; the same command follows it again")
        code = Exit.STOPPED
    raise typer.Exit(code)
