"""Trains stored packs again: invented scores follow from no training, even if all files agree."""

import math
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from ..orchestration.trainer import Brief, PackTrainer
from ..plan import outcomes, preparing
from ..plan.finished_trials import FinishedTrials, PackRange, stored_ranges
from ..plan.model import Pack, Plan
from ..plan.outcomes import Failure
from ..storage.arrays import Arrays
from ..storage.run_directory import RunDirectory
from ..storage.scores import PackScores
from ..sweep.spec import Sweep


@dataclass(frozen=True)
class RepeatedPack:
    """A pack that was trained again.

    Attributes:
        audit: audit of the pack.
        pack: trials of the pack.
        difference: the first difference of the new scores from the stored ones; "" without one.
    """

    audit: str
    pack: Pack
    difference: str = ""


def repeated(
    run: RunDirectory,
    sweep: Sweep,
    plan: Plan,
    share: float,
) -> Iterator[RepeatedPack]:
    """Trains a share of all stored and failed packs again, in this process; writes nothing.

    The operating system draws the packs, so that the author of a run cannot foresee which.

    Args:
        run: the run directory.
        sweep: sweep of the run.
        plan: plan of the sweep.
        share: between 0 and 1; at least one pack is trained.
    """
    packs = []  # number of the audit, and a range of one pack
    for index, audit in enumerate(plan.audits):
        for stored in stored_ranges(run, audit):
            for number in range(stored.start, stored.stop):
                packs.append((index, PackRange(stored.file, number, number + 1)))
    for failure in outcomes.failed(run, plan):
        index = failure.pack.audit
        number = plan.audits[index].pack_number(failure.pack.first)
        packs.append((index, PackRange(None, number, number + 1)))

    def prepared(method: str, audit: int) -> tuple[Arrays, ...]:
        """Answers the trainer, which asks its aggregator only for prepared parts."""
        parts = preparing.all_parts(plan, [audit])
        return tuple(run.read_part(part.preparation, part.first) for part in parts)

    trainer = PackTrainer(sweep.raw, Brief.from_plan(plan, sweep), prepared)
    count = math.ceil(share * len(packs))
    numbers = secrets.SystemRandom().sample(range(len(packs)), count)
    for position in sorted(numbers):
        # A pack that failed must fail again; a stored one must give the same scores.
        index, single = packs[position]
        audit = plan.audits[index]
        pack = Pack(index, *audit.packs[single.start])
        scores = FinishedTrials(run, plan, index).read(single)
        trained = trainer.attempt(pack, afresh=True)
        difference = None
        if isinstance(trained, Failure):
            if isinstance(scores, PackScores):
                difference = f"cannot be trained again ({trained.message})"
        elif isinstance(scores, PackScores):
            difference = scores.difference(trained)
        else:
            difference = "gives scores, but is recorded as failed"
        yield RepeatedPack(audit.label, pack, difference or "")
