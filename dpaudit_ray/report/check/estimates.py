"""estimates.parquet held against the scores, which are folded anew as the aggregator does."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa

from ...errors import DamagedArraysError, DpauditError, first_line
from ...mechanisms.base import Recorded
from ...orchestration.estimating import Estimating
from ...orchestration.folding import AuditState, Taken
from ...orchestration.prepared import Prepared
from ...orchestration.replay import Ahead
from ...plan import commitments, gathering, prefix
from ...plan.failures import Failure
from ...plan.gathering import Bounds
from ...plan.model import PlannedAudit
from ...stats import Status
from ...storage.scores import ESTIMATE_SCHEMA, EstimateRow, frame
from .findings import Findings
from .promises import Opened

FILE = "estimates.parquet"
_KEY = ("step", "estimator", "accountant")
_VALUES = [name for name in ESTIMATE_SCHEMA.names if name not in ("audit", *_KEY)]
_WHOLE = ("step", "trials")
_Key = tuple[int, str, str]


@dataclasses.dataclass(frozen=True)
class Folded:
    """What the scores of one audit show: all of it, and how far they go.

    `behind`: what was written of it knows fewer trials, as after a crash.
    """

    rows: list[EstimateRow]
    taken: Taken
    trials: int
    behind: bool = False


class Estimates:
    """Derives the estimates of audits whose score files are in order."""

    def __init__(self, opened: Opened, failed: list[Failure], found: Findings) -> None:
        self._opened, self._failed, self._found = opened, failed, found
        self._stored = self._known(
            opened.run.estimates(commitments.estimates(opened.sweep, opened.plan))
        )
        self._prepared = Prepared(opened.run, opened.plan)
        self._ahead = Ahead()
        self._complete = opened.run.complete
        self._asked = opened.sweep, opened.plan, opened.sweep.budget

    @property
    def stored(self) -> pd.DataFrame:
        """What stands in the file."""
        return self._stored

    def _known(self, stored: pd.DataFrame) -> pd.DataFrame:
        """Without rows that have nothing where no number may be NaN."""
        words = [name for name in stored if stored[name].dtype.kind != "f" or name in _WHOLE]
        empty = stored[words].isna().any(axis=1)
        for place in stored.index[empty]:
            self._found.differs(FILE, f"row {place}", "an empty value", "what a bound has")
        return stored[~empty].astype(dict.fromkeys(_WHOLE, "int64"))

    def strangers(self) -> None:
        """Rows of no audit of the plan."""
        known = {audit.id for audit in self._opened.plan.audits}
        for name in sorted(set(self._stored["audit"]) - known):
            self._found.differs(FILE, "", f"rows of {name!r:.60}", "of an audit of the plan")

    def check(self, index: int) -> Folded | None:
        """Folds one audit and compares; None where that takes what is not here."""
        audit, cell = self._opened.plan.audits[index], self._opened.sweep.cells[index]
        if foreign := [one.name for one in cell.audit.estimators if one.unread]:
            what = f"{', '.join(foreign)} of its author's was not imported"
            self._found.cannot("its estimates", what, audit.label)
            return None
        if not cell.mechanism.sampled and cell.unread:
            self._found.cannot("its estimates", "they take code or data not here", audit.label)
            return None
        try:
            state = self._state(index)
            folded = self._compared(index, state)
        except DamagedArraysError as error:
            self._found.differs(f"preparations/{_prepared(audit)}", "", first_line(error), "",
                                audit.label)  # fmt: skip
            return None
        except DpauditError as error:
            self._found.cannot("its estimates", first_line(error), audit.label)
            return None
        return folded

    def _state(self, index: int) -> AuditState:
        opened = self._opened
        files = opened.run.score_files(opened.plan.audits[index].id)
        parts = functools.partial(self._prepared.complete, index)
        return AuditState(
            index, self._asked, opened.run, self._given_up(index), files, self._ahead, parts
        )

    def _given_up(self, index: int) -> set[Bounds]:
        return {
            (each.pack.first, each.pack.last) for each in self._failed if each.pack.audit == index
        }

    def _compared(self, index: int, state: AuditState) -> Folded:
        audit = self._opened.plan.audits[index]
        taken, rows = state.take(), state.rows()
        stored = self._stored[self._stored["audit"] == audit.id]
        trials = max((row.trials for row in rows), default=0)
        written = int(stored["trials"].max()) if len(stored) else 0
        behind = written < trials and not self._complete
        folded = Folded(rows, taken, trials, behind)
        if not trials and self._stored.empty:
            return folded  # nothing was trained, and the file comes with the first pack
        if written > trials and self._lacking(index, written):
            return folded
        if behind:
            self._found.told.append(
                f"{audit.label}: estimates are of {written:,} trials, {trials:,} are stored; "
                "`dpaudit run` goes on from there"
            )
            if not len(stored):
                return folded
            rows = self._rows_at(index, written)
        self._compare(index, stored, rows)
        return folded

    def _lacking(self, index: int, written: int) -> bool:
        """Names the packs that written estimates rest on, and that are not there."""
        audit = self._opened.plan.audits[index]
        there = gathering.finished(self._opened.run, audit) | self._given_up(index)
        lacking = [pack for pack in audit.packs if pack[0] < written and pack not in there]
        for first, last in lacking:
            self._found.differs(f"scores/{audit.id}/{first}-{last}.parquet", "", "no such file",
                                "the scores that its estimates rest on", audit.label)  # fmt: skip
        return bool(lacking)

    def _rows_at(self, index: int, trials: int) -> list[EstimateRow]:
        """The estimates after so many trials."""
        opened = self._opened
        audit = opened.plan.audits[index]
        parts = functools.partial(self._prepared.complete, index)
        estimates = Estimating(audit, opened.sweep.cells[index], self._asked[2], parts)
        for pack in prefix.of(opened.run, opened.sweep, opened.plan, index):
            if pack.first >= trials:
                break
            estimates.fold(pack.part(pack.first, min(pack.last, trials - 1)))
        return estimates.rows()

    def _compare(self, index: int, stored: pd.DataFrame, rows: list[EstimateRow]) -> None:
        audit = self._opened.plan.audits[index]
        there = {_key(row): row for row in _records(stored)}
        derived = {_key(vars(row)): row for row in rows}
        if len(there) < len(stored):
            self._found.differs(FILE, "", f"{len(stored)} rows", f"{len(there)}, of one each",
                                audit.label)  # fmt: skip
        for key in there.keys() - derived.keys():
            self._found.differs(FILE, _place(key), "a bound", "one that was asked for", audit.label)
        for key, row in derived.items():
            if key not in there:
                self._found.differs(FILE, _place(key), "no bound", f"eps {row.epsilon_lower!r}",
                                    audit.label)  # fmt: skip
                continue
            self._found.derived["estimates"] += 1
            for name, value in self._other(index, there[key], row):
                stated = there[key][name]
                self._found.differs(FILE, f"{_place(key)}, {name}", stated, value, audit.label)

    def _other(
        self, index: int, stored: dict[str, Any], row: EstimateRow
    ) -> Iterator[tuple[str, Any]]:
        """The values of a row that differ, by their names."""
        for name in _VALUES:
            there, value = stored[name], getattr(row, name)
            same = self._found.same(there, value) if isinstance(value, float) else there == value
            if not same and not (name == "status" and self._unknown(index, str(there), row)):
                yield name, value

    def _unknown(self, index: int, stored: str, row: EstimateRow) -> bool:
        """Whether it takes code that was not imported to tell this status."""
        cell, audit = self._opened.sweep.cells[index], self._opened.plan.audits[index]
        known = not isinstance(cell.mechanism, Recorded)
        if known or stored != Status.CERTIFIED or not Status(row.status).conditional:
            return False
        self._found.cannot(
            "that its eps is certified",
            "what is known of the curve takes code or data that is not here",
            audit.label,
        )
        return True


def table(rows: list[EstimateRow]) -> pd.DataFrame:
    """Rows as estimates.parquet is read."""
    return frame(pa.Table.from_pylist(list(map(vars, rows)), ESTIMATE_SCHEMA))


def trials_of(opened: Opened, index: int) -> int:
    """How many trials of an audit are stored, behind a gap too."""
    finished = gathering.finished(opened.run, opened.plan.audits[index])
    return sum(last - first + 1 for first, last in finished)


def _key(row: dict[str, Any]) -> _Key:
    return int(row["step"]), str(row["estimator"]), str(row["accountant"])


def _place(key: _Key) -> str:
    return f"step {key[0]}, {key[1]}, {key[2]}"


def _prepared(audit: PlannedAudit) -> str:
    return "" if audit.preparation is None else audit.preparation.id


def _records(stored: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in stored.to_dict("records")]
