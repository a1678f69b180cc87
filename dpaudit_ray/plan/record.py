"""Reads and writes `plan.json` and `sweep.yaml` of a run directory, and compares them.

A run directory may come from anyone. All that follows from `sweep.yaml` is computed again rather
than believed. If it takes a user's code, or data that cannot be read here, the plan's record counts
until that code is trusted and imported.
"""

import contextlib
import functools
import operator
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
# Most bounds of a step by estimators that the sweep file does not list.
_MOST_ADDED = 8


def to_json(plan: Plan) -> dict[str, Any]:
    """Returns the content of plan.json, without fields that have their default."""
    content: dict[str, Any] = _CONTENT.dump_python(plan, exclude_defaults=True)
    for entry, audit in zip(content["audits"], plan.audits, strict=True):
        entry["bits_sha256"] = audit.commitment(plan.seed)
    return {"version": __version__} | content


def from_json(raw: Any) -> Plan:
    """Returns the plan that `to_json` has written. Raises ValueError if `raw` is not a plan."""
    try:
        plan = _CONTENT.validate_python(raw)
    except ValidationError as error:
        raise ValueError(strangers.describe(error)) from error
    for index, (audit, entry) in enumerate(zip(plan.audits, raw["audits"], strict=True)):
        _check_audit(audit, index)
        if entry.get("bits_sha256") != audit.commitment(plan.seed):
            raise ValueError(f"the bits of {audit.id} are not those that bits_sha256 commits to")
    return plan


def _check_audit(audit: PlannedAudit, index: int) -> None:
    """Raises ValueError for an audit that no planner makes."""
    # The id is the name of a folder, so nothing in it may lead elsewhere.
    name = audit.id.removeprefix(f"{index:03d}-").removesuffix(f"-{audit.fingerprint[:8]}")
    same_id = audit.id == f"{index:03d}-{name}-{audit.fingerprint[:8]}"
    if not same_id or not all(c.isalnum() or c == "-" for c in name):
        raise ValueError(f"{audit.id!r:.60} is not the id of audit {index}")
    starts = [first for first, _ in audit.packs]
    ends = [last + 1 for _, last in audit.packs]
    steps = len(audit.horizons)
    # Without recorded claims, the steps stand in for them: there are as many.
    lengths = {len(values) for values in (*audit.claims.values(), audit.claimed or audit.horizons)}
    problem = None
    # Each pack begins where the one before it ends, the first at 0; the last ends with the trials.
    if [*starts, audit.trials] != [0, *ends] or any(map(operator.ge, starts, ends)):
        problem = f"the packs do not make up its {audit.trials} trials"
    elif audit.canaries and any(end % audit.canaries for end in ends):
        problem = "the packs do not hold complete training runs"
    elif audit.declared != _rising(*audit.declared, audit.trials):
        problem = f"{audit.declared} were declared, which do not rise to its trials"
    elif audit.up_to is not None and audit.declared[0] > audit.up_to:
        problem = f"it was to grow from {audit.declared[0]} to {audit.up_to} trials"
    elif audit.horizons != _rising(*audit.horizons):
        problem = "its steps do not rise"
    elif not audit.claims or lengths != {steps}:
        problem = f"its claims do not fit its {steps} steps"
    if problem is not None:
        raise ValueError(f"{audit.id}: {problem}")


def _rising(*numbers: int) -> tuple[int, ...]:
    """Returns the distinct numbers in rising order."""
    return tuple(sorted(set(numbers)))


def load(run: RunDirectory) -> Plan | None:
    """Reads the plan in a run directory; returns None without one."""
    text = run.read_text(FILE)
    try:
        return None if text is None else _parsed(text)
    except ValueError as error:
        raise _damaged(run, FILE, str(error)) from error


def _damaged(run: RunDirectory, name: str, problem: str) -> RunDirectoryError:
    """Returns the error about a file that is damaged, or has the format of a newer version.

    Args:
        run: the run directory.
        name: name of the file.
        problem: what is wrong with its content.
    """
    newer = newer_version(run)
    state = "cannot be read" if newer else "is damaged"
    return RunDirectoryError(f"{run.location}/{name} {state} ({problem}); {newer or RESTORE}")


