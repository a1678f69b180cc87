"""Reads sweep files: strict models of all sections, every audit of the grid, the fingerprint."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, NonNegativeInt

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
    """Returns a sweep's name. Raises ValueError unless it can name a folder."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(
            "names a folder: up to 100 letters, digits, '.', '_' or '-', a letter or digit first"
        )
    return name


Name = Annotated[str, AfterValidator(_folder_name)]


class _Heading(Strict):
    """The keys that belong to no audit."""

    name: Name  # names the sweep, and the folder of its run directory
    seed: NonNegativeInt = 0  # all secret bits and all noise follow from it


class Sweep(_Heading):
    """All settings of a sweep, for `dpaudit run`. Build it with `load` or `from_raw`."""

    resources: ResourceSpec = ResourceSpec()
    cells: tuple[Cell, ...]
    raw: dict[str, Any]
    stated: str | None = None  # the recorded fingerprint, if its classes were not imported

    @property
    def trials(self) -> int:
        """Number of trials of all audits."""
        return sum(cell.audit.trials for cell in self.cells)

    @property
    def unread_modules(self) -> tuple[str, ...]:
        """Modules that compute claims and were not imported."""
        modules = []
        for cell in self.cells:
            for part in cell.claim_parts:
                module, colon, _ = part.name.partition(":")
                if colon and isinstance(part, Unread):
                    modules.append(module)
        return tuple(modules)

    @functools.cached_property
    def budget(self) -> SweepBudget:
        """The error budget of the sweep, shared by all bounds that a decision may rest on."""
        return SweepBudget(tuple(cell.budget for cell in self.cells if cell.sampled))

    def identity(self) -> dict[str, Any]:
        """Returns options that change a result, but not the trials, since a run may be extended."""
        audits = {f"{index:03d}": cell.identity() for index, cell in enumerate(self.cells)}
        return {"seed": self.seed, "pack_size": self.resources.pack_size, "audits": audits}

    @property
    def fingerprint(self) -> str:
        """Hex digest of all that can change a result; the recorded one if a run is only read."""
        return self.stated or digest(self.identity())

    def canonical(self) -> str:
        """Returns the sweep file as run, with its fingerprint and the version."""
        return dump_yaml(self.raw | {"version": __version__, "fingerprint": self.fingerprint})


def load(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
) -> Sweep:
    """Reads a sweep file.

    Args:
        path: path of the file.
        overrides: values to be set, by dotted key.

    Raises:
        SpecError: the sweep has mistakes, all of which the message lists.
    """
    file = Path(path)
    raw = parse_yaml(read_text(file), str(path))
    return from_raw(raw, file.resolve().parent, overrides)


def from_raw(
    raw: Mapping[str, Any],
    base: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Sweep:
    """Validates a sweep that is plain data.

    Args:
        raw: the content of a sweep file.
        base: data paths that do not exist in the working directory are looked up here.
        overrides: values to be set, by dotted key.

    Raises:
        SpecError: the sweep has mistakes, all of which the message lists.
    """
    tree = grid.plain(raw)
    mistakes = Mistakes()
    grid.override(tree, grid.plain(overrides or {}))
    folders = [Path(), base] if base else [Path()]
    tree = grid.located(tree, folders)
    recorded = tree.pop("fingerprint", None)  # the fingerprint of a sweep that was run
    tree.pop("version", None)
    for key in sorted(tree.keys() - set(_KEYS)):
        with mistakes.noted():
            raise unknown_key(key, _KEYS)
    heading = {key: tree[key] for key in ("name", "seed") if key in tree}
    with mistakes.noted():
        validated(_Heading, heading, "")
    with mistakes.noted():
        cells = _cells(tree)
    with mistakes.noted():
        resources = validated(ResourceSpec, tree.get("resources", {}), "resources")
    mistakes.errors = [_placed(error) for error in mistakes.errors]
    mistakes.raise_if_any()  # after this line, the parts are valid
    _refuse_twins(cells)
    if any(cell.unimported for cell in cells):
        heading["stated"] = recorded
    sections = {"resources": resources, "cells": cells, "raw": tree}
    sweep = validated(Sweep, heading | sections, "")
    if recorded not in (None, sweep.fingerprint):
        # An older version may have written the file, when defaults were others.
        with_old_defaults = sweep.model_copy(update={"cells": _cells(tree, older=True)})
        if with_old_defaults.fingerprint == recorded:
            sweep = with_old_defaults
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
    """Returns the error; for an unknown key, with a hint to the section that has such a key."""
    option = error.key.rpartition(".")[2]
    for section, model in (("audit", AuditSpec), ("resources", ResourceSpec)):
        if error.meant is not None and option in model.model_fields:
            hint = SpecError(error.key, f"unknown key here; write it under {section}")
            hint.meant = f"{section}.{option}"
            return hint
    return error


def _cells(
    tree: Mapping[str, Any],
    older: bool = False,
) -> tuple[Cell, ...]:
    """Returns every cell of the grid; one with several canaries is a cell for each of them.

    If the grid itself is wrong, the sections are still checked, without it. Then a missing section
    is not reported: the grid may have been meant to set it.

    Args:
        tree: the sweep as plain data.
        older: whether defaults are those of older versions.

    Raises:
        SpecError: the sweep has mistakes, all of which the message lists.
    """
    cells: list[Cell] = []
    mistakes = Mistakes()
    with mistakes.noted():
        grid.checked(tree)
    wrong_grid = bool(mistakes.errors)
    if wrong_grid:
        tree = {**tree, "grid": None}
    for sections, label in grid.cells(tree):
        try:
            cells += parse_cell(sections, label, older).one_per_canary()
        except SpecError as error:
            for problem in error.problems:
                if not wrong_grid or problem.problem != REQUIRED:
                    mistakes.errors.append(problem)
    mistakes.raise_if_any()
    return tuple(cells)


def _refuse_idle_gpus(sweep: Sweep) -> None:
    """Raises SpecError for GPUs that a trainer which computes on one GPU would leave idle."""
    gpus = sweep.resources.num_gpus
    idle = [cell.mechanism.name for cell in sweep.cells if not cell.mechanism.several_gpus]
    if gpus > 1 and idle:
        raise SpecError(
            "resources.num_gpus",
            f"is {gpus:g}, but a trainer of {idle[0]} computes on one GPU, and the others would be "
            "idle; use 1, and Ray starts a trainer on each GPU",
        )


def _refuse_twins(cells: tuple[Cell, ...]) -> None:
    """Raises SpecError for equal audits: all randomness is seeded, so the second shows nothing."""
    labels: dict[str, str] = {}
    for cell in cells:
        options = cell.mechanism.model_dump(mode="json")  # contains paths of data
        key = digest([cell.identity(), cell.audit.trials, options])
        if key in labels:
            raise SpecError(
                "grid", f"gives the same audit twice ({labels[key]}; {cell.label}); remove one"
            )
        labels[key] = cell.label
