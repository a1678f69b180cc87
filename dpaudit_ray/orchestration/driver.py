"""The driver: keeps a bounded window of packs in flight and reacts to how they end.

It holds packs and small outcomes, never scores, so its memory does not depend on the number of
trials. It knows executors by their interface only.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping

from ..errors import ClusterError, StorageError
from ..plan.failures import Failure
from ..plan.model import Pack, Part
from .executors import Done, Executor, Lost, Outcome
from .interrupt import Stop
from .ledger import Ledger
from .order import Order
from .progress import Activity, Progress

SHOW_SECONDS = 0.5


@dataclasses.dataclass
class Summary:
    """How a run ended. `stopped`: there is more to run, and nothing is wrong with it."""

    progress: Progress
    failures: list[Failure]
    lost: int
    stopped: bool


class Driver:
    """Runs packs to the end of the sweep, until it is asked to stop, or a budget is spent.

    Parts of preparations come first among `packs`. Packs that wait for them are held, and never
    run where a part failed.

    `hours` are the time budgets of audits that have one. `require` is called all the time, and
    raises when this driver must stop where it is.
    """

    def __init__(
        self,
        executor: Executor,
        packs: Iterable[Pack],
        ledger: Ledger,
        stop: Stop,
        show: Callable[[Progress], None] = lambda progress: None,
        hours: Mapping[int, float] | None = None,
        require: Callable[[], None] = lambda: None,
    ) -> None:
        self._executor = executor
        self._order = Order(packs, self._over)
        self._ledger = ledger
        self._stop = stop
        self._show = show
        self._hours = hours or {}
        self._require = require
        self._worked: dict[int, float] = collections.defaultdict(float)  # seconds, by audit
        self._decided: set[int] = set()
        self._in_flight = 0
        self._running: collections.Counter[int] = collections.Counter()  # the same, by audit
        self._given_up = 0  # failures that the executor was told of
        self._pack_seconds: float | None = None
        self._training_since: float | None = None
        self._last_result: float | None = None
        self._shown = -math.inf

    def run(self) -> Summary:
        """Returns when no pack is left that can still be run.

        Raises:
            ClusterError: more workers were lost than the sweep allows.
            StorageError: results can no longer be stored.
            LeaseLostError: another driver stores them.
        """
        try:
            self._loop()
        except ClusterError:
            with contextlib.suppress(ClusterError, StorageError):  # what comes up says more
                self._executor.flush()
            raise
        self._executor.flush()
        self._look(force=True)
        final = self._progress()
        self._show(final)
        ledger = self._ledger
        return Summary(final, ledger.failures, ledger.losses, self._stop.requested or self._spent())

    def _loop(self) -> None:
        self._look(force=True)
        while not self._stop.expired and (self._top_up() or self._in_flight):
            self._require()
            self._executor.backlog(self._backlog())
            for outcome in self._executor.wait(timeout=SHOW_SECONDS):
                self._settle(outcome)
            self._look()

    def _look(self, force: bool = False) -> None:
        """Shows how far it is, and learns which audits have shown enough."""
        if not force and time.monotonic() - self._shown < SHOW_SECONDS:
            return
        progress = self._progress()
        self._decided |= {i for i, a in enumerate(progress.audits) if a.decided is not None}
        self._show(progress)
        self._shown = time.monotonic()

    def _progress(self) -> Progress:
        """The executor's latest snapshot may be of before; what the driver does is of now."""
        activity = self._activity()
        return dataclasses.replace(self._executor.progress(activity), activity=activity)

    def _top_up(self) -> bool:
        """Fills the window; False when no pack is left to hand out."""
        while not self._stop.requested and not self._ledger.exhausted:
            pack = self._order.next()
            if pack is None:
                return False
            if self._in_flight >= self._executor.slots:
                self._order.again([pack])
                return True
            self._executor.submit(pack)
            self._flies(pack, 1)
        return False

    def _backlog(self) -> float:
        """Packs that are still to be handed out; inf where nobody has looked how many come."""
        if self._stop.requested or self._ledger.exhausted:
            return 0
        return self._order.backlog

    def _over(self, audit: int) -> bool:
        return audit in self._ledger.closed or audit in self._decided or self._out_of_time(audit)

    def _out_of_time(self, audit: int) -> bool:
        return self._worked[audit] >= self._hours.get(audit, math.inf) * 3600

    def _spent(self) -> bool:
        """Whether a time budget cut an audit off."""
        return any(self._out_of_time(audit) for audit in self._hours if audit not in self._decided)

    def _settle(self, outcome: Outcome) -> None:
        self._last_result = time.time()
        if isinstance(outcome, Lost):
            for pack in outcome.packs:
                self._flies(pack, -1)
            self._order.again(self._ledger.lost(outcome))
        elif isinstance(outcome, Done):
            self._flies(outcome.pack, -1)
            self._ledger.done(outcome.pack, outcome.missed)
            self._order.done(outcome.pack)
            if not isinstance(outcome.pack, Part):
                self._pack_seconds = outcome.seconds
                if self._training_since is None:
                    self._training_since = time.monotonic() - outcome.seconds
                self._worked[outcome.pack.audit] += outcome.seconds
        elif isinstance(outcome, Failure):
            self._flies(outcome.pack, -1)
            self._ledger.failed(outcome)
        if given_up := self._ledger.failures[self._given_up :]:
            self._executor.give_up(given_up)
            self._given_up += len(given_up)

    def _flies(self, pack: Pack, packs: int) -> None:
        self._in_flight += packs
        self._running.update(dict.fromkeys(_audits_of(pack), packs))

    def _activity(self) -> Activity:
        late = {audit for audit in self._hours if self._out_of_time(audit)}
        since = self._training_since
        return Activity(
            packs_in_flight=self._in_flight,
            trainers=self._executor.trainers,
            pack_seconds=self._pack_seconds,
            last_result=self._last_result,
            failed=dict(self._ledger.trials_failed),
            lost=dict(self._ledger.trials_lost),
            training_seconds=None if since is None else time.monotonic() - since,
            running=frozenset(+self._running),
            over=frozenset(self._ledger.closed | self._decided | late),
            stopping=self._stop.requested or self._ledger.exhausted,
        )


def _audits_of(pack: Pack) -> tuple[int, ...]:
    """Those that it is run for."""
    return pack.waiting if isinstance(pack, Part) else (pack.audit,)
