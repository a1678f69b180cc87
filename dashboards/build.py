"""Writes the Grafana dashboard and the Prometheus rules; both are checked in.

    python dashboards/build.py

Metric names come from the module that publishes them, so neither file can name one that does not
exist.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import yaml

from dpaudit_ray.orchestration import metrics
from dpaudit_ray.orchestration.metrics import Metric

HERE = Path(__file__).parent
DASHBOARD = HERE / "grafana" / "sweep.json"
RULES = HERE / "prometheus" / "rules.yaml"
NOTE = "# Written by dashboards/build.py.\n"
STALLED_SECONDS = 600
STALLED_PACKS = 10  # so many times the duration of a pack without a result is not normal

_CHOSEN = '{sweep=~"$sweep", SessionName=~"$SessionName"}'


def per_audit(metric: Metric, chosen: str = "") -> str:
    """One value per audit; an aggregator that was restarted leaves two series for a while."""
    return f"max by (sweep, audit) ({metric.exported}{chosen})"


def per_sweep(metric: Metric, chosen: str = "") -> str:
    """One value per sweep: the sum over audits, or the sweep's own."""
    if "audit" in metric.labels:
        return f"sum by (sweep) ({per_audit(metric, chosen)})"
    return f"max by (sweep) ({metric.exported}{chosen})"


@dataclasses.dataclass(frozen=True)
class Panel:
    """One question and the expressions that answer it, by legend."""

    title: str
    help: str
    targets: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    thresholds: tuple[float, ...] = ()

    def build(self, number: int, x: int, y: int) -> dict[str, Any]:
        """As Grafana stores it."""
        steps = [{"color": "green", "value": None}]
        steps += [{"color": "red", "value": value} for value in self.thresholds]
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.help,
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "gridPos": {"x": x, "y": y, "w": self.width, "h": 8},
            "fieldConfig": {
                "defaults": {
                    "unit": self.unit,
                    "min": 0,
                    "thresholds": {"mode": "absolute", "steps": steps},
                },
                "overrides": [],
            },
            "options": _options(self.kind),
            "targets": [
                {"refId": chr(65 + i), "expr": expr, "legendFormat": legend}
                for i, (legend, expr) in enumerate(self.targets.items())
            ],
        }


