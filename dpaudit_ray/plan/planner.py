"""From a sweep to the plan of its audits: claims, and the bounds of packs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from ..errors import SpecError
from ..sweep.cell import Cell
from ..sweep.spec import Sweep
from . import claims, preparing, provenance
from .model import Plan, PlannedAudit

MAX_PACKS = 1_000_000  # per audit: one file each


def make(sweep: Sweep, previous: Plan | None = None, extends: bool = True) -> Plan:
    """Plans a sweep; pack bounds of `previous` stay as they are and new trials follow them.

    `extends`: trials of `previous` were seen, so that more of them are a declaration of their own.
    """
    before = previous.audits if previous else (None,) * len(sweep.cells)
    files = provenance.input_files(sweep)
    audits = tuple(
        dataclasses.replace(
            _plan_audit(i, cell, sweep, old, extends),
            preparation=preparing.planned(cell, sweep.seed, files),
        )
        for i, (cell, old) in enumerate(zip(sweep.cells, before, strict=True))
    )
    return Plan(sweep.seed, sweep.fingerprint, audits, files, (provenance.sweep_code(sweep),))


def _plan_audit(
    index: int, cell: Cell, sweep: Sweep, old: PlannedAudit | None, extends: bool
) -> PlannedAudit:
    size = pack_size(cell, sweep)
    kept, declared = (old.packs, old.declared) if old else ((), ())
    earlier = declared if extends else declared[:-1]
    start = kept[-1][1] + 1 if kept else 0
    trials = cell.audit.trials if cell.mechanism.sampled else 0
    if (trials - start) // size > MAX_PACKS:
        problem = f"is {size}, which cuts {trials} trials into more than {MAX_PACKS} packs"
        raise SpecError("resources.pack_size", f"{problem}; raise it")
    if old is None and cell.audit.up_to is not None and cell.audit.up_to < cell.audit.trials:
        raise SpecError(
            "audit.up_to",
            f"is {cell.audit.up_to}, fewer than the {cell.audit.trials} of audit.trials that it is "
            "to grow from; raise it, or leave it out",
        )
    return PlannedAudit(
        id=identifier(index, cell),
        label=cell.label,
        fingerprint=cell.fingerprint,
        trials=trials,
        horizons=cell.horizons,
        claims=old.claims if old else claims.claimed_epsilons(cell),
        packs=(*kept, *cut(start, trials, size)),
        declared=declared if trials in declared[-1:] else (*earlier, trials),
        claimed=claims.asked(cell) if cell.foreign or cell.mechanism.claim_reads_data else None,
        canaries=cell.canaries if cell.mechanism.sampled else 1,
        up_to=cell.audit.up_to if cell.mechanism.sampled else None,
        paired=cell.audit.paired,
    )


def identifier(index: int, cell: Cell) -> str:
    """What names the folder of audit number `index`."""
    name = "".join(c if c.isalnum() else "-" for c in cell.adversary.name)
    return f"{index:03d}-{name}-{cell.fingerprint[:8]}"


def cut(start: int, trials: int, size: int) -> Iterator[tuple[int, int]]:
    """The bounds of packs of `size` from trial `start` on; the last one may be shorter."""
    return ((first, min(first + size, trials) - 1) for first in range(start, trials, size))


def pack_size(cell: Cell, sweep: Sweep) -> int:
    """Trials of a pack: whole trainings. Raises SpecError where they do not fit into one."""
    size, together = sweep.resources.pack_size, cell.together
    if size == "auto":
        step_trials = 1 if cell.adversary.private_records else together  # these cost no step
        return max(cell.mechanism.auto_pack_size // step_trials, 1) * together
    if size % together and cell.mechanism.sampled:
        problem = f"is {size}, but {cell.unit}, and a pack holds whole ones"
        remedy = f"use {-(-size // together) * together}"
        raise SpecError("resources.pack_size", f"{problem}; {remedy}")
    return size
