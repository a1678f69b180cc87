"""What the shell completes: it waits for every answer, so nothing heavy is imported here."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_MARKS = ("plan.json", "sweep.yaml")  # what a run directory has
_YAML = (".yaml", ".yml")
_MOST = 1000  # entries of a folder that are looked at
Completer = Callable[[str], list[str]]


def asked(arguments: Sequence[str]) -> bool:
    """Whether it is the shell that asks, or somebody who wants the shell to ask."""
    own = {"--install-completion", "--show-completion"}
    return "_DPAUDIT_COMPLETE" in os.environ or bool(own.intersection(arguments[1:2]))


def one_of(names: Iterable[str]) -> Completer:
    """Any of these."""
    listed = list(names)
    return lambda incomplete: [name for name in listed if name.startswith(incomplete)]


def sweeps(incomplete: str) -> list[str]:
    """YAML files. Where there are none, shells complete paths of any kind by themselves."""
    return _found(incomplete, lambda place: place.suffix in _YAML)


def runs(incomplete: str) -> list[str]:
    """Run directories."""
    return _found(incomplete, lambda place: all((place / mark).is_file() for mark in _MARKS))


def changes(incomplete: str) -> list[str]:
    """Keys for `--set`: those that the sweep file on the line has."""
    from ..errors import DpauditError
    from ..sweep import yamlfile

    # A line whose last option has no value yet is not parsed; the shells give it as it is.
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    file = next((word for word in line.split() if Path(word).suffix in _YAML), None)
    if file is None:
        return []
    try:
        tree = yamlfile.parse_yaml(yamlfile.read_text(Path(file)), file)
    except DpauditError:
        return []
    return [f"{key}=" for key in _keys(tree) if key.startswith(incomplete)]


def _keys(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _found(incomplete: str, fits: Callable[[Path], bool]) -> list[str]:
    """What fits in the folder that is typed, and in its folders that begin as typed."""
    folder, slash, begun = incomplete.rpartition("/")
    near = [folder + slash + name for name in _names(folder + slash, begun)]
    below = (f"{name}/{inside}" for name in near if not fits(Path(name)) for inside in _names(name))
    return [shown for shown in (*near, *below) if fits(Path(shown).expanduser())]


def _names(folder: str, begun: str = "") -> list[str]:
    try:
        with os.scandir(Path(folder or ".").expanduser()) as listed:
            names = [entry.name for entry in itertools.islice(listed, _MOST)]
    except OSError:
        return []
    hidden = begun.startswith(".")
    return sorted(n for n in names if n.startswith(begun) and (hidden or not n.startswith(".")))
