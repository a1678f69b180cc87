"""Expressions on what a sweep publishes, and the alerts on them."""

from __future__ import annotations

import dataclasses
from typing import Any

from dpaudit_ray.orchestration import metrics
from dpaudit_ray.orchestration.metrics import Metric

STALLED_SECONDS = 600
STALLED_PACKS = 10  # so many times the duration of a pack without a result is not normal


def per_audit(metric: Metric, chosen: str = "") -> str:
    """One value per audit; an aggregator that was restarted leaves two series for a while."""
    return f"max by (sweep, audit) ({metric.exported}{chosen})"


def per_sweep(metric: Metric, chosen: str = "") -> str:
    """One value per sweep: the sum over audits, or the sweep's own."""
    if "audit" in metric.labels:
        return f"sum by (sweep) ({per_audit(metric, chosen)})"
    return f"max by (sweep) ({metric.exported}{chosen})"


def silence(chosen: str = "") -> str:
    """Seconds since a pack ended."""
    return f"time() - {per_sweep(metrics.LAST_RESULT, chosen)}"


def patience(chosen: str = "") -> str:
    """Seconds of silence that are normal."""
    seconds = per_sweep(metrics.PACK_SECONDS, chosen)
    return f"clamp_min({STALLED_PACKS} * {seconds}, {STALLED_SECONDS})"


@dataclasses.dataclass(frozen=True)
class Alert:
    """Fires when `value` compares to `bound` for as long as `wait` says."""

    name: str
    value: str
    comparison: str
    bound: str
    wait: str
    severity: str
    summary: str
    description: str

    def build(self) -> dict[str, Any]:
        """The rule as Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": f"{self.value} {self.comparison} {self.bound}",
            "for": self.wait,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.description},
        }


def alerts() -> list[Alert]:
    """The alerts that somebody should be called for."""
    refuted = f"{per_audit(metrics.VERDICT)} > 0"
    return [
        Alert("DpauditViolationFound",
              per_audit(metrics.EPSILON_LOWER), "and on (sweep, audit)", f"({refuted})",
              "0s", "critical",
              "{{ $labels.sweep }}: {{ $labels.audit }} leaks more than it claims: ε is at least "
              "{{ $value | printf \"%.2f\" }}",
              "A bound that holds for all audits of the sweep and at every look is above the "
              "claim. Run `dpaudit verify`: it tests the claim's whole curve."),
        Alert("DpauditTrialsFailed", per_audit(metrics.TRIALS_FAILED), ">", "0", "0s", "warning",
              "{{ $labels.sweep }}: {{ $value }} trials of {{ $labels.audit }} failed",
              "Their training raised. `dpaudit status` lists failures by kind; repair the cause "
              "and run with --retry-failed."),
        Alert("DpauditSweepStalled",
              silence(), ">", patience(), "1m", "warning",
              "{{ $labels.sweep }}: no pack has ended for {{ $value | humanizeDuration }}",
              "Look at the trainers in the Ray dashboard; stopping and submitting the sweep again "
              "loses nothing that is stored."),
        Alert("DpauditNoTrainers", per_sweep(metrics.TRAINERS_ALIVE), "<", "1", "5m", "warning",
              "{{ $labels.sweep }}: no trainer has a place on a node",
              "The cluster has lost its nodes, or others hold their resources."),
    ]  # fmt: skip
