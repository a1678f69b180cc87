"""`dpaudit check`: is everything in a run directory what follows from its sweep and its scores?

What follows is derived again by the code that a run uses, in memory, and compared with what is
stored: the plan from the sweep, bits from the plan, estimates, records and the verdict from the
scores.
"""

from __future__ import annotations

import time

from ...plan import outcomes
from ...storage.run_directory import RunDirectory
from . import derived_files, plan_files
from .derived_files import ESTIMATES, DerivedFiles
from .findings import Checked, Difference, Findings
from .plan_files import Opened
from .score_files import check_scores

__all__ = ["Checked", "Difference", "check_run"]


def check_run(location: str) -> Checked:
    """Derives all that follows from the sweep and the scores again; writes nothing.

    Raises:
        RunDirectoryError: there is no run at `location`, or it cannot be read.
        StorageError: it cannot be read now.
    """
    began = time.perf_counter()
    findings, run = Findings(), RunDirectory(location)
    opened = plan_files.opened(run, findings)
    verdict, partial = ("", "") if opened is None else _check_rest(opened, findings)
    return findings.checked(run.location, verdict, partial, time.perf_counter() - began)


def _check_rest(opened: Opened, findings: Findings) -> tuple[str, str]:
    """The verdict, and how far a partial run is; both empty where they cannot be told."""
    derived_files.check_names(opened, findings)
    failed = None
    with findings.reading(outcomes.FILE):
        failed = outcomes.failed(opened.run, opened.plan)
    wrong = derived_files.check_preparations(opened, findings)
    whole = [i for i in check_scores(opened.run, opened.plan, findings) if i not in wrong]
    derived = None
    if not opened.whole:
        findings.cannot("estimates and verdict", "the sweep is not the one that was run")
    elif failed is None:
        findings.cannot("estimates and verdict", "they rest on records that are damaged")
    else:
        with findings.reading(ESTIMATES):
            derived = DerivedFiles(opened, failed, findings)
    if derived is None:
        return "", ""
    for index in whole:
        derived.check_audit(index)
    derived.check_records()
    partial = derived.check_completeness()
    if len(whole) < len(opened.plan.audits):
        findings.cannot("the verdict", "it rests on the files that differ")
        return "", partial
    return derived.check_verdict(), partial
