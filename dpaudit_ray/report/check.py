"""`dpaudit check`: recomputes all that a run directory derives from its sweep and its scores.

The code that a run uses computes everything again in memory: the plan from the sweep, bits from the
plan, estimates, records and the verdict from the scores. Each result is compared with the stored
one. Nothing is computed from a file that differs itself.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from .. import __version__
from ..errors import DpauditError, RunDirectoryError, and_more, first_line, printable
from ..imports import stays_unimported
from ..mechanisms.base import Recorded
from ..orchestration.audit_state import AuditState, OpenSweep, Snapshot
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
from .rerun import repeated
from .tables import Run

PLAN = record.FILE
SWEEP = record.SWEEP_FILE
ESTIMATES = "estimates.parquet"
# Results of other versions of numpy and scipy, or of another kind of machine, may differ by this.
TOLERANCE = 1e-9  # relative
_ZERO = 1e-12  # absolute, near 0
KEPT = 1000  # differences that are listed; the others are counted
NOTHING = "nothing"
_REDRAWN = ("report.html and figures", "`dpaudit report` draws them again")
_BESIDE = {
    "report.html": _REDRAWN,
    "figures": _REDRAWN,
    "missed": ("missed/", "what trials printed while they ran"),
}


@dataclass(frozen=True)
class Difference:
    """A value in a file of the run directory that does not follow from the sweep and the scores.

    Attributes:
        file: path of the file in the run directory.
        audit: label of the audit; empty if the value belongs to no single audit.
        place: position in the file, such as a key.
        stored: the value in the file.
        derived: the recomputed value, empty without one.
    """

    file: str
    audit: str
    place: str
    stored: str
    derived: str

    def __str__(self) -> str:
        position = ", ".join(part for part in (self.audit, self.place) if part)
        values = f"{self.stored} there, not {self.derived}" if self.derived else self.stored
        return f"{self.file}: {position}: {values}" if position else f"{self.file}: {values}"


@dataclass
class Checked:
    """The results of checking a run.

    Attributes:
        location: address of the run directory.
        differences: the first KEPT differences.
        different: number of all differences.
        derived: numbers of recomputed values, by kind.
        verdict: the recomputed verdict, empty if it cannot be checked.
        partial: progress of a run that is not complete, else empty.
        unchecked: labels of audits, by what cannot be checked here and why.
        notes: remarks that are no differences.
    """

    location: str
    differences: list[Difference] = field(default_factory=list)
    different: int = 0
    derived: dict[str, int] = field(default_factory=dict)
    verdict: str = ""
    partial: str = ""
    unchecked: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def in_order(self) -> bool:
        """Whether nothing differs, as far as it could be checked."""
        return self.different == 0

    def count(self, kind: str, number: int = 1) -> None:
        """Adds to the number of recomputed values."""
        if number:
            self.derived[kind] = self.derived.get(kind, 0) + number

    def differs(
        self,
        file: str,
        position: str,
        stored: Any,
        derived: Any = "",
        audit: str = "",
    ) -> None:
        """Adds a `Difference`; values are shown with all their digits.

        Args:
            file: name of the file that has the value.
            position: position of the value in the file, in words.
            stored: the value; text is shown as it is.
            derived: what follows from the scores or the sweep.
            audit: label of the value's audit, if it has one.
        """
        self.different += 1
        if self.different <= KEPT:
            texts = [v if isinstance(v, str) else repr(v) for v in (stored, derived)]
            self.differences.append(Difference(file, audit, position, *texts))

    def compare(
        self,
        file: str,
        stored: Any,
        derived: Any,
        audit: str = "",
        position: str = "",
    ) -> None:
        """Adds a difference for each stored value that is not the derived one.

        Mappings are compared key by key, and the keys make up the position. Of tuples, the first
        element that differs is named. Floats may differ in their last digits.

        Args:
            file: name of the file that has the value.
            stored: the value, or a mapping of values.
            derived: what follows from the scores or the sweep.
            audit: label of the value's audit, if it has one.
            position: position of the value in the file, in words.
        """
        if isinstance(stored, Mapping) and isinstance(derived, Mapping):
            for key in dict.fromkeys([*stored, *derived]):
                below = f"{position}, {key}" if position else str(key)
                values = stored.get(key, NOTHING), derived.get(key, NOTHING)
                self.compare(file, *values, audit=audit, position=below)
            return
        if isinstance(stored, float) and isinstance(derived, float):
            close = math.isclose(stored, derived, rel_tol=TOLERANCE, abs_tol=_ZERO)
            if close or (math.isnan(stored) and math.isnan(derived)):
                return
        if stored == derived:
            return
        if isinstance(stored, tuple) and isinstance(derived, tuple):
            elements = itertools.zip_longest(stored, derived, fillvalue=NOTHING)
            for number, (stored, derived) in enumerate(elements):
                if stored != derived:
                    position = f"{position}, number {number}"
                    break
        if isinstance(stored, Mapping):
            stored = "an entry"
        if isinstance(derived, Mapping):
            derived = "an entry"
        self.differs(file, position, stored, derived, audit)

    def note_unchecked(
        self,
        subject: str,
        reason: str,
        audit: str = "",
    ) -> None:
        """Notes that something cannot be checked here, once for all audits.

        Args:
            subject: what is not checked.
            reason: why not.
            audit: label of the audit, if the subject concerns one.
        """
        audits = self.unchecked.setdefault(f"{subject}: {reason}", [])
        if audit and audit not in audits[-1:]:
            audits.append(audit)

    @contextlib.contextmanager
    def reading(
        self,
        file: str,
        audit: str = "",
    ) -> Iterator[None]:
        """Adds a difference if the content of a file is unusable; raises if it cannot be read."""
        try:
            yield
        except RunDirectoryError as error:
            if isinstance(error.__cause__, OSError):
                raise
            self.differs(file, "", first_line(error.__cause__ or error), audit=audit)


@dataclass(frozen=True)
class _Sources:
    """A run whose sweep and plan belong together.

    `intact` has the numbers of the audits whose plan, preparation and scores do not differ.
    """

    run: RunDirectory
    sweep: Sweep
    plan: Plan
    checked: Checked
    intact: set[int] = field(default_factory=set)


def check_run(
    location: str,
    rerun: float = 0.0,
    commitment: str = "",
) -> Checked:
    """Recomputes all that follows from the sweep and the scores; writes nothing.

    Args:
        location: address of the run directory.
        rerun: share of the stored packs that are trained again.
        commitment: commitment of the plan before training, if it is known.

    Raises:
        RunDirectoryError: there is no run.
        StorageError: the run cannot be read now.
    """
    run = RunDirectory(location, OPENING)
    checked = Checked(run.location)
    plan = sweep = None
    newer = record.newer_version(run)
    if newer:
        checked.notes.append(newer)
    if run.read_text(PLAN) is None and run.read_text(SWEEP) is None:
        record.require(run)  # raises an error: there is no run
    with checked.reading(PLAN):
        plan = record.load(run)
        if plan is None:
            checked.differs(PLAN, "", "no such file", "a plan")
    with checked.reading(SWEEP):
        sweep = record.recorded(run)
        if sweep is None:
            checked.differs(SWEEP, "", "no such file", "a sweep")
    if plan is not None and sweep is not None:
        checked.compare(PLAN, plan.fingerprint, sweep.fingerprint, position="fingerprint")
        checked.compare(PLAN, plan.seed, sweep.seed, position="seed")
        checked.compare(PLAN, len(plan.audits), len(sweep.cells), position="audits")
    if plan is None or sweep is None or checked.different:
        checked.note_unchecked(
            "claims, bits, scores, estimates and verdict", "they need these files"
        )
        return checked
    sources = _Sources(run, record.filled(sweep, plan, run), plan, checked)
    _check_plan(sources, sweep)
    _check_names(sources)
    before = checked.different  # below, only differences in these two files count
    with checked.reading(outcomes.FILE):
        outcomes.read(run, plan)
    with checked.reading(ESTIMATES):
        estimates = run.estimates(record.most_estimates(sweep, plan))
    if checked.different > before:
        checked.note_unchecked("estimates and verdict", "they need records that are damaged")
    else:
        _check_derived(sources, estimates)
    if commitment:
        checked.compare(PLAN, plan.commitment, commitment.lower(), position="commitment")
    if rerun and len(sources.intact) == len(plan.audits):
        _train_again(sources, rerun)
    return checked


def _train_again(sources: _Sources, share: float) -> None:
    """Trains some packs again, and compares their scores with the stored ones."""
    checked = sources.checked
    for result in repeated(sources.run, sources.sweep, sources.plan, share):
        checked.count("repeated packs")
        if result.difference:
            file = f"scores/{sources.plan.audits[result.pack.audit].id}"
            position = f"{result.pack.what}, trained again"
            checked.differs(file, position, result.difference, audit=result.audit)


# Plan, preparations and scores, from which all else follows --------------------------------------


def _check_plan(sources: _Sources, sweep: Sweep) -> None:
    """Checks the plan, the preparation and the scores of every audit.

    Args:
        sources: the run.
        sweep: the run's sweep, without what is filled in from the plan.
    """
    plan = sources.plan
    checked = sources.checked
    if any(cell.unimported for cell in sweep.cells):
        checked.note_unchecked(f"the fingerprint of {SWEEP}", "it needs code that was not imported")
    damaged = _damaged_preparations(sources)
    for index, audit in enumerate(plan.audits):
        before = checked.different
        _check_planned(index, sweep.cells[index], sources)
        _check_scores(sources, audit)
        if checked.different == before and index not in damaged:
            sources.intact.add(index)
    grave, harmless = provenance.changes(plan.code[-1], provenance.sweep_code(sweep))
    if grave or harmless:
        checked.notes.append(f"other code or machine here: {'; '.join((*grave, *harmless))}")
    try:
        digests = {file.sha256 for file in provenance.input_files(sweep)}
    except DpauditError as error:
        checked.note_unchecked("the data", first_line(error))
        return
    absent = [file.file for file in plan.data if file.sha256 not in digests]
    if absent:
        checked.note_unchecked(
            "the data", f"{', '.join(absent)} missing, or with different content"
        )
    checked.count("data files", len({file.sha256 for file in plan.data} & digests))


def _check_planned(index: int, cell: Cell, sources: _Sources) -> None:
    """Compares an audit's entry in the plan with the sweep, as far as no foreign code decides it.

    Args:
        index: number of the audit.
        cell: the audit's cell in the sweep, without what is filled in from the plan.
        sources: the run.
    """
    audit = sources.plan.audits[index]
    checked = sources.checked
    filled = sources.sweep.cells[index]
    sweep = sources.sweep
    checked.count("audits")
    checked.count("bits", audit.trials)
    # For a mechanism that was not imported, its number of trials tells whether it is sampled.
    unsampled = audit.trials == 0 and isinstance(cell.mechanism, Unread)
    sampled = cell.sampled and not unsampled
    derived = {
        "label": printable(cell.label),
        "trials": cell.audit.trials if sampled else 0,
        "up_to": cell.audit.up_to if sampled else None,
    }
    try:
        if cell.unimported:
            checked.note_unchecked(
                "its fingerprint", "it needs code that was not imported", audit.label
            )
        else:
            derived |= {
                "fingerprint": cell.fingerprint,
                "id": planner.identifier(index, cell),
                "horizons": cell.horizons,
                "canaries": cell.canaries if sampled else 1,
                "paired": cell.audit.paired,
                "preparation": preparing.planned(cell, sweep.seed, sources.plan.data),
            }
        if not cell.unimported or sweep.resources.pack_size != "auto":
            derived["packs"] = _packs(audit, cell, sweep)
        if isinstance(filled.mechanism, Recorded):
            reason = "needs code or data that is missing here; it is taken from plan.json"
            checked.note_unchecked("the input of accountants", reason, audit.label)
        else:
            reads = cell.foreign or cell.mechanism.claim_reads_data
            derived["claimed"] = claims.of_steps(cell) if reads else None
    except DpauditError as error:
        checked.note_unchecked("its entry in plan.json", first_line(error), audit.label)
    position = f"audits.{index}"
    for name, value in derived.items():
        checked.compare(PLAN, getattr(audit, name), value, audit.label, f"{position}.{name}")
    accountants = ", ".join(filled.audit.accountants)
    checked.compare(PLAN, ", ".join(audit.claims), accountants, audit.label, f"{position}.claims")
    stored = _by_step(audit.claims, audit.horizons)
    recomputed = _by_step(_claims(audit, filled, sources), filled.horizons)
    checked.compare(PLAN, stored, recomputed, audit.label)


def _by_step(
    claimed: claims.Claims,
    steps: tuple[int, ...],
) -> dict[str, float]:
    """Returns every ε by the text that a difference is listed under: its step and accountant.

    Args:
        claimed: ε at each recorded step, by accountant.
        steps: the recorded steps.
    """
    values = {}
    for accountant, epsilons in claimed.items():
        # If `_claims` cannot recompute, it returns the plan's ε: none, or ε for other steps.
        for step, epsilon in zip(steps, epsilons, strict=False):
            values[f"claim after step {step} by {accountant}"] = epsilon
    return values


def _claims(audit: PlannedAudit, cell: Cell, sources: _Sources) -> claims.Claims:
    """Recomputes ε by every accountant at every recorded step; if it cannot, returns the plan's.

    Args:
        audit: the audit's entry in the plan.
        cell: the audit in the sweep.
        sources: the run.
    """
    checked = sources.checked
    derived = {}
    other_version = sources.plan.code[-1].versions.get("dpaudit", __version__) != __version__
    for name in cell.audit.accountants:
        derived[name] = audit.claims.get(name, ())
        # After an error, the plan's ε stay; the message is the reason why nothing is compared.
        try:
            if stays_unimported(name):
                raise DpauditError("they need its author's code")
            values = claims.epsilons_by(claims.of_steps(cell), cell.audit.delta, name)
            checked.count("claims", len(values))
            if other_version and claims.difference(audit.claims, cell) is None:
                raise DpauditError("another version of dpaudit computed them")
            derived[name] = values
        except DpauditError as error:
            checked.note_unchecked(f"its claims by {name}", first_line(error), audit.label)
    return derived


def _packs(
    audit: PlannedAudit,
    cell: Cell,
    sweep: Sweep,
) -> tuple[Bounds, ...]:
    """Divides trials into packs, once for each number of trials that was declared.

    Args:
        audit: the audit's entry in the plan.
        cell: the audit in the sweep.
        sweep: sets the size of packs.
    """
    # If the number of trials was raised before the first trial, a short pack is the only trace.
    size = planner.pack_size(cell, sweep)
    short = [last + 1 for first, last in audit.packs[:-1] if last - first + 1 < size]
    raised = []
    if len(short) == len(audit.declared) == 1:
        raised = short
    packs: list[Bounds] = []
    for trials in sorted({*audit.declared, *raised}):
        start = packs[-1][1] + 1 if packs else 0
        packs += planner.pack_bounds(start, trials, size)
    return tuple(packs)


def _damaged_preparations(sources: _Sources) -> set[int]:
    """Reads all parts of preparations; returns the audits that wait for a damaged one."""
    run = sources.run
    plan = sources.plan
    checked = sources.checked
    damaged = set[int]()
    for part in preparing.all_parts(plan):
        if part.first in run.parts(part.preparation):
            before = checked.different
            with checked.reading(f"preparations/{part.preparation}/{part.first}.parquet"):
                run.read_part(part.preparation, part.first)
                checked.count("prepared parts")
            if checked.different > before:
                damaged.update(part.waiting)
    if "prepared parts" in checked.derived:
        checked.note_unchecked(
            "values in preparations", "they were trained; their files are intact"
        )
    return damaged


def _check_scores(sources: _Sources, audit: PlannedAudit) -> None:
    """Reads all score files of an audit; after a crash, packs may be in two of them."""
    run = sources.run
    checked = sources.checked
    files = run.score_files(audit.id)
    chosen = finished_trials.resolved(audit.packs, files)
    packs = {part.file: audit.packs[part.start : part.stop] for part in chosen}
    starts = {first for first, _ in audit.packs}
    ends = {last for _, last in audit.packs}
    for file in sorted(files):
        first, last = file
        name = run.score_file(audit.id, first, last)
        before = checked.different
        if first not in starts or last not in ends:
            checked.differs(name, "", "a file", "of a pack of its plan", audit.label)
            continue
        with checked.reading(name, audit.label):
            # A file that was not chosen must have the same scores as the chosen ones.
            _check_file(sources, audit, file, () if file in packs else chosen)
        if file in packs and checked.different == before:
            checked.count("packs", len(packs[file]))
            checked.count("trials", sum(end - start + 1 for start, end in packs[file]))


def _check_file(
    sources: _Sources, audit: PlannedAudit, file: Bounds, copies: Collection[PackRange]
) -> None:
    """Compares a score file with the plan, with its digest, and with other files.

    Args:
        sources: the run.
        audit: the audit of the scores.
        file: first and last trial.
        copies: files that may have the same trials.
    """
    run = sources.run
    steps = len(audit.horizons)
    name = run.score_file(audit.id, *file)
    differs = functools.partial(sources.checked.differs, name, audit=audit.label)
    scores = run.read_scores(audit.id, *file, steps)
    if scores.steps != audit.horizons:
        differs("steps", scores.steps, audit.horizons)
    bits = audit.bits(sources.plan.seed, *file)
    wrong = np.flatnonzero(scores.members != bits)
    if len(wrong):
        trial = f"trial {file[0] + int(wrong[0])}"
        differs(trial, f"the first of {len(wrong)} other bits", f"{bits[wrong[0]]}")
    digest = scores.digest(audit.id)
    if scores.stated != digest:
        stated = f"{scores.stated[:16] or 'none'}..., as written"
        differs("", f"scores of SHA-256 {digest[:16]}...", stated)
    for copy in copies:  # the trials that both files have
        low = max(audit.packs[copy.start][0], file[0])
        high = min(audit.packs[copy.stop - 1][1], file[1])
        if low <= high and copy.file is not None:
            same_trials = run.read_scores(audit.id, *copy.file, steps).part(low, high)
            difference = same_trials.difference(scores.part(low, high))
            if difference:
                differs("", f"trials {low}-{high} twice: this one {difference}")


def _check_names(sources: _Sources) -> None:
    """Adds a difference for each file that no run writes."""
    plan = sources.plan
    checked = sources.checked
    preparations = {audit.preparation.id for audit in plan.audits if audit.preparation}
    audits = {audit.id for audit in plan.audits}
    for name in sources.run.files(DEPTH):
        folder = name.partition("/")[0]
        if foreign(name, audits, preparations):
            checked.differs(name, "", "a file", "one that this run has written")
        elif folder in _BESIDE:
            checked.note_unchecked(*_BESIDE[folder])


# Estimates, records and the verdict, which follow from scores ------------------------------------


def _check_derived(sources: _Sources, stored: pd.DataFrame) -> None:
    """Recomputes what follows from the scores of `intact` audits, and compares it.

    Args:
        sources: the run.
        stored: the stored estimates.
    """
    run = sources.run
    plan = sources.plan
    checked = sources.checked
    planned = {audit.id for audit in plan.audits}
    for name in sorted(set(stored["audit"]) - planned):
        checked.differs(ESTIMATES, "", f"rows of {name!r:.60}", "of an audit of the plan")
    opened = OpenSweep(sources.sweep, plan, run)
    failed = outcomes.failed(run, plan)
    results = {}
    rows = []
    outdated = False  # whether stored estimates are of fewer trials than are stored
    for index in sorted(sources.intact):
        audit = plan.audits[index]
        cell = sources.sweep.cells[index]
        failures = {failure.pack.bounds for failure in failed if failure.pack.audit == index}
        try:
            unread = [spec.name for spec in cell.audit.estimators if spec.unimported]
            if unread:
                raise DpauditError(f"its author's code in {', '.join(unread)} was not imported")
            if not cell.sampled and cell.unimported:
                raise DpauditError("they need code or data that is missing here")
            state = AuditState(opened, index, failures)
            derived = state.estimates.rows()
        except DpauditError as error:
            checked.note_unchecked("its estimates", first_line(error), audit.label)
            continue
        results[index] = state.take_snapshot()
        del state  # frees all its scores; the verdict reads them again
        rows += derived
        own_rows = stored[stored["audit"] == audit.id]
        outdated |= _is_outdated(sources, index, failures, derived, own_rows)
    if not outdated:  # else the records are outdated, too
        _check_records(sources, results)
    checked.partial = _check_completeness(sources, results)
    if len(sources.intact) < len(plan.audits):
        checked.note_unchecked("the verdict", "it depends on files that differ")
    else:
        checked.verdict = _check_verdict(sources, rows, stored)


def _is_outdated(
    sources: _Sources,
    index: int,
    failures: set[Bounds],
    rows: list[EstimateRow],
    stored: pd.DataFrame,
) -> bool:
    """Compares the estimates of an audit; returns whether the stored ones are of fewer trials.

    Args:
        sources: the run.
        index: number of the audit.
        failures: packs that have failed.
        rows: the recomputed estimates.
        stored: the stored ones.
    """
    audit = sources.plan.audits[index]
    run = sources.run
    checked = sources.checked
    trials = max((row.trials for row in rows), default=0)
    stored_trials = int(stored["trials"].max()) if len(stored) else 0
    if stored_trials < trials and not run.complete:
        reason = (
            f"they are for {stored_trials:,} of {trials:,} stored trials; `dpaudit run` resumes"
        )
        checked.note_unchecked("its estimates", reason, audit.label)
        return True
    finished = finished_trials.stored_packs(run, audit) | failures
    absent = [pack for pack in audit.packs if pack[0] < stored_trials and pack not in finished]
    if stored_trials > trials and absent:
        for pack in absent:
            name = run.score_file(audit.id, *pack)
            expected = "the scores behind its estimates"
            checked.differs(name, "", "no such file", expected, audit.label)
    elif trials or len(stored):  # the file is written with the first pack
        _compare_estimates(sources, index, rows, stored)
    return False


def _compare_estimates(
    sources: _Sources, index: int, rows: list[EstimateRow], stored: pd.DataFrame
) -> None:
    """Compares recomputed estimates of an audit with the stored ones, of the same trials.

    Args:
        sources: the run.
        index: number of the audit.
        rows: the recomputed estimates.
        stored: the stored ones.
    """
    audit = sources.plan.audits[index]
    checked = sources.checked
    recomputed = {_key(vars(row)): dict(vars(row)) for row in rows}
    stored_by_key = {_key(row): row for row in stored.to_dict("records")}
    if len(stored_by_key) < len(stored):
        expected = f"{len(stored_by_key)}, each once"
        checked.differs(ESTIMATES, "", f"{len(stored)} rows", expected, audit.label)
    shared = stored_by_key.keys() & recomputed.keys()
    # Whether a bound is certified may depend on a curve that needs code or data of the author,
    # which is not used here: recomputed, the bound is conditional. A stored status that the curve
    # may give is accepted, and reported as not checked.
    if isinstance(sources.sweep.cells[index].mechanism, Recorded):
        for key in shared:
            status = Status(recomputed[key]["status"])
            given_the_curve = [Status.CERTIFIED]
            if status is Status.IF_INDEPENDENT:
                given_the_curve.append(Status.IF_GAUSSIAN)
            if status.conditional and stored_by_key[key]["status"] in given_the_curve:
                recomputed[key]["status"] = stored_by_key[key]["status"]
                reason = "the proof of the curve needs code or data that is missing here"
                checked.note_unchecked("whether its eps is certified", reason, audit.label)
    checked.count("estimates", len(shared))
    checked.compare(ESTIMATES, stored_by_key, recomputed, audit.label)


def _key(row: Mapping[Any, Any]) -> str:
    """Returns the position of an estimate in words: step, estimator and accountant."""
    return f"step {row['step']}, {row['estimator']}, {row['accountant']}"


def _check_records(sources: _Sources, results: Mapping[int, Snapshot]) -> None:
    """Compares the records of failed trials and of decisions, written with the estimates."""
    checked = sources.checked
    missed = outcomes.read(sources.run, sources.plan).missed
    decided = outcomes.decided(sources.run, sources.sweep, sources.plan)
    for index, result in results.items():
        audit = sources.plan.audits[index]
        kinds = [kind for kind in missed if kind.audit == audit.id]
        stored = _record(kinds, decided.get(index))
        checked.compare(outcomes.FILE, stored, _record(result.missed, result.decided), audit.label)
        checked.count("missed trials", sum(kind.trials for kind in result.missed))
        checked.count("decisions", result.decided is not None)


def _record(
    missed: Iterable[outcomes.MissedTrials],
    decided: int | None,
) -> dict[str, str]:
    """Returns a record of failed trials and of a decision, by its name."""
    record = {}
    for kind in missed:
        record[f"trials missed by {kind.kind}"] = f"{kind.trials} from trial {kind.first} on"
    if decided is not None:
        record["trials that were enough"] = str(decided)
    return record


def _check_completeness(sources: _Sources, results: Mapping[int, Snapshot]) -> str:
    """Returns the progress of a run, empty if it is complete; compares _SUCCESS with it."""
    run = sources.run
    plan = sources.plan
    enough = dict(outcomes.decided(run, sources.sweep, plan))
    for index, result in results.items():
        enough[index] = result.decided or plan.audits[index].trials
    packs = list(finished_trials.remaining(run, plan, enough))
    indices = {pack.audit for pack in packs}
    indices.update(*(part.waiting for part in preparing.missing_parts(run, plan, packs)))
    if not indices:
        return ""
    if run.complete:
        unfinished = and_more([plan.audits[index].label for index in sorted(indices)])
        sources.checked.differs("_SUCCESS", "", "complete", f"while {unfinished} is not")
    audits = range(len(plan.audits))
    done = sum(FinishedTrials(run, plan, index).stored_trials for index in audits)
    return f"{done:,} of {plan.trials:,} trials"


def _check_verdict(
    sources: _Sources,
    rows: list[EstimateRow],
    stored: pd.DataFrame,
) -> str:
    """Recomputes the verdict from recomputed estimates, and compares it with a stored one.

    Args:
        sources: the run, all of whose audits are `intact`.
        rows: the recomputed estimates.
        stored: the stored estimates, taken for audits that could not be recomputed.
    """
    table = frame(pa.Table.from_pylist([vars(row) for row in rows], ESTIMATE_SCHEMA))
    unchecked = stored[~stored["audit"].isin(table["audit"])]
    if len(unchecked):
        table = pd.concat([table, unchecked], ignore_index=True)
    run = Run(sources.run, sources.sweep, sources.plan, table)
    derived = verdict.compute_answer(run)
    checked = sources.checked
    with checked.reading(verdict.FILE):
        recorded = verdict.unsealed_answer(replace(run, estimates=stored))
        if recorded is not None:
            checked.compare(verdict.FILE, _comparable(recorded), _comparable(derived))
        elif sources.run.read_text(verdict.FILE) is not None:
            checked.note_unchecked(verdict.FILE, "it belongs to other trials or bounds")
    return derived.verdict.value


def _comparable(answer: verdict.Answer) -> dict[str, Any]:
    """Returns an answer without its hints, which depend on the code and data that are here."""
    content = asdict(answer)
    del content["help"]
    content["audits"] = dict(enumerate(content["audits"]))
    return content
