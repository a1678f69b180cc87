"""sweep.yaml and plan.json held against each other: what was asked, and what was promised of it.

The sweep says what follows; where its plan says otherwise, the rest is checked by what follows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from ...errors import DpauditError, RunDirectoryError, SpecError, first_line
from ...imports import is_data
from ...mechanisms.base import Recorded
from ...plan import claims, commitments, draft, inputs, preparing, provenance, record
from ...plan.model import Plan, PlannedAudit
from ...plugins import Unread
from ...printable import printable
from ...storage.run_directory import RunDirectory
from ...sweep import fingerprint, spec, yamlfile
from ...sweep.cell import Cell
from ...sweep.spec import Sweep
from ...version import __version__
from .findings import Findings

PLAN, SWEEP = record.FILE, record.SWEEP_FILE
# What a claim of another version of dpaudit may differ by, as where a run is read.
_AGAIN, _NUMERIC = 1e-3, 0.02


@dataclasses.dataclass(frozen=True)
class Opened:
    """Sweep and plan, as they should be; `whole`: they belong together.

    `asked` is the sweep alone, without what the plan recorded for it.
    """

    run: RunDirectory
    asked: Sweep
    sweep: Sweep
    plan: Plan
    whole: bool


def opened(run: RunDirectory, found: Findings) -> Opened | None:
    """What a run was to be; None where that cannot be read.

    Raises:
        RunDirectoryError: there is no run, it cannot be read, or another version computed it.
    """
    if run.read_text(PLAN) is None and run.read_text(SWEEP) is None:
        record.require(run)
    plan = _plan(run, found)
    sweep, whole = _sweep(run, found)
    if plan is None or sweep is None:
        found.cannot("claims, bits, scores, estimates and verdict", "they rest on these files")
        return None
    whole &= _head(sweep, plan, found)
    if len(sweep.cells) != len(plan.audits):
        found.cannot("scores, estimates and verdict", "it is not known of which audits they are")
        return None
    if not whole:
        for cell, audit in zip(sweep.cells, plan.audits, strict=True):
            _same_audit(cell, audit, found)
        return Opened(run, sweep, sweep, plan, whole)
    filled = commitments.filled(sweep, plan, run)
    planned = _Planned(sweep, filled, plan, found)
    audits = tuple(map(planned.audit, range(len(plan.audits))))
    return Opened(run, sweep, filled, dataclasses.replace(plan, audits=audits), whole)


def _plan(run: RunDirectory, found: Findings) -> Plan | None:
    try:
        plan = record.load(run)
    except RunDirectoryError as error:
        found.differs(PLAN, "", _why(error), "")
        return None
    if plan is None:
        found.differs(PLAN, "", "no such file", "a plan")
    return plan


def _sweep(run: RunDirectory, found: Findings) -> tuple[Sweep | None, bool]:
    """And whether it has the fingerprint that it states."""
    text = run.read_text(SWEEP)
    if text is None:
        found.differs(SWEEP, "", "no such file", "a sweep")
        return None, False
    try:
        sweep = record.recorded(run)
    except RunDirectoryError as error:
        if isinstance(error.__cause__, fingerprint.RevisionError):
            raise
    else:
        return sweep, True
    try:
        raw = yamlfile.parse_yaml(text, SWEEP)
        stated = raw.pop("fingerprint", None)
        sweep = spec.from_raw(raw)
    except SpecError as error:
        found.differs(SWEEP, error.key, error.problem, "")
        return None, False
    found.differs(SWEEP, "fingerprint", str(stated), sweep.fingerprint)
    return sweep, False


def _why(error: RunDirectoryError) -> str:
    """What is wrong with a file, without its name; raises the error where it was not read."""
    if isinstance(error.__cause__, OSError):
        raise error
    return first_line(error.__cause__ or error)


def _head(sweep: Sweep, plan: Plan, found: Findings) -> bool:
    before = found.different
    for name in ("fingerprint", "seed"):
        if getattr(plan, name) != getattr(sweep, name):
            found.differs(PLAN, name, getattr(plan, name), getattr(sweep, name))
    if len(sweep.cells) != len(plan.audits):
        found.differs(PLAN, "audits", len(plan.audits), len(sweep.cells))
    if any(cell.unread for cell in sweep.cells):
        found.cannot(f"the fingerprint of {SWEEP}", "takes code of its author's to tell")
    return found.different == before


def _same_audit(cell: Cell, audit: PlannedAudit, found: Findings) -> None:
    if not cell.unread and cell.fingerprint != audit.fingerprint:
        found.differs(
            SWEEP, "fingerprint of mechanism and adversary", cell.fingerprint, audit.fingerprint,
            audit.label,
        )  # fmt: skip


class _Planned:
    """Plans audits anew; `filled` is `sweep` with what the plan recorded where that is needed."""

    def __init__(self, sweep: Sweep, filled: Sweep, plan: Plan, found: Findings) -> None:
        self._sweep, self._filled, self._plan, self._found = sweep, filled, plan, found
        versions = plan.code[-1].versions if plan.code else {}
        self._ours = versions.get("dpaudit", __version__) == __version__

    def audit(self, index: int) -> PlannedAudit:
        """The audit as the sweep has it, as far as that can be told."""
        audit, cell = self._plan.audits[index], self._sweep.cells[index]
        derived = self._fields(index) | {"claims": self._claims(index)}
        for name, value in derived.items():
            stored = getattr(audit, name)
            if name != "claims" and stored != value:
                self._found.differs(PLAN, f"audits.{index}.{name}", *_apart(stored, value),
                                    audit=audit.label)  # fmt: skip
        if audit.mixed and len(self._plan.code or ()) < 2:
            self._found.differs(PLAN, f"audits.{index}.mixed", "true", "false", audit.label)
        if isinstance(self._filled.cells[index].mechanism, Recorded):
            self._found.cannot(
                "what accountants are asked",
                "takes code or data that is not here; it is as plan.json has it",
                audit.label,
            )
        self._found.derived["audits"] += 1
        self._found.derived["bits"] += audit.trials
        if cell.unread:
            self._found.cannot("its fingerprint", "takes code of its author's", audit.label)
        return dataclasses.replace(audit, **derived)

    def _fields(self, index: int) -> dict[str, Any]:
        """What follows from the sweep alone, by the names of `PlannedAudit`."""
        audit, cell = self._plan.audits[index], self._sweep.cells[index]
        trials = cell.audit.trials if audit.trials or not isinstance(cell.mechanism, Unread) else 0
        sampled = cell.mechanism.sampled
        found: dict[str, Any] = {"label": printable(cell.label)}
        found["trials"] = trials if sampled else 0
        if not cell.unread:
            found["fingerprint"] = cell.fingerprint
            found["id"] = draft.identifier(index, cell)
            found["horizons"] = cell.horizons
            found["canaries"] = cell.canaries if sampled else 1
            if self._plan.data is not None:
                found |= self._told("preparation", index, lambda: preparing.planned(
                    cell, self._sweep.seed, self._plan.data or ()))  # fmt: skip
        if not cell.unread or self._sweep.resources.pack_size != "auto":
            found |= self._told("packs", index, lambda: self._packs(audit, cell))
        if not isinstance(self._filled.cells[index].mechanism, Recorded):
            reads = cell.foreign or cell.mechanism.claim_reads_data
            if audit.claimed is not None or not reads:  # versions before did not record it
                found["claimed"] = claims.asked(cell) if reads else None
        return found

    def _told(self, name: str, index: int, tell: Callable[[], Any]) -> dict[str, Any]:
        """By its name, or nothing where it takes what is not here."""
        try:
            return {name: tell()}
        except DpauditError as error:
            label = self._plan.audits[index].label
            self._found.cannot(f"its {name}", first_line(error), label)
            return {}

    def _packs(self, audit: PlannedAudit, cell: Cell) -> tuple[tuple[int, int], ...]:
        """Cut anew for every number of trials that was declared, as it was.

        A number that was raised before a trial was seen has left a short pack and no other trace.
        """
        size, before = (
            draft.pack_size(cell, self._sweep),
            draft.earlier_pack_size(cell, self._sweep),
        )
        lengths = {first: last - first + 1 for first, last in audit.packs}
        packs: list[tuple[int, int]] = []
        for trials in audit.declared:
            start = packs[-1][1] + 1 if packs else 0
            taken = before if lengths.get(start, 0) > size else size
            packs += draft.cut(start, trials, taken)
        if tuple(packs) == audit.packs:
            return audit.packs
        short = [last for first, last in audit.packs[:-1] if last - first + 1 < size]
        again: list[tuple[int, int]] = []
        for trials in sorted({*short, audit.trials - 1}):
            again += draft.cut(again[-1][1] + 1 if again else 0, trials + 1, size)
        if tuple(again) == audit.packs and len(short) <= len(audit.declared):
            self._found.told.append(
                f"{audit.label}: has a short pack that ends at trial {short[0]}"
            )
            return audit.packs
        return tuple(packs)

    def _claims(self, index: int) -> dict[str, tuple[float, ...]]:
        """ε of every accountant at every recorded step; what differs is told here."""
        audit, cell = self._plan.audits[index], self._filled.cells[index]
        if [*audit.claims] != cell.audit.accountants:
            self._found.differs(PLAN, f"audits.{index}.claims", ", ".join(audit.claims),
                                ", ".join(cell.audit.accountants), audit.label)  # fmt: skip
        derived: dict[str, tuple[float, ...]] = {}
        for name in cell.audit.accountants:
            stored = audit.claims.get(name)
            if ":" in name and is_data(name):
                self._found.cannot(f"claims by {name}", "they take code of its author's to tell")
                if stored is not None:
                    derived[name] = stored
                continue
            told = self._told(f"claims by {name}", index, functools.partial(_claimed, cell, name))
            if not told:
                derived[name] = stored or (math.nan,) * len(audit.horizons)
                continue
            (values,) = told.values()
            self._found.derived["claims"] += len(values)
            derived[name] = self._compared(index, name, values)
        return derived

    def _compared(self, index: int, name: str, values: tuple[float, ...]) -> tuple[float, ...]:
        """Those that were stored where they are the same, up to rounding."""
        audit, same = self._plan.audits[index], True
        stored = audit.claims.get(name, values)
        for step, there, value in zip(audit.horizons, stored, values, strict=False):
            if not self._same_claim(there, value):
                same = False
                self._found.differs(PLAN, f"claim after step {step} by {name}", there, value,
                                    audit.label)  # fmt: skip
        return stored if same and len(stored) == len(values) else values

    def _same_claim(self, stored: float, derived: float) -> bool:
        if self._found.same(stored, derived):
            return True
        if self._ours or abs(stored - derived) > _AGAIN * abs(derived) + _NUMERIC:
            return False
        self._found.cannot("claims to the last digit", "another version of dpaudit computed them")
        return True


def _claimed(cell: Cell, accountant: str) -> tuple[float, ...]:
    return claims.by(claims.asked(cell), cell.audit.delta, accountant)


def _apart(stored: Any, derived: Any) -> tuple[str, str]:
    """Two values, and of long ones where they part."""
    if not (isinstance(stored, tuple) and isinstance(derived, tuple)):
        return repr(stored), repr(derived)
    at = next((i for i, (a, b) in enumerate(zip(stored, derived, strict=False)) if a != b),
              min(len(stored), len(derived)))  # fmt: skip
    one, other = (f"{each[at]!r}" if at < len(each) else "none" for each in (stored, derived))
    return f"number {at} is {one}", one if other == one else other


def tell_provenance(opened: Opened, found: Findings) -> None:
    """What ran, beside what is here: told, and no difference."""
    plan = opened.plan
    if plan.code is None:
        found.told.append("it was not recorded by which code it was run")
    else:
        grave, told = provenance.changes(plan.code[-1], provenance.of(opened.asked))
        if grave or told:
            found.told.append(f"other code or machine here: {'; '.join((*grave, *told))}")
    if plan.data is None:
        return
    try:
        here = inputs.of(opened.asked)
    except DpauditError as error:
        found.cannot("the data", first_line(error))
        return
    lacking = {file.sha256 for file in plan.data} - {file.sha256 for file in here}
    names = [file.file for file in plan.data if file.sha256 in lacking]
    if names:
        found.cannot("the data", f"{', '.join(names)} not here, or with another content")
    found.derived["data files"] += len({file.sha256 for file in plan.data}) - len(lacking)
