"""Time that a sweep takes and bounds that it can show, before it is run."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable

from .. import plan as planning
from .. import stats
from ..api import check_inputs
from ..orchestration.trainer import Brief, PackTrainer
from ..plan import compaction, outcomes, preparing
from ..plan.model import Pack, PlannedAudit
from ..storage.run_directory import RunDirectory
from ..sweep.cell import Cell
from ..sweep.spec import Sweep
from .timing import Calibration, PreparationOutlook, Rehearsal, seconds_per_trial

CLAIM_SHARE = 0.9  # of the claim that `AuditOutlook.power` asks for
USUAL_POWER = 0.8  # with which `AuditOutlook.trials_needed` reaches it


@dataclasses.dataclass(frozen=True)
class AuditOutlook:
    """One audit: `power` is the chance of a bound of 90 % of the claim if the claim is tight.

    `status` is what that ε would be, and `largest_certifiable`: converted from the μ of `accuracy`,
    both are certified where the mechanism's trade-off curve is known to be Gaussian.
    `trials_needed` would do so with a chance of 80 %; None where no feasible number does. An audit
    that runs no trials leaves nothing to chance: all three are None. `ceiling_of_rates` is what
    estimators of two error rates give if no guess is wrong; None where none is asked for. `likely`
    is the ε that a tight attack shows with a chance of 80 %; NaN where the claim is no number.
    """

    label: str
    trials: int
    packs: int
    packs_done: int
    claim: float
    seconds: float  # of one trainer's time, for the packs that are left
    largest_certifiable: float | None = None
    power: float | None = None
    trials_needed: int | None = None
    status: stats.Status = stats.Status.CERTIFIED
    ceiling_of_rates: float | None = None
    training_seconds: float = math.nan  # of one; NaN where none is left to be timed
    trainings: int = 0
    likely: float = math.nan

    @property
    def sampled(self) -> bool:
        """Whether it runs trials."""
        return self.power is not None

    @property
    def needed_seconds(self) -> float:
        """Seconds of one trainer for `trials_needed`; NaN where that is not known."""
        if self.trials_needed is None:
            return math.nan
        return self.trials_needed * self.training_seconds * self.trainings / max(self.trials, 1)


@dataclasses.dataclass(frozen=True)
class Outlook:
    """A whole sweep on this machine; `problem` says why no time could be measured.

    Packs that wait for one of `preparations` can be timed once that is done: until then their
    `seconds` are NaN.
    """

    audits: tuple[AuditOutlook, ...]
    workers: int
    problem: str | None = None
    preparations: tuple[PreparationOutlook, ...] = ()

    @property
    def trials(self) -> int:
        """Planned trials."""
        return sum(a.trials for a in self.audits)

    @property
    def packs(self) -> int:
        """Planned packs."""
        return sum(a.packs for a in self.audits)

    @property
    def packs_done(self) -> int:
        """Finished packs."""
        return sum(a.packs_done for a in self.audits)

    @property
    def seconds(self) -> float:
        """Trainer seconds that are left."""
        return sum(a.seconds for a in self.audits) + sum(p.seconds for p in self.preparations)

    @property
    def wall_seconds(self) -> float:
        """Seconds that are left with all trainers at work."""
        return self.seconds / self.workers


def forecast(
    sweep: Sweep,
    storage_path: str,
    measured: Calibration | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Outlook:
    """Plans the sweep against what its run directory holds, and times first steps of its packs.

    What is `measured` already is not timed again. `tell` takes a line for the user.
    """
    run = RunDirectory.under(storage_path, sweep.name)
    sweep = planning.kept(sweep, run, tell)
    check_inputs(sweep)
    plan = planning.preview(sweep, run)
    left_out = {failure.pack for failure in outcomes.failed(run, plan)}
    enough = outcomes.decided(run, sweep, plan)
    remaining = [pack for pack in plan.remaining(run, enough) if pack not in left_out]
    rehearsal = Rehearsal(run, plan)
    trainer = PackTrainer(sweep.raw, Brief.from_plan(plan, sweep), rehearsal.prepared)
    preparations = rehearsal.outlook(trainer, preparing.left(run, plan, remaining))
    seconds, problem = seconds_per_trial(sweep, trainer, remaining, measured)
    audits = []
    for index, (audit, cell) in enumerate(zip(plan.audits, sweep.cells, strict=True)):
        left = [pack for pack in remaining if pack.audit == index]
        done = len(compaction.finished(run, audit))
        audits.append(_outlook((audit, cell), left, done, seconds.get(index, 0.0)))
    problem = rehearsal.problem or problem
    return Outlook(tuple(audits), _workers(sweep), problem, preparations)


def _outlook(
    planned: tuple[PlannedAudit, Cell], left: list[Pack], done: int, seconds: float
) -> AuditOutlook:
    """One audit of which `done` packs are done and those in `left` remain, at `seconds` a trial."""
    audit, cell = planned
    level = (cell.audit.delta, cell.audit.confidence)
    # Canaries of one training may say the same, so a training counts as one trial.
    trainings = audit.trials // max(audit.in_a_training, 1)
    outlook = AuditOutlook(
        label=audit.label,
        trials=audit.trials,
        packs=len(audit.packs),
        packs_done=done,
        claim=audit.claim,
        seconds=sum(pack.size for pack in left) * seconds,
        training_seconds=seconds * max(audit.in_a_training, 1) if left else math.nan,
        trainings=trainings,
    )
    if not cell.mechanism.sampled:
        return outlook
    ceiling = None
    if any(not e.unread and e.method.rates_only for e in cell.audit.estimators):
        ceiling = stats.power.largest_certifiable(trainings, *level, method="eps-delta")
    likely = math.nan
    if 0 < audit.claim < math.inf:
        likely = stats.power.likely_bound(audit.claim, trainings, USUAL_POWER, *level)
    target = CLAIM_SHARE * audit.claim
    return dataclasses.replace(
        outlook,
        largest_certifiable=stats.power.largest_certifiable(trainings, *level),
        power=stats.power.accuracy_power(audit.claim, target, trainings, *level),
        trials_needed=_trials_needed(audit, level),
        status=_status(cell),
        ceiling_of_rates=ceiling,
        likely=likely,
    )


def _status(cell: Cell) -> stats.Status:
    """The status that an ε by `accuracy` will have."""
    curve = cell.mechanism.trade_off(cell.adversary, cell.horizons[-1])
    bound = stats.make("accuracy", planned=1).bound(cell.audit.delta, cell.audit.confidence)
    return bound.given(curve).status


def _trials_needed(audit: PlannedAudit, level: tuple[float, float]) -> int | None:
    if audit.canaries == 0:
        return None  # more canaries in one training are another training
    try:
        trainings = stats.power.trials_needed(audit.claim, 1 - CLAIM_SHARE, USUAL_POWER, *level)
    except ValueError:  # a claim of 0 or inf, or one that no billion trials would reach
        return None
    return trainings * audit.canaries


def _workers(sweep: Sweep) -> int:
    fits = max(1, int(len(os.sched_getaffinity(0)) / sweep.resources.num_cpus))
    limit = sweep.resources.max_concurrent_trainers
    return fits if limit == "auto" else min(fits, limit)
