"""Opening a run directory for a sweep: a new run, one that is resumed, or one that is extended.

A run that is resumed with other code is refused: it is of one version. Its directory has a copy of
the user's modules, `code/<SHA-256>.py`: a digest says that there is a difference, and only the text
says which, months later and on another machine.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import RunDirectoryError, printable
from ..storage.run_directory import OUTCOMES, RESTORE, RunDirectory
from ..sweep import spec
from ..sweep.spec import Sweep
from . import outcomes, plan_consistency, provenance, record
from .model import Plan
from .planner import make
from .provenance import Code

_MAX_LINES = 20  # of a textual difference


def kept(sweep: Sweep, run: RunDirectory, tell: Callable[[str], None]) -> Sweep:
    """The sweep with as many trials as a complete run of it was extended to; `tell` says so.

    So a file can be run again after `--set audit.trials` extended its run. What is not complete,
    or has another number in every audit, is left to `preview`.
    """
    plan = record.load(run)
    if plan is None or plan.fingerprint != sweep.fingerprint or not run.complete:
        return sweep
    wanted = {cell.audit.trials for cell in sweep.cells if cell.mechanism.sampled}
    there = {audit.trials for audit in plan.audits if audit.trials}
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
    plan = record.load(run)
    if plan is None or plan.fingerprint != sweep.fingerprint or not run.complete:
        return False
    pairs = zip(sweep.cells, plan.audits, strict=True)
    more = any(audit.trials and cell.audit.trials > audit.trials for cell, audit in pairs)
    left = next(plan.remaining(run, outcomes.decided(run, sweep, plan)), None)
    failed = outcomes.failed(run, plan) or outcomes.read(run, plan).missed
    return not (more or left or failed)


def preview(
    sweep: Sweep,
    run: RunDirectory,
    tell: Callable[[str], None] = lambda line: None,
) -> Plan:
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
    plan_consistency.check(sweep, previous, run)
    for audit, cell in zip(previous.audits, sweep.cells, strict=True):
        if cell.audit.trials < audit.trials:  # stored trials are never thrown away
            raise RunDirectoryError(
                f"{run.location} was planned with audit.trials = {audit.trials}, this sweep says "
                f"{cell.audit.trials}; trials can be raised, not lowered: go on with "
                f"{audit.trials}, or use a new name and a new seed"
            )
    pairs = zip(sweep.cells, previous.audits, strict=True)
    raised = any(cell.audit.trials > audit.trials for cell, audit in pairs)
    plan = make(sweep, previous, extends=raised and bool(_trials_seen(previous, run)))
    if difference := provenance.other_files(previous.data, plan.data):
        raise RunDirectoryError(f"{run.location} was run on other data ({difference}); {RESTORE}")
    plan = dataclasses.replace(plan, data=previous.data)
    return _followed(sweep, plan, previous, run, tell)


def open_run(
    sweep: Sweep,
    run: RunDirectory,
    tell: Callable[[str], None] = lambda line: None,
) -> Plan:
    """Starts, resumes or extends a run: writes what is missing and returns the plan.

    Raises RunDirectoryError as `preview` does, and where the directory cannot be written.
    """
    plan = preview(sweep, run, tell)
    run.require_writable()
    if next(plan.remaining(run, outcomes.decided(run, sweep, plan)), None) is not None:
        run.set_complete(False)
    if sweep.canonical() != run.read_text(record.SWEEP_FILE):
        run.write_text(record.SWEEP_FILE, sweep.canonical())
    _keep_sources(sweep, run)
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
    if value is None or isinstance(value, dict):
        return "set" if value else "not set"
    return repr(value)


def _listed(changes: list[str]) -> str:
    return "; ".join(changes[:4]) + (f"; and {len(changes) - 4} more" * (len(changes) > 4))


# Changed code ------------------------------------------------------------------------------------


def _followed(
    sweep: Sweep, plan: Plan, previous: Plan, run: RunDirectory, tell: Callable[[str], None]
) -> Plan:
    """The plan, which was made by the code as it is now, with the code that computed `previous`.

    A run of which nothing was computed takes the code as it is. A run without trials left may go on
    with another version of a package, but not with other modules of the user's. Raises
    RunDirectoryError where trials were computed by other code.
    """
    before = previous.code
    if before[-1] == plan.code[-1]:
        return dataclasses.replace(plan, code=before)
    if not _begun(plan, run):
        return plan
    then, now = before[-1], plan.code[-1]
    remains = next(plan.remaining(run), None) is not None
    grave, harmless = provenance.changes(then, now)
    if harmless and remains:
        tell(f"{run.location} goes on elsewhere ({_listed(harmless)}): last bits may differ")
    if not grave or not (remains or then.modules != now.modules):
        return dataclasses.replace(plan, code=before)
    raise RunDirectoryError(
        f"{run.location} was run with other code ({_listed(grave)}); {RESTORE}",
        details=tuple(_diff(then, now, sweep, run)),
    )


def _keep_sources(sweep: Sweep, run: RunDirectory) -> None:
    """Puts a copy of the user's modules into the run directory, where it has none."""
    for digest, text in provenance.sources(sweep).items():
        if run.read_text(_copy(digest)) is None:
            run.write_text(_copy(digest), text)


def _trials_seen(plan: Plan, run: RunDirectory) -> set[int]:
    """Numbers of the audits of which a trial was computed, or failed to be."""
    computed = {index for index, audit in enumerate(plan.audits) if run.score_files(audit.id)}
    try:
        failed = (run.read_json(OUTCOMES) or {}).get("failed_packs", ())
        return computed | {int(entry["audit"]) for entry in failed}
    except (AttributeError, KeyError, TypeError, ValueError):
        # Whoever needs the record tells what is wrong.
        return computed


def _begun(plan: Plan, run: RunDirectory) -> set[int]:
    """The same, and those of which a part of a preparation was computed."""
    prepared = {
        index
        for index, audit in enumerate(plan.audits)
        if audit.preparation and run.parts(audit.preparation.id)
    }
    return prepared | _trials_seen(plan, run)


def _diff(then: Code, now: Code, sweep: Sweep, run: RunDirectory) -> Iterator[str]:
    """Changed lines of the user's modules, as far as there is a copy of the earlier text."""
    texts = provenance.sources(sweep)
    shown: list[str] = []
    for name in sorted(then.modules.keys() & now.modules.keys()):
        old, new = then.modules[name], now.modules[name]
        before = run.read_text(_copy(old))
        whole = before is not None and hashlib.sha256(before.encode()).hexdigest() == old
        if old != new and whole and new in texts and before is not None:
            ends = (before.splitlines(), texts[new].splitlines(), f"{name} there", f"{name} here")
            shown += difflib.unified_diff(*ends, n=1, lineterm="")
    yield from (printable(line) for line in shown[:_MAX_LINES])
    if len(shown) > _MAX_LINES:
        yield f"... and {len(shown) - _MAX_LINES} more lines"


def _copy(digest: str) -> str:
    return f"code/{digest}.py"
