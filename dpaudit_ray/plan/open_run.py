"""Opens the run directory of a sweep: for a new run, to resume it, or to extend it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..errors import RunDirectoryError, plain
from ..storage.run_directory import OUTCOMES, RESTORE, RunDirectory
from ..sweep import spec
from ..sweep.spec import Sweep
from . import outcomes, provenance, record
from .finished_trials import remaining
from .model import Plan
from .planner import make

Report = Callable[[str], None]


def with_stored_trials(sweep: Sweep, run: RunDirectory, report: Report) -> Sweep:
    """Returns the sweep with as many trials as a complete run of it was extended to.

    Args:
        sweep: the sweep as configured.
        run: run directory of the sweep, which need not exist.
        report: called with a line if the number of trials is raised, or a newer version of this
            package wrote the directory.
    """
    plan = _complete_plan(sweep, run)
    if newer := record.newer_version(run):
        report(f"warning: {run.location}: {newer}")
    grid = sweep.raw.get("grid") or ()
    # If audits have different numbers of trials, a single number cannot be raised for all.
    by_grid = any(key.startswith("audit") for key in grid)
    declared = {cell.audit.trials for cell in sweep.cells if cell.sampled}
    planned = {audit.trials for audit in plan.audits if audit.trials} if plan else set()
    if by_grid or len(declared) != 1 or len(planned) != 1:
        return sweep
    trials = planned.pop()
    fewer = declared.pop()
    if trials <= fewer:
        return sweep
    report(
        f"{run.location} holds {trials} trials of each audit, more than audit.trials = {fewer}: "
        "they stay"
    )
    return spec.from_raw(sweep.raw, overrides={"audit.trials": trials})


def finished(sweep: Sweep, run: RunDirectory) -> bool:
    """Returns whether the directory has a complete run of this sweep in which nothing failed."""
    plan = _complete_plan(sweep, run)
    # With more trials than the plan has, the sweep is to extend the run.
    if plan is None or _declares_more(sweep, plan):
        return False
    if outcomes.failed(run, plan) or outcomes.read(run, plan).missed:
        return False
    # A run that is marked as complete may have lost files of scores since: these packs remain.
    return not any(remaining(run, plan, outcomes.decided(run, sweep, plan)))


def _complete_plan(sweep: Sweep, run: RunDirectory) -> Plan | None:
    """Returns the plan of a complete run of this very sweep; None if there is no such run."""
    plan = record.load(run)
    same = plan is not None and plan.fingerprint == sweep.fingerprint
    return plan if same and run.complete else None


def _declares_more(sweep: Sweep, plan: Plan) -> bool:
    """Returns whether the sweep declares more trials of an audit than are planned.

    Audits without planned trials have exact bounds, and never need any.
    """
    pairs = zip(plan.audits, sweep.cells, strict=True)
    return any(0 < planned.trials < cell.audit.trials for planned, cell in pairs)


def preview(
    sweep: Sweep,
    run: RunDirectory,
    report: Report = lambda line: None,
) -> Plan:
    """Returns the plan that `open_run` would follow; changes nothing.

    Args:
        sweep: the sweep as configured.
        run: run directory of the sweep, which need not exist.
        report: called with a line if the run continues under other conditions.

    Raises:
        RunDirectoryError: the directory belongs to another sweep (the message shows the
            difference), holds more trials, was run on other data or with other code, or is damaged.
    """
    recorded = record.recorded(run)
    previous = record.load(run)
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
                f"{run.location} was planned with audit.trials = {audit.trials}, this sweep has "
                f"{cell.audit.trials}; trials can be raised, not lowered: continue with "
                f"{audit.trials}, or use a new name and a new seed"
            )
    begun = _has_trials(previous, run)
    extends = begun and _declares_more(sweep, previous)
    plan = make(sweep, previous, extends)
    if extends and any(audit.extended for audit in plan.audits):
        report("trials raised after a look: ε allows for it, and may fall; `up_to` plans growth")
    if difference := provenance.other_files(previous.data, plan.data):
        raise RunDirectoryError(f"{run.location} was run on other data ({difference}); {RESTORE}")
    plan = replace(plan, data=previous.data)
    preparations = {audit.preparation.id for audit in plan.audits if audit.preparation}
    if begun or any(map(run.parts, preparations)):
        return _with_stored_code(plan, previous, run, report)
    return plan


def open_run(
    sweep: Sweep,
    run: RunDirectory,
    report: Report = lambda line: None,
) -> Plan:
    """Starts, resumes or extends a run; returns its plan. Raises what `preview` does.

    Args:
        sweep: the sweep.
        run: run directory of the sweep, which may be empty.
        report: takes a line for the user.
    """
    plan = preview(sweep, run, report)
    run.require_writable()
    if any(remaining(run, plan, outcomes.decided(run, sweep, plan))):
        run.set_complete(False)
    if sweep.canonical() != run.read_text(record.SWEEP_FILE):
        run.write_text(record.SWEEP_FILE, sweep.canonical())
    if plan != record.load(run):
        run.write_json(record.FILE, record.to_json(plan))
    return plan


def _another_sweep(new: Sweep, recorded: Sweep, run: RunDirectory) -> RunDirectoryError:
    """Returns the error about a directory that has another sweep, with the settings that differ.

    Args:
        new: the sweep that was to be run.
        recorded: the sweep that the directory has.
        run: the directory.
    """
    changes = [
        f"{key}: {_in_words(old)} there, {_in_words(value)} here"
        for key, old, value in differences(recorded.identity(), new.identity())
    ]
    remedy = "use a new name"
    # Bits depend on seed, mechanism and adversary: where these are equal, so are the trials.
    shared = {cell.fingerprint for cell in recorded.cells}
    shared &= {cell.fingerprint for cell in new.cells}
    if shared and new.seed == recorded.seed:
        remedy += " and a new seed"
    return RunDirectoryError(
        f"{run.location} holds another sweep ({_first_changes(changes)}); {remedy}, or the old "
        "settings to resume"
    )


def differences(
    old: Any,
    new: Any,
    key: str = "",
) -> Iterator[tuple[str, Any, Any]]:
    """Yields the dotted keys at which two trees of plain data differ, and both values.

    None stands for a value that one of the trees lacks.

    Args:
        old: a mapping, or a value.
        new: a mapping, or a value, that is compared with it.
        key: dotted key of both trees.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for part in sorted({*old, *new}):
            path = f"{key}.{part}" if key else part
            yield from differences(old.get(part), new.get(part), path)
    elif old != new:
        yield key, old, new


