"""Arguments that several verbs take."""

from __future__ import annotations

from typing import Annotated

import typer

from . import completion

_RUN = "A run directory, or its s3:// or gs:// address."
_SET = "Changes a value: --set audit.trials=200."
Sweep = Annotated[str, typer.Argument(help="A sweep file.", autocompletion=completion.sweeps)]
RunPath = Annotated[str, typer.Argument(help=_RUN, autocompletion=completion.runs)]
OtherRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The one to hold against it.", autocompletion=completion.runs
    ),
]
StoragePath = Annotated[str, typer.Option(help="Results go to PATH/name; a folder or an address.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help=_SET, autocompletion=completion.changes)
]
