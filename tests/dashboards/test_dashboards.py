"""What is checked in is what the builder writes, and names only metrics that are published."""

import importlib.util
import itertools
import json
import re
import shutil
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import yaml

from dpaudit_ray.orchestration.metrics import METRICS
from tests.conftest import ROOT

DASHBOARDS = ROOT / "dashboards"


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build", DASHBOARDS / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["build"] = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:  # as for a script: what lies beside it
        patch.syspath_prepend(DASHBOARDS)
        spec.loader.exec_module(module)
    return module


def test_files_are_up_to_date():
    for path, content in builder().files().items():
        assert path.read_text() == content, f"run: python dashboards/build.py ({path.name})"


def test_only_published_metrics_are_named_and_all_of_them():
    text = "".join(builder().files().values())
    named = set(re.findall(r"ray_dpaudit_\w+", text))
    assert named == {metric.exported for metric in METRICS}


def test_panels_do_not_overlap_and_every_one_is_explained():
    dashboard = json.loads((DASHBOARDS / "grafana" / "sweep.json").read_text())
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        covered = set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))
        assert columns.stop <= 24
        assert not covered & cells, panel["title"]
        cells |= covered
        assert panel["type"] == "row" or panel["description"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    variables = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert variables == ["datasource", "SessionName", "sweep", "audit"]


def panels(kind: str | None = None) -> dict[str, dict[str, Any]]:
    """Those of a kind, by title."""
    every = json.loads((DASHBOARDS / "grafana" / "sweep.json").read_text())["panels"]
    return {panel["title"]: panel for panel in every if kind in (None, panel["type"])}


def colour(thresholds: dict[str, Any], value: float) -> str:
    """That of a value, by Grafana's rule: of the last step that begins at it or below."""
    steps = thresholds["steps"]
    assert steps[0]["value"] is None
    return [step["color"] for step in steps if step["value"] is None or step["value"] <= value][-1]


@pytest.mark.parametrize(
    ("title", "good", "bad"),
    [
        ("Verdict", 0, 1),
        ("Failed trials", 0, 1),
        ("Silence, of what is tolerated", 0.9, 1.1),
        ("Trainers", 1, 0),
        ("Gap", 0.0, -0.1),
        ("Part of the claim that is shown", 1.0, 1.01),
    ],
)
def test_what_is_wrong_turns_red(title, good, bad):
    panel = panels()[title]
    thresholds = panel["fieldConfig"]["defaults"]["thresholds"]
    assert colour(thresholds, good) == "green"
    assert colour(thresholds, bad) == "red"
    shown = panel["options"].get("colorMode") == "background" or panel["type"] == "bargauge"
    assert shown or panel["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"]


def test_audits_are_sorted_by_ratio_and_red_where_they_are_above_their_claim():
    (table,) = panels("table").values()
    merge, organize = table["transformations"]
    assert merge["id"] == "merge"
    columns = organize["options"]["renameByName"]
    assert columns.keys() == {f"Value #{target['refId']}" for target in table["targets"]}
    assert all(target["instant"] for target in table["targets"])
    assert table["options"]["sortBy"] == [{"displayName": columns["Value #A"], "desc": True}]
    overrides = {
        column["matcher"]["options"]: {item["id"]: item["value"] for item in column["properties"]}
        for column in table["fieldConfig"]["overrides"]
    }
    assert overrides.keys() == set(columns.values())
    for column, bad in [(columns["Value #A"], 1.01), ("verdict", 1), ("failed", 1)]:
        assert colour(overrides[column]["thresholds"], bad) == "red"
        assert colour(overrides[column]["thresholds"], 0) == "green"
        assert overrides[column]["custom.cellOptions"]["type"] == "color-background"


def test_panels_by_audit_follow_its_variable_and_alerts_are_marked_and_explained():
    dashboard = json.loads((DASHBOARDS / "grafana" / "sweep.json").read_text())
    targets = [t["expr"] for panel in panels().values() for t in panel.get("targets", [])]
    by_audit = [text for text in targets if text.startswith("max by (sweep, audit)")]
    assert len(by_audit) >= 8
    assert all('audit=~"$audit"' in text for text in by_audit)
    (mark,) = dashboard["annotations"]["list"]
    (notes,) = panels("text").values()
    for alert in builder().alerts():
        assert alert.name in mark["expr"]
        assert (
            f"**{alert.name}** ({alert.severity}): {alert.description}"
            in notes["options"]["content"]
        )
        assert "$" not in alert.description  # Grafana would take it for a variable


def test_provisioning_files_say_where_the_dashboard_is():
    provisioning = DASHBOARDS / "grafana" / "provisioning"
    for kind, key in [("dashboards", "providers"), ("datasources", "datasources")]:
        raw = yaml.safe_load((provisioning / kind / "dpaudit.yaml").read_text())
        assert raw["apiVersion"] == 1
        assert len(raw[key]) == 1
    assert (
        "rules.yaml"
        in yaml.safe_load((DASHBOARDS / "prometheus/prometheus.yaml").read_text())["rule_files"]
    )


PREFIX = "ray_dpaudit_"
RESULT, PACK = "last_result_timestamp_seconds", "pack_seconds"
# Series, as (name, audit, values); when it is asked; and the audits for which the alert fires then.
CASES: dict[str, tuple[list[tuple[str, str | None, str]], str, list[str | None]]] = {
    # Trials of one audit fail, those of the other do not.
    "DpauditTrialsFailed": (
        [("trials_failed", "a", "0 0 30 30"), ("trials_failed", "b", "0x3")], "3m", ["a"],
    ),
    "DpauditViolationFound": (
        [("epsilon_lower", "a", "1 2 3 3"), ("verdict", "a", "0 0 1 1"),
         ("epsilon_lower", "b", "1 2 2 2"), ("verdict", "b", "0x3")], "3m", ["a"],
    ),
    # The last result came at 0 s, packs take 2 s: 600 s and a minute later somebody is called.
    "DpauditSweepStalled": ([(RESULT, None, "0x20"), (PACK, None, "2x20")], "13m", [None]),
    # Packs take 10 minutes: 13 minutes of silence are nothing.
    "DpauditSweepStalled, not yet": ([(RESULT, None, "0x20"), (PACK, None, "600x20")], "13m", []),
    "DpauditNoTrainers": ([("trainers_alive", None, "0x20")], "6m", [None]),
    "DpauditNoTrainers, not now": ([("trainers_alive", None, "0 0 1x18")], "6m", []),
}  # fmt: skip
ALERTS = {case.partition(",")[0] for case in CASES}


def labels(audit: str | None) -> str:
    """As PromQL writes them."""
    return f'{{audit="{audit}", sweep="s"}}' if audit else '{sweep="s"}'


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian: prometheus)")
@pytest.mark.parametrize("case", CASES)
def test_alerts_fire_when_they_should_and_only_then(tmp_path, case):
    """promtool evaluates the rules on made-up series."""
    series, at, fires = CASES[case]
    firing = f'ALERTS{{alertname="{case.partition(",")[0]}", alertstate="firing"}}'
    expected = [{"labels": labels(audit), "value": 1} for audit in fires]
    expression = {"expr": f"count by (sweep, audit) ({firing})", "eval_time": at}
    made_up = [{"series": PREFIX + n + labels(audit), "values": v} for n, audit, v in series]
    test = {
        "interval": "1m",
        "input_series": made_up,
        "promql_expr_test": [expression | {"exp_samples": expected}],
    }
    rules = str(DASHBOARDS / "prometheus" / "rules.yaml")
    content = {"rule_files": [rules], "evaluation_interval": "30s", "tests": [test]}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(content))
    done = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_and_the_readme_explains_every_metric_and_alert():
    assert {alert.name for alert in builder().alerts()} == ALERTS
    text = (DASHBOARDS / "README.md").read_text()
    for metric in METRICS:
        assert f"| `{metric.name}` | {', '.join(metric.labels)} | {metric.help} |" in text
    assert all(f"| `{alert}` |" in text for alert in ALERTS)