# The version is a key of the file itself, in JSON or YAML; keys of its parts are indented further.
_VERSION = re.compile(r"""^[{ ]{0,2}"?version"?: *["']?([^"',\s]+)""", re.MULTILINE)


def newer_version(run: RunDirectory) -> str | None:
    """Returns a line about files that a newer version of this package wrote; None without any."""
    for name in (FILE, SWEEP_FILE):
        # A damaged file has no version; the damage is reported where the file is needed.
        with contextlib.suppress(InvalidVersion, RunDirectoryError):
            match = _VERSION.search(run.read_text(name) or "")
            if match and Version(match[1]) > Version(__version__):
                return (
                    f"it was written by dpaudit {match[1]}, newer than {__version__} here, and may "
                    f"mean something else: install dpaudit {match[1]} to use it"
                )
    return None


@functools.lru_cache(maxsize=1)  # starting a driver reads the same plan five times
def _parsed(text: str) -> Plan:
    """Returns the plan of a file's text. Raises ValueError for anything else."""
    return from_json(strangers.parsed(text))


def require(run: RunDirectory) -> Plan:
    """Reads the plan in a run directory. Raises RunDirectoryError without one."""
    plan = load(run)
    if plan is None:
        raise _incomplete(run, FILE)
    return plan


def read(run: RunDirectory) -> tuple[Sweep, Plan]:
    """Reads sweep and plan of an existing run. Raises RunDirectoryError if they do not fit."""
    plan = require(run)
    sweep = recorded(run)
    if sweep is None:
        raise _incomplete(run, SWEEP_FILE)
    sweep = filled(sweep, plan, run)
    check(sweep, plan, run)
    return sweep, plan


def recorded(run: RunDirectory) -> Sweep | None:
    """Reads the sweep of a run directory; returns None before it is written.

    Raises:
        RunDirectoryError: the file is damaged.
    """
    text = run.read_text(SWEEP_FILE)
    if text is None:
        return None
    try:
        return spec.from_raw(yamlfile.parse_yaml(text, f"{run.location}/{SWEEP_FILE}"))
    except SpecError as error:
        # What follows the semicolon tells how to change a file that the user wrote: this one
        # was not.
        problem = str(error.problems[0]).partition(";")[0]
        raise _damaged(run, SWEEP_FILE, problem) from error


def _incomplete(run: RunDirectory, missing: str) -> RunDirectoryError:
    """Returns the error for a folder that lacks a file of run directories."""
    return RunDirectoryError(
        f"{run.location} is no run directory (it has no {missing}); give the folder that "
        "`dpaudit run` named; a script is for `dpaudit audit train.py:main`"
    )


