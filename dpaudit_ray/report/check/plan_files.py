"""sweep.yaml and plan.json held against each other: what was asked, and what was planned of it.

The sweep says what follows; where its plan says otherwise, the rest is checked by what follows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import DpauditError, RunDirectoryError, SpecError, first_line
from ...imports import is_data
from ...mechanisms.base import Recorded
from ...plan import claims, inputs, plan_consistency, planner, preparing, provenance, record
from ...plan.model import Plan, PlannedAudit
from ...plugins import Unread
from ...printable import printable
from ...storage.run_directory import RunDirectory
from ...sweep import spec, yamlfile
from ...sweep.cell import Cell
from ...sweep.spec import Sweep
from ...version import __version__
from .findings import Findings

PLAN, SWEEP = record.FILE, record.SWEEP_FILE
# What a claim of another version of dpaudit may differ by, as where a run is read.
_AGAIN, _NUMERIC = 1e-3, 0.02


@dataclasses.dataclass(frozen=True)
class Opened:
    """Sweep and plan, as they should be; `whole`: they belong together."""

    run: RunDirectory
    sweep: Sweep
    plan: Plan
    whole: bool


def opened(run: RunDirectory, findings: Findings) -> Opened | None:
    """Reads both files and derives the plan again; None where that cannot be.

    Raises:
        RunDirectoryError: there is no run, it cannot be read, or another version computed it.
    """
    if run.read_text(PLAN) is None and run.read_text(SWEEP) is None:
        record.require(run)
    plan = None
    with findings.reading(PLAN):
        plan = record.load(run)
        if plan is None:
            findings.differs(PLAN, "", "no such file", "a plan")
    sweep, whole = _stored_sweep(run, findings)
    if plan is None or sweep is None:
        findings.cannot("claims, bits, scores, estimates and verdict", "they rest on these files")
        return None
    stored = {"fingerprint": plan.fingerprint, "seed": plan.seed, "audits": len(plan.audits)}
    derived = {"fingerprint": sweep.fingerprint, "seed": sweep.seed, "audits": len(sweep.cells)}
    whole &= findings.compare(PLAN, stored, derived) == 0
    if any(cell.unread for cell in sweep.cells):
        findings.cannot(f"the fingerprint of {SWEEP}", "takes code of its author's to tell")
    if len(sweep.cells) != len(plan.audits):
        findings.cannot("scores, estimates and verdict", "it is not known of which audits they are")
        return None
    filled = sweep
    if whole:
        filled = plan_consistency.filled(sweep, plan, run)
        planning = _Planning(sweep, filled, plan, findings)
        plan = dataclasses.replace(plan, audits=tuple(map(planning.audit, range(len(plan.audits)))))
    else:
        for cell, audit in zip(sweep.cells, plan.audits, strict=True):
            if not cell.unread and cell.fingerprint != audit.fingerprint:
                findings.differs(SWEEP, "fingerprint of mechanism and adversary", cell.fingerprint,
                                 audit.fingerprint, audit.label)  # fmt: skip
    _tell_provenance(sweep, plan, findings)
    return Opened(run, filled, plan, whole)


def _stored_sweep(run: RunDirectory, findings: Findings) -> tuple[Sweep | None, bool]:
    """The sweep, and whether it has the fingerprint that it states."""
    text = run.read_text(SWEEP)
    if text is None:
        findings.differs(SWEEP, "", "no such file", "a sweep")
        return None, False
    try:
        return record.recorded(run), True
    except RunDirectoryError as error:
        if isinstance(error.__cause__, spec.RevisionError):
            raise
    try:
        raw = yamlfile.parse_yaml(text, SWEEP)
        stated = raw.pop("fingerprint", None)
        sweep = spec.from_raw(raw)
    except SpecError as error:
        findings.differs(SWEEP, error.key, error.problem, "")
        return None, False
    findings.differs(SWEEP, "fingerprint", str(stated), sweep.fingerprint)
    return sweep, False


class _Planning:
    """Plans audits anew; `filled` is `sweep` with what the plan recorded where that is needed."""

    def __init__(self, sweep: Sweep, filled: Sweep, plan: Plan, findings: Findings) -> None:
        self._sweep, self._filled, self._plan, self._findings = sweep, filled, plan, findings
        versions = plan.code[-1].versions if plan.code else {}
        self._same_version = versions.get("dpaudit", __version__) == __version__

    def audit(self, index: int) -> PlannedAudit:
        """The audit as the sweep has it, as far as that can be told."""
        audit, cell, findings = self._plan.audits[index], self._sweep.cells[index], self._findings
        claims_again, derived = self._claims(index), dict[str, Any]()
        for name, derive in self._fields(index).items():
            try:
                derived[name] = derive()
            except DpauditError as error:
                findings.cannot(f"its {name}", first_line(error), audit.label)
        place = f"audits.{index}."
        findings.compare(
            PLAN,
            {place + name: getattr(audit, name) for name in derived},
            {place + name: value for name, value in derived.items()},
            audit.label,
        )
        if isinstance(self._filled.cells[index].mechanism, Recorded):
            findings.cannot(
                "what accountants are asked",
                "takes code or data that is not here; it is as plan.json has it",
                audit.label,
            )
        if cell.unread:
            findings.cannot("its fingerprint", "takes code of its author's", audit.label)
        findings.derived["audits"] += 1
        findings.derived["bits"] += audit.trials
        return dataclasses.replace(audit, **derived, claims=claims_again)

    def _fields(self, index: int) -> dict[str, Callable[[], Any]]:
        """How to derive what follows from the sweep alone, by the names of `PlannedAudit`."""
        audit, cell, sweep = self._plan.audits[index], self._sweep.cells[index], self._sweep
        sampled, files = cell.mechanism.sampled, self._plan.data
        untold = not audit.trials and isinstance(cell.mechanism, Unread)  # whether it is sampled
        fields: dict[str, Callable[[], Any]] = {
            "label": lambda: printable(cell.label),
            "trials": lambda: cell.audit.trials if sampled and not untold else 0,
            "mixed": lambda: audit.mixed and len(self._plan.code or ()) > 1,
        }
        if not cell.unread:
            fields |= {
                "fingerprint": lambda: cell.fingerprint,
                "id": lambda: planner.identifier(index, cell),
                "horizons": lambda: cell.horizons,
                "canaries": lambda: cell.canaries if sampled else 1,
            }
            if files is not None:
                fields["preparation"] = lambda: preparing.planned(cell, sweep.seed, files)
        if not cell.unread or sweep.resources.pack_size != "auto":
            fields["packs"] = lambda: self._packs(audit, cell)
        if not isinstance(self._filled.cells[index].mechanism, Recorded):
            reads = cell.foreign or cell.mechanism.claim_reads_data
            if audit.claimed is not None or not reads:  # versions before did not record it
                fields["claimed"] = lambda: claims.asked(cell) if reads else None
        return fields

    def _packs(self, audit: PlannedAudit, cell: Cell) -> tuple[tuple[int, int], ...]:
        """Cuts trials anew for every number of them that was declared, as it was.

        A number that was raised before a trial was seen has left a short pack and no other trace.
        """
        size = planner.pack_size(cell, self._sweep)
        before = planner.earlier_pack_size(cell, self._sweep)
        lengths = {first: last - first + 1 for first, last in audit.packs}
        packs: list[tuple[int, int]] = []
        for trials in audit.declared:
            start = packs[-1][1] + 1 if packs else 0
            packs += planner.cut(start, trials, before if lengths.get(start, 0) > size else size)
        if tuple(packs) == audit.packs:
            return audit.packs
        short = [last for first, last in audit.packs[:-1] if last - first + 1 < size]
        again: list[tuple[int, int]] = []
        for last in sorted({*short, audit.trials - 1}):
            again += planner.cut(again[-1][1] + 1 if again else 0, last + 1, size)
        if tuple(again) == audit.packs and len(short) <= len(audit.declared):
            ends = f"has a short pack that ends at trial {short[0]}"
            self._findings.told.append(f"{audit.label}: {ends}")
            return audit.packs
        return tuple(packs)

    def _claims(self, index: int) -> dict[str, tuple[float, ...]]:
        """ε of every accountant at every recorded step; as stored where it is the same."""
        audit, cell, findings = self._plan.audits[index], self._filled.cells[index], self._findings
        names = cell.audit.accountants
        findings.compare(PLAN, {f"audits.{index}.claims": ", ".join(audit.claims)},
                         {f"audits.{index}.claims": ", ".join(names)}, audit.label)  # fmt: skip
        derived: dict[str, tuple[float, ...]] = {}
        for name in names:
            derived[name] = audit.claims.get(name, (math.nan,) * len(audit.horizons))
            if ":" in name and is_data(name):
                findings.cannot(f"claims by {name}", "they take code of its author's to tell")
                continue
            try:
                values = claims.by(claims.asked(cell), cell.audit.delta, name)
            except DpauditError as error:
                findings.cannot(f"its claims by {name}", first_line(error), audit.label)
                continue
            findings.derived["claims"] += len(values)
            derived[name] = self._compared(audit, name, values)
        return derived

    def _compared(
        self, audit: PlannedAudit, accountant: str, values: tuple[float, ...]
    ) -> tuple[float, ...]:
        stored = audit.claims.get(accountant, values)
        if len(stored) != len(values):
            return values  # of other steps, which is said of those
        if not self._same_version:
            close = np.abs(np.subtract(stored, values)) <= _AGAIN * np.abs(values) + _NUMERIC
            if stored != values and close.any():
                why = "another version of dpaudit computed them"
                self._findings.cannot("claims to the last digit", why)
            values = tuple(np.where(close, stored, values).tolist())
        places = [f"claim after step {step} by {accountant}" for step in audit.horizons]
        there, derived = (dict(zip(places, claims, strict=True)) for claims in (stored, values))
        return values if self._findings.compare(PLAN, there, derived, audit.label) else stored


def _tell_provenance(sweep: Sweep, plan: Plan, findings: Findings) -> None:
    """Tells what ran, beside what is here; that is no difference."""
    if plan.code is None:
        findings.told.append("it was not recorded by which code it was run")
    else:
        grave, harmless = provenance.changes(plan.code[-1], provenance.sweep_code(sweep))
        if grave or harmless:
            findings.told.append(f"other code or machine here: {'; '.join((*grave, *harmless))}")
    if plan.data is None:
        return
    try:
        here = {file.sha256 for file in inputs.input_files(sweep)}
    except DpauditError as error:
        findings.cannot("the data", first_line(error))
        return
    if names := [file.file for file in plan.data if file.sha256 not in here]:
        findings.cannot("the data", f"{', '.join(names)} not here, or with another content")
    findings.derived["data files"] += len({file.sha256 for file in plan.data} & here)
