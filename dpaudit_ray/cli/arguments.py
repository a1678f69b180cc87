"""Arguments and options that several verbs take, and what the shell completes for them.

The shell waits for every completion, so nothing heavy is imported here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from .. import imports
from ..errors import Exit
from . import terminal

# Panels of the help, in its order.
SCRIPTS, SWEEPS = "Audit a training script", "Audit many trainings: a sweep"
RESULTS, ADVANCED = "Read results", "Advanced"

_RUN_FILES = ("plan.json", "sweep.yaml")  # of a run directory
_YAML = (".yaml", ".yml")
_MAX_ENTRIES = 1000  # of a folder that are looked at


def exit_code(verdict: str) -> Exit:
    """What a verb that judges ends with."""
    decided = {"VIOLATION": Exit.VIOLATION, "CONSISTENT": Exit.COMPLETE}
    return decided.get(verdict, Exit.INCONCLUSIVE)


def complete_sweep(incomplete: str) -> list[str]:
    """YAML files; where there are none, shells complete paths of any kind by themselves."""
    return _paths(incomplete, lambda path: path.suffix in _YAML)


def complete_run(incomplete: str) -> list[str]:
    """Completions of what is typed: paths of folders that hold the files of a run."""
    return _paths(incomplete, lambda path: all((path / name).is_file() for name in _RUN_FILES))


def _paths(incomplete: str, fits: Callable[[Path], bool]) -> list[str]:
    """Fitting paths in the folder that is typed, and in its folders that begin as typed."""
    folder, slash, begun = incomplete.rpartition("/")
    base = Path(folder + slash).expanduser()
    near = _entries(base, begun)
    below = [inside for path in near if not fits(path) for inside in _entries(path)]
    return [f"{folder}{slash}{path.relative_to(base)}" for path in (*near, *below) if fits(path)]


def _entries(folder: Path, begun: str = "") -> list[Path]:
    """What lies in a folder under a name that begins so; hidden files only where that is typed."""
    try:
        entries = sorted(itertools.islice(folder.iterdir(), _MAX_ENTRIES))
    except OSError:
        return []
    names = [path for path in entries if path.name.startswith(begun)]
    return [path for path in names if begun.startswith(".") or not path.name.startswith(".")]


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

Sweep = Annotated[str, typer.Argument(help="A sweep file.", autocompletion=complete_sweep)]
RunPath = Annotated[str, typer.Argument(help=_RUN, autocompletion=complete_run)]
StoragePath = Annotated[str, typer.Option(help="Results go to PATH/name; a folder or an address.")]
Set = Annotated[list[str] | None, typer.Option("--set", help=_SET)]
Trusted = Annotated[
    str | None, typer.Option("--trust", help=_TRUST_TO_RUN, callback=_trust(reads=False))
]
TrustedToRead = Annotated[
    str | None, typer.Option("--trust", help=_TRUST_TO_READ, callback=_trust(reads=True))
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
Details = Annotated[bool, typer.Option("--details", help=_DETAILS, callback=terminal.show_details)]
