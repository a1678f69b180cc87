"""May this sweep continue that run? Each check raises RunDirectoryError when it may not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import RunDirectoryError
from ..storage.run_directory import OUTCOMES, RESTORE, RunDirectory
from ..sweep import spec
from ..sweep.spec import Sweep
from . import inputs
from .model import Plan


def check_same(new: Sweep, recorded: Sweep, run: RunDirectory) -> None:
    """The run was made for this sweep; the message shows where the two differ."""
    if new.fingerprint != recorded.fingerprint:
        changes = [
            f"{key}: {_shown(old)} there, {_shown(value)} here"
            for key, old, value in differences(recorded.identity(), new.identity())
        ]
        shown = "; ".join(changes[:4]) + (f"; and {len(changes) - 4} more" * (len(changes) > 4))
        # Bits depend on seed, mechanism and adversary: where these are equal, so are the trials.
        repeated = {cell.fingerprint for cell in new.cells} & {
            c.fingerprint for c in recorded.cells
        }
        seed = " and a new seed" * bool(new.seed == recorded.seed and repeated)
        raise RunDirectoryError(
            f"{run.location} holds another sweep ({shown}); use a new name{seed}, or the old "
            "settings to resume"
        )


def extends(sweep: Sweep, previous: Plan | None, run: RunDirectory) -> bool:
    """Whether a number of trials is raised that some trial had been seen of."""
    if previous is None or all(
        cell.audit.trials <= old.trials
        for cell, old in zip(sweep.cells, previous.audits, strict=True)
    ):
        return False
    outcomes = run.read_json(OUTCOMES)
    if not isinstance(outcomes, dict):
        return run.has_scores or outcomes is not None
    # Of a preparation that failed, no trial was seen. Packs that are tried again were.
    return run.has_scores or bool(outcomes.get("failed_packs")) or not outcomes.get("failed_parts")


def check_not_lowered(sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
    """No audit has more trials there than here: stored trials are never thrown away."""
    for audit, cell in zip(plan.audits, sweep.cells, strict=True):
        if cell.audit.trials < audit.trials:
            raise RunDirectoryError(
                f"{run.location} was planned with audit.trials = {audit.trials}, this sweep says "
                f"{cell.audit.trials}; trials can be raised, not lowered: go on with "
                f"{audit.trials}, or use a new name and a new seed"
            )


def kept(sweep: Sweep, plan: Plan | None, run: RunDirectory) -> Sweep:
    """The sweep with the trials of a complete run that was extended beyond it: they stay.

    So a file can be run again after `--set audit.trials` extended its run. What is not complete,
    or has another number in every audit, is left to `check_not_lowered`.
    """
    if plan is None or plan.fingerprint != sweep.fingerprint:
        return sweep
    wanted = {cell.audit.trials for cell in sweep.cells if cell.mechanism.sampled}
    there = {audit.trials for audit in plan.audits if audit.trials}
    by_grid = any(key.startswith("audit") for key in sweep.raw.get("grid") or ())
    if (
        not (len(wanted) == len(there) == 1 and min(wanted) < min(there))
        or by_grid
        or not run.complete
    ):
        return sweep
    return spec.from_raw(sweep.raw, overrides={"audit.trials": there.pop()})


def check_data(plan: Plan, previous: Plan, run: RunDirectory) -> None:
    """The data are those that the run began with; one without their digests is taken on trust."""
    if previous.data is None or plan.data is None:
        return
    if difference := inputs.other(previous.data, plan.data):
        raise RunDirectoryError(f"{run.location} was run on other data ({difference}); {RESTORE}")


def differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two trees of plain data differ: dotted keys, and the value in each; None for none."""
    if isinstance(old, dict) and isinstance(new, dict):
        for part in sorted({*old, *new}):
            path = f"{key}.{part}" if key else part
            yield from differences(old.get(part), new.get(part), path)
    elif old != new:
        yield key, old, new


def _shown(value: Any) -> str:
    if value is None or isinstance(value, dict):
        return "set" if value else "not set"
    return repr(value)
