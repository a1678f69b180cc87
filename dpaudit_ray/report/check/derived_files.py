"""Estimates, records and the verdict, derived again from scores by the code that wrote them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from ...errors import DamagedArraysError, DpauditError, first_line
from ...mechanisms.base import Recorded
from ...orchestration.aggregation import AuditState, OpenSweep, Taken
from ...plan import (
    compaction,
    outcomes,
    plan_consistency,
    preparing,
    score_stream,
)
from ...plan.compaction import Bounds
from ...plan.model import PlannedAudit
from ...plan.outcomes import Failure
from ...stats import Status
from ...storage.contents import DEPTH, Contents, Kind, digest
from ...storage.fence import FILE as OWNER
from ...storage.scores import ESTIMATE_SCHEMA, EstimateRow, frame
from .. import answer, verdict
from ..tables import Run
from .findings import Findings
from .plan_files import Opened

ESTIMATES, SUCCESS = "estimates.parquet", "_SUCCESS"
_KEY = ["step", "estimator", "accountant"]
_WHOLE = ("step", "trials")  # columns of whole numbers


# What nothing is derived from, and what all else is -----------------------------------------------


def check_names(opened: Opened, findings: Findings) -> None:
    """Every file is one that a run has; those of others are named, and refused among its own.

    Files of scores are held against the plan by `check_scores`.
    """
    plan = opened.plan
    waited = {audit.preparation.id for audit in plan.audits if audit.preparation}
    contents = Contents([audit.id for audit in plan.audits], waited)
    for name in opened.run.files(DEPTH):
        kind = contents.kind(name)
        if kind is Kind.CODE:
            with findings.reading(name):
                text = opened.run.read_text(name) or ""
                content = {"SHA-256": hashlib.sha256(text.encode()).hexdigest()}
                findings.compare(name, content, {"SHA-256": digest(name)})
                findings.derived["modules"] += 1
        elif kind is Kind.FOREIGN:
            findings.differs(name, "", "a file", "one that this run has written")
        elif kind is Kind.LEFT:
            why = "left by a process that was killed, or set aside as damaged"
            findings.told.append(f"{name}: {why}")
        elif kind is Kind.DRAWN:
            findings.cannot("report.html and figures", "`dpaudit report` draws them anew")
        elif kind is Kind.TOLD:
            findings.cannot("missed/", "what trials printed while they ran")
        elif kind is Kind.OTHER:
            findings.told.append(f"{name}: no file of a run, and not looked at")
    if opened.run.read_text(OWNER) is not None:
        findings.told.append(
            f"{OWNER}: a driver is at work, or was killed; its changes meanwhile may be told here"
        )


def check_preparations(opened: Opened, findings: Findings) -> set[int]:
    """Reads every part of every preparation; returns the audits that wait for a damaged one."""
    wrong: set[int] = set()
    plan = opened.plan
    for part in preparing.all_parts(plan, range(len(plan.audits))):
        name = preparing.name(plan, part)
        if part.first not in opened.run.parts(name):
            continue
        try:
            opened.run.read_part(name, part.first)
        except DamagedArraysError as error:
            why = first_line(error.__cause__ or error)
            findings.differs(f"preparations/{name}/{part.first}.parquet", "", why, "")
            wrong |= {*part.waiting}
        else:
            findings.derived["prepared parts"] += 1
    if findings.derived["prepared parts"]:
        findings.cannot("what preparations hold", "it was trained; its files are whole")
    return wrong


# What is derived ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Derived:
    """What the scores of one audit show.

    `behind`: what was written of it knows fewer trials, as after a crash.
    """

    rows: list[EstimateRow]
    taken: Taken
    behind: bool


class DerivedFiles:
    """Derives what follows from the scores of audits whose files are in order, and compares it."""

    def __init__(self, opened: Opened, failed: list[Failure], findings: Findings) -> None:
        self._run, self._sweep, self._plan = opened.run, opened.sweep, opened.plan
        self._failed, self._findings = failed, findings
        self._stored = self._readable(
            opened.run.estimates(plan_consistency.estimates(opened.sweep, opened.plan))
        )
        self._opened = OpenSweep.from_run(opened.sweep, opened.plan, opened.run)
        self._derived: dict[int, Derived] = {}

    def _readable(self, stored: pd.DataFrame) -> pd.DataFrame:
        """The rows without those that have nothing where no number may be NaN, or of no audit."""
        words = [name for name in stored if stored[name].dtype.kind != "f" or name in _WHOLE]
        empty = stored[words].isna().any(axis=1)
        for place in stored.index[empty]:
            self._findings.differs(ESTIMATES, f"row {place}", "an empty value", "what a bound has")
        stored = stored[~empty].astype(dict.fromkeys(_WHOLE, "int64"))
        for name in sorted(set(stored["audit"]) - {audit.id for audit in self._plan.audits}):
            rows = f"rows of {name!r:.60}"
            self._findings.differs(ESTIMATES, "", rows, "of an audit of the plan")
        return stored

    def check_audit(self, index: int) -> None:
        """Derives and compares the estimates of one audit, unless that takes what is not here."""
        audit, cell = self._plan.audits[index], self._sweep.cells[index]
        try:
            if foreign := [spec.name for spec in cell.audit.estimators if spec.unread]:
                raise DpauditError(f"{', '.join(foreign)} of its author's was not imported")
            if not cell.mechanism.sampled and cell.unread:
                raise DpauditError("they take code or data not here")
            self._compare_estimates(index)
        except DamagedArraysError as error:
            name = "" if audit.preparation is None else audit.preparation.id
            self._findings.differs(f"preparations/{name}", "", first_line(error), "", audit.label)
        except DpauditError as error:
            self._findings.cannot("its estimates", first_line(error), audit.label)

    def _compare_estimates(self, index: int) -> None:
        audit = self._plan.audits[index]
        files = self._run.score_files(audit.id)
        packs = (failure.pack for failure in self._failed)
        lost = {(pack.first, pack.last) for pack in packs if pack.audit == index}
        state = AuditState(self._opened, index, lost, files)
        taken, rows = state.take(), state.rows()
        stored = self._stored[self._stored["audit"] == audit.id]
        trials = max((row.trials for row in rows), default=0)
        written = int(stored["trials"].max()) if len(stored) else 0
        behind = written < trials and not self._run.complete
        self._derived[index] = Derived(rows, taken, behind)
        if not trials and self._stored.empty:
            return  # nothing was trained, and the file comes with the first pack
        if written > trials and self._name_lacking(audit, lost, written):
            return
        if behind:
            self._findings.told.append(
                f"{audit.label}: estimates are of {written:,} trials, {trials:,} are stored; "
                "`dpaudit run` goes on from there"
            )
            if not len(stored):
                return
            rows = self._rows_after(index, written)
        derived = {_key(row): row for row in map(vars, rows)}
        there = {_key(row): row for row in stored.to_dict("records")}
        if len(there) < len(stored):
            apart = f"{len(stored)} rows", f"{len(there)}, of one each"
            self._findings.differs(ESTIMATES, "", *apart, audit.label)
        self._take_for_certified(index, there, derived)
        self._findings.derived["estimates"] += len(there.keys() & derived.keys())
        self._findings.compare(ESTIMATES, there, derived, audit.label)

    def _name_lacking(self, audit: PlannedAudit, lost: set[Bounds], written: int) -> bool:
        """Names the packs that written estimates rest on, and that are not there."""
        there = compaction.finished(self._run, audit) | lost
        lacking = [pack for pack in audit.packs if pack[0] < written and pack not in there]
        apart = "", "no such file", "the scores that its estimates rest on", audit.label
        for first, last in lacking:
            self._findings.differs(f"scores/{audit.id}/{first}-{last}.parquet", *apart)
        return bool(lacking)

    def _rows_after(self, index: int, trials: int) -> list[EstimateRow]:
        """The estimates after so many trials."""
        estimates = self._opened.estimates(index)
        for pack in score_stream.prefix(self._run, self._sweep, self._plan, index):
            if pack.first >= trials:
                break
            estimates.fold(pack.part(pack.first, min(pack.last, trials - 1)))
        return estimates.rows()

    def _take_for_certified(
        self, index: int, there: Mapping[str, Any], derived: dict[str, dict[str, Any]]
    ) -> None:
        """Takes stored rows for certified where it takes code that was not imported to tell."""
        if not isinstance(self._sweep.cells[index].mechanism, Recorded):
            return
        for key in there.keys() & derived.keys():
            conditional = Status(derived[key]["status"]).conditional
            if conditional and there[key]["status"] == Status.CERTIFIED:
                derived[key] = derived[key] | {"status": Status.CERTIFIED.value}
                self._findings.cannot(
                    "that its eps is certified",
                    "what is known of the curve takes code or data that is not here",
                    self._plan.audits[index].label,
                )

    def check_records(self) -> None:
        """The records of missed trials and of decisions, which are written with the estimates."""
        if any(derived.behind for derived in self._derived.values()):
            return  # and before the last scores
        recorded = outcomes.decided(self._run, self._sweep, self._plan)
        kinds = outcomes.read(self._run, self._plan).missed
        for index, derived in self._derived.items():
            audit = self._plan.audits[index]
            stored = [kind for kind in kinds if kind.audit == audit.id]
            there = _outcomes(stored, recorded.get(index))
            here = _outcomes(derived.taken.missed, derived.taken.decided)
            self._findings.compare(outcomes.FILE, there, here, audit.label)
            self._findings.derived["missed trials"] += sum(k.trials for k in derived.taken.missed)
            self._findings.derived["decisions"] += derived.taken.decided is not None

    def check_completeness(self) -> str:
        """Compares _SUCCESS with the audits that have trials, or parts of preparations, left.

        Returns how far the run is, "DONE of ALL trials", or "" where nothing is left.
        """
        left = [
            audit.label for i, audit in enumerate(self._plan.audits) if not self._is_complete(i)
        ]
        if self._run.complete and left:
            more = f" and {len(left) - 1} more" * (len(left) > 1)
            self._findings.differs(SUCCESS, "", "complete", f"while {left[0]}{more} is not")
        if not self._run.complete and not left and not self._findings.different:
            self._findings.told.append(
                "all trials are there, and no _SUCCESS: `dpaudit run` ends it"
            )
        packs = (p for audit in self._plan.audits for p in compaction.finished(self._run, audit))
        done = sum(last - first + 1 for first, last in packs)
        if not done and not self._failed:
            self._findings.told.append("it has not trained yet; `dpaudit run` trains it")
        return f"{done:,} of {self._plan.trials:,} trials" if left else ""

    def _is_complete(self, index: int) -> bool:
        """Whether an audit has nothing left to do; by its files where it was not derived."""
        audit = self._plan.audits[index]
        if index not in self._derived:
            end = outcomes.decided(self._run, self._sweep, self._plan).get(index, audit.trials)
            there = compaction.finished(self._run, audit)
            return all(pack in there for pack in audit.packs if pack[0] < end)
        return self._derived[index].taken.complete and self._opened.prepared.suffices(index)

    def check_verdict(self) -> str:
        """What `dpaudit verify` says, by derived estimates; its record, where there is one."""
        by_id = {self._plan.audits[i].id: derived for i, derived in self._derived.items()}
        rows = [vars(row) for derived in by_id.values() for row in derived.rows]
        table = frame(pa.Table.from_pylist(rows, ESTIMATE_SCHEMA))
        others = self._stored[~self._stored["audit"].isin(by_id)]
        if len(others):
            table = pd.concat([table, others], ignore_index=True)
        run = Run(self._run, self._sweep, self._plan, table)
        answered = answer.worded(run, verdict.judge(run, thorough=False))
        if not answer.sound(self._run):
            self._findings.differs(answer.FILE, "digest", "another", "that of its content")
        recorded = answer.recorded(Run(self._run, self._sweep, self._plan, self._stored))
        if recorded is not None:
            stored = vars(dataclasses.replace(recorded, derived=True))
            self._findings.compare(answer.FILE, stored, vars(answered))
        return answered.verdict.value


def _key(row: Mapping[Any, Any]) -> str:
    step, estimator, accountant = (row[name] for name in _KEY)
    return f"step {step}, {estimator}, {accountant}"


def _outcomes(missed: Iterable[outcomes.MissedTrials], decided: int | None) -> dict[str, str]:
    """What a record tells of one audit, by what it is of."""
    entries = {
        f"trials missed by {kind.kind}": f"{kind.trials} from trial {kind.first} on"
        for kind in missed
    }
    return entries if decided is None else entries | {"trials that were enough": str(decided)}
