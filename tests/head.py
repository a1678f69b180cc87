"""A Ray head of our own for a test: token-protected, on loopback, gone afterwards."""

import contextlib
import dataclasses
import json
import os
import random
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil


@dataclasses.dataclass(frozen=True)
class Head:
    """A head's address, and the environment of a client that has its token."""

    gcs: str
    dashboard: str
    token: str
    temp: Path
    environment: dict[str, str]
    pid: int

    def processes(self, *names: str) -> list[psutil.Process]:
        """Processes of these actor classes on the head's own node."""
        return [process for name in names for process in actors(self.pid, name)]

    def get(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(self.dashboard + path, headers=headers)
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Returns the jobs that the Jobs API lists, by submission id."""
        return {job["submission_id"]: job for job in self.get("/api/jobs/")}

    def actors(self) -> list[dict[str, Any]]:
        return list(self.get("/api/v0/actors?limit=1000&detail=1")["data"]["result"]["result"])

    def tasks(self) -> list[dict[str, Any]]:
        return list(self.get("/api/v0/tasks?limit=10000&detail=1")["data"]["result"]["result"])


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it; none when it is gone."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kill_tree(process: subprocess.Popen[Any]) -> None:
    """SIGKILL for a process and all below it, as when a machine loses its power."""
    for below in tree(process.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            below.kill()
    process.wait(200)


def actors(pid: int, name: str) -> list[psutil.Process]:
    """Actor processes below a process; Ray puts the class name into the process title."""
    matching = []
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if f"ray::{name}" in " ".join(process.cmdline()):
                matching.append(process)
    return sorted(matching, key=lambda process: process.pid)


def wait_for(what: Callable[[], Any], seconds: float = 300) -> Any:
    """The first true value of `what()`."""
    deadline = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < deadline, f"waited {seconds} s"
        time.sleep(0.2)
    return value


def free_port() -> int:
    """A port that is free now, and none that the system gives to Ray's processes meanwhile."""
    while True:
        # From where those of Ray's workers end to where the system's begin.
        port = random.SystemRandom().randrange(20_000, 32_768)
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def head(
    cpus: int = 2, dashboard: bool = True, worker: Mapping[str, Any] | None = None
) -> Iterator[Head]:
    """Starts a head; ends its processes, and no others, when the block is left.

    With `worker`, a node type of Ray's autoscaler, nodes of it come and go with demand.
    """
    temp = Path(tempfile.mkdtemp(prefix="dpa"))  # short: Ray puts sockets below it
    token = secrets.token_hex(32)
    port, page = free_port(), free_port()
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_health_check_period_ms": "1000",  # a lost node is noticed in 5 s and not in 15
        "AUTOSCALER_METRIC_PORT": str(free_port()),
        "DASHBOARD_METRIC_PORT": str(free_port()),
    }
    environment.pop("RAY_ADDRESS", None)
    if worker is not None:
        environment |= {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    command = [
        *("ray", "start", "--head", "--block", f"--port={port}", f"--num-cpus={cpus}"),
        *("--min-worker-port=0", "--max-worker-port=0"),  # free ones: other tests have Ray, too
        *("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--temp-dir={temp}/r"),
        *(f"--dashboard-port={page}", f"--dashboard-agent-listen-port={free_port()}"),
        *(f"--include-dashboard={str(dashboard).lower()}", "--include-log-monitor=false"),
        *(f"--ray-client-server-port={free_port()}", "--disable-usage-stats"),
        f"--autoscaling-config={_autoscaling(temp, port, worker)}" if worker else "--no-monitor",
    ]
    with (temp / "log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    gcs, dashboard_url = f"127.0.0.1:{port}", f"http://127.0.0.1:{page}"
    started = Head(gcs, dashboard_url, token, temp / "r", environment, process.pid)
    try:
        up = _answers if dashboard else _listens
        wait_for(lambda: up(started) or _died(process, temp / "log"))
        yield started
    finally:
        kill_tree(process)  # asked to end, it waits for minutes where its server was killed
        shutil.rmtree(temp, ignore_errors=True)


def _autoscaling(temp: Path, port: int, worker: Mapping[str, Any]) -> Path:
    """A configuration for Ray's autoscaler whose nodes are processes of this machine."""
    head_type = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    provider = {
        "type": "fake_multinode",
        "gcs_address": f"127.0.0.1:{port}",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    }
    lists = ("cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands")
    commands = ("setup_commands", "head_setup_commands", "worker_setup_commands")
    starts = ("head_start_ray_commands", "worker_start_ray_commands")
    config = {
        "cluster_name": "test",
        "max_workers": worker["max_workers"],
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 0.1,
        "provider": provider,
        "auth": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "head_node_type": "ray.head.default",
        "available_node_types": {"ray.head.default": head_type, "worker": dict(worker)},
    } | {name: [] for name in (*lists, *commands, *starts)}
    file = temp / "autoscaling.json"
    file.write_text(json.dumps(config))
    return file


def _listens(started: Head) -> bool:
    return "Ray runtime started" in (started.temp.parent / "log").read_text()


def _answers(started: Head) -> bool:
    with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
        # A job needs the node's agent, which comes up last.
        started.get("/api/jobs/")
        nodes = started.get("/nodes?view=summary")["data"]["summary"]
        return bool(nodes) and bool(nodes[0].get("agent", {}).get("httpPort", True))
    return False


def _died(process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-2000:]
    return False
