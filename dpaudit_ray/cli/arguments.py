"""Arguments and options of several verbs. Imports here must be fast, since `--help` needs them."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from .. import imports
from ..errors import Exit

Function = TypeVar("Function", bound=Callable[..., Any])

# Panels of the help, in its order.
SCRIPTS = "Audit a training script"
SWEEPS = "Audit many training runs: a sweep"
RESULTS = "Read results"
ADVANCED = "Advanced"


class _WithoutTypes:
    """Removes the <bool> that the help shows after each flag, even after flags that Typer adds."""

    def get_params(self, ctx: Any) -> Any:
        parameters = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Command(_WithoutTypes, TyperCommand):
    """A verb in the help."""


class Group(_WithoutTypes, TyperGroup):
    """All verbs in the help."""


def exit_code(verdict: str) -> Exit:
    """Returns the exit code of a verdict."""
    decided = {"VIOLATION": Exit.VIOLATION, "CONSISTENT": Exit.COMPLETE}
    return decided.get(verdict, Exit.INCONCLUSIVE)


def _trust(reads_run: bool) -> Callable[[typer.Context, str | None], str | None]:
    """Returns the callback of the option `--trust`, which names the modules a verb may import.

    Args:
        reads_run: whether the verb reads a run, which may be a stranger's. Without the option, such
            a verb imports no module of the run's author; all other verbs may import any.
    """

    def enter(context: typer.Context, modules: str | None) -> str | None:
        """Trusts the modules until the verb ends; returns them as the verb's argument."""
        context.with_resource(imports.trusting(imports.Trust.parse(modules, reads=reads_run)))
        return modules

    return enter


ANY_ERROR = "2 wrong usage or input"


def verb(
    app: typer.Typer,
    panel: str,
    example: str,
    exit_codes: str,
    name: str | None = None,
    page: str = "command-line",
) -> Callable[[Function], Function]:
    """Returns a decorator that makes a function a verb.

    Args:
        app: the verbs of a file.
        panel: panel of the help.
        example: arguments of `dpaudit` in the help.
        exit_codes: exit codes in the help.
        name: name of the verb; by default that of the function.
        page: page of `docs/` that explains it.
    """
    # Typer begins a line at each empty one.
    epilog = f"Example: dpaudit {example}\n\nExit codes: {exit_codes}.\n\nDocs: docs/{page}.md"
    return app.command(name, cls=Command, rich_help_panel=panel, epilog=epilog)


_RUN = "Run directory, or its s3://, gs:// or az:// address."
_SET = "Change a value of the sweep, e.g. audit.trials=200. May be repeated."
_TRUST_TO_RUN = "Allow only these modules of the sweep, e.g. a,b.c, and those below. Default: any."
_TRUST_TO_READ = "Import these modules of the run's author, e.g. a,b.c. Default: none."
_DETAILS = "Show all columns and explain them. Lines may be longer than the terminal's."
_STORAGE_PATH = "Write results to PATH/name: a folder, or an s3://, gs:// or az:// address."

Sweep = Annotated[str, typer.Argument(metavar="SWEEP", help="Sweep file.")]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help=_RUN)]
RunPaths = Annotated[list[str], typer.Argument(metavar="RUN", help=_RUN)]
StoragePath = Annotated[
    str, typer.Option("--storage-path", "-o", metavar="PATH", help=_STORAGE_PATH)
]
Set = Annotated[list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help=_SET)]
Trusted = Annotated[
    str | None,
    typer.Option(
        "--trust", metavar="MODULES", help=_TRUST_TO_RUN, callback=_trust(reads_run=False)
    ),
]
TrustedToRead = Annotated[
    str | None,
    typer.Option(
        "--trust", metavar="MODULES", help=_TRUST_TO_READ, callback=_trust(reads_run=True)
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Address = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Join this Ray cluster.")]
Details = Annotated[bool, typer.Option("--details", help=_DETAILS)]
