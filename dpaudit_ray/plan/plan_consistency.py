"""What a plan commits to, held against its sweep: ids, bits, claims.

A run directory may come from anybody. Whatever follows from `sweep.yaml` is computed again rather
than believed; what takes code of somebody's own to tell is known from the plan's record, until that
code is trusted and imported, and so is what takes data that cannot be read here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from .. import stats
from ..errors import DataError, RunDirectoryError
from ..mechanisms.base import Recorded
from ..plugins import Unread
from ..stats import Status
from ..storage.run_directory import RESTORE, RunDirectory
from ..sweep.cell import Cell
from ..sweep.spec import Sweep
from . import claims
from .model import MAX_PARTS, Plan, PlannedAudit

if TYPE_CHECKING:
    import pandas as pd


_LARGEST = 100_000_000  # of trials and of steps, as in a sweep file
_ADDED = 8  # bounds of a step at most, beside those that were asked for
_REBUILD = "delete it and run the sweep again: it is rebuilt from the scores"
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")


def check_audit(audit: PlannedAudit, index: int) -> None:
    """Raises ValueError for what no sweep could have been planned as."""
    name = audit.id.removeprefix(f"{index:03d}-").removesuffix(f"-{audit.fingerprint[:8]}")
    if (
        not _FINGERPRINT.fullmatch(audit.fingerprint)
        or f"{index:03d}-{name}-{audit.fingerprint[:8]}" != audit.id
        or not all(c.isalnum() or c == "-" for c in name)
    ):
        raise ValueError(f"{audit.id!r:.60} is not the id of audit {index}")
    if not 0 <= audit.trials <= _LARGEST:
        raise ValueError(f"{audit.id} has {audit.trials} trials")
    starts = [0, *(last + 1 for _, last in audit.packs)]
    whole = [first for first, _ in audit.packs] == starts[:-1] and starts[-1] == audit.trials
    if not whole or any(last < first for first, last in audit.packs):
        raise ValueError(f"the packs of {audit.id} do not make up its {audit.trials} trials")
    canaries = audit.canaries
    if canaries < 0 or (canaries and any((last + 1) % canaries for _, last in audit.packs)):
        raise ValueError(f"the packs of {audit.id} hold no whole trainings")
    if sorted({*audit.declared, audit.trials}) != list(audit.declared) or audit.declared[0] < 0:
        raise ValueError(f"{audit.id} declared {audit.declared}, which do not rise to its trials")
    if audit.up_to is not None and not audit.declared[0] <= audit.up_to <= _LARGEST:
        raise ValueError(f"{audit.id} was to grow from {audit.declared[0]} to {audit.up_to} trials")
    steps = audit.horizons
    if not steps or list(steps) != sorted(set(steps)) or not 1 <= steps[0] <= steps[-1] <= _LARGEST:
        raise ValueError(f"the steps of {audit.id} do not rise")
    awaited = audit.preparation
    if awaited is not None and not (
        _FINGERPRINT.fullmatch(awaited.id) and 1 <= awaited.parts <= MAX_PARTS
    ):
        raise ValueError(f"{audit.id} waits for {awaited.parts} parts of {awaited.id!r:.60}")
    claimed = audit.claimed
    for training in claimed or ():
        noise, rate, releases = training.noise_multiplier, training.sample_rate, training.releases
        if not (0 < noise < math.inf and 0 < rate <= 1 and releases >= 0):
            raise ValueError(
                f"no training has noise {noise:g}, a sample rate of {rate:g}, {releases} releases"
            )
    if not audit.claims or {
        len(values) for values in (*audit.claims.values(), claimed or steps)
    } != {len(steps)}:
        raise ValueError(f"the claims of {audit.id} do not fit its {len(steps)} steps")


def filled(sweep: Sweep, plan: Plan, run: RunDirectory) -> Sweep:
    """The sweep with what its plan recorded of classes and data that cannot be read here."""
    _check_numbers(sweep, plan, run)
    cells = tuple(map(_filled, sweep.cells, plan.audits))
    return sweep.model_copy(update={"cells": cells})


def check(sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
    """Raises RunDirectoryError unless the plan is this sweep's, with its accountants' claims."""
    _check_numbers(sweep, plan, run)
    for cell, audit in zip(sweep.cells, plan.audits, strict=True):
        if not cell.unimported and cell.fingerprint != audit.fingerprint:
            raise _other(run)
        if not cell.unimported and cell.mechanism.sampled and cell.canaries != audit.canaries:
            raise _other(run)
        if cell.horizons != audit.horizons or (audit.trials and cell.audit.up_to != audit.up_to):
            raise _other(run)
        if difference := claims.difference(audit.claims, cell):
            raise RunDirectoryError(
                f"{run.location}/plan.json is not what its sweep promises ({audit.label}: "
                f"{difference}); {RESTORE}"
            )


def estimates(sweep: Sweep, plan: Plan) -> int:
    """Rows that `estimates.parquet` may have: of each step and claim, by each estimator."""
    return sum(
        len(audit.horizons) * len(audit.claims) * (len(cell.audit.estimators) + _ADDED)
        for audit, cell in zip(plan.audits, sweep.cells, strict=True)
    )


def check_estimates(
    estimates: pd.DataFrame, plan: Plan, run: RunDirectory, more_names: Collection[str] = ()
) -> None:
    """Every row is of an audit, step, accountant and claim of the plan, in words that are known.

    `more_names` are the estimators that the sweep names, and those of its exact mechanisms. Raises
    RunDirectoryError where one is not.
    """
    claims_of = {
        (audit.id, step, name): claim
        for audit in plan.audits
        for name, values in audit.claims.items()
        for step, claim in zip(audit.horizons, values, strict=True)
    }
    names = {*stats.estimators(), *more_names}
    worded = [("status", {*Status}), ("estimator", names), ("free_estimator", {"", *names})]
    for column, words in worded:
        for word in set(estimates[column]) - words:
            raise RunDirectoryError(
                f"{run.location}/estimates.parquet has {word!r:.60} as {column}; {_REBUILD}"
            )
    places = zip(estimates["audit"], estimates["step"], estimates["accountant"], strict=True)
    for place, claim in zip(places, estimates["epsilon_upper"], strict=True):
        if claims_of.get(place) != claim:
            raise RunDirectoryError(
                f"{run.location}/estimates.parquet is not of this plan ({place[0]!r:.60} after "
                f"step {place[1]}, claim {claim:.6g}); {_REBUILD}"
            )


def _check_numbers(sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
    if (sweep.fingerprint, sweep.seed, len(sweep.cells)) != (
        plan.fingerprint, plan.seed, len(plan.audits),
    ):  # fmt: skip
        raise _other(run)


def _other(run: RunDirectory) -> RunDirectoryError:
    return RunDirectoryError(f"{run.location}/plan.json is the plan of another sweep; {RESTORE}")


def _lacks_data(cell: Cell) -> bool:
    """Whether its claim takes data that cannot be read."""
    try:
        if cell.mechanism.claim_reads_data:
            cell.mechanism.claimed(cell.adversary, cell.horizons[-1])
    except DataError:
        return True
    return False


def _filled(cell: Cell, audit: PlannedAudit) -> Cell:
    telling = (cell.mechanism, *cell.mechanism.claim_parts)
    all_read = not any(isinstance(part, Unread) for part in telling)
    lacking = all_read and audit.claimed is not None and _lacks_data(cell)
    if (
        all_read
        and (audit.claimed is None or not isinstance(cell.adversary, Unread))
        and not lacking
    ):
        return cell
    mechanism = Recorded(
        name=cell.mechanism.name,
        options=cell.mechanism.identity(),
        steps=audit.horizons,
        trials=audit.trials,
        releases=audit.claimed,
    )
    return cell.model_copy(update={"mechanism": mechanism})
