"""A whole run directory, checked in the order in which one thing follows from another."""

from __future__ import annotations

import dataclasses
import time

from ...errors import RunDirectoryError, first_line
from ...plan import decisions, gathering
from ...storage.run_directory import RunDirectory
from .. import answer, verdict
from ..tables import Run
from . import estimates, promises, records
from .estimates import Estimates, Folded
from .findings import Checked, Findings
from .promises import Opened
from .scores import Scores


def of(location: str) -> Checked:
    """Derives all that follows from the sweep and the scores again; writes nothing.

    Raises:
        RunDirectoryError: there is no run at `location`, or it cannot be read.
        StorageError: it cannot be read now.
    """
    began = time.perf_counter()
    found, run = Findings(), RunDirectory(location)
    opened = promises.opened(run, found)
    said = ("", "") if opened is None else _derived(opened, found)
    if found.rounded:
        found.told.append(
            f"values that differ in their last digits: {found.rounded:,}, by at most "
            f"{found.furthest:.0e} of their size"
        )
    return Checked(
        run.location,
        tuple(found.differences),
        found.different,
        {name: count for name, count in found.derived.items() if count},
        *said,
        tuple(found.unchecked),
        tuple(found.told),
        time.perf_counter() - began,
    )


def _derived(opened: Opened, found: Findings) -> tuple[str, str]:
    """The verdict, and how far a partial run is; both empty where they cannot be told."""
    promises.tell_provenance(opened, found)
    records.files(opened, found)
    failed = records.failed(opened, found)
    wrong = records.prepared(opened, found)
    scores = Scores(opened.run, opened.plan, found)
    good = {index for index in range(len(opened.plan.audits)) if scores.check(index)} - wrong
    scores.end()
    if not opened.whole:
        found.cannot("estimates and verdict", "the sweep is not the one that was run")
        return "", ""
    if failed is None:
        found.cannot("estimates and verdict", "they rest on records that are damaged")
        return "", ""
    try:
        derive = Estimates(opened, failed, found)
    except RunDirectoryError as error:
        if isinstance(error.__cause__, OSError):
            raise
        found.differs(estimates.FILE, "", first_line(error.__cause__ or error), "")
        return "", ""
    derive.strangers()
    folded = {index: known for index in sorted(good) if (known := derive.check(index))}
    records.outcome(opened, folded, found)
    unfinished = _unfinished(opened, folded)
    records.success(opened, unfinished, found)
    done = sum(estimates.trials_of(opened, index) for index in range(len(opened.plan.audits)))
    if not done and not failed:
        found.told.append("it has not trained yet; `dpaudit run` trains it")
    partial = f"{done:,} of {opened.plan.trials:,} trials" if unfinished else ""
    return _verdict(opened, derive, folded, good, found), partial


def _unfinished(opened: Opened, folded: dict[int, Folded]) -> list[str]:
    """Labels of audits that are not complete; of one that was not folded, by its files."""
    enough, left = decisions.decided(opened.run, opened.sweep), []
    for index, audit in enumerate(opened.plan.audits):
        if index in folded:
            complete = folded[index].taken.complete and not records.unprepared(opened, index)
        else:
            end, there = enough.get(index, audit.trials), gathering.finished(opened.run, audit)
            complete = all(pack in there for pack in audit.packs if pack[0] < end)
        if not complete:
            left.append(audit.label)
    return left


def _verdict(
    opened: Opened,
    derive: Estimates,
    folded: dict[int, Folded],
    good: set[int],
    found: Findings,
) -> str:
    """What `dpaudit verify` says, from scores and derived estimates alone."""
    if len(good) < len(opened.plan.audits):
        found.cannot("the verdict", "it rests on the files that differ")
        return ""
    rows = [row for each in folded.values() for row in each.rows]
    stored = derive.stored
    known = {opened.plan.audits[index].id for index in folded}
    table = estimates.table(rows)
    if len(known) < len(opened.plan.audits):
        import pandas as pd

        table = pd.concat([table, stored[~stored["audit"].isin(known)]], ignore_index=True)
    run = Run(opened.run, opened.sweep, opened.plan, table)
    derived = answer.worded(run, verdict.of(run, thorough=False))
    if not answer.sound(opened.run):
        found.differs(answer.FILE, "digest", "another", "that of its content")
    recorded = answer.recorded(Run(opened.run, opened.sweep, opened.plan, stored))
    if recorded is not None:
        for field in dataclasses.fields(derived):
            if field.name == "derived":
                continue
            there, here = (str(getattr(one, field.name)) for one in (recorded, derived))
            if there != here:
                found.differs(answer.FILE, field.name, there, here)
    return derived.verdict.value
