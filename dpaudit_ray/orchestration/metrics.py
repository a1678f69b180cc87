"""Publishes a running sweep to Prometheus; the only place that names a metric.

Ray adds the prefix `ray_` and more labels. Only the aggregator publishes, so the number of series
depends on the audits and not on how often trainers were replaced. Ray serves metrics to anyone who
reaches the port, with or without a token: labels hold the names of the sweep and its audits.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .progress import AuditProgress, Progress

PREFIX = "ray_"  # Ray puts it before names in Prometheus
HEARTBEAT_SECONDS = 5.0  # Ray drops a gauge that was not set for about 20 s
COLLECTED_SECONDS = 2 * HEARTBEAT_SECONDS  # until a snapshot was set and sent
RATE_SECONDS = 60.0  # trials/s are a mean over this long


@dataclass(frozen=True)
class Metric:
    """A gauge.

    Attributes:
        name: without Ray's prefix.
        help: description of the metric in Prometheus.
        of_audit: reads its value for an audit; None if there is one value for the sweep.
    """

    name: str
    help: str
    of_audit: Callable[[AuditProgress], float] | None = None

    @property
    def exported(self) -> str:
        """The name to query."""
        return PREFIX + self.name

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of each series."""
        return ("sweep", "audit") if self.of_audit else ("sweep",)


TRIALS_PLANNED = Metric(
    "dpaudit_trials_planned",
    "Trials of the audit that are to be done",
    lambda audit: audit.trials if audit.decided is None else audit.done,
)
TRIALS_DONE = Metric(
    "dpaudit_trials_done", "Trials of the audit that are stored", lambda audit: audit.done
)
TRIALS_FAILED = Metric(
    "dpaudit_trials_failed", "Trials in packs whose training raised", lambda audit: audit.failed
)
TRIALS_LOST = Metric(
    "dpaudit_trials_lost",
    "Trials in packs that were run again because a trainer died",
    lambda audit: audit.lost,
)
EPSILON_LOWER = Metric(
    "dpaudit_epsilon_lower",
    "Lower bound on epsilon so far, at every look and for all audits at once; above the claim, the "
    "claim is refuted",
    lambda audit: audit.epsilon_lower,
)
EPSILON_CLAIM = Metric(
    "dpaudit_epsilon_claim", "Epsilon that the accountant claims", lambda audit: audit.claim
)
EPSILON_GAP = Metric(
    "dpaudit_epsilon_gap",
    "Claim minus lower bound",
    lambda audit: audit.claim - audit.epsilon_lower,
)
VERDICT = Metric(
    "dpaudit_verdict",
    "1 once the claim is refuted, 0 while it is not",
    lambda audit: audit.refuted,
)
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


class Publisher:
    """Publishes the latest snapshot of a sweep again and again."""

    def __init__(
        self,
        gauge: Callable[..., Any],
        sweep: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Makes the gauges.

        Args:
            gauge: Ray's class.
            sweep: the sweep's name.
            clock: returns the Unix time.
        """
        self._gauges = {
            metric: gauge(metric.name, metric.help, metric.labels) for metric in METRICS
        }
        self._sweep = sweep
        self._clock = clock
        self._started = clock()
        self._pace: list[tuple[float, int]] = []  # Unix time and trials done, oldest first
        self._latest: Progress | None = None
        self._heart: threading.Thread | None = None

    def publish(self, progress: Progress) -> None:
        """Takes the newest snapshot; series follow within a heartbeat, which the first starts."""
        now = self._clock()
        recent = [sample for sample in self._pace if now - sample[0] <= RATE_SECONDS]
        self._pace = [*recent, (now, progress.done)]
        self._latest = progress
        if not self._heart:
            self._heart = threading.Thread(target=self._beat, name="metrics", daemon=True)
            self._heart.start()

    def set_gauges(self) -> None:
        """Sets every series from the latest snapshot."""
        if not self._latest:
            return
        audits = self._latest.audits
        activity = self._latest.activity
        pace = self._pace
        seconds = self._clock() - pace[0][0]
        trials = pace[-1][1] - pace[0][1]
        values = {
            SWEEP_VERDICT: any(audit.refuted for audit in audits),
            PACKS_IN_FLIGHT: activity.packs_in_flight,
            TRAINERS_ALIVE: activity.trainers,
            TRIALS_PER_SECOND: trials / seconds if seconds > 0 else 0.0,
            LAST_RESULT: activity.last_result or self._started,
            PACK_SECONDS: activity.pack_seconds or 0.0,
        }
        for metric, gauge in self._gauges.items():
            if not metric.of_audit:
                gauge.set(float(values[metric]), tags={"sweep": self._sweep})
                continue
            for audit in audits:
                tags = {"sweep": self._sweep, "audit": audit.label}
                gauge.set(float(metric.of_audit(audit)), tags=tags)

    def _beat(self) -> None:
        """Sets the gauges again and again, in a thread: Ray drops those that were not set."""
        while True:
            self.set_gauges()
            time.sleep(HEARTBEAT_SECONDS)