def _options(kind: str) -> dict[str, Any]:
    if kind == "timeseries":
        return {"legend": {"displayMode": "list", "placement": "bottom"}}
    return {"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "horizontal"}


def rows() -> dict[str, list[Panel]]:
    """All panels, under the question that a row answers."""
    planned = per_sweep(metrics.TRIALS_PLANNED, _CHOSEN)
    done = per_sweep(metrics.TRIALS_DONE, _CHOSEN)
    speed = per_sweep(metrics.TRIALS_PER_SECOND, _CHOSEN)
    lower = per_audit(metrics.EPSILON_LOWER, _CHOSEN)
    claim = per_audit(metrics.EPSILON_CLAIM, _CHOSEN)
    silent = f"time() - {per_sweep(metrics.LAST_RESULT, _CHOSEN)}"
    return {
        "How far is it?": [
            Panel("Done", "Stored trials of those planned.", {"{{sweep}}": f"{done} / {planned}"},
                  "percentunit", "gauge", 6),
            Panel("Time left", "At the speed of the last minute; empty while nothing is stored.",
                  {"{{sweep}}": f"({planned} - {done}) / ({speed} > 0)"}, "s", "stat", 6),
            Panel("Speed", "Trials stored per second, mean over a minute.",
                  {"{{sweep}}": speed}, width=12),
            Panel("Trials by audit", "Stored trials.",
                  {"{{audit}}": per_audit(metrics.TRIALS_DONE, _CHOSEN)}, width=12),
            Panel("Work", "Packs that trainers hold, and trainers that have a place on a node.",
                  {"packs in flight, {{sweep}}": per_sweep(metrics.PACKS_IN_FLIGHT, _CHOSEN),
                   "trainers, {{sweep}}": per_sweep(metrics.TRAINERS_ALIVE, _CHOSEN)}, width=12),
        ],
        "What does it show?": [
            Panel("Lower bound and claim",
                  "Each bound holds at every look at once, by itself, and for ε if the mechanism's "
                  "trade-off curve is Gaussian. The alert compares those of all audits together.",
                  {"{{audit}}: at least": lower, "{{audit}}: claim": claim}, width=12),
            Panel("Gap", "Claim minus lower bound.",
                  {"{{audit}}": per_audit(metrics.EPSILON_GAP, _CHOSEN)}, width=6),
            Panel("Part of the claim that is shown", "Lower bound divided by claim.",
                  {"{{audit}}": f"{lower} / {claim}"}, "percentunit", "bargauge", 6, (1.0,)),
        ],
        "Is anything wrong?": [
            Panel("Failed trials", "In packs whose training raised; see `dpaudit status`.",
                  {"{{audit}}": per_audit(metrics.TRIALS_FAILED, _CHOSEN)}, width=6),
            Panel("Trials run again", "Their trainer died, or was silent for too long.",
                  {"{{audit}}": per_audit(metrics.TRIALS_LOST, _CHOSEN)}, width=6),
            Panel("Silence", "Seconds since a pack ended.", {"{{sweep}}": silent}, "s", width=6),
            Panel("Pack", "Seconds that the last finished pack took.",
                  {"{{sweep}}": per_sweep(metrics.PACK_SECONDS, _CHOSEN)}, "s", width=6),
        ],
    }  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The Grafana dashboard, with the variables that Ray's own dashboards have."""
    panels: list[dict[str, Any]] = []
    y = 0
    for question, row in rows().items():
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        head = {"id": len(panels) + 1, "type": "row", "title": question, "gridPos": place}
        panels.append({**head, "collapsed": False, "panels": []})
        x, y = 0, y + 1
        for panel in row:
            if x + panel.width > 24:
                x, y = 0, y + 8
            panels.append(panel.build(len(panels) + 1, x, y))
            x += panel.width
        y += 8
    return {
        "title": "dpaudit sweeps",
        "uid": "dpauditSweepDashboard",
        "tags": ["dpaudit", "ray"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "hide": 2}
    return [
        source,
        _variable("SessionName", ""),
        _variable("sweep", '{SessionName=~"$SessionName"}'),
    ]


def _variable(label: str, chosen: str) -> dict[str, Any]:
    query = f"label_values({metrics.TRIALS_PLANNED.exported}{chosen}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "definition": query,
        "query": {"query": query, "refId": "Variable"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


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
        """As Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": f"{self.value} {self.comparison} {self.bound}",
            "for": self.wait,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.description},
        }


def alerts() -> list[Alert]:
    """What somebody should be called for."""
    patience = f"{STALLED_PACKS} * {per_sweep(metrics.PACK_SECONDS)}"
    return [
        Alert("DpauditViolationFound",
              per_audit(metrics.EPSILON_TOGETHER), ">", per_audit(metrics.EPSILON_CLAIM),
              "0s", "critical",
              "{{ $labels.sweep }}: {{ $labels.audit }} leaks more than it claims",
              "A bound that holds for all audits of the sweep and at every look, {{ $value }}, is "
              "above the claim. Run `dpaudit verify`: it tests the claim's whole curve."),
        Alert("DpauditTrialsFailed", per_audit(metrics.TRIALS_FAILED), ">", "0", "0s", "warning",
              "{{ $labels.sweep }}: {{ $value }} trials of {{ $labels.audit }} failed",
              "Their training raised. `dpaudit status` lists failures by kind; repair the cause "
              "and run with --retry-failed."),
        Alert("DpauditSweepStalled",
              f"time() - {per_sweep(metrics.LAST_RESULT)}", ">",
              f"clamp_min({patience}, {STALLED_SECONDS})", "1m", "warning",
              "{{ $labels.sweep }}: no pack has ended for {{ $value | humanizeDuration }}",
              "Look at the trainers in the Ray dashboard; stopping and submitting the sweep again "
              "loses nothing that is stored."),
        Alert("DpauditNoTrainers", per_sweep(metrics.TRAINERS_ALIVE), "<", "1", "5m", "warning",
              "{{ $labels.sweep }}: no trainer has a place on a node",
              "The cluster has lost its nodes, or others hold their resources."),
    ]  # fmt: skip


def files() -> dict[Path, str]:
    """What is checked in, by path."""
    rules = {"groups": [{"name": "dpaudit", "rules": [alert.build() for alert in alerts()]}]}
    text = yaml.safe_dump(rules, sort_keys=False, width=10_000)
    return {DASHBOARD: json.dumps(dashboard(), indent=1) + "\n", RULES: NOTE + text}


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content)
