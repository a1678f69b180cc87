"""The sweep file: strict models, YAML in, fingerprint out.

A sweep is a base audit and a grid of changes to it. Every cell of the grid is validated whole,
so an error names the key it came from before anything runs.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, StringConstraints, ValidationError, model_validator

from . import __version__, stats
from .accounting import Accountant
from .adversaries.base import Adversary
from .errors import SpecError
from .mechanisms.base import Mechanism
from .plugins import Strict, parse, spec_error
from .yamlfile import read_yaml

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class EstimatorSpec(Strict):
    """An estimator by name, with its options."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _from_sweep(cls, raw: Any) -> Any:
        if isinstance(raw, str):
            return {"name": raw}
        if isinstance(raw, dict) and "options" not in raw:
            return {"name": raw.get("name"), "options": {k: raw[k] for k in raw if k != "name"}}
        return raw

    @model_validator(mode="after")
    def _known(self) -> Self:
        self.make(planned=1)
        return self

    def make(self, planned: int) -> stats.Estimator:
        """The streaming state; raises ValueError for an unknown name or option."""
        return stats.make(self.name, planned=planned, **self.options)


class AuditSpec(Strict):
    """How many trials, at which level, and what is computed from them."""

    trials: int = Field(ge=1)
    delta: float = Field(gt=0, lt=1)
    confidence: float = Field(default=0.95, gt=0, lt=1)
    record_every: int | None = Field(default=None, ge=1)
    estimators: list[EstimatorSpec] = Field(
        default_factory=lambda: [EstimatorSpec(name="accuracy")], min_length=1
    )
    accountants: list[str] = Field(default_factory=lambda: ["gaussian"], min_length=1)

    @model_validator(mode="after")
    def _names(self) -> Self:
        names = [e.name for e in self.estimators]
        if len(set(names)) < len(names):
            raise ValueError("estimators must not repeat")
        for accountant in self.accountants:
            if accountant not in list(Accountant):
                known = ", ".join(Accountant)
                raise ValueError(f"unknown accountant {accountant!r}; known: {known}")
        return self


class ResourceSpec(Strict):
    """What a trainer needs, and how much of the cluster the sweep may use."""

    num_cpus: float = Field(default=1, gt=0)
    num_gpus: float = Field(default=0, ge=0)
    pack_size: int | Literal["auto"] = "auto"
    max_concurrent_trainers: int | Literal["auto"] = "auto"
    max_worker_losses: int = Field(default=100, ge=0)

    @model_validator(mode="after")
    def _positive(self) -> Self:
        for key in ("pack_size", "max_concurrent_trainers"):
            value = getattr(self, key)
            if value != "auto" and value < 1:
                raise ValueError(f"{key} must be auto or at least 1, got {value}")
        return self


class Cell(Strict):
    """One audit of the grid. `label` says in words which cell it is."""

    mechanism: Mechanism
    adversary: Adversary
    audit: AuditSpec
    label: str

    @property
    def fingerprint(self) -> str:
        """Hex digest of what determines bits and scores: mechanism and adversary."""
        return _digest([self.mechanism.identity(), self.adversary.identity()])

    def identity(self) -> dict[str, Any]:
        """What changes a result of this audit; the number of trials is not part of it."""
        return {
            "mechanism": self.mechanism.identity(),
            "adversary": self.adversary.identity(),
            "audit": self.audit.model_dump(mode="json", exclude={"trials"}),
        }

    @property
    def horizons(self) -> tuple[int, ...]:
        """The steps at which scores are recorded; the last is the end of training."""
        return self.mechanism.horizons(self.audit.record_every)


class Sweep(Strict):
    """A whole sweep: what `dpaudit run` takes. Build it with `load` or `from_raw`."""

    name: Name
    seed: int = Field(default=0, ge=0)
    resources: ResourceSpec = ResourceSpec()
    cells: tuple[Cell, ...]
    raw: dict[str, Any]

    @property
    def trials(self) -> int:
        """Trials over all audits."""
        return sum(cell.audit.trials for cell in self.cells)

    def identity(self) -> dict[str, Any]:
        """What changes a result, by key; trials are apart, because a run may be extended."""
        audits = {f"{i:03d}": cell.identity() for i, cell in enumerate(self.cells)}
        return {"seed": self.seed, "pack_size": self.resources.pack_size, "audits": audits}

    @property
    def fingerprint(self) -> str:
        """Hex digest of `identity`."""
        return _digest(self.identity())

    def canonical(self) -> str:
        """The specification as run: a sweep file with its fingerprint and the version."""
        head = {"version": __version__, "fingerprint": self.fingerprint}
        return yaml.safe_dump(self.raw | head, sort_keys=False, allow_unicode=True)


