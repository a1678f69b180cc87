"""Opening a run directory for a sweep: a new run, one that is resumed, or one that is extended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import RunDirectoryError, plain
from ..storage.run_directory import OUTCOMES, RESTORE, RunDirectory
from ..sweep import spec
from ..sweep.spec import Sweep
from . import outcomes, provenance, record
from .finished_trials import remaining
from .model import Plan
from .planner import make

Tell = Callable[[str], None]


def kept(sweep: Sweep, run: RunDirectory, tell: Tell) -> Sweep:
    """Returns the sweep with as many trials as a complete run of it was extended to.

    Args:
        sweep: the sweep as it is asked for.
        run: its run directory, which need not exist.
        tell: called with a line where trials stay, or a newer version wrote the directory.
    """
    plan = _complete_plan(sweep, run)
    if newer := record.newer_version(run):
        tell(f"warning: {run.location}: {newer}")
    wanted = {cell.audit.trials for cell in sweep.cells if cell.mechanism.sampled}
    there = {audit.trials for audit in plan.audits if audit.trials} if plan else set()
    by_grid = any(key.startswith("audit") for key in sweep.raw.get("grid") or ())
    if by_grid or not (len(wanted) == len(there) == 1 and min(wanted) < min(there)):
        return sweep
    trials = there.pop()
    tell(
        f"{run.location} holds {trials} trials of each audit, more than audit.trials = "
        f"{wanted.pop()}: they stay"
    )
    return spec.from_raw(sweep.raw, overrides={"audit.trials": trials})


def finished(sweep: Sweep, run: RunDirectory) -> bool:
    """Whether a run of this sweep is there, complete, and nothing in it has failed."""
    if (plan := _complete_plan(sweep, run)) is None:
        return False
    left = next(remaining(run, plan, outcomes.decided(run, sweep, plan)), None)
    failed = outcomes.failed(run, plan) or outcomes.read(run, plan).missed
    return not (_raised(sweep, plan) or left or failed)


def _complete_plan(sweep: Sweep, run: RunDirectory) -> Plan | None:
    plan = record.load(run)
    same = plan is not None and plan.fingerprint == sweep.fingerprint
    return plan if same and run.complete else None


def _raised(sweep: Sweep, plan: Plan) -> bool:
    pairs = zip(sweep.cells, plan.audits, strict=True)
    return any(audit.trials and cell.audit.trials > audit.trials for cell, audit in pairs)


def preview(sweep: Sweep, run: RunDirectory, tell: Tell = lambda line: None) -> Plan:
    """The plan that `open_run` would follow; changes nothing.

    Raises RunDirectoryError where the directory belongs to another sweep (the message shows the
    difference), holds more trials, was run on other data or with other code, or is damaged.
    """
    recorded, previous = record.recorded(run), record.load(run)
    if recorded is not None and sweep.fingerprint != recorded.fingerprint:
        raise _another_sweep(sweep, recorded, run)
    if previous is None:
        if run.has_scores:
            raise RunDirectoryError(
                f"{run.location} holds scores but no {record.FILE}, so it is not known how they "
                "were packed; " + RESTORE
            )
        return make(sweep)
    record.check(sweep, previous, run)
    for audit, cell in zip(previous.audits, sweep.cells, strict=True):
        if cell.audit.trials < audit.trials:  # stored trials are never thrown away
            raise RunDirectoryError(
                f"{run.location} was planned with audit.trials = {audit.trials}, this sweep says "
                f"{cell.audit.trials}; trials can be raised, not lowered: go on with "
                f"{audit.trials}, or use a new name and a new seed"
            )
    seen, raised = _trials_seen(previous, run), _raised(sweep, previous)
    plan = make(sweep, previous, extends=seen and raised)
    if seen and raised and any(audit.extended for audit in plan.audits):
        tell("trials raised after a look: ε allows for it, and may fall; `up_to` plans growth")
    if difference := provenance.other_files(previous.data, plan.data):
        raise RunDirectoryError(f"{run.location} was run on other data ({difference}); {RESTORE}")
    plan = dataclasses.replace(plan, data=previous.data)
    prepared = (audit.preparation for audit in plan.audits)
    begun = seen or any(run.parts(preparation.id) for preparation in prepared if preparation)
    return _followed(plan, previous, run, tell) if begun else plan


def open_run(sweep: Sweep, run: RunDirectory, tell: Tell = lambda line: None) -> Plan:
    """Starts, resumes or extends a run; returns its plan. Raises what `preview` does."""
    plan = preview(sweep, run, tell)
    run.require_writable()
    if next(remaining(run, plan, outcomes.decided(run, sweep, plan)), None) is not None:
        run.set_complete(False)
    if sweep.canonical() != run.read_text(record.SWEEP_FILE):
        run.write_text(record.SWEEP_FILE, sweep.canonical())
    if plan != record.load(run):
        run.write_json(record.FILE, record.to_json(plan))
    return plan


def _another_sweep(new: Sweep, recorded: Sweep, run: RunDirectory) -> RunDirectoryError:
    changes = [
        f"{key}: {_shown(old)} there, {_shown(value)} here"
        for key, old, value in differences(recorded.identity(), new.identity())
    ]
    # Bits depend on seed, mechanism and adversary: where these are equal, so are the trials.
    here, there = ({cell.fingerprint for cell in sweep.cells} for sweep in (new, recorded))
    seed = " and a new seed" * bool(new.seed == recorded.seed and here & there)
    return RunDirectoryError(
        f"{run.location} holds another sweep ({_listed(changes)}); use a new name{seed}, or the "
        "old settings to resume"
    )


def differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two trees of plain data differ: dotted keys, and the value in each; None for none."""
    if isinstance(old, dict) and isinstance(new, dict):
        for part in sorted({*old, *new}):
            path = f"{key}.{part}" if key else part
            yield from differences(old.get(part), new.get(part), path)
    elif old != new:
        yield key, old, new


def _shown(value: Any) -> str:
    value = value["name"] if isinstance(value, dict) and "name" in value else value
    if value is None or isinstance(value, dict):
        return "set" if value else "not set"
    return plain(value, "") if isinstance(value, float) else repr(value)


def _listed(changes: list[str]) -> str:
    return "; ".join(changes[:4]) + (f"; and {len(changes) - 4} more" * (len(changes) > 4))


def _followed(plan: Plan, previous: Plan, run: RunDirectory, tell: Tell) -> Plan:
    """`plan` with the code of `previous`; RunDirectoryError where that was other code."""
    then, now = previous.code[-1], plan.code[-1]
    remains = next(remaining(run, plan), None) is not None
    grave, harmless = provenance.changes(then, now)
    if harmless and remains:
        tell(f"{run.location} goes on elsewhere ({_listed(harmless)}): last bits may differ")
    if grave and (remains or then.modules != now.modules):
        comments = ", in which comments count too" * (then.modules != now.modules)
        raise RunDirectoryError(
            f"{run.location} was run with other code{comments} ({_listed(grave)}); {RESTORE}"
        )
    return dataclasses.replace(plan, code=previous.code)


def _trials_seen(plan: Plan, run: RunDirectory) -> bool:
    """Whether a trial was computed, or failed to be."""
    if any(run.score_files(audit.id) for audit in plan.audits):
        return True
    try:
        return bool((run.read_json(OUTCOMES) or {}).get("failed_packs"))
    except AttributeError:  # whoever needs the record tells what is wrong
        return False
