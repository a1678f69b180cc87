"""`dpaudit check`: is everything in a run directory what follows from its sweep and its scores?

What follows is derived again by the code that a run uses, in memory, and compared with what is
stored: the plan from the sweep, bits from the plan, estimates, records and the verdict from the
scores. Nothing is derived from what differs itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from .. import __version__
from ..errors import DpauditError, RunDirectoryError, first_line, printable
from ..imports import is_data
from ..mechanisms.base import Recorded
from ..orchestration.aggregation import AuditState, OpenSweep, Taken
from ..plan import claims, finished_trials, outcomes, planner, preparing, provenance, record
from ..plan.finished_trials import FinishedTrials, PackRange
from ..plan.model import Plan, PlannedAudit
from ..plugins import Unread
from ..stats import Status
from ..storage.place import DEPTH, OPENING, foreign
from ..storage.run_directory import RunDirectory
from ..storage.scores import ESTIMATE_SCHEMA, Bounds, EstimateRow, frame
from ..sweep.cell import Cell
from ..sweep.spec import Sweep
from . import verdict
from .tables import Run

PLAN, SWEEP, ESTIMATES = record.FILE, record.SWEEP_FILE, "estimates.parquet"
# What other versions of numpy and scipy, on another kind of machine, may differ by, and take for 0.
TOLERANCE, _ZERO = 1e-9, 1e-12
KEPT = 1000  # differences that are remembered; the others are counted
NOTHING = "nothing"
_DRAWN = ("report.html and figures", "`dpaudit report` draws them anew")
_BESIDE = {
    "report.html": _DRAWN,
    "figures": _DRAWN,
    "missed": ("missed/", "what trials printed while they ran"),
}


@dataclasses.dataclass(frozen=True)
class Difference:
    """A place in a file of the run directory where something stands that does not follow."""

    file: str
    audit: str  # a label, empty where it is of no one audit
    place: str
    stored: str
    derived: str  # empty where nothing can be

    def __str__(self) -> str:
        where = ", ".join(part for part in (self.audit, self.place) if part)
        there = f"{self.stored} there, not {self.derived}" if self.derived else self.stored
        return f"{self.file}: {where}: {there}" if where else f"{self.file}: {there}"


@dataclasses.dataclass
class Checked:
    """What a check of a run has shown so far.

    `derived` counts what was computed again; `differences` are the first KEPT of `different`.
    `partial` says how far a run is that is not complete. `unchecked` is what cannot be told here,
    and why, with the labels of its audits; `notes` what is no difference and worth knowing.
    """

    location: str
    differences: list[Difference] = dataclasses.field(default_factory=list)
    different: int = 0
    derived: dict[str, int] = dataclasses.field(default_factory=dict)
    verdict: str = ""
    partial: str = ""
    unchecked: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def in_order(self) -> bool:
        """Whether nothing differs, as far as it could be checked."""
        return self.different == 0

    def count(self, what: str, number: int = 1) -> None:
        if number:
            self.derived[what] = self.derived.get(what, 0) + number

    def differs(
        self, file: str, place: str, stored: Any, derived: Any = "", audit: str = ""
    ) -> None:
        """Adds one difference; values are shown with all their digits."""
        self.different += 1
        if self.different <= KEPT:
            there, here = (v if isinstance(v, str) else repr(v) for v in (stored, derived))
            self.differences.append(Difference(file, audit, place, there, here))

    def compare(
        self, file: str, stored: Any, derived: Any, audit: str = "", place: str = ""
    ) -> None:
        """Adds a difference wherever a stored value is not the derived one.

        Mappings are compared key by key, whose keys make up the place; of tuples the first element
        that differs is named; floats may differ in their last digits.
        """
        if isinstance(stored, Mapping) and isinstance(derived, Mapping):
            for key in dict.fromkeys([*stored, *derived]):
                values = stored.get(key, NOTHING), derived.get(key, NOTHING)
                self.compare(file, *values, audit, f"{place}, {key}" if place else str(key))
            return
        if isinstance(stored, float) and isinstance(derived, float):
            close = math.isclose(stored, derived, rel_tol=TOLERANCE, abs_tol=_ZERO)
            if close or (math.isnan(stored) and math.isnan(derived)):
                return
        if stored == derived:
            return
        if isinstance(stored, tuple) and isinstance(derived, tuple):
            pairs = enumerate(itertools.zip_longest(stored, derived, fillvalue=NOTHING))
            number, (stored, derived) = next(item for item in pairs if item[1][0] != item[1][1])
            place = f"{place}, number {number}"
        there, here = ("an entry" if isinstance(v, Mapping) else v for v in (stored, derived))
        self.differs(file, place, there, here, audit)

    def cannot(self, what: str, why: str, audit: str = "") -> None:
        """Notes something that cannot be checked here; said once for all audits."""
        audits = self.unchecked.setdefault(f"{what}: {why}", [])
        if audit and audit not in audits[-1:]:
            audits.append(audit)

    @contextlib.contextmanager
    def reading(self, file: str, audit: str = "") -> Iterator[None]:
        """Adds a difference where the content of a file is unusable; raises where none is read."""
        try:
            yield
        except RunDirectoryError as error:
            if isinstance(error.__cause__, OSError):
                raise
            self.differs(file, "", first_line(error.__cause__ or error), audit=audit)


@dataclasses.dataclass(frozen=True)
class _Given:
    """A run whose sweep and plan belong together, and its audits that are in order: `good`."""

    run: RunDirectory
    sweep: Sweep
    plan: Plan
    checked: Checked
    good: set[int] = dataclasses.field(default_factory=set)


def check_run(location: str) -> Checked:
    """Derives all that follows from the sweep and the scores again; writes nothing.

    Raises RunDirectoryError or StorageError where there is no run, or it cannot be read now.
    """
    run = RunDirectory(location, OPENING)
    checked = Checked(run.location)
    plan = sweep = None
    if newer := record.newer_version(run):
        checked.notes.append(newer)
    if run.read_text(PLAN) is None and run.read_text(SWEEP) is None:
        record.require(run)
    with checked.reading(PLAN):
        if (plan := record.load(run)) is None:
            checked.differs(PLAN, "", "no such file", "a plan")
    with checked.reading(SWEEP):
        if (sweep := record.recorded(run)) is None:
            checked.differs(SWEEP, "", "no such file", "a sweep")
    if plan is not None and sweep is not None:
        there = {"fingerprint": plan.fingerprint, "seed": plan.seed, "audits": len(plan.audits)}
        here = {"fingerprint": sweep.fingerprint, "seed": sweep.seed, "audits": len(sweep.cells)}
        checked.compare(PLAN, there, here)
    if plan is None or sweep is None or checked.different:
        checked.cannot("claims, bits, scores, estimates and verdict", "they rest on these files")
    else:
        given = _Given(run, record.filled(sweep, plan, run), plan, checked)
        _check_plan(given, sweep)
        _check_names(given)
        before = checked.different
        with checked.reading(outcomes.FILE):
            outcomes.read(run, plan)
        with checked.reading(ESTIMATES):
            stored = run.estimates(record.most_estimates(sweep, plan))
        if checked.different > before:
            checked.cannot("estimates and verdict", "they rest on records that are damaged")
        else:
            _check_derived(given, stored)
    return checked


# What all else follows from: plan, preparations and scores ---------------------------------------


def _check_plan(given: _Given, sweep: Sweep) -> None:
    """Checks every audit by itself: its plan, its preparation and its scores."""
    plan, checked = given.plan, given.checked
    if any(cell.unimported for cell in sweep.cells):
        checked.cannot(f"the fingerprint of {SWEEP}", "takes code of its author's to tell")
    wrong = _wrong_preparations(given)
    for index, audit in enumerate(plan.audits):
        before = checked.different
        _check_planned(index, sweep.cells[index], given)
        _check_scores(given, audit)
        if checked.different == before and index not in wrong:
            given.good.add(index)
    grave, harmless = provenance.changes(plan.code[-1], provenance.sweep_code(sweep))
    if grave or harmless:
        checked.notes.append(f"other code or machine here: {'; '.join((*grave, *harmless))}")
    try:
        here = {file.sha256 for file in provenance.input_files(sweep)}
    except DpauditError as error:
        checked.cannot("the data", first_line(error))
        return
    if names := [file.file for file in plan.data if file.sha256 not in here]:
        checked.cannot("the data", f"{', '.join(names)} not here, or with another content")
    checked.count("data files", len({file.sha256 for file in plan.data} & here))


def _check_planned(index: int, cell: Cell, given: _Given) -> None:
    """Compares what follows from the sweep alone, as far as that can be told."""
    audit, checked = given.plan.audits[index], given.checked
    filled, sweep, place = given.sweep.cells[index], given.sweep, f"audits.{index}."
    checked.count("audits")
    checked.count("bits", audit.trials)
    # Whether a mechanism that was not imported is sampled, its number of trials says.
    untold = audit.trials == 0 and isinstance(cell.mechanism, Unread)
    sampled = cell.mechanism.sampled and not untold
    derived: dict[str, Any] = {
        "label": printable(cell.label),
        "trials": cell.audit.trials if sampled else 0,
        "up_to": cell.audit.up_to if sampled else None,
    }
    try:
        if cell.unimported:
            checked.cannot("its fingerprint", "takes code of its author's", audit.label)
        else:
            derived |= {
                "fingerprint": cell.fingerprint,
                "id": planner.identifier(index, cell),
                "horizons": cell.horizons,
                "canaries": cell.canaries if sampled else 1,
                "paired": cell.audit.paired,
                "preparation": preparing.planned(cell, sweep.seed, given.plan.data),
            }
        if not cell.unimported or sweep.resources.pack_size != "auto":
            derived["packs"] = _packs(audit, cell, sweep)
        if isinstance(filled.mechanism, Recorded):
            why = "takes code or data that is not here; it is as plan.json has it"
            checked.cannot("what accountants are asked", why, audit.label)
        else:
            reads = cell.foreign or cell.mechanism.claim_reads_data
            derived["claimed"] = claims.asked(cell) if reads else None
    except DpauditError as error:
        checked.cannot("its entry in plan.json", first_line(error), audit.label)
    there = {place + name: getattr(audit, name) for name in derived}
    here = {place + name: value for name, value in derived.items()}
    promised: dict[str, Any] = {f"{place}claims": ", ".join(filled.audit.accountants)}
    promised |= _by_step(_claims(audit, filled, given), filled.horizons)
    there |= {f"{place}claims": ", ".join(audit.claims)} | _by_step(audit.claims, audit.horizons)
    checked.compare(PLAN, there, here | promised, audit.label)


def _by_step(claimed: claims.Claims, steps: tuple[int, ...]) -> dict[str, float]:
    pairs = [(name, *pair) for name in claimed for pair in zip(steps, claimed[name], strict=False)]
    return {f"claim after step {step} by {name}": value for name, step, value in pairs}


def _claims(audit: PlannedAudit, cell: Cell, given: _Given) -> dict[str, tuple[float, ...]]:
    """ε of every accountant at every recorded step, as the plan has it where nothing tells it."""
    checked, derived = given.checked, dict[str, tuple[float, ...]]()
    other_version = given.plan.code[-1].versions.get("dpaudit", __version__) != __version__
    for name in cell.audit.accountants:
        derived[name] = audit.claims.get(name, ())
        try:
            if ":" in name and is_data(name):
                raise DpauditError("they take code of its author's to tell")
            values = claims.by(claims.asked(cell), cell.audit.delta, name)
            checked.count("claims", len(values))
            if other_version and claims.difference(audit.claims, cell) is None:
                raise DpauditError("another version of dpaudit computed them")
            derived[name] = values
        except DpauditError as error:
            checked.cannot(f"its claims by {name}", first_line(error), audit.label)
    return derived


def _packs(audit: PlannedAudit, cell: Cell, sweep: Sweep) -> tuple[Bounds, ...]:
    """Trials cut anew for every number of them that was declared, as it was."""
    # A number that was raised before a trial was seen has left a short pack and no other trace.
    size = planner.pack_size(cell, sweep)
    short = [last + 1 for first, last in audit.packs[:-1] if last - first + 1 < size]
    raised = short if len(short) == len(audit.declared) == 1 else ()
    packs: list[Bounds] = []
    for trials in sorted({*audit.declared, *raised}):
        start = packs[-1][1] + 1 if packs else 0
        packs += planner.cut(start, trials, size)
    return tuple(packs)


def _wrong_preparations(given: _Given) -> set[int]:
    """Reads every part of every preparation; returns the audits that wait for a damaged one."""
    run, plan, checked, wrong = given.run, given.plan, given.checked, set[int]()
    for part in preparing.all_parts(plan, range(len(plan.audits))):
        if part.first in run.parts(part.preparation):
            before = checked.different
            with checked.reading(f"preparations/{part.preparation}/{part.first}.parquet"):
                run.read_part(part.preparation, part.first)
                checked.count("prepared parts")
            if checked.different > before:
                wrong |= {*part.waiting}
    if "prepared parts" in checked.derived:
        checked.cannot("what preparations hold", "it was trained; its files are whole")
    return wrong


def _check_scores(given: _Given, audit: PlannedAudit) -> None:
    """Reads all files of scores of an audit; a crash may have left packs in two of them."""
    checked, files = given.checked, given.run.score_files(audit.id)
    chosen = finished_trials.resolved(audit.packs, files)
    packs = {segment.file: audit.packs[segment.start : segment.stop] for segment in chosen}
    starts, ends = ({pack[end] for pack in audit.packs} for end in (0, 1))
    for file in sorted(files):
        name, before = given.run.score_file(audit.id, *file), checked.different
        if file[0] not in starts or file[1] not in ends:
            checked.differs(name, "", "a file", "of any pack of its plan", audit.label)
            continue
        with checked.reading(name, audit.label):
            _check_file(given, audit, file, () if file in packs else chosen)
        if file in packs and checked.different == before:
            checked.count("packs", len(packs[file]))
            checked.count("trials", packs[file][-1][1] - packs[file][0][0] + 1)


def _check_file(
    given: _Given, audit: PlannedAudit, file: Bounds, others: Collection[PackRange]
) -> None:
    """Compares a file with the plan, with what was written, and with what `others` hold too."""
    run, steps, name = given.run, len(audit.horizons), given.run.score_file(audit.id, *file)
    differs = functools.partial(given.checked.differs, name, audit=audit.label)
    scores = run.read_scores(audit.id, *file, steps)
    if scores.steps != audit.horizons:
        differs("steps", scores.steps, audit.horizons)
    bits = audit.bits(given.plan.seed, *file)
    if len(wrong := np.flatnonzero(scores.members != bits)):
        place = f"trial {file[0] + int(wrong[0])}"
        differs(place, f"the first of {len(wrong)} other bits", f"{bits[wrong[0]]}")
    if scores.stated != (digest := scores.digest(audit.id)):
        stated = f"{scores.stated[:16] or 'none'}..., as written"
        differs("", f"scores of SHA-256 {digest[:16]}...", stated)
    for segment in others:
        low = max(audit.packs[segment.start][0], file[0])
        high = min(audit.packs[segment.stop - 1][1], file[1])
        if low <= high and segment.file is not None:
            other = run.read_scores(audit.id, *segment.file, steps).part(low, high)
            if difference := other.difference(scores.part(low, high)):
                differs("", f"trials {low}-{high} twice: this one {difference}")


def _check_names(given: _Given) -> None:
    """None of the files beside plan and scores is foreign."""
    run, plan, checked = given.run, given.plan, given.checked
    waited = {audit.preparation.id for audit in plan.audits if audit.preparation}
    audits = {audit.id for audit in plan.audits}
    for name in run.files(DEPTH):
        if foreign(name, audits, waited):
            checked.differs(name, "", "a file", "one that this run has written")
        elif (folder := name.partition("/")[0]) in _BESIDE:
            checked.cannot(*_BESIDE[folder])


# What follows from scores: estimates, records and the verdict ------------------------------------


def _check_derived(given: _Given, stored: pd.DataFrame) -> None:
    """Derives what follows from the scores of audits that are in order, and compares it."""
    run, plan, checked = given.run, given.plan, given.checked
    for name in sorted(set(stored["audit"]) - {audit.id for audit in plan.audits}):
        checked.differs(ESTIMATES, "", f"rows of {name!r:.60}", "of an audit of the plan")
    opened, failed = OpenSweep(given.sweep, plan, run), outcomes.failed(run, plan)
    taken, rows, behind = dict[int, Taken](), list[EstimateRow](), False
    for index in sorted(given.good):
        audit, cell = plan.audits[index], given.sweep.cells[index]
        lost = {(f.pack.first, f.pack.last) for f in failed if f.pack.audit == index}
        try:
            if foreign := [spec.name for spec in cell.audit.estimators if spec.unimported]:
                raise DpauditError(f"{', '.join(foreign)} of its author's was not imported")
            if not cell.mechanism.sampled and cell.unimported:
                raise DpauditError("they take code or data not here")
            state = AuditState(opened, index, lost)
            here = state.rows()
        except DpauditError as error:
            checked.cannot("its estimates", first_line(error), audit.label)
            continue
        taken[index] = state.take()
        del state  # with all its scores; the verdict reads them again
        rows += here
        there = stored[stored["audit"] == audit.id]
        behind |= _behind(given, index, lost, here, there)
    if not behind:  # else the records are, too
        _check_records(given, taken)
    checked.partial = _check_completeness(given, taken)
    if len(given.good) < len(plan.audits):
        checked.cannot("the verdict", "it rests on the files that differ")
    else:
        checked.verdict = _check_verdict(given, rows, stored)


def _behind(
    given: _Given, index: int, lost: set[Bounds], rows: list[EstimateRow], stored: pd.DataFrame
) -> bool:
    """Compares the estimates of an audit; True where those that are stored are of fewer trials."""
    audit, run, checked = given.plan.audits[index], given.run, given.checked
    trials = max((row.trials for row in rows), default=0)
    written = int(stored["trials"].max()) if len(stored) else 0
    if written < trials and not run.complete:
        why = f"they are of {written:,} trials, {trials:,} are stored; `dpaudit run` goes on"
        checked.cannot("its estimates", why, audit.label)
        return True
    there_is = finished_trials.stored_packs(run, audit) | lost
    lacking = [pack for pack in audit.packs if pack[0] < written and pack not in there_is]
    if written > trials and lacking:
        for pack in lacking:
            apart = "no such file", "the scores that its estimates rest on"
            checked.differs(run.score_file(audit.id, *pack), "", *apart, audit.label)
    elif trials or len(stored):  # the file comes with the first pack
        derived = {_place(vars(row)): dict(vars(row)) for row in rows}
        there = {_place(row): row for row in stored.to_dict("records")}
        if len(there) < len(stored):
            apart = f"{len(stored)} rows", f"{len(there)}, of one each"
            checked.differs(ESTIMATES, "", *apart, audit.label)
        shared = there.keys() & derived.keys()
        for key in shared if isinstance(given.sweep.cells[index].mechanism, Recorded) else ():
            derived_status, proved = Status(derived[key]["status"]), [Status.CERTIFIED]
            proved += [Status.IF_GAUSSIAN] * (derived_status is Status.IF_INDEPENDENT)
            if derived_status.conditional and there[key]["status"] in proved:
                derived[key]["status"] = there[key]["status"]
                why = "what is known of the curve takes code or data that is not here"
                checked.cannot("that its eps is certified", why, audit.label)
        checked.count("estimates", len(shared))
        checked.compare(ESTIMATES, there, derived, audit.label)
    return False


def _place(row: Mapping[Any, Any]) -> str:
    return f"step {row['step']}, {row['estimator']}, {row['accountant']}"


def _check_records(given: _Given, taken: Mapping[int, Taken]) -> None:
    """The records of missed trials and of decisions, which are written with the estimates."""
    checked, missed = given.checked, outcomes.read(given.run, given.plan).missed
    decided = outcomes.decided(given.run, given.sweep, given.plan)
    for index, derived in taken.items():
        audit = given.plan.audits[index]
        stored = [kind for kind in missed if kind.audit == audit.id]
        there, here = (
            {
                f"trials missed by {kind.kind}": f"{kind.trials} from trial {kind.first} on"
                for kind in kinds
            }
            | ({} if enough is None else {"trials that were enough": str(enough)})
            for kinds, enough in ((stored, decided.get(index)), (derived.missed, derived.decided))
        )
        checked.compare(outcomes.FILE, there, here, audit.label)
        checked.count("missed trials", sum(kind.trials for kind in derived.missed))
        checked.count("decisions", derived.decided is not None)


def _check_completeness(given: _Given, taken: Mapping[int, Taken]) -> str:
    """How far a run is, "" where nothing is left; compares _SUCCESS with what is."""
    run, plan = given.run, given.plan
    enough = dict(outcomes.decided(run, given.sweep, plan))
    for index, derived in taken.items():
        enough[index] = derived.decided or plan.audits[index].trials
    packs = list(finished_trials.remaining(run, plan, enough))
    indices = {pack.audit for pack in packs}
    indices.update(*(part.waiting for part in preparing.left(run, plan, packs)))
    if not indices:
        return ""
    if run.complete:
        label = plan.audits[min(indices)].label
        more = f" and {len(indices) - 1} more" * (len(indices) > 1)
        given.checked.differs("_SUCCESS", "", "complete", f"while {label}{more} is not")
    audits = range(len(plan.audits))
    done = sum(FinishedTrials(run, plan, index).stored_trials for index in audits)
    return f"{done:,} of {plan.trials:,} trials"


def _check_verdict(given: _Given, rows: list[EstimateRow], stored: pd.DataFrame) -> str:
    """What `dpaudit verify` says, by derived estimates; its record, where there is one."""
    table = frame(pa.Table.from_pylist([vars(row) for row in rows], ESTIMATE_SCHEMA))
    if len(others := stored[~stored["audit"].isin(set(table["audit"]))]):
        table = pd.concat([table, others], ignore_index=True)
    run = Run(given.run, given.sweep, given.plan, table)
    answered = verdict.derived(run)
    with given.checked.reading(verdict.FILE):
        if (kept := verdict.stored(dataclasses.replace(run, estimates=stored))) is not None:
            there, here = (dataclasses.asdict(answer) for answer in (kept, answered))
            for content in (there, here):
                del content["help"]  # which depends on the code and data that are here
                content["audits"] = dict(enumerate(content["audits"]))
            given.checked.compare(verdict.FILE, there, here)
        elif given.run.read_text(verdict.FILE) is not None:
            given.checked.cannot(verdict.FILE, "it is not of the trials and bounds that are there")
    return answered.verdict.value
