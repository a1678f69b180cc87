"""Opening a run directory for a sweep: a new run, one that is resumed, or one that is extended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..errors import RunDirectoryError
from ..storage.run_directory import RESTORE, RunDirectory
from ..sweep.spec import Sweep
from . import changed_code, outcomes, plan_consistency, record, resume
from .model import Plan
from .planner import make


def kept(sweep: Sweep, run: RunDirectory, tell: Callable[[str], None]) -> Sweep:
    """The sweep with as many trials as a complete run of it already has; `tell` says so."""
    kept = resume.kept(sweep, record.load(run), run)
    if kept is not sweep:
        tell(
            f"{run.location} holds {kept.cells[0].audit.trials} trials of each audit, more than "
            f"audit.trials = {sweep.cells[0].audit.trials}: they stay"
        )
    return kept


def preview(
    sweep: Sweep,
    run: RunDirectory,
    accept_changed_code: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Plan:
    """The plan that `open_run` would follow; changes nothing.

    `accept_changed_code`: go on where the code is another one than that of the run so far.

    Raises:
        RunDirectoryError: the directory belongs to another sweep (the message shows the
            difference), holds more trials, was run on other data or with other code, or is damaged.
    """
    recorded, previous = record.recorded(run), record.load(run)
    if recorded is not None:
        resume.check_same(sweep, recorded, run)
    if previous is not None:
        plan_consistency.check(sweep, previous, run)
        resume.check_not_lowered(sweep, previous, run)
    elif run.has_scores:
        raise RunDirectoryError(
            f"{run.location} holds scores but no {record.FILE}, so it is not known how they were "
            "packed; " + RESTORE
        )
    plan = make(sweep, previous, resume.extends(sweep, previous, run))
    if previous is None:
        return plan
    resume.check_data(plan, previous, run)
    plan = dataclasses.replace(plan, data=previous.data)
    resumed = changed_code.Resumed(sweep, plan, previous, run)
    return changed_code.followed(resumed, accept_changed_code, tell)


def open_run(
    sweep: Sweep,
    run: RunDirectory,
    accept_changed_code: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Plan:
    """Starts, resumes or extends a run: writes what is missing and returns the plan.

    Raises:
        RunDirectoryError: what `preview` raises, and where the directory cannot be written.
    """
    plan = preview(sweep, run, accept_changed_code, tell)
    run.require_writable()
    if next(plan.remaining(run, outcomes.decided(run, sweep, plan)), None) is not None:
        run.set_complete(False)
    if sweep.canonical() != run.read_text(record.SWEEP_FILE):
        run.write_text(record.SWEEP_FILE, sweep.canonical())
    changed_code.keep_sources(sweep, run)
    if plan != record.load(run):
        run.write_json(record.FILE, record.to_json(plan))
    return plan
