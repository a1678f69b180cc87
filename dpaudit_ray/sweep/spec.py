"""The sweep file: strict models, YAML in, fingerprint out.

A sweep is a base audit and a grid of changes to it. Every cell of the grid is validated whole,
so an error names the key it came from before anything runs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from ..adversaries.base import Adversary
from ..errors import SpecError
from ..mechanisms.base import Mechanism
from ..plugins import Plugin, Strict, Unread, is_own, parse, parts, validated
from ..stats.budget import Budget, SweepBudget
from ..version import __version__
from . import grid
from .audit import AuditSpec
from .resources import ResourceSpec
from .yamlfile import dump_yaml, read_yaml

MAX_HORIZONS = 10_000  # steps whose scores are recorded, per audit
_KEYS = ("name", "seed", *grid.SECTIONS, "grid", "resources")


def _folder_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise ValueError(
            "names a folder: up to 100 letters, digits, '.', '_' or '-', a letter or digit first"
        )
    return name


Name = Annotated[str, AfterValidator(_folder_name)]


class Cell(Strict):
    """One audit of the grid. `label` says in words which cell it is."""

    mechanism: Mechanism
    adversary: Adversary
    audit: AuditSpec
    label: str

    @model_validator(mode="after")
    def _one_kind_of_scores(self) -> Self:
        if self.independent:
            return self
        for index, estimator in enumerate(self.audit.estimators):
            if estimator.unread:
                continue
            takes = estimator.method
            if not (takes.one_run or (takes.by_run and not self.adversary.one_run)):
                raise SpecError(
                    f"audit.estimators.{index}",
                    f"{estimator.name} takes scores of many training runs, one of each, which "
                    f"{self.adversary.name} does not give; choose another estimator: one-run, "
                    "one-run-fdp" + ", several-canaries" * (not self.adversary.one_run),
                )
        each = self.adversary.canaries
        if rest := self.audit.trials % each:
            more = self.audit.trials - rest + each
            raise SpecError(
                "audit.trials",
                f"is {self.audit.trials}, but each training has {each} canaries, a trial each; "
                f"use {max(more - each, each)} or {max(more, 2 * each)}",
            )
        return self

    @property
    def independent(self) -> bool:
        """Whether every score comes from a training of its own."""
        return self.canaries == 1

    @property
    def canaries(self) -> int:
        """How many trials in a row are canaries of one training; 0: all."""
        return 0 if self.adversary.one_run else self.adversary.canaries

    @property
    def parts(self) -> Iterator[Plugin]:
        """Mechanism and adversary, and all that their options hold."""
        yield from parts(self.mechanism)
        yield from parts(self.adversary)

    @property
    def unread(self) -> bool:
        """Whether a class of it was not imported, but read as data."""
        return any(isinstance(part, Unread) for part in self.parts)

    @property
    def foreign(self) -> bool:
        """Whether it takes a class of somebody's own to tell what it claims."""
        return any(map(is_own, self.claim_parts))

    @property
    def claim_parts(self) -> tuple[Plugin, ...]:
        """What tells what it claims."""
        return (self.mechanism, *self.mechanism.claim_parts, self.adversary)

    @property
    def fingerprint(self) -> str:
        """Hex digest of what determines bits and scores: mechanism and adversary."""
        return _digest([self.mechanism.identity(), self.adversary.identity()])

    def identity(self) -> dict[str, Any]:
        """What changes a result of this audit; how many trials are run is not part of it."""
        return {
            "mechanism": self.mechanism.identity(),
            "adversary": self.adversary.identity(),
            "audit": self.audit.model_dump(
                mode="json", exclude={"trials", "stop_when"}, exclude_defaults=True
            ),
        }

    @property
    def horizons(self) -> tuple[int, ...]:
        """The steps at which scores are recorded; the last is the end of training."""
        return self.mechanism.horizons(self.audit.record_every)

    @property
    def budget(self) -> Budget:
        """The audit's error, shared by its estimators that hold their level, at every step."""
        deciding = (
            one.name
            for one in self.audit.estimators
            if one.unread or one.make(planned=1).status.holds
        )
        return Budget(self.audit.confidence, tuple(deciding), self.horizons)


class Sweep(Strict):
    """A whole sweep: what `dpaudit run` takes. Build it with `load` or `from_raw`."""

    name: Name
    seed: int = Field(default=0, ge=0)
    resources: ResourceSpec = ResourceSpec()
    cells: tuple[Cell, ...]
    raw: dict[str, Any]
    stated: str | None = None  # the fingerprint, where classes were not imported that tell it

    @property
    def trials(self) -> int:
        """Trials over all audits."""
        return sum(cell.audit.trials for cell in self.cells)

    @property
    def unread_modules(self) -> tuple[str, ...]:
        """Modules that were not imported, and tell what an audit claims."""
        found = (part for cell in self.cells for part in cell.claim_parts)
        named = (part.name for part in found if isinstance(part, Unread))
        return tuple(name.partition(":")[0] for name in named if ":" in name)

    @property
    def budget(self) -> SweepBudget:
        """The error of the sweep, shared by all bounds that a decision may rest on."""
        return SweepBudget(tuple(cell.budget for cell in self.cells if cell.mechanism.sampled))

    def identity(self) -> dict[str, Any]:
        """What changes a result, by key; trials are apart, because a run may be extended."""
        audits = {f"{i:03d}": cell.identity() for i, cell in enumerate(self.cells)}
        return {"seed": self.seed, "pack_size": self.resources.pack_size, "audits": audits}

    @property
    def fingerprint(self) -> str:
        """Hex digest of `identity`."""
        return self.stated or _digest(self.identity())

    def canonical(self) -> str:
        """The specification as run: a sweep file with its fingerprint and the version."""
        return dump_yaml(self.raw | {"version": __version__, "fingerprint": self.fingerprint})


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """Reads a sweep file. `overrides` maps dotted keys to values (`--set a.b=v`).

    Raises:
        SpecError: with the key's path and what to do.
    """
    return from_raw(read_yaml(Path(path)), Path(path).resolve().parent, overrides)


