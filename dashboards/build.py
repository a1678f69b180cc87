"""Writes the Grafana dashboard and the Prometheus rules; both are checked in.

    python dashboards/build.py

Metric names come from the module that publishes them, so neither file can name one that does not
exist.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from panels import (
    ORANGE_FROM_1,
    RED_ABOVE_1,
    RED_BELOW_0,
    RED_BELOW_1,
    RED_FROM_1,
    SOURCE,
    VERDICTS,
    Column,
    Notes,
    Panel,
    Table,
)
from rules import alerts, patience, per_audit, per_sweep, silence

from dpaudit_ray.orchestration import metrics

HERE = Path(__file__).parent
DASHBOARD = HERE / "grafana" / "sweep.json"
RULES = HERE / "prometheus" / "rules.yaml"
NOTE = "# Written by dashboards/build.py.\n"
_SWEEPS = '{sweep=~"$sweep", SessionName=~"$SessionName"}'
_AUDITS = '{sweep=~"$sweep", audit=~"$audit", SessionName=~"$SessionName"}'


def rows() -> dict[str, list[Panel | Table | Notes]]:
    """All panels, under the question that a row answers."""
    return {
        "How far is it?": _progress(),
        "What does it show?": _bounds(),
        "Is anything wrong?": _trouble(),
    }


def _progress() -> list[Panel | Table | Notes]:
    planned = per_sweep(metrics.TRIALS_PLANNED, _SWEEPS)
    done = per_sweep(metrics.TRIALS_DONE, _SWEEPS)
    speed = per_sweep(metrics.TRIALS_PER_SECOND, _SWEEPS)
    return [
        Panel("Done", "Stored trials of those planned.", {"{{sweep}}": f"{done} / {planned}"},
              "percentunit", "gauge", 6),
        Panel("Time left", "At the speed of the last minute; empty while nothing is stored.",
              {"{{sweep}}": f"({planned} - {done}) / ({speed} > 0)"}, "s", "stat", 6),
        Panel("Speed", "Trials stored per second, mean over a minute.",
              {"{{sweep}}": speed}, width=12),
        Panel("Trials by audit", "Stored trials.",
              {"{{audit}}": per_audit(metrics.TRIALS_DONE, _AUDITS)}, width=12),
        Panel("Work", "Packs that trainers hold, and trainers that have a place on a node.",
              {"packs in flight, {{sweep}}": per_sweep(metrics.PACKS_IN_FLIGHT, _SWEEPS),
               "trainers, {{sweep}}": per_sweep(metrics.TRAINERS_ALIVE, _SWEEPS)}, width=12),
    ]  # fmt: skip


def _bounds() -> list[Panel | Table | Notes]:
    lower = per_audit(metrics.EPSILON_LOWER, _AUDITS)
    claim = per_audit(metrics.EPSILON_CLAIM, _AUDITS)
    return [
        Panel("Verdict", "Refuted: a bound that holds for all audits together and at every look is "
              "above its claim.", {"{{sweep}}": per_sweep(metrics.SWEEP_VERDICT, _SWEEPS)},
              kind="stat", width=4, colours=RED_FROM_1, words=VERDICTS),
        Table("Measured ε and claim, by audit",
              "Each as it is now, the one that is nearest to its claim first.", (
            Column("of the claim", f"{lower} / {claim}", "percentunit", RED_ABOVE_1),
            Column("verdict", per_audit(metrics.VERDICT, _AUDITS), "short", RED_FROM_1, VERDICTS),
            Column("ε ≥ so far", lower),
            Column("claim", claim),
            Column("done", per_audit(metrics.TRIALS_DONE, _AUDITS)),
            Column("planned", per_audit(metrics.TRIALS_PLANNED, _AUDITS)),
            Column("failed", per_audit(metrics.TRIALS_FAILED, _AUDITS), "short", RED_FROM_1),
        ), 20),
        Panel("Measured ε ≥ so far, and claimed ε",
              "Each bound holds at every look and for all audits at once. `dpaudit status` says "
              "what it assumes, and which ε to quote once all trials are done.",
              {"{{audit}}: at least": lower, "{{audit}}: claim": claim}, width=12),
        Panel("Gap", "Claim minus lower bound; below 0, the verdict and `dpaudit verify` decide.",
              {"{{audit}}": per_audit(metrics.EPSILON_GAP, _AUDITS)}, width=6, colours=RED_BELOW_0),
        Panel("Part of the claim that is shown", "Lower bound divided by claim.",
              {"{{audit}}": f"{lower} / {claim}"}, "percentunit", "bargauge", 6, RED_ABOVE_1),
    ]  # fmt: skip


def _trouble() -> list[Panel | Table | Notes]:
    failed, lost = (per_sweep(m, _AUDITS) for m in (metrics.TRIALS_FAILED, metrics.TRIALS_LOST))
    notes = [f"* **{alert.name}** ({alert.severity}): {alert.description}" for alert in alerts()]
    return [
        Panel("Failed trials", "In packs whose training raised; see `dpaudit status`.",
              {"{{sweep}}": failed}, kind="stat", width=4, colours=RED_FROM_1),
        Panel("Trials run again", "Their trainer died, or was silent for too long.",
              {"{{sweep}}": lost}, kind="stat", width=4, colours=ORANGE_FROM_1),
        Panel("Trainers", "That have a place on a node.",
              {"{{sweep}}": per_sweep(metrics.TRAINERS_ALIVE, _SWEEPS)},
              kind="stat", width=4, colours=RED_BELOW_1),
        Panel("Silence, of what is tolerated", "Time since a pack ended, of 10 minutes or 10 times "
              "the duration of a pack, whichever is longer.",
              {"{{sweep}}": f"({silence(_SWEEPS)}) / {patience(_SWEEPS)}"},
              "percentunit", "stat", 6, RED_FROM_1),
        Panel("Pack", "Seconds that the last finished pack took.",
              {"{{sweep}}": per_sweep(metrics.PACK_SECONDS, _SWEEPS)}, "s", width=6),
        Notes("Alerts", "What they mean and what to do.", "\n".join(notes)),
    ]  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The Grafana dashboard, with the variables that Ray's own dashboards have, and `audit`."""
    panels: list[dict[str, Any]] = []
    y = 0
    for question, row in rows().items():
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        head = {"type": "row", "title": question, "gridPos": place}
        panels.append({**head, "collapsed": False, "panels": []})
        x, y = 0, y + 1
        for panel in row:
            if x + panel.width > 24:
                x, y = 0, y + 8
            panels.append(panel.build({"x": x, "y": y}))
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
        "annotations": {"list": [_firing()]},
        "templating": {"list": _variables()},
        "panels": [{"id": i, **panel} for i, panel in enumerate(panels, 1)],
    }


def _firing() -> dict[str, Any]:
    """A mark over all panels while an alert of a chosen sweep fires."""
    names = "|".join(alert.name for alert in alerts())
    return {
        "name": "Alerts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f'ALERTS{{alertname=~"{names}", alertstate="firing", sweep=~"$sweep"}}',
        "titleFormat": "{{alertname}}",
        "textFormat": "{{sweep}} {{audit}}",
        "tagKeys": "severity",
        "step": "10s",
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "hide": 2}
    return [
        source,
        _variable("SessionName", ""),
        _variable("sweep", '{SessionName=~"$SessionName"}'),
        _variable("audit", _SWEEPS),
    ]


def _variable(label: str, chosen: str) -> dict[str, Any]:
    query = f"label_values({metrics.TRIALS_PLANNED.exported}{chosen}, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "Variable"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def files() -> dict[Path, str]:
    """The content of the files that are checked in, by path."""
    rules = {"groups": [{"name": "dpaudit", "rules": [alert.build() for alert in alerts()]}]}
    text = yaml.safe_dump(rules, sort_keys=False, width=10_000, allow_unicode=True)
    return {DASHBOARD: json.dumps(dashboard(), indent=1) + "\n", RULES: NOTE + text}


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content)