def load(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Sweep:
    """Reads a sweep file. `overrides` maps dotted keys to values (`--set a.b=v`).

    Raises:
        SpecError: with the key's path and what to do.
    """
    raw = read_yaml(Path(path))
    for key, value in (overrides or {}).items():
        _put(raw, key, value)
    return from_raw(raw, base=Path(path).resolve().parent)


def from_raw(raw: Mapping[str, Any], base: Path | None = None) -> Sweep:
    """Validates a sweep given as plain data; relative data paths may also lie beside `base`."""
    tree = copy.deepcopy(dict(raw))
    recorded = tree.pop("fingerprint", None)
    tree.pop("version", None)
    if base is not None:
        _resolve_paths(tree, base)
    unknown = set(tree) - {"name", "seed", "resources", "mechanism", "adversary", "audit", "grid"}
    if unknown:
        raise SpecError(sorted(unknown)[0], "unknown key at the top of the sweep file")
    grid = tree.get("grid") or {}
    if not isinstance(grid, dict):
        raise SpecError("grid", "must map dotted keys to lists of values")
    cells = tuple(_cell(tree, changes) for changes in _combinations(grid))
    top = {k: tree[k] for k in ("name", "seed", "resources") if k in tree}
    try:
        sweep = Sweep.model_validate(top | {"cells": cells, "raw": tree})
    except ValidationError as error:
        raise spec_error(error, "") from error
    _check_recorded(recorded, sweep.fingerprint)
    return sweep


def _check_recorded(recorded: Any, actual: str) -> None:
    if recorded is not None and recorded != actual:
        raise SpecError(
            "fingerprint",
            f"is {recorded} but the file's content gives {actual}: it was edited, or written by "
            "another version; remove the line to use the file as it is",
        )


def _combinations(grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    for key, values in grid.items():
        if str(key).split(".")[0] not in ("mechanism", "adversary", "audit"):
            raise SpecError(f"grid.{key}", "must start with mechanism, adversary or audit")
        if not isinstance(values, list) or not values:
            raise SpecError(f"grid.{key}", f"must be a non-empty list, got {values!r}")
    return [dict(zip(grid, chosen, strict=True)) for chosen in itertools.product(*grid.values())]


def _cell(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> Cell:
    cell = copy.deepcopy({k: tree.get(k) for k in ("mechanism", "adversary", "audit")})
    for key, value in changes.items():
        _put(cell, key, copy.deepcopy(value))
    for key, value in cell.items():
        if value is None:
            raise SpecError(key, "is required")
    mechanism = parse(Mechanism, cell["mechanism"], "mechanism")
    adversary = parse(Adversary, cell["adversary"], "adversary")
    try:
        audit = AuditSpec.model_validate(cell["audit"])
    except ValidationError as error:
        raise spec_error(error, "audit") from error
    mechanism.check(adversary)
    label = ", ".join(_label(key, value) for key, value in changes.items()) or adversary.name
    return Cell(mechanism=mechanism, adversary=adversary, audit=audit, label=label)


def _label(key: str, value: Any) -> str:
    if isinstance(value, dict):
        rest = [f"{k}={v}" for k, v in value.items() if k != "name"]
        return " ".join([str(value.get("name", "")), *rest]).strip()
    return f"{key.rpartition('.')[2]}={value}"


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = str(key).split(".")
    node = tree
    for parent in parents:
        if node.get(parent) is None:
            node[parent] = {}
        node = node[parent]
        if not isinstance(node, dict):
            raise SpecError(key, f"{parent} is not a mapping, so nothing can be set inside it")
    node[last] = value


def _resolve_paths(node: Any, base: Path) -> None:
    """Makes `path` and `root` entries of data sets absolute where the file is found."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("path", "root") and isinstance(value, str):
                node[key] = _found(value, base)
            else:
                _resolve_paths(value, base)
    elif isinstance(node, list):
        for item in node:
            _resolve_paths(item, base)


def _found(value: str, base: Path) -> str:
    for folder in (Path.cwd(), base):
        if (folder / value).exists():
            return str((folder / value).resolve())
    return value


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
