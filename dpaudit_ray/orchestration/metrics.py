"""What Prometheus sees of a running sweep; the only place that names a metric.

Ray adds the prefix `ray_` and labels of its own. Only the aggregator publishes, so the number of
series depends on the audits and not on how often trainers were replaced. Ray serves metrics to
anybody who reaches the port, token or not: labels hold the names of the sweep and its audits.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

from .progress import AuditProgress, Progress

PREFIX = "ray_"  # what Ray puts in front of a name
HEARTBEAT_SECONDS = 5.0  # Ray drops a gauge that was not set for about 20 s
COLLECTED_SECONDS = 2 * HEARTBEAT_SECONDS  # after which a snapshot was set and sent on
RATE_SECONDS = 60.0  # trials/s are a mean over this long


@dataclasses.dataclass(frozen=True)
class Metric:
    """A gauge of ours, as code names it and as Prometheus does."""

    name: str
    help: str
    labels: tuple[str, ...] = ("sweep",)

    @property
    def exported(self) -> str:
        """The name to query."""
        return PREFIX + self.name


_AUDIT = ("sweep", "audit")
TRIALS_PLANNED = Metric("dpaudit_trials_planned", "Trials of the audit that are to be done", _AUDIT)
TRIALS_DONE = Metric("dpaudit_trials_done", "Trials of the audit that are stored", _AUDIT)
TRIALS_FAILED = Metric("dpaudit_trials_failed", "Trials in packs whose training raised", _AUDIT)
TRIALS_LOST = Metric(
    "dpaudit_trials_lost", "Trials in packs that were run again because a trainer died", _AUDIT
)
EPSILON_LOWER = Metric(
    "dpaudit_epsilon_lower",
    "Lower bound on epsilon so far, at every look and for all audits at once; above the claim, the "
    "claim is refuted",
    _AUDIT,
)
EPSILON_CLAIM = Metric("dpaudit_epsilon_claim", "Epsilon that the accountant claims", _AUDIT)
EPSILON_GAP = Metric("dpaudit_epsilon_gap", "Claim minus lower bound", _AUDIT)
VERDICT = Metric("dpaudit_verdict", "1 once the claim is refuted, 0 while it is not", _AUDIT)
SWEEP_VERDICT = Metric(
    "dpaudit_sweep_verdict", "1 once the claim of one of its audits is refuted, 0 while none is"
)
PACKS_IN_FLIGHT = Metric("dpaudit_packs_in_flight", "Packs that trainers hold and have not stored")
TRIALS_PER_SECOND = Metric("dpaudit_trials_per_second", "Trials stored per second, last minute")
PACK_SECONDS = Metric(
    "dpaudit_pack_seconds", "Seconds that the last finished pack took, 0 at first"
)
TRAINERS_ALIVE = Metric("dpaudit_trainers_alive", "Trainers that have a place on a node")
LAST_RESULT = Metric(
    "dpaudit_last_result_timestamp_seconds",
    "Unix time of the last pack that ended, at first of the aggregator's start",
)

METRICS = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
_PER_AUDIT: dict[Metric, Callable[[AuditProgress], float]] = {
    TRIALS_PLANNED: lambda audit: audit.trials if audit.decided is None else audit.done,
    TRIALS_DONE: lambda audit: audit.done,
    TRIALS_FAILED: lambda audit: audit.failed,
    TRIALS_LOST: lambda audit: audit.lost,
    EPSILON_LOWER: lambda audit: audit.epsilon_lower,
    EPSILON_CLAIM: lambda audit: audit.claim,
    EPSILON_GAP: lambda audit: audit.claim - audit.epsilon_lower,
    VERDICT: lambda audit: audit.refuted,
}


class Publisher:
    """Publishes the latest snapshot of a sweep again and again; `gauge` is Ray's class."""

    def __init__(
        self, gauge: Callable[..., Any], sweep: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._gauges = {m: gauge(m.name, m.help, m.labels) for m in METRICS}
        self._sweep, self._clock, self._started = sweep, clock, clock()
        self._pace: tuple[tuple[float, int], ...] = ()  # Unix time and trials done, oldest first
        self._latest: Progress | None = None
        self._heart: threading.Thread | None = None

    def publish(self, progress: Progress) -> None:
        """Takes the newest snapshot; series follow within a heartbeat, which the first starts."""
        now = self._clock()
        recent = [sample for sample in self._pace if now - sample[0] <= RATE_SECONDS]
        self._pace = (*recent, (now, progress.done))
        self._latest = progress
        if self._heart is None:
            self._heart = threading.Thread(target=self._beat, name="metrics", daemon=True)
            self._heart.start()

    def set_gauges(self) -> None:
        """Sets every series from the latest snapshot."""
        if self._latest is None:
            return
        progress, activity, now = self._latest, self._latest.activity, self._clock()
        for audit in progress.audits:
            for metric, value in _PER_AUDIT.items():
                tags = {"sweep": self._sweep, "audit": audit.label}
                self._gauges[metric].set(float(value(audit)), tags=tags)
        (start, first), (_, last) = self._pace[0], self._pace[-1]
        values = {
            SWEEP_VERDICT: float(any(audit.refuted for audit in progress.audits)),
            PACKS_IN_FLIGHT: activity.packs_in_flight,
            TRAINERS_ALIVE: activity.trainers,
            TRIALS_PER_SECOND: (last - first) / (now - start) if now > start else 0.0,
            LAST_RESULT: activity.last_result or self._started,
            PACK_SECONDS: activity.pack_seconds or 0.0,
        }
        for metric, number in values.items():
            self._gauges[metric].set(number, tags={"sweep": self._sweep})

    def _beat(self) -> None:
        while True:
            self.set_gauges()
            time.sleep(HEARTBEAT_SECONDS)
