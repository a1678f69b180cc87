"""The trials of one audit as they arrive: what they show so far, and whether they are enough."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

from ..plan import claims, score_stream
from ..plan.finished_trials import FinishedTrials, RecentPacks
from ..plan.model import Plan, PlannedAudit
from ..plan.outcomes import MissedTrials
from ..plan.preparing import Prepared
from ..plan.score_stream import ConsumedPack, MissedPack
from ..stats import Estimate, Estimator
from ..stats.base import default_time_uniform_methods
from ..storage.run_directory import RunDirectory
from ..storage.scores import Bounds, PackScores
from ..sweep.audit import EstimatorSpec
from ..sweep.spec import Sweep
from .estimates import Estimates
from .progress import Activity, AuditProgress


class OpenSweep:
    """State that all audits of a sweep share, computed once, since it takes as long for one as all.

    Attributes:
        prepared: parts of preparations that are stored.
        recent: packs in memory.
        bound_confidence: confidence of each audit's live bound.
        test_error: error probability of each audit's test.
    """

    def __init__(self, sweep: Sweep, plan: Plan, run: RunDirectory) -> None:
        """Splits the error budget evenly over the audits; reads no scores yet.

        Args:
            sweep: the sweep.
            plan: plan of the sweep.
            run: run directory of the sweep.
        """
        self.sweep = sweep
        self.plan = plan
        self.run = run
        self.prepared = Prepared(run, plan)
        self.recent = RecentPacks()
        self.bound_confidence = sweep.budget.each_audit
        # As in `dpaudit verify`: the error of the audit with the lowest confidence, split evenly.
        confidences = [cell.audit.confidence for cell in sweep.cells]
        self.test_error = (1 - min(confidences)) / len(confidences)


@dataclass(frozen=True)
class Snapshot:
    """State of an audit, with the packs that its estimates do not have yet.

    Attributes:
        packs: the packs folded since the last call.
        decided: the trials that were enough by `stop_when`; None without a decision.
        complete: whether all packs up to these trials are stored; a failed pack is not.
        missed: trials that failed while others of their pack did not, by kind.
    """

    packs: list[ConsumedPack]
    decided: int | None
    complete: bool
    missed: list[MissedTrials]


class AuditState:
    """Folded trials of one audit, of which the packs `failed` count as misses.

    Attributes:
        trials: the finished packs.
        estimates: estimators, which fold packs later: those of `take_snapshot`.
        decided: the trials that were enough by `stop_when`; later ones are not folded.
    """

    def __init__(
        self,
        open_sweep: OpenSweep,
        index: int,
        failed: Collection[Bounds],
    ) -> None:
        """Folds the finished trials that are stored.

        Args:
            open_sweep: the sweep.
            index: number of the audit in its plan.
            failed: bounds of packs that failed, whose trials are misses.
        """
        plan = open_sweep.plan
        audit = self._audit = plan.audits[index]
        cell = self._cell = open_sweep.sweep.cells[index]
        self._open_sweep = open_sweep
        self._index = index
        self.trials = FinishedTrials(open_sweep.run, plan, index, failed, recent=open_sweep.recent)
        self.estimates = Estimates(
            audit,
            cell,
            open_sweep.sweep.budget,
            prepared=partial(open_sweep.prepared.complete, index),
        )
        self._rule = cell.audit.stop_when
        self._test = None
        if self._rule is not None and self._rule.verdict:
            self._test = claims.test(audit, cell)
        # The first of these bounds is shown, the last is compared with the claim. At δ = 0, a
        # Gaussian has no finite ε.
        self._bounds = [live_bound(audit)] if cell.audit.delta else []
        if not claims.is_gaussian(cell, audit.accountant):
            self._bounds.append(live_bound(audit, curve="any"))
        self._missed: dict[str, MissedTrials] = {}  # failed trials by the name of the exception
        self._not_in_estimates: list[ConsumedPack] = []  # folded since the last snapshot
        self._live_bound: Estimate | None = None  # kept until the next fold
        self.decided: int | None = None
        self._advance(into_estimates=True)

    def reopened(self, failed: Collection[Bounds]) -> "AuditState":
        """Returns the audit as it is if these packs, and no others, have failed."""
        return AuditState(self._open_sweep, self._index, failed)

    def add(self, scores: PackScores) -> None:
        """Folds a pack that is stored, perhaps again, as of two attempts that were both stored."""
        self.trials.add(scores)
        self._advance()

    def miss(self, pack: Bounds) -> None:
        """Folds the trials of a pack that was given up, as misses."""
        self.trials.failed.add(pack)
        self._advance()

    def take_snapshot(self) -> Snapshot:
        """Returns the packs that were folded since the last call, and the state of the audit."""
        packs = self._not_in_estimates
        self._not_in_estimates = []
        missed = list(self._missed.values())
        return Snapshot(packs, self.decided, self.trials.complete, missed)

    def progress(self, activity: Activity) -> AuditProgress:
        """Returns the progress of the audit; `activity` is what the driver knows of the sweep."""
        if self._live_bound is None:
            bound = self._live_estimate(self._open_sweep.bound_confidence)
            # The status of the bound, and its assumptions, follow from the claimed curve.
            self._live_bound = bound.given(self._cell.trade_off())
        missed = sum(kind.trials for kind in self._missed.values())
        parts_done, parts = self._open_sweep.prepared.progress(self._index)
        return AuditProgress(
            self._audit.label,
            self._audit.trials,
            self.trials.stored_trials,
            self._live_bound.epsilon_lower,
            self._audit.claim,
            self._cell.audit.delta,
            activity.failed.get(self._index, 0) + missed,
            activity.lost.get(self._index, 0),
            self.decided,
            self._live_bound.status.assumes(self._live_bound.mu_lower),
            parts_done,
            parts,
            self._index in activity.refuted,
        )

    def _live_estimate(self, confidence: float) -> Estimate:
        """Returns the live bound; if it exceeds the claim, a bound that may refute the claim.

        If the claimed curve is not Gaussian, a bound that assumes a Gaussian curve refutes nothing:
        the bound for any curve is returned instead.
        """
        level = self._cell.audit.delta, confidence
        bound = self._bounds[0].bound(*level)
        if bound.epsilon_lower > self._audit.claim:
            return self._bounds[-1].bound(*level)
        return bound

    def _advance(self, into_estimates: bool = False) -> None:
        """Folds further packs, in the order of their trials, until the trials are enough.

        Args:
            into_estimates: whether to fold the packs into the estimates at once. That takes long,
                so otherwise it is left to the caller of `take_snapshot`.
        """
        if self.decided is not None:
            return
        for pack in self.trials.packs(one_by_one=self._rule is not None):
            for bound in self._bounds:
                score_stream.feed(bound, pack)
            if self._test is not None:
                score_stream.feed(self._test, pack)
                self._test.look()
            if into_estimates:
                self.estimates.fold(pack)
            else:
                self._not_in_estimates.append(pack)
            self._count_missed(pack)
            self._live_bound = None
            if self._is_enough():
                self.decided = self.trials.end = pack.last + 1
                return

    def _is_enough(self) -> bool:
        """Returns whether the trials so far decide the audit, by `stop_when`."""
        error = self._open_sweep.test_error
        if self._test is not None and self._test.refuted_after(error) is not None:
            return True
        within = self._rule.within if self._rule else None
        claim = self._audit.claim
        if within is None or not 0 < claim < math.inf:
            return False
        bound = self._live_estimate(self._cell.audit.confidence)
        return bound.epsilon_lower >= (1 - within) * claim

    def _count_missed(self, pack: ConsumedPack) -> None:
        """Counts trials that failed while others of their pack did not, by the exception's name."""
        if isinstance(pack, MissedPack):
            return
        for trial, reason in pack.missed.items():
            kind = reason.partition(": ")[0]
            first = MissedTrials(self._audit.id, kind, 0, trial, reason)  # counted below
            entry = self._missed.get(kind, first)
            self._missed[kind] = replace(entry, trials=entry.trials + 1)


def live_bound(audit: PlannedAudit, **options: str) -> Estimator:
    """Returns a bound that holds after every pack; a single training run gives none above 0."""
    method = default_time_uniform_methods(not audit.independent, audit.paired)[0]
    return EstimatorSpec(name=method, options=options).make(audit.declared[0], audit.together)
