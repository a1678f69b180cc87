"""The sweep file: strict models, YAML in, fingerprint out; every cell is validated whole."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from .. import __version__
from ..errors import REQUIRED, Mistakes, SpecError, unknown_key
from ..plugins import Strict, Unread, validated
from ..stats.budget import SweepBudget
from . import grid
from .audit import AuditSpec
from .cell import Cell, digest, parse_cell
from .resources import ResourceSpec
from .yamlfile import dump_yaml, parse_yaml, read_text

_KEYS = ("name", "seed", *grid.SECTIONS, "grid", "resources")


def _folder_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(
            "names a folder: up to 100 letters, digits, '.', '_' or '-', a letter or digit first"
        )
    return name


Name = Annotated[str, AfterValidator(_folder_name)]


class _Heading(Strict):
    """The keys that say nothing of the audits."""

    name: Name  # of the sweep, and of its run directory's folder
    seed: int = Field(default=0, ge=0)  # of secret bits, noise and coins


class Sweep(_Heading):
    """A whole sweep: what `dpaudit run` takes. Build it with `load` or `from_raw`."""

    resources: ResourceSpec = ResourceSpec()
    cells: tuple[Cell, ...]
    raw: dict[str, Any]
    stated: str | None = None  # the fingerprint, where classes were not imported that tell it

    @property
    def trials(self) -> int:
        return sum(cell.audit.trials for cell in self.cells)

    @property
    def unread_modules(self) -> tuple[str, ...]:
        """Modules that compute claims and were not imported."""
        parts = (part for cell in self.cells for part in cell.claim_parts)
        names = (part.name.split(":") for part in parts if isinstance(part, Unread))
        return tuple(module for module, *rest in names if rest)

    @functools.cached_property
    def budget(self) -> SweepBudget:
        """The error of the sweep, shared by all bounds that a decision may rest on."""
        return SweepBudget(tuple(cell.budget for cell in self.cells if cell.mechanism.sampled))

    def identity(self) -> dict[str, Any]:
        """Options that change a result, by key; not the trials, because a run may be extended."""
        audits = {f"{i:03d}": cell.identity() for i, cell in enumerate(self.cells)}
        return {"seed": self.seed, "pack_size": self.resources.pack_size, "audits": audits}

    @property
    def fingerprint(self) -> str:
        """Hex digest of all that can change a result; as recorded where a run is only read."""
        return self.stated or digest(self.identity())

    def canonical(self) -> str:
        """The specification as run: a sweep file with its fingerprint and the version."""
        return dump_yaml(self.raw | {"version": __version__, "fingerprint": self.fingerprint})


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """Reads a sweep file, with `overrides` by dotted key. Raises SpecError with all mistakes."""
    file = Path(path)
    return from_raw(parse_yaml(read_text(file), str(path)), file.resolve().parent, overrides)


def from_raw(
    raw: Mapping[str, Any], base: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Sweep:
    """Validates a sweep given as plain data. Raises SpecError with all that is wrong.

    Data paths are looked for in the working directory, then in `base`, and become absolute.
    """
    tree, mistakes = grid.plain(raw), Mistakes()
    grid.override(tree, grid.plain(overrides or {}))
    tree = grid.located(tree, [Path(), *([base] if base else [])])
    recorded = tree.pop("fingerprint", None)
    tree.pop("version", None)
    for key in sorted(tree.keys() - set(_KEYS)):
        with mistakes.noted():
            raise unknown_key(key, _KEYS)
    top = {k: tree[k] for k in ("name", "seed") if k in tree}
    with mistakes.noted():
        validated(_Heading, top, "")
    with mistakes.noted():
        cells = _cells(tree)
    with mistakes.noted():
        resources = validated(ResourceSpec, tree.get("resources", {}), "resources")
    mistakes.errors = [_placed(error) for error in mistakes.errors]
    mistakes.settle()
    _refuse_twins(cells)
    if any(cell.unimported for cell in cells):
        top["stated"] = recorded
    sweep = validated(Sweep, top | {"resources": resources, "cells": cells, "raw": tree}, "")
    if recorded not in (None, sweep.fingerprint):
        before = sweep.model_copy(update={"cells": _cells(tree, older=True)})
        sweep = before if before.fingerprint == recorded else sweep
    if recorded is None:
        _refuse_idle_gpus(sweep)
    elif recorded != sweep.fingerprint:
        raise SpecError(
            "fingerprint",
            f"is {recorded} but the content gives {sweep.fingerprint}: it was edited, or written "
            "by a version whose scores do not mix with this one's; remove the line to use the file "
            "as it is, with a new name and a new seed",
        )
    return sweep


def _placed(error: SpecError) -> SpecError:
    """The same error, but where another section takes the unknown key, it says which one."""
    option = error.key.rpartition(".")[2]
    for section, model in (("audit", AuditSpec), ("resources", ResourceSpec)):
        if error.meant is not None and option in model.model_fields:
            moved = SpecError(error.key, f"unknown key here; write it under {section}")
            moved.meant = f"{section}.{option}"
            return moved
    return error


def _cells(tree: Mapping[str, Any], older: bool = False) -> tuple[Cell, ...]:
    """Returns every cell of the grid; if the grid is wrong, its sections are checked without it.

    With `older`, defaults are those of older versions.
    """
    cells, mistakes = list[Cell](), Mistakes()
    with mistakes.noted():
        grid.checked(tree)
    spoiled = bool(mistakes.errors)
    for sections, label in grid.cells({**tree, "grid": None} if spoiled else tree):
        try:
            cells += parse_cell(sections, label, older).canaries_apart()
        except SpecError as error:
            problems = error.problems
            mistakes.errors += [p for p in problems if not (spoiled and p.problem == REQUIRED)]
    mistakes.settle()
    return tuple(cells)


def _refuse_idle_gpus(sweep: Sweep) -> None:
    """Raises SpecError for GPUs that a trainer which computes on one GPU would leave idle."""
    gpus = sweep.resources.num_gpus
    idle = [cell.mechanism.name for cell in sweep.cells if not cell.mechanism.several_gpus]
    if gpus > 1 and idle:
        raise SpecError(
            "resources.num_gpus",
            f"is {gpus:g}, but a trainer of {idle[0]} computes on one GPU, and the others would be "
            "idle; use 1, and Ray gives each GPU a trainer of its own",
        )


def _refuse_twins(cells: tuple[Cell, ...]) -> None:
    """Raises SpecError for equal audits: all randomness is seeded, so the second shows nothing."""
    seen: dict[str, str] = {}
    for cell in cells:
        data = cell.mechanism.model_dump(mode="json")  # with its paths
        key = digest([cell.identity(), cell.audit.trials, data])
        if key in seen:
            raise SpecError(
                "grid", f"gives the same audit twice ({seen[key]}; {cell.label}); remove one"
            )
        seen[key] = cell.label
