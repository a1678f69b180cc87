"""Has an audit shown enough? Asked after every pack, so only time-uniform bounds may answer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .. import stats
from ..plan import claims, score_stream
from ..plan.model import PlannedAudit
from ..plan.score_stream import ConsumedPack
from ..stats.claim_verdict import ClaimTest, RunTest
from ..stats.curve import Curve
from ..sweep.cell import Cell
from ..sweep.spec import Sweep


class Decider:
    """`audit.stop_when` of one audit, apart from its time budget.

    `live` is the time-uniform bound of the same trials, folded by its owner.
    """

    def __init__(
        self, sweep: Sweep, audit: PlannedAudit, cell: Cell, live: stats.Estimator
    ) -> None:
        self._rule = cell.audit.stop_when
        self._level = (cell.audit.delta, cell.audit.confidence)
        self._audit, self._claim = audit, audit.claim
        self._live = live
        self._test: ClaimTest | RunTest | None = None
        if self._rule is not None and self._rule.verdict:
            # The level of `dpaudit verify`: the run's error budget, shared by its audits.
            confidence = min(c.audit.confidence for c in sweep.cells)
            self._alpha = (1 - confidence) / len(sweep.cells)
            self._test = claims.test(audit, _claimed_curve(audit, cell))

    def cut(self, packs: ConsumedPack) -> Iterator[ConsumedPack]:
        """The same trials pack by pack, where the audit may be over after any of them."""
        if self._rule is None or not self._rule.by_bounds:
            return iter((packs,))
        return score_stream.up_to_looks(self._audit, (packs,), lambda: 0)

    def fold(self, pack: ConsumedPack) -> None:
        """Adds a pack, in trial order."""
        if self._test is not None:
            score_stream.feed(self._test, pack)
            self._test.look()

    def enough(self) -> bool:
        """Whether the trials so far decide the audit."""
        if self._test is not None and self._test.refuted_after(self._alpha) is not None:
            return True
        if self._rule is None or self._rule.within is None or not 0 < self._claim < math.inf:
            return False
        return self._live.bound(*self._level).epsilon_lower >= (1 - self._rule.within) * self._claim


def _claimed_curve(audit: PlannedAudit, cell: Cell) -> Curve:
    claimed = cell.mechanism.claimed(cell.adversary, audit.horizons[-1])
    family = claims.curves(claimed, next(iter(audit.claims)), cell.audit.delta)
    return family(claimed.noise_multiplier)