def _in_words(value: Any) -> str:
    """Returns an option's value for a message; a mapping by its name."""
    value = value["name"] if isinstance(value, dict) and "name" in value else value
    if value is None or isinstance(value, dict):
        return "set" if value else "not set"
    return plain(value, "") if isinstance(value, float) else repr(value)


def _first_changes(changes: list[str]) -> str:
    """Returns the first four changes, and how many more there are."""
    more = [f"and {len(changes) - 4} more"] if len(changes) > 4 else []
    return "; ".join(changes[:4] + more)


def _with_stored_code(
    plan: Plan,
    previous: Plan,
    run: RunDirectory,
    report: Report,
) -> Plan:
    """Returns `plan` with the code of `previous`. Raises RunDirectoryError if its code differs.

    Args:
        plan: the plan that this process would follow, with its code.
        previous: the plan that is stored.
        run: the run directory.
        report: takes a line for the user.
    """
    stored_code = previous.code[-1]
    trials_remain = any(remaining(run, plan))
    grave, harmless = provenance.changes(stored_code, plan.code[-1])
    if harmless and trials_remain:
        report(
            f"{run.location} continues elsewhere ({_first_changes(harmless)}): last bits may differ"
        )
    other_modules = stored_code.modules != plan.code[-1].modules
    if grave and (trials_remain or other_modules):
        comments = ", in which comments count too" if other_modules else ""
        raise RunDirectoryError(
            f"{run.location} was run with other code{comments} ({_first_changes(grave)}); {RESTORE}"
        )
    return replace(plan, code=previous.code)


def _has_trials(plan: Plan, run: RunDirectory) -> bool:
    """Returns whether a trial was computed, or failed."""
    if any(run.score_files(audit.id) for audit in plan.audits):
        return True
    try:
        return bool((run.read_json(OUTCOMES) or {}).get("failed_packs"))
    except AttributeError:  # the file is damaged, which is reported where it is needed
        return False
