"""May this sweep continue that run? Each check raises RunDirectoryError when it may not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import inputs
from .errors import RunDirectoryError
from .spec import Sweep
from .storage import RunDirectory

if TYPE_CHECKING:
    from .plan import Plan


def check_same(new: Sweep, recorded: Sweep, run: RunDirectory) -> None:
    """The run was made for this sweep; the message shows where the two differ."""
    if new.fingerprint != recorded.fingerprint:
        changes = list(_difference(recorded.identity(), new.identity()))
        shown = "; ".join(changes[:4]) + (f"; and {len(changes) - 4} more" * (len(changes) > 4))
        raise RunDirectoryError(
            f"{run.location} holds another sweep ({shown}); use a new name, or the old settings "
            "to resume"
        )


def check_plan(sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
    """The plan was made from this sweep."""
    mine = [(cell.fingerprint, cell.horizons) for cell in sweep.cells]
    if plan.fingerprint != sweep.fingerprint or mine != [
        (audit.fingerprint, audit.horizons) for audit in plan.audits
    ]:
        raise RunDirectoryError(
            f"{run.location}/plan.json is the plan of another sweep; restore it or use a new name"
        )


def check_extendable(sweep: Sweep, previous: Plan) -> None:
    """An alpha-spending plan is made for a number of trials; after looking it cannot be remade."""
    for cell, old in zip(sweep.cells, previous.audits, strict=True):
        names = [estimator.name for estimator in cell.audit.estimators]
        if cell.audit.trials > old.trials and "group-sequential" in names:
            raise RunDirectoryError(
                f"audit.trials: {old.id} was planned with {old.trials} trials and its "
                "group-sequential bound holds for that number only; use a new name, or anytime"
            )


def check_not_lowered(sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
    """No audit has more trials there than here: stored trials are never thrown away."""
    for audit, cell in zip(plan.audits, sweep.cells, strict=True):
        if cell.audit.trials < audit.trials:
            raise RunDirectoryError(
                f"{run.location} was planned with audit.trials = {audit.trials}, this sweep says "
                f"{cell.audit.trials}; trials can be raised, not lowered"
            )


def check_data(plan: Plan, previous: Plan, run: RunDirectory) -> None:
    """The data are those that the run began with; one without their digests is taken on trust."""
    if previous.data is None or plan.data is None:
        return
    if difference := inputs.other(previous.data, plan.data):
        raise RunDirectoryError(
            f"{run.location} was run on other data ({difference}); restore the file or use a new "
            "name"
        )


def _difference(old: Any, new: Any, key: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for part in sorted({*old, *new}):
            path = f"{key}.{part}" if key else part
            yield from _difference(old.get(part), new.get(part), path)
    elif old != new:
        yield f"{key}: {_shown(old)} there, {_shown(new)} here"


def _shown(value: Any) -> str:
    if value is None or isinstance(value, dict):
        return "set" if value else "not set"
    return repr(value)
