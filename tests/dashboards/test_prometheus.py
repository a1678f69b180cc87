"""A real Prometheus scrapes a real sweep: every expression of every panel and rule has data."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpaudit_ray.orchestration.metrics import METRICS
from tests.command import write_sweep
from tests.conftest import ROOT
from tests.dashboards.test_dashboards import builder
from tests.head import Head, free_port, head, wait_for
from tests.pace import Pace

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="no Prometheus (Debian package prometheus)"
    ),
]

# One mechanism that leaks more than it claims, and one whose training raises.
PLUGINS = """
from dpaudit_ray.accounting import Training
from own_pace import Paced

class Quiet(Paced):
    '''Its noise is a third of what it claims.'''
    name: str = "plugins:Quiet"
    def claimed(self, adversary, horizon):
        return Training(self.noise_multiplier * 3, 1)

class Broken(Paced):
    name: str = "plugins:Broken"
    def open(self, *arguments, **more):
        raise RuntimeError("on purpose")
"""


def sweep(light: dict, pace: Pace) -> dict:
    """Four minutes of sleep: a leak, a failure, and an audit like any other."""
    pace.slow(2.0)
    mechanism = pace.of(light).pop("mechanism") | {"noise_multiplier": 0.5}
    names = ["plugins:Broken", "plugins:Quiet", "own_pace:Paced"]
    light["grid"] = {"mechanism": [mechanism | {"name": name} for name in names]}
    light["audit"] |= {"trials": 6000, "record_every": 6}
    light["resources"]["pack_size"] = 50
    return light


class Prometheus:
    """Its HTTP API."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str) -> Any:
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=60) as response:
            return json.load(response)["data"]

    def value(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now."""
        return list(self.get("query", query=expression)["result"])

    def ready(self) -> bool:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{self.address}/-/ready", timeout=5).close()
            return True
        return False


@contextlib.contextmanager
def prometheus(cluster: Head, folder: Path) -> Iterator[Prometheus]:
    """With our configuration and rules, faster, and for this cluster."""
    config = yaml.safe_load((ROOT / "dashboards/prometheus/prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "2s", "evaluation_interval": "2s"}
    config["rule_files"] = [str(ROOT / "dashboards/prometheus/rules.yaml")]
    (job,) = config["scrape_configs"]
    job["file_sd_configs"][0]["files"] = [str(cluster.temp / "prom_metrics_service_discovery.json")]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        *("prometheus", f"--config.file={folder}/prometheus.yaml"),
        *(f"--storage.tsdb.path={folder}/tsdb", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    server = Prometheus(port)
    try:
        wait_for(server.ready)
        yield server
    finally:
        process.terminate()
        process.wait(200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched")


def expressions() -> dict[str, str]:
    """Every expression of every panel, with all variables at All, and both sides of every rule."""
    build = builder()
    queries = {}
    for panel in build.dashboard()["panels"]:
        for target in panel.get("targets", []):
            plain = re.sub(r"\$(sweep|audit|SessionName)\b", ".*", target["expr"])
            assert "$" not in plain
            queries[f"{panel['title']} {target['refId']}"] = plain
    (mark,) = build.dashboard()["annotations"]["list"]
    queries["mark of alerts"] = mark["expr"].replace("$sweep", ".*")
    for alert in build.alerts():
        queries[f"{alert.name} value"] = alert.value
        queries[f"{alert.name} bound"] = alert.bound
    return queries


def empty(server: Prometheus) -> list[str]:
    """What has no data now."""
    return [name for name, text in expressions().items() if not server.value(text)]


def firing(server: Prometheus) -> dict[str, set[str]]:
    """Audits by name of the alert that fires for them."""
    audits: dict[str, set[str]] = {}
    for alert in server.get("alerts")["alerts"]:
        if alert["state"] == "firing":
            audits.setdefault(alert["labels"]["alertname"], set()).add(alert["labels"]["audit"])
    return audits


def test_every_expression_has_data_while_a_sweep_runs(light, pace, folder):
    (folder / "plugins.py").write_text(PLUGINS)
    shutil.copy(ROOT / "tests" / "pace.py", folder / "own_pace.py")
    file = write_sweep(folder, sweep(light, pace))
    with head(cpus=2) as cluster, prometheus(cluster, folder) as server:
        command = [
            *(sys.executable, "-m", "dpaudit_ray", "submit", file.name),
            *("--address", cluster.dashboard, "--storage-path", str(folder / "runs")),
        ]
        with (folder / "log").open("w") as log:
            running = subprocess.Popen(
                command, cwd=folder, env=cluster.environment, stdout=log, stderr=log
            )
        try:
            wait_for(lambda: not empty(server) or running.poll() is not None, 300)
            assert running.poll() is None, (folder / "log").read_text()[-3000:]
            names = {metric.exported for metric in METRICS}
            for name in names:
                assert server.value(name), name
            wait_for(
                lambda: {"DpauditViolationFound", "DpauditTrialsFailed"} <= firing(server).keys(),
                120,
            )
            alerts = firing(server)
            assert all("Quiet" in audit for audit in alerts["DpauditViolationFound"])
            assert all("Broken" in audit for audit in alerts["DpauditTrialsFailed"])
            assert "DpauditSweepStalled" not in alerts
            assert "DpauditNoTrainers" not in alerts
        finally:
            running.terminate()
            running.wait(200)
