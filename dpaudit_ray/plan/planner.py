"""Makes the plan of a sweep: the claims of its audits, and the bounds of their packs."""

from collections.abc import Iterator
from dataclasses import replace

from ..errors import SpecError
from ..sweep.cell import Cell
from ..sweep.spec import Sweep
from . import claims, preparing, provenance
from .model import Plan, PlannedAudit

MAX_PACKS = 1_000_000  # per audit: one file each


def make(
    sweep: Sweep,
    previous: Plan | None = None,
    extends: bool = True,
) -> Plan:
    """Plans a sweep.

    Args:
        sweep: the sweep.
        previous: an earlier plan of the sweep, whose pack bounds stay; new trials follow them.
        extends: whether results of `previous` may be known: then more trials are a new declaration.

    Raises:
        SpecError: the trials do not fit into packs, or an accountant has no answer.
    """
    files = provenance.input_files(sweep)
    audits = []
    for index, cell in enumerate(sweep.cells):
        old = previous.audits[index] if previous else None
        audit = _plan_audit(index, cell, sweep, old, extends)
        preparation = preparing.planned(cell, sweep.seed, files)
        audits.append(replace(audit, preparation=preparation))
    code = provenance.sweep_code(sweep)
    return Plan(sweep.seed, sweep.fingerprint, tuple(audits), files, (code,))


def _plan_audit(
    index: int,
    cell: Cell,
    sweep: Sweep,
    old: PlannedAudit | None,
    extends: bool,
) -> PlannedAudit:
    """Plans one audit, without its preparation.

    Args:
        index: index of the audit in the sweep.
        cell: the audit as the sweep has it.
        sweep: the sweep.
        old: the audit in an earlier plan, if any.
        extends: whether trials are added to those of the earlier plan.
    """
    size = pack_size(cell, sweep)
    trials = cell.audit.trials if cell.sampled else 0
    packs = old.packs if old else ()
    declared = old.declared if old else ()
    # If no result is known yet, the new number replaces the last one that was declared.
    if trials not in declared[-1:]:
        declared = (*(declared if extends else declared[:-1]), trials)
    start = packs[-1][1] + 1 if packs else 0
    if (trials - start) // size > MAX_PACKS:
        raise SpecError(
            "resources.pack_size",
            f"is {size}, which cuts {trials} trials into more than {MAX_PACKS} packs; raise it",
        )
    up_to = cell.audit.up_to
    if old is None and up_to is not None and up_to < cell.audit.trials:
        raise SpecError(
            "audit.up_to",
            f"is {up_to}, fewer than the {cell.audit.trials} of audit.trials that it is to grow "
            "from; raise it, or leave it out",
        )
    claim_is_recorded = cell.foreign or cell.mechanism.claim_reads_data
    return PlannedAudit(
        id=identifier(index, cell),
        label=cell.label,
        fingerprint=cell.fingerprint,
        trials=trials,
        horizons=cell.horizons,
        claims=old.claims if old else claims.claimed_epsilons(cell),
        packs=(*packs, *pack_bounds(start, trials, size)),
        declared=declared,
        claimed=claims.of_steps(cell) if claim_is_recorded else None,
        canaries=cell.canaries if cell.sampled else 1,
        up_to=up_to if cell.sampled else None,
        paired=cell.audit.paired,
    )


def identifier(index: int, cell: Cell) -> str:
    """Returns the name of the folder of audit number `index`."""
    name = "".join(c if c.isalnum() else "-" for c in cell.adversary.name)
    return f"{index:03d}-{name}-{cell.fingerprint[:8]}"


def pack_bounds(
    start: int,
    trials: int,
    size: int,
) -> Iterator[tuple[int, int]]:
    """Yields the first and the last trial of each pack.

    Args:
        start: the first trial of the first pack.
        trials: the number after that of the last trial.
        size: trials of a pack; the last pack may have fewer.
    """
    for first in range(start, trials, size):
        yield first, min(first + size, trials) - 1


def pack_size(cell: Cell, sweep: Sweep) -> int:
    """Returns how many trials a pack has: a multiple of the trials of a training run or pair.

    Raises:
        SpecError: the declared number is not such a multiple.
    """
    size = sweep.resources.pack_size
    unit = cell.together  # trials of one training run, or of one pair of runs
    if size == "auto":
        # Further canaries that are private records cost no further training step.
        step_trials = 1 if cell.adversary.private_records else unit
        return max(cell.mechanism.auto_pack_size // step_trials, 1) * unit
    if size % unit and cell.sampled:
        raise SpecError(
            "resources.pack_size",
            f"is {size}, but {cell.unit}, and a pack holds whole ones; "
            f"use {-(-size // unit) * unit}",  # rounded up
        )
    return size