def from_raw(
    raw: Mapping[str, Any], base: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Sweep:
    """Validates a sweep given as plain data.

    Relative data paths are looked for in the working directory, then in `base`, and become
    absolute where something is found.
    """
    tree = grid.plain(raw)
    grid.override(tree, grid.plain(overrides or {}))
    tree = grid.located(tree, [Path(), *([base] if base else [])])
    recorded = tree.pop("fingerprint", None)
    tree.pop("version", None)
    unknown = sorted(tree.keys() - set(_KEYS))
    if unknown:
        raise SpecError(unknown[0], f"unknown key; known: {', '.join(_KEYS)}")
    cells = tuple(_cell(sections, label) for sections, label in grid.cells(tree))
    _refuse_twins(cells)
    top = {k: tree[k] for k in ("name", "seed") if k in tree}
    if any(cell.unread for cell in cells):
        top["stated"] = recorded
    resources = validated(ResourceSpec, tree.get("resources", {}), "resources")
    sweep = validated(Sweep, top | {"resources": resources, "cells": cells, "raw": tree}, "")
    _check_recorded(recorded, sweep)
    return sweep


class RevisionError(SpecError):
    """A recorded sweep of a version that computed something else from the same options."""


def _check_recorded(recorded: Any, sweep: Sweep) -> None:
    actual = sweep.fingerprint
    if recorded is None or recorded == actual:
        return
    for older, changes in _revisions(sweep.identity()):
        if recorded == _digest(older):
            raise RevisionError(
                "fingerprint",
                f"is that of another version of the computation ({changes}), whose scores do not "
                "mix with this one's; use a new name and a new seed, or the version that wrote it",
            )
    raise SpecError(
        "fingerprint",
        f"is {recorded} but the content gives {actual}, so it was edited or written by another "
        "version; remove the line to use the file as it is",
    )


def _revisions(identity: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The identity as versions before would have had it, newest first, and what differs."""
    found: dict[str, int] = {}

    def at_most(value: Any, bound: int, key: str = "") -> Any:
        if not isinstance(value, dict):
            return value
        kept = {k: at_most(part, bound, k) for k, part in value.items() if k != "revision"}
        own = int(value.get("revision", 1))
        found[key] = max(own, found.get(key, 1))
        lowered = min(own, bound)
        return kept | ({"revision": lowered} if lowered > 1 else {})

    at_most(identity, 1)
    for bound in range(max(found.values()) - 1, 0, -1):
        changed = sorted((key, own) for key, own in found.items() if own > bound)
        shown = "; ".join(f"{key}.revision: {bound} there, {own} here" for key, own in changed)
        yield at_most(identity, bound), shown


def _cell(sections: Mapping[str, Any], label: str) -> Cell:
    mechanism = parse(Mechanism, sections["mechanism"], "mechanism")
    adversary = parse(Adversary, sections["adversary"], "adversary")
    audit = validated(AuditSpec, sections["audit"], "audit")
    mechanism = mechanism.for_audit(audit.delta, audit.accountants[0]).against(adversary)
    cell = Cell(
        mechanism=mechanism, adversary=adversary, audit=audit, label=label or adversary.name
    )
    if not cell.unread:
        mechanism.check(adversary)
        _check_recording(audit.record_every, mechanism)
    return cell


def _check_recording(every: int | None, mechanism: Mechanism) -> None:
    steps = mechanism.horizons(None)[-1]
    if every is not None and not steps / MAX_HORIZONS <= every <= steps:
        raise SpecError(
            "audit.record_every",
            f"is {every}, but there are only {steps} steps; use at most that"
            if every > steps
            else f"is {every}, which records more than {MAX_HORIZONS} of {steps} steps; raise it",
        )


def _refuse_twins(cells: tuple[Cell, ...]) -> None:
    """The same audit twice would cost twice and show nothing more: all randomness is seeded."""
    seen: dict[str, str] = {}
    for cell in cells:
        data = cell.mechanism.model_dump(mode="json", serialize_as_any=True)  # with its paths
        key = _digest([cell.identity(), cell.audit.trials, data])
        if key in seen:
            raise SpecError(
                "grid", f"gives the same audit twice ({seen[key]}; {cell.label}); remove one"
            )
        seen[key] = cell.label


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
