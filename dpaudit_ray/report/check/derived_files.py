"""Estimates, records and the verdict, derived again from scores by the code that wrote them."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from ...errors import DamagedFileError, DpauditError, first_line
from ...mechanisms.base import Recorded
from ...orchestration.aggregation import AuditState, OpenSweep, Taken
from ...plan import compaction, outcomes, plan_consistency, preparing
from ...plan.compaction import Bounds
from ...plan.model import PlannedAudit
from ...stats import Status
from ...storage.contents import DEPTH, Contents, Kind, digest
from ...storage.fence import FILE as OWNER
from ...storage.run_directory import RunDirectory
from ...storage.scores import ESTIMATE_SCHEMA, EstimateRow, frame
from .. import verdict
from ..tables import Run
from . import given_files
from .findings import Checked
from .given_files import Given

ESTIMATES, SUCCESS = "estimates.parquet", "_SUCCESS"
_KEY = ["step", "estimator", "accountant"]
_TOLD = {
    Kind.LEFT: "left by a process that was killed, or set aside as damaged",
    Kind.OTHER: "no file of a run, and not looked at",
}


def check_run(location: str) -> Checked:
    """Derives all that follows from the sweep and the scores again; writes nothing.

    Raises:
        RunDirectoryError: there is no run at `location`, or it cannot be read.
        StorageError: it cannot be read now.
    """
    began = time.perf_counter()
    run = RunDirectory(location)
    checked = Checked(run.location)
    given, recorded, stored = given_files.read(run, checked), None, None
    if given is not None:
        _check_names(given, checked)
        with checked.reading(outcomes.FILE):
            recorded = outcomes.read(run, given.plan)
        with checked.reading(ESTIMATES):
            stored = run.estimates(plan_consistency.estimates(given.sweep, given.plan))
        if recorded is None or stored is None:
            checked.cannot("estimates and verdict", "they rest on records that are damaged")
        else:
            derivation = _Derivation(given, recorded, stored, checked)
            checked.partial = derivation.check_files()
            if len(given.good) < len(given.plan.audits):
                checked.cannot("the verdict", "it rests on the files that differ")
            else:
                checked.verdict = derivation.check_verdict()
    checked.seconds = time.perf_counter() - began
    return checked


def _check_names(given: Given, checked: Checked) -> None:
    """Every file is one that a run has; those of others are named, and refused among its own.

    Files of scores are held against the plan where they are read.
    """
    run, plan = given.run, given.plan
    waited = {audit.preparation.id for audit in plan.audits if audit.preparation}
    contents = Contents([audit.id for audit in plan.audits], waited)
    for name in run.files(DEPTH):
        kind = contents.kind(name)
        if kind is Kind.CODE:
            with checked.reading(name):
                content = (run.read_text(name) or "").encode()
                stored = {"SHA-256": hashlib.sha256(content).hexdigest()}
                checked.compare(name, stored, {"SHA-256": digest(name)})
                checked.count("modules")
        elif kind is Kind.FOREIGN:
            checked.differs(name, "", "a file", "one that this run has written")
        elif kind is Kind.DRAWN:
            checked.cannot("report.html and figures", "`dpaudit report` draws them anew")
        elif kind is Kind.TOLD:
            checked.cannot("missed/", "what trials printed while they ran")
        elif kind in _TOLD:
            checked.notes.append(f"{name}: {_TOLD[kind]}")
    if run.read_text(OWNER) is not None:
        checked.notes.append(
            f"{OWNER}: a driver is at work, or was killed; its changes meanwhile may be told here"
        )


@dataclasses.dataclass(frozen=True)
class _Derived:
    """What the scores of one audit show; what was written may be of fewer trials: `behind`."""

    rows: list[EstimateRow]
    taken: Taken
    behind: bool


class _Derivation:
    """Derives what follows from the scores of audits whose files are in order, and compares it."""

    def __init__(
        self, given: Given, recorded: outcomes.Outcomes, stored: pd.DataFrame, checked: Checked
    ) -> None:
        self._given, self._checked = given, checked
        self._run, self._sweep, self._plan = given.run, given.sweep, given.plan
        self._recorded, self._stored = recorded, stored
        self._failed = outcomes.failed(given.run, given.plan)
        self._opened = OpenSweep.from_run(given.sweep, given.plan, given.run)
        self._derived: dict[int, _Derived] = {}

    def check_files(self) -> str:
        """Estimates, records and _SUCCESS; returns how far a run is that is not complete."""
        words = [field.name for field in ESTIMATE_SCHEMA if not pa.types.is_floating(field.type)]
        whole = self._stored.dropna(subset=words)
        if lost := len(self._stored) - len(whole):
            self._checked.differs(ESTIMATES, "", f"{lost} rows that lack a value", "whole ones")
            self._stored = whole.astype({"step": "int64", "trials": "int64"})
        for name in sorted(set(self._stored["audit"]) - {a.id for a in self._plan.audits}):
            rows = f"rows of {name!r:.60}"
            self._checked.differs(ESTIMATES, "", rows, "of an audit of the plan")
        for index in sorted(self._given.good):
            self._check_audit(index)
        self._check_records()
        return self._check_completeness()

    def _check_audit(self, index: int) -> None:
        """The estimates of one audit, unless deriving them takes what is not here."""
        audit, cell = self._plan.audits[index], self._sweep.cells[index]
        try:
            if foreign := [spec.name for spec in cell.audit.estimators if spec.unimported]:
                raise DpauditError(f"{', '.join(foreign)} of its author's was not imported")
            if not cell.mechanism.sampled and cell.unimported:
                raise DpauditError("they take code or data not here")
            self._compare_estimates(index)
        except DamagedFileError as error:
            name = "" if audit.preparation is None else audit.preparation.id
            self._checked.differs(f"preparations/{name}", "", first_line(error), "", audit.label)
        except DpauditError as error:
            self._checked.cannot("its estimates", first_line(error), audit.label)

    def _compare_estimates(self, index: int) -> None:
        audit, checked = self._plan.audits[index], self._checked
        packs = (failure.pack for failure in self._failed)
        lost = {(pack.first, pack.last) for pack in packs if pack.audit == index}
        state = AuditState(self._opened, index, lost, self._run.score_files(audit.id))
        taken, rows = state.take(), state.rows()
        stored = self._stored[self._stored["audit"] == audit.id]
        trials = max((row.trials for row in rows), default=0)
        written = int(stored["trials"].max()) if len(stored) else 0
        behind = written < trials and not self._run.complete
        self._derived[index] = _Derived(rows, taken, behind)
        if not trials and stored.empty:
            return  # nothing was trained, and the file comes with the first pack
        if written > trials and self._name_lacking(audit, lost, written):
            return
        if behind:
            why = f"they are of {written:,} trials, {trials:,} are stored; `dpaudit run` goes on"
            checked.cannot("its estimates", why, audit.label)
            return
        derived = {_key(row): row for row in map(vars, rows)}
        there = {_key(row): row for row in stored.to_dict("records")}
        if len(there) < len(stored):
            apart = f"{len(stored)} rows", f"{len(there)}, of one each"
            checked.differs(ESTIMATES, "", *apart, audit.label)
        if isinstance(self._sweep.cells[index].mechanism, Recorded):
            self._take_for_certified(audit, there, derived)
        checked.count("estimates", len(there.keys() & derived.keys()))
        checked.compare(ESTIMATES, there, derived, audit.label)

    def _name_lacking(self, audit: PlannedAudit, lost: set[Bounds], written: int) -> bool:
        """Names the packs that written estimates rest on, and that are not there."""
        there = compaction.finished(self._run, audit) | lost
        lacking = [pack for pack in audit.packs if pack[0] < written and pack not in there]
        apart = "", "no such file", "the scores that its estimates rest on", audit.label
        for pack in lacking:
            self._checked.differs(given_files.score_file(audit, pack), *apart)
        return bool(lacking)

    def _take_for_certified(
        self, audit: PlannedAudit, there: Mapping[str, Any], derived: dict[str, dict[str, Any]]
    ) -> None:
        """Takes stored rows for certified where it takes code that was not imported to tell."""
        for key in there.keys() & derived.keys():
            conditional = Status(derived[key]["status"]).conditional
            if conditional and there[key]["status"] == Status.CERTIFIED:
                derived[key] = derived[key] | {"status": Status.CERTIFIED.value}
                why = "what is known of the curve takes code or data that is not here"
                self._checked.cannot("that its eps is certified", why, audit.label)

    def _check_records(self) -> None:
        """The records of missed trials and of decisions, which are written with the estimates."""
        if any(derived.behind for derived in self._derived.values()):
            return  # and before the last scores
        decided = outcomes.decided(self._run, self._sweep, self._plan)
        for index, derived in self._derived.items():
            audit, missed = self._plan.audits[index], derived.taken.missed
            stored = [kind for kind in self._recorded.missed if kind.audit == audit.id]
            there = _entries(stored, decided.get(index))
            here = _entries(missed, derived.taken.decided)
            self._checked.compare(outcomes.FILE, there, here, audit.label)
            self._checked.count("missed trials", sum(kind.trials for kind in missed))
            self._checked.count("decisions", derived.taken.decided is not None)

    def _check_completeness(self) -> str:
        """Compares _SUCCESS with the audits that have trials, or parts of preparations, left.

        Returns how far the run is, "DONE of ALL trials", or "" where nothing is left.
        """
        run, plan, checked = self._run, self._plan, self._checked
        enough = dict(outcomes.decided(run, self._sweep, plan))
        for index, derived in self._derived.items():
            enough[index] = derived.taken.decided or plan.audits[index].trials
        packs = list(plan.remaining(run, enough))
        indices = {pack.audit for pack in packs}
        indices.update(*(part.waiting for part in preparing.left(run, plan, packs)))
        left = [plan.audits[index].label for index in sorted(indices)]
        if run.complete and left:
            more = f" and {len(left) - 1} more" * (len(left) > 1)
            checked.differs(SUCCESS, "", "complete", f"while {left[0]}{more} is not")
        if not run.complete and not left and not checked.different:
            checked.notes.append("all trials are there, and no _SUCCESS: `dpaudit run` ends it")
        stored = (pack for audit in plan.audits for pack in compaction.finished(run, audit))
        done = sum(last - first + 1 for first, last in stored)
        if not done and not self._failed:
            checked.notes.append("it has not trained yet; `dpaudit run` trains it")
        return f"{done:,} of {plan.trials:,} trials" if left else ""

    def check_verdict(self) -> str:
        """What `dpaudit verify` says, by derived estimates; its record, where there is one."""
        by_id = {self._plan.audits[i].id: derived for i, derived in self._derived.items()}
        rows = [vars(row) for derived in by_id.values() for row in derived.rows]
        table = frame(pa.Table.from_pylist(rows, ESTIMATE_SCHEMA))
        others = self._stored[~self._stored["audit"].isin(by_id)]
        if len(others):
            table = pd.concat([table, others], ignore_index=True)
        run = Run(self._run, self._sweep, self._plan, table)
        answered = verdict.derived(run)
        if not verdict.sound(self._run):
            self._checked.differs(verdict.FILE, "digest", "another", "that of its content")
        recorded = verdict.recorded(Run(self._run, self._sweep, self._plan, self._stored))
        if recorded is not None:
            stored = dataclasses.replace(recorded, derived=True)
            self._checked.compare(verdict.FILE, _by_number(stored), _by_number(answered))
        return answered.verdict.value


def _by_number(answer: verdict.Answer) -> dict[str, Any]:
    content = dataclasses.asdict(answer)
    del content["help"]  # which depends on the code and data that are here
    return content | {"audits": dict(enumerate(content["audits"]))}


def _key(row: Mapping[Any, Any]) -> str:
    step, estimator, accountant = (row[name] for name in _KEY)
    return f"step {step}, {estimator}, {accountant}"


def _entries(missed: Iterable[outcomes.MissedTrials], decided: int | None) -> dict[str, str]:
    """What a record tells of one audit, by what it is of."""
    entries = {
        f"trials missed by {kind.kind}": f"{kind.trials} from trial {kind.first} on"
        for kind in missed
    }
    return entries if decided is None else entries | {"trials that were enough": str(decided)}
