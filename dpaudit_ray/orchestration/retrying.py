"""`--retry-failed`: failed packs are run again where the code gives the same scores twice.

The bits of a failed pack are known, and its trials count as misses. Scores may take their place
only if they are those that the trials would have had: of code that is not deterministic, a second
try picks among outcomes, and what fails for one bit more often than for the other then counts for
the adversary. So packs of the audit that were finished are run again first and compared.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from ..plan import compaction
from ..plan.model import Pack, Plan
from ..plan.outcomes import Failure
from ..storage.run_directory import RunDirectory
from .dispatcher import Dispatcher
from .driver import Driver, FailureBudget
from .executors import Checked, Done, Outcome
from .interrupt import Stop
from .progress import Progress
from .trainer import RETRIED


def checks(plan: Plan, run: RunDirectory, failed: Iterable[Pack]) -> dict[Pack, bool]:
    """What to run again before `failed`: a pack, and whether it is finished.

    As many trials of an audit as are retried, but no more than `RETRIED`, rounded up to a pack.

    The largest finished packs of an audit; where it has none, a failed one, which is run twice.
    """
    by_audit: dict[int, list[Pack]] = {}
    for pack in failed:
        by_audit.setdefault(pack.audit, []).append(pack)
    chosen: dict[Pack, bool] = {}
    for index, packs in by_audit.items():
        audit = plan.audits[index]
        done = [Pack(index, *pack) for pack in compaction.finished(run, audit)]
        due = min(sum(pack.size for pack in packs), RETRIED)
        again = list(_worth(due, sorted(done, key=lambda pack: (-pack.size, pack.first))))
        chosen |= dict.fromkeys(again or packs[:1], bool(again))
    return chosen


def _worth(trials: int, packs: Iterable[Pack]) -> Iterator[Pack]:
    """The first packs that hold so many trials together."""
    for pack in packs:
        if trials <= 0:
            return
        yield pack
        trials -= pack.size


class CheckingDriver(Driver):
    """Has packs run again and compared, in place of stored; a pack that was compared is done.

    `different` has every pack that is not shown to repeat itself, and how it ended otherwise;
    None while it was not run again.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        checks: Mapping[Pack, bool],
        budget: FailureBudget,
        stop: Stop,
        show: Callable[[Progress], None] = lambda progress: None,
        require: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(dispatcher, checks, budget, stop, show, require=require)
        self._checks = checks
        self.different: dict[Pack, str | None] = dict.fromkeys(checks)

    def _submit(self, pack: Pack) -> None:
        self._dispatcher.check(pack, finished=self._checks[pack])

    def _settle(self, outcome: Outcome) -> None:
        if not isinstance(outcome, Checked):
            super()._settle(outcome)
            return
        if outcome.difference is None:
            self.different.pop(outcome.pack, None)
        else:
            self.different[outcome.pack] = outcome.difference
        super()._settle(Done(outcome.pack))

    def _record(self, failed: list[Failure]) -> None:
        """A pack that cannot be run again proves nothing; that it failed is known or no matter."""
        self.different |= {failure.pack: failure.message for failure in failed}

    def _flush(self) -> None:
        """Nothing was stored."""

    def _progress(self) -> Progress:
        """No audit is over for these packs, though trials are decided: that may be put off."""
        seen = super()._progress()
        audits = tuple(dataclasses.replace(audit, decided=None) for audit in seen.audits)
        return dataclasses.replace(seen, audits=audits)

    def _backlog(self) -> float:
        """Packs that are retried come after these."""
        return math.inf


def refusals(plan: Plan, different: Mapping[Pack, str | None]) -> Iterator[str]:
    """What the user is told of each audit whose failed packs stay misses."""
    refused: set[int] = set()
    for pack, difference in different.items():
        if difference is not None and pack.audit not in refused:
            refused.add(pack.audit)
            yield (
                f"{plan.audits[pack.audit].label}: trials {pack.first}-{pack.last}, run again, "
                f"{difference}; a retry could pick among outcomes, so failed trials stay misses: "
                "make the code a function of its seed, or start again with a new name and a new "
                "seed"
            )