def check(sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
    """Raises RunDirectoryError unless the plan is this sweep's, with its accountants' claims.

    Args:
        sweep: the sweep in the run directory.
        plan: the plan in the run directory.
        run: the directory.
    """
    _check_numbers(sweep, plan, run)
    for cell, audit in zip(sweep.cells, plan.audits, strict=True):
        is_same = cell.horizons == audit.horizons
        is_same &= not audit.trials or cell.audit.up_to == audit.up_to
        if not cell.unimported:  # without the user's classes, these do not follow from the sweep
            is_same &= cell.fingerprint == audit.fingerprint
            is_same &= not cell.sampled or cell.canaries == audit.canaries
        if not is_same:
            raise _of_another_sweep(run)
        if difference := claims.difference(audit.claims, cell):
            raise RunDirectoryError(
                f"{run.location}/{FILE} is not what its sweep promises ({audit.label}: "
                f"{difference}); {newer_version(run) or RESTORE}"
            )


def _check_numbers(sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
    """Checks that plan and sweep have the same digest, seed and number of audits.

    Args:
        sweep: the sweep in the run directory.
        plan: the plan in the run directory.
        run: the directory, for the error.

    Raises:
        RunDirectoryError: one of them differs.
    """
    of_sweep = (sweep.fingerprint, sweep.seed, len(sweep.cells))
    if of_sweep != (plan.fingerprint, plan.seed, len(plan.audits)):
        raise _of_another_sweep(run)


def _of_another_sweep(run: RunDirectory) -> RunDirectoryError:
    """Returns the error about a plan that belongs to another sweep."""
    return RunDirectoryError(
        f"{run.location}/{FILE} is the plan of another sweep; {newer_version(run) or RESTORE}"
    )


def filled(sweep: Sweep, plan: Plan, run: RunDirectory) -> Sweep:
    """Returns the sweep with records of the plan for classes and data that cannot be read here.

    Args:
        sweep: the sweep in the run directory.
        plan: the plan there, which records claims.
        run: the run directory, for errors.

    Raises:
        RunDirectoryError: the plan belongs to another sweep.
    """
    _check_numbers(sweep, plan, run)
    cells = []
    for cell, audit in zip(sweep.cells, plan.audits, strict=True):
        if not _has_claim(cell, audit):
            mechanism = Recorded(
                name=cell.mechanism.name,
                options=cell.mechanism.identity(),
                steps=audit.horizons,
                trials=audit.trials,
                releases=audit.claimed,
            )
            cell = cell.model_copy(update={"mechanism": mechanism})
        cells.append(cell)
    return sweep.model_copy(update={"cells": tuple(cells)})


def _has_claim(cell: Cell, audit: PlannedAudit) -> bool:
    """Returns whether the code and the data that compute the claim can be read here."""
    if any(isinstance(part, Unread) for part in (cell.mechanism, *cell.mechanism.claim_parts)):
        return False
    if audit.claimed is None:
        return True
    try:
        if cell.mechanism.claim_reads_data:
            cell.claimed()
    except DataError:
        return False
    return not isinstance(cell.adversary, Unread)


def most_estimates(sweep: Sweep, plan: Plan) -> int:
    """Returns the largest number of rows that `estimates.parquet` may have.

    It has a row for each step, accountant and estimator. A file with more rows is not from this
    sweep, and is not read.
    """
    rows = 0
    for audit, cell in zip(plan.audits, sweep.cells, strict=True):
        estimators = len(cell.audit.estimators) + _MOST_ADDED
        rows += len(audit.horizons) * len(audit.claims) * estimators
    return rows


def check_estimates(
    estimates: "pd.DataFrame",
    plan: Plan,
    run: RunDirectory,
    more_names: Collection[str],
) -> None:
    """Checks that every row has an audit, step, accountant, claim and estimator of the plan.

    Args:
        estimates: the content of `estimates.parquet`.
        plan: the plan.
        run: the run directory.
        more_names: names of estimators outside of this package.

    Raises:
        RunDirectoryError: a row has a value that is not planned.
    """
    planned = set()
    for audit in plan.audits:
        for accountant, epsilons in audit.claims.items():
            for step, epsilon in zip(audit.horizons, epsilons, strict=True):
                planned.add((audit.id, step, accountant, epsilon))
    names = {(name,) for name in (*stats.estimators(), *more_names)}
    # Values that groups of columns may have together.
    possible: dict[tuple[str, ...], set[Any]] = {
        ("audit", "step", "accountant", "epsilon_upper"): planned,
        ("status",): {(str(status),) for status in Status},
        ("estimator",): names,
        ("free_estimator",): {("",), *names},
    }
    for columns, values in possible.items():
        rows = zip(*(estimates[column] for column in columns), strict=True)
        unplanned = set(rows) - values
        if unplanned:
            named = ", ".join(f"{value!r:.60}" for value in min(unplanned, key=str))
            raise RunDirectoryError(
                f"{run.location}/estimates.parquet is not of this plan: it has {named} as "
                f"{', '.join(columns)}; delete it and run the sweep again: it is rebuilt from the "
                "scores"
            )
