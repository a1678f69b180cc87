"""Arguments and options that several verbs take; `--help` waits for what is imported here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated

import typer

from .. import imports
from ..errors import Exit

# Panels of the help, in its order.
SCRIPTS, SWEEPS = "Audit a training script", "Audit many trainings: a sweep"
RESULTS, ADVANCED = "Read results", "Advanced"


flag = functools.partial(typer.Option, metavar="")  # the help shows no <bool> after it


def exit_code(verdict: str) -> Exit:
    """What a verb that judges ends with."""
    decided = {"VIOLATION": Exit.VIOLATION, "CONSISTENT": Exit.COMPLETE}
    return decided.get(verdict, Exit.INCONCLUSIVE)


def _trust(reads: bool) -> Callable[[typer.Context, str | None], str | None]:
    """A callback that puts `--trust` in force until the verb ends."""

    def enter(context: typer.Context, modules: str | None) -> str | None:
        context.with_resource(imports.trusting(imports.Trust.parse(modules, reads)))
        return modules

    return enter


_RUN = "A run directory, or its s3:// or gs:// address."
_SET = "Changes a value: --set audit.trials=200."
_TRUST_TO_RUN = "Modules that the sweep may import, with all below them: a,b.c; else any."
_TRUST_TO_READ = "Modules of the run's author that may be imported: a,b.c; else none."
_DETAILS = "All columns, in lines that may be longer than the terminal's, and what they mean."

Sweep = Annotated[str, typer.Argument(metavar="SWEEP", help="A sweep file.")]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help=_RUN)]
StoragePath = Annotated[str, typer.Option(help="Results go to PATH/name; a folder or an address.")]
Set = Annotated[list[str] | None, typer.Option("--set", help=_SET)]
Trusted = Annotated[
    str | None, typer.Option("--trust", help=_TRUST_TO_RUN, callback=_trust(reads=False))
]
TrustedToRead = Annotated[
    str | None, typer.Option("--trust", help=_TRUST_TO_READ, callback=_trust(reads=True))
]
AsJson = Annotated[bool, flag("--json", help="As JSON.")]
Details = Annotated[bool, flag("--details", help=_DETAILS)]
