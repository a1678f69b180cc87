"""Arguments and options that several verbs take; `--help` waits for what is imported here."""

import functools
from collections.abc import Callable
from typing import Annotated

import typer

from .. import imports
from ..errors import Exit

# Panels of the help, in its order.
SCRIPTS, SWEEPS = "Audit a training script", "Audit many training runs: a sweep"
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


ANY_ERROR = "2 wrong usage or input"


def epilog(example: str, exit_codes: str) -> str:
    """Returns the end of a verb's help; Typer begins a line at each empty one."""
    return f"Example: dpaudit {example}\n\nExit codes: {exit_codes}."


_RUN = "Run directory, or its s3://, gs:// or az:// address."
_SET = "Change a value of the sweep, e.g. audit.trials=200. May be repeated."
_TRUST_TO_RUN = "Allow only these modules of the sweep, e.g. a,b.c, and those below. Default: any."
_TRUST_TO_READ = "Import these modules of the run's author, e.g. a,b.c. Default: none."
_DETAILS = "Show all columns and explain them. Lines may be longer than the terminal's."
_STORAGE_PATH = "Write results to PATH/name: a folder, or an s3://, gs:// or az:// address."

Sweep = Annotated[str, typer.Argument(metavar="SWEEP", help="Sweep file.")]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help=_RUN)]
StoragePath = Annotated[str, typer.Option(metavar="PATH", help=_STORAGE_PATH)]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help=_SET)]
Trusted = Annotated[
    str | None,
    typer.Option("--trust", metavar="MODULES", help=_TRUST_TO_RUN, callback=_trust(reads=False)),
]
TrustedToRead = Annotated[
    str | None,
    typer.Option("--trust", metavar="MODULES", help=_TRUST_TO_READ, callback=_trust(reads=True)),
]
AsJson = Annotated[bool, flag("--json", help="Print JSON.")]
Address = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Join this Ray cluster.")]
Details = Annotated[bool, flag("--details", help=_DETAILS)]
