"""`--trust`: what a verb may import; in force until the verb ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from .. import imports


def _taken(reads: bool) -> Callable[[typer.Context, str | None], str | None]:
    def take(context: typer.Context, modules: str | None) -> str | None:
        context.with_resource(imports.trusting(imports.Trust.of(modules, reads)))
        return modules

    return take


_RUNS = "Modules that the sweep may import, with all below them: a,b.c; else any."
_READS = "Modules of the run's author that may be imported: a,b.c; else none."

Trusted = Annotated[str | None, typer.Option("--trust", help=_RUNS, callback=_taken(reads=False))]
TrustedToRead = Annotated[
    str | None, typer.Option("--trust", help=_READS, callback=_taken(reads=True))
]
