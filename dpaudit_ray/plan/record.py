"""`plan.json` and `sweep.yaml` of a run directory: written, read, and held against each other.

A run directory may come from anybody. Whatever follows from `sweep.yaml` is computed again rather
than believed; what takes code of somebody's own to tell is known from the plan's record, until that
code is trusted and imported, and so is what takes data that cannot be read here.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version
from pydantic import TypeAdapter, ValidationError

from .. import __version__, stats
from ..errors import DataError, RunDirectoryError, SpecError
from ..mechanisms.base import Recorded
from ..plugins import Unread
from ..stats import Status
from ..storage import strangers
from ..storage.run_directory import RESTORE, RunDirectory
from ..sweep import spec, yamlfile
from ..sweep.cell import Cell
from ..sweep.spec import Sweep
from . import claims
from .model import Plan, PlannedAudit

if TYPE_CHECKING:
    import pandas as pd

FILE = "plan.json"
SWEEP_FILE = "sweep.yaml"
_CONTENT = TypeAdapter(Plan)
_ADDED = 8  # bounds of a step at most, beside those that were asked for


def to_json(plan: Plan) -> dict[str, Any]:
    """The content of plan.json, without what most audits are not."""
    content: dict[str, Any] = _CONTENT.dump_python(plan, exclude_defaults=True)
    for entry, audit in zip(content["audits"], plan.audits, strict=True):
        entry["bits_sha256"] = audit.commitment(plan.seed)
    return {"version": __version__} | content


def from_json(raw: Any) -> Plan:
    """The inverse of `to_json`; ValueError when `raw` is not what a plan looks like."""
    try:
        plan = _CONTENT.validate_python(raw)
    except ValidationError as error:
        raise ValueError(strangers.why(error)) from error
    for index, (audit, entry) in enumerate(zip(plan.audits, raw["audits"], strict=True)):
        _check_audit(audit, index)
        if entry.get("bits_sha256") != audit.commitment(plan.seed):
            raise ValueError(f"the bits of {audit.id} are not those that bits_sha256 commits to")
    return plan


def _check_audit(audit: PlannedAudit, index: int) -> None:
    name = audit.id.removeprefix(f"{index:03d}-").removesuffix(f"-{audit.fingerprint[:8]}")
    whole_id = audit.id == f"{index:03d}-{name}-{audit.fingerprint[:8]}"
    if not whole_id or not all(c.isalnum() or c == "-" for c in name):
        raise ValueError(f"{audit.id!r:.60} is not the id of audit {index}")
    ends = [last + 1 for _, last in audit.packs]
    whole = [*(first for first, _ in audit.packs), audit.trials] == [0, *ends]
    lengths = {len(values) for values in (*audit.claims.values(), audit.claimed or audit.horizons)}
    steps = len(audit.horizons)
    sound = {
        f"the packs do not make up its {audit.trials} trials": whole
        and all(first <= last for first, last in audit.packs),
        "the packs hold no whole trainings": not audit.canaries
        or not any(end % audit.canaries for end in ends),
        f"{audit.declared} were declared, which do not rise to its trials": audit.declared
        == tuple(sorted({*audit.declared, audit.trials})),
        f"it was to grow from {audit.declared[0]} to {audit.up_to} trials": audit.up_to is None
        or audit.declared[0] <= audit.up_to,
        "its steps do not rise": audit.horizons == tuple(sorted({*audit.horizons})),
        f"its claims do not fit its {steps} steps": bool(audit.claims) and lengths == {steps},
    }
    for problem, holds in sound.items():
        if not holds:
            raise ValueError(f"{audit.id}: {problem}")


def load(run: RunDirectory) -> Plan | None:
    """The plan in a run directory, None when there is none."""
    text = run.read_text(FILE)
    try:
        return None if text is None else _parsed(text)
    except ValueError as error:
        raise _damaged(run, FILE, str(error)) from error


def _damaged(run: RunDirectory, name: str, problem: str) -> RunDirectoryError:
    """Returns the error of a file that is damaged, or has the format of a newer version."""
    newer = newer_version(run)
    state = "cannot be read" if newer else "is damaged"
    return RunDirectoryError(f"{run.location}/{name} {state} ({problem}); {newer or RESTORE}")


# A key of the file itself, as JSON or YAML; those of its parts are indented further.
_VERSION = re.compile(r"""^[{ ]{0,2}"?version"?: *["']?([^"',\s]+)""", re.MULTILINE)


def newer_version(run: RunDirectory) -> str | None:
    """Returns a line about files that a newer version of this package wrote, else None."""
    for name in (FILE, SWEEP_FILE):
        # What is damaged has no version; whoever needs it reports the damage.
        with contextlib.suppress(InvalidVersion, RunDirectoryError):
            found = _VERSION.search(run.read_text(name) or "")
            if found and Version(found[1]) > Version(__version__):
                return (
                    f"it was written by dpaudit {found[1]}, newer than {__version__} here, and may "
                    f"mean something else: install dpaudit {found[1]} to use it"
                )
    return None


@functools.lru_cache(maxsize=1)  # starting a driver reads the same plan five times
def _parsed(text: str) -> Plan:
    return from_json(strangers.parsed(text))


def require(run: RunDirectory) -> Plan:
    """The plan in a run directory; RunDirectoryError when it holds none."""
    if (plan := load(run)) is None:
        raise _incomplete(run, FILE)
    return plan


def read(run: RunDirectory) -> tuple[Sweep, Plan]:
    """Sweep and plan of an existing run. Raises RunDirectoryError where they do not fit."""
    plan, sweep = require(run), recorded(run)
    if sweep is None:
        raise _incomplete(run, SWEEP_FILE)
    sweep = filled(sweep, plan, run)
    check(sweep, plan, run)
    return sweep, plan


def recorded(run: RunDirectory) -> Sweep | None:
    """The sweep as it was run, None before that. Raises RunDirectoryError where it is damaged."""
    text, source = run.read_text(SWEEP_FILE), f"{run.location}/{SWEEP_FILE}"
    try:
        return None if text is None else spec.from_raw(yamlfile.parse_yaml(text, source))
    except SpecError as error:
        # Its remedy is for a file of the user's own.
        what = str(error.problems[0]).partition(";")[0]
        raise _damaged(run, SWEEP_FILE, what) from error


def _incomplete(run: RunDirectory, missing: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{run.location} is no run directory (it has no {missing}); give the folder that "
        "`dpaudit run` named; a script is for `dpaudit audit train.py:main`"
    )


def check(sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
    """Raises RunDirectoryError unless the plan is this sweep's, with its accountants' claims."""
    _check_numbers(sweep, plan, run)
    for cell, audit in zip(sweep.cells, plan.audits, strict=True):
        same = cell.horizons == audit.horizons
        same &= not audit.trials or cell.audit.up_to == audit.up_to
        if not cell.unimported:
            same &= cell.fingerprint == audit.fingerprint
            same &= not cell.mechanism.sampled or cell.canaries == audit.canaries
        if not same:
            raise _other(run)
        if difference := claims.difference(audit.claims, cell):
            raise RunDirectoryError(
                f"{run.location}/{FILE} is not what its sweep promises ({audit.label}: "
                f"{difference}); {newer_version(run) or RESTORE}"
            )


def _check_numbers(sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
    here = (sweep.fingerprint, sweep.seed, len(sweep.cells))
    if here != (plan.fingerprint, plan.seed, len(plan.audits)):
        raise _other(run)


def _other(run: RunDirectory) -> RunDirectoryError:
    remedy = newer_version(run) or RESTORE
    return RunDirectoryError(f"{run.location}/{FILE} is the plan of another sweep; {remedy}")


def filled(sweep: Sweep, plan: Plan, run: RunDirectory) -> Sweep:
    """The sweep with what its plan recorded of classes and data that cannot be read here."""
    _check_numbers(sweep, plan, run)
    cells = tuple(
        cell if _tells_claim(cell, audit) else cell.model_copy(update={"mechanism": Recorded(
            name=cell.mechanism.name,
            options=cell.mechanism.identity(),
            steps=audit.horizons,
            trials=audit.trials,
            releases=audit.claimed,
        )})
        for cell, audit in zip(sweep.cells, plan.audits, strict=True)
    )  # fmt: skip
    return sweep.model_copy(update={"cells": cells})


def _tells_claim(cell: Cell, audit: PlannedAudit) -> bool:
    """Whether the code and the data that its claim takes are here."""
    if any(isinstance(part, Unread) for part in (cell.mechanism, *cell.mechanism.claim_parts)):
        return False
    if audit.claimed is None:
        return True
    try:
        if cell.mechanism.claim_reads_data:
            cell.mechanism.claimed(cell.adversary, cell.horizons[-1])
    except DataError:
        return False
    return not isinstance(cell.adversary, Unread)


def most_estimates(sweep: Sweep, plan: Plan) -> int:
    """Rows that `estimates.parquet` may have: of each step and claim, by each estimator."""
    return sum(
        len(audit.horizons) * len(audit.claims) * (len(cell.audit.estimators) + _ADDED)
        for audit, cell in zip(plan.audits, sweep.cells, strict=True)
    )


def check_estimates(
    estimates: pd.DataFrame, plan: Plan, run: RunDirectory, more_names: Collection[str] = ()
) -> None:
    """Raises RunDirectoryError for a row of no audit, step, accountant, claim or estimator."""
    planned = {
        (audit.id, step, name, claim)
        for audit in plan.audits
        for name, values in audit.claims.items()
        for step, claim in zip(audit.horizons, values, strict=True)
    }
    names = {*stats.estimators(), *more_names}
    possible: dict[tuple[str, ...], set[tuple[Any, ...]]] = {
        ("audit", "step", "accountant", "epsilon_upper"): planned,
        ("status",): {(str(status),) for status in Status},
        ("estimator",): {(name,) for name in names},
        ("free_estimator",): {("",), *((name,) for name in names)},
    }
    for columns, values in possible.items():
        rows = zip(*(estimates[column] for column in columns), strict=True)
        if others := set(rows) - values:
            named = ", ".join(f"{value!r:.60}" for value in min(others, key=str))
            raise RunDirectoryError(
                f"{run.location}/estimates.parquet is not of this plan: it has {named} as "
                f"{', '.join(columns)}; delete it and run the sweep again: it is rebuilt from the "
                "scores"
            )
