"""The sweep file: strict models, YAML in, fingerprint out.

A sweep is a base audit and a grid of changes to it. Every cell of the grid is validated whole,
so an error names the key it came from before anything runs.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from ..adversaries.base import Adversary
from ..errors import REQUIRED, Mistakes, SpecError, UnknownKeyError, together
from ..mechanisms.base import Mechanism
from ..plugins import Plugin, Strict, Unread, is_own, parse, parts, validated
from ..stats.budget import Budget, SweepBudget
from ..version import __version__
from . import grid
from .audit import AuditSpec
from .fingerprint import check_recorded, digest
from .resources import ResourceSpec
from .source import Source
from .yamlfile import dump_yaml, parse_yaml, read_text

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
                    "one-run-adaptive, one-run-fdp"
                    + ", several-canaries"
                    * (not self.adversary.one_run),
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
        return digest([self.mechanism.identity(), self.adversary.identity()])

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
            if one.unread or one.make(planned=self.audit.trials).status.holds
        )
        return Budget(self.audit.confidence, tuple(deciding), self.horizons)


class _Heading(Strict):
    """What says nothing of the audits."""

    name: Name
    seed: int = Field(default=0, ge=0)


class Sweep(_Heading):
    """A whole sweep: what `dpaudit run` takes. Build it with `load` or `from_raw`."""

    resources: ResourceSpec = ResourceSpec()
    cells: tuple[Cell, ...]
    raw: dict[str, Any]
    stated: str | None = None  # the fingerprint, where classes were not imported that tell it
    _source: Source | None = PrivateAttr(default=None)

    @contextlib.contextmanager
    def placed(self, index: int = 0) -> Iterator[None]:
        """Mistakes of a cell that are found while this is open are told with their place."""
        try:
            yield
        except SpecError as error:
            if self._source is None:
                raise
            cell = next(itertools.islice(grid.cells(self.raw), index, None))
            problems = map(cell.traced, error.problems)
            raise self._source.placed(together(problems)) from error

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
        return self.stated or digest(self.identity())

    def canonical(self) -> str:
        """The specification as run: a sweep file with its fingerprint and the version."""
        return dump_yaml(self.raw | {"version": __version__, "fingerprint": self.fingerprint})


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """Reads a sweep file. `overrides` maps dotted keys to values (`--set a.b=v`).

    Raises:
        SpecError: all that is wrong, each with the place in the file, the key and what to do.
    """
    file, text = Path(path), read_text(Path(path))
    source = Source(str(path), text, tuple(overrides or {}))
    raw = parse_yaml(text, str(path))
    try:
        sweep = from_raw(raw, file.resolve().parent, overrides)
    except SpecError as error:
        raise source.placed(error) from error
    sweep._source = source
    return sweep


def from_raw(
    raw: Mapping[str, Any], base: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Sweep:
    """Validates a sweep given as plain data.

    Relative data paths are looked for in the working directory, then in `base`, and become
    absolute where something is found.

    Raises:
        SpecError: all that is wrong, each with the key and what to do.
    """
    tree, mistakes = grid.plain(raw), Mistakes()
    grid.override(tree, grid.plain(overrides or {}))
    tree = grid.located(tree, [Path(), *([base] if base else [])])
    recorded = tree.pop("fingerprint", None)
    tree.pop("version", None)
    for key in sorted(tree.keys() - set(_KEYS)):
        with mistakes.noted():
            raise UnknownKeyError.among(key, _KEYS)
    top = {k: tree[k] for k in ("name", "seed") if k in tree}
    with mistakes.noted():
        validated(_Heading, top, "")
    with mistakes.noted():
        cells = _cells(tree)
    with mistakes.noted():
        resources = validated(ResourceSpec, tree.get("resources", {}), "resources")
    mistakes.settle()
    _refuse_twins(cells)
    if any(cell.unread for cell in cells):
        top["stated"] = recorded
    sweep = validated(Sweep, top | {"resources": resources, "cells": cells, "raw": tree}, "")
    if recorded is None:
        _refuse_idle_gpus(sweep)
    else:
        check_recorded(recorded, sweep.fingerprint, sweep.identity())
    return sweep


def _cells(tree: Mapping[str, Any]) -> tuple[Cell, ...]:
    """Of every cell; where the grid is wrong, the sections are looked at without it."""
    found, mistakes = [], Mistakes()
    with mistakes.noted():
        grid.check(tree)
    spoiled = bool(mistakes.found)
    for unrolled in grid.cells({**tree, "grid": None} if spoiled else tree):
        try:
            found.append(_cell(unrolled.sections, unrolled.label))
        except SpecError as error:
            traced = map(unrolled.traced, error.problems)
            mistakes.found += [one for one in traced if not (spoiled and one.problem == REQUIRED)]
    mistakes.settle()
    return tuple(found)


def _cell(sections: Mapping[str, Any], label: str) -> Cell:
    mistakes = Mistakes()
    with mistakes.noted():
        mechanism = parse(Mechanism, _required(sections, "mechanism"), "mechanism")
    with mistakes.noted():
        adversary = parse(Adversary, _required(sections, "adversary"), "adversary")
    with mistakes.noted():
        audit = validated(AuditSpec, _required(sections, "audit"), "audit")
    mistakes.settle()
    mechanism = mechanism.for_audit(audit.delta, audit.accountants[0]).against(adversary)
    cell = Cell(
        mechanism=mechanism, adversary=adversary, audit=audit, label=label or adversary.name
    )
    if not cell.unread:
        with mistakes.noted():
            mechanism.check(adversary)
        with mistakes.noted():
            _check_recording(audit.record_every, mechanism)
        mistakes.settle()
    return cell


def _required(sections: Mapping[str, Any], key: str) -> Any:
    if sections[key] is None:
        raise SpecError(key, REQUIRED)
    return sections[key]


def _check_recording(every: int | None, mechanism: Mechanism) -> None:
    known = mechanism.horizons(None)
    steps = known[-1]
    if every is None and len(known) > MAX_HORIZONS:
        raise SpecError(
            "audit.record_every",
            f"is not given, which records {len(known)} steps, more than {MAX_HORIZONS}; give "
            f"{-(-steps // MAX_HORIZONS)} or more",
        )
    if every is not None and not steps / MAX_HORIZONS <= every <= steps:
        raise SpecError(
            "audit.record_every",
            f"is {every}, but there are only {steps} steps; use at most that"
            if every > steps
            else f"is {every}, which records more than {MAX_HORIZONS} of {steps} steps; raise it",
        )


def _refuse_idle_gpus(sweep: Sweep) -> None:
    """A trainer of ours computes on one GPU; as many trainers use as many, and none waits."""
    gpus = sweep.resources.num_gpus
    idle = [cell.mechanism.name for cell in sweep.cells if not cell.mechanism.several_gpus]
    if gpus > 1 and idle:
        raise SpecError(
            "resources.num_gpus",
            f"is {gpus:g}, but a trainer of {idle[0]} computes on one GPU, and the others would be "
            "idle; use 1, and Ray gives each GPU a trainer of its own",
        )


def _refuse_twins(cells: tuple[Cell, ...]) -> None:
    """The same audit twice would cost twice and show nothing more: all randomness is seeded."""
    seen: dict[str, str] = {}
    for cell in cells:
        data = cell.mechanism.model_dump(mode="json", serialize_as_any=True)  # with its paths
        key = digest([cell.identity(), cell.audit.trials, data])
        if key in seen:
            raise SpecError(
                "grid", f"gives the same audit twice ({seen[key]}; {cell.label}); remove one"
            )
        seen[key] = cell.label
