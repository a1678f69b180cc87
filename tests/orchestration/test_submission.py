"""Sweeps as Ray jobs, on a real head that wants a token."""

import http.server
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import changed, refused, write_sweep
from tests.conftest import ROOT
from tests.head import Head, head, wait_for
from tests.long import long
from tests.orchestration.nodes import finished
from tests.pace import Pace


@pytest.fixture(scope="module")
def cluster() -> Iterator[Head]:
    with head(cpus=2) as started:
        yield started


@pytest.fixture
def place(tmp_path: Path, light: dict, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a sweep."""
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path, light)
    return tmp_path


@pytest.fixture
def lasting(place: Path, light: dict, pace: Pace) -> dict:
    """A sweep of 200 packs there instead, of a class that lies beside it: two seconds for each."""
    shutil.copy(ROOT / "tests" / "pace.py", place / "own_pace.py")
    light["resources"]["pack_size"] = 20
    pace.of(changed(light, "audit.trials", 2000), "own_pace:Paced")
    pace.slow(2.0)
    write_sweep(place, light)
    return light


def submitting(
    cluster: Head,
    place: Path,
    *more: str,
    environment: dict[str, str] | None = None,
    sweep: str = "sweep.yaml",
) -> subprocess.Popen[str]:
    command = [
        *(sys.executable, "-m", "dpaudit_ray", "submit", sweep),
        *("--address", cluster.dashboard, "--storage-path", str(place / "runs"), *more),
    ]
    return subprocess.Popen(
        command,
        cwd=place,
        env=environment or cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def packs(place: Path) -> int:
    return len(finished(place / "runs"))


@pytest.mark.cluster
@pytest.mark.usefixtures("lasting")
def test_submit_see_stop_resume(cluster, place, pace):
    first = submitting(cluster, place)
    wait_for(lambda: packs(place) >= 5 or first.poll() is not None, 300)
    (job,) = [j for j in cluster.jobs().values() if j["metadata"]["sweep"] == "tiny"]
    assert job["status"] == "RUNNING"
    assert job["metadata"]["attempt"] == "1"
    assert re.fullmatch("tiny-[0-9a-f]{8}-1", job["submission_id"])
    assert float(job["runtime_env"]["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) >= 60
    assert job["metadata"]["job_name"] == "tiny"  # the dashboard's column Name
    alive = {a["name"]: a["repr_name"] for a in cluster.actors() if a["state"] == "ALIVE"}
    stored = r"tiny: stores 4,000 trials of 2 audits, \d+ packs to run at the start"
    assert re.fullmatch(stored, alive["tiny-aggregator"])
    assert re.fullmatch("tiny: trains .+ and 1 more audit", alive["tiny-trainer-0"])
    tasks = {task["name"] for task in cluster.tasks() if task["job_id"] == job["job_id"]}
    ours = {task for task in tasks if task.startswith(("Trainer.", "Aggregator."))}
    assert all("__init__" in task for task in tasks - ours), tasks
    assert any(name.startswith("Trainer.run_pack ") for name in tasks)
    assert not any("progress" in name for name in tasks)  # a poll is not work

    stop = ["ray", "job", "stop", job["submission_id"], "--address", cluster.dashboard]
    subprocess.run(stop, env=cluster.environment, check=True, capture_output=True, timeout=400)
    out, err = first.communicate(timeout=400)
    assert first.returncode == 4, (out, err)
    # The driver went on until it had finished.
    assert re.search(r"^20[-\d]+ [:\d]+ dpaudit: stopped; finished packs are safe", out, re.M)
    stopped_at = packs(place)
    assert 5 <= stopped_at < 200

    pace.hurry()
    second = submitting(cluster, place)
    out, err = second.communicate(timeout=400)
    assert second.returncode == 0, (out, err)
    assert "attempt 2" in err
    assert (place / "runs" / "tiny" / "_SUCCESS").exists()
    assert packs(place) == 200
    assert {j["metadata"]["attempt"] for j in cluster.jobs().values()} == {"1", "2"}


@long("one sweep as a job takes the same way")
@pytest.mark.cluster
def test_several_sweeps_at_once(cluster, place, light):
    files = []
    for name in ("first", "second"):
        (place / name).mkdir()
        file = write_sweep(place / name, changed(light, "name", name))
        files.append(str(file.relative_to(place)))
    command = [sys.executable, str(ROOT / "jobs" / "submit.py"), *files]
    command += ["--address", cluster.dashboard, "--storage-path", str(place / "runs")]
    done = subprocess.run(
        command, cwd=place, env=cluster.environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    assert (place / "runs" / "first" / "_SUCCESS").exists()
    assert (place / "runs" / "second" / "_SUCCESS").exists()
    missing = subprocess.run(
        [*command[:2], "nowhere.yaml", *command[2:]],
        cwd=place,
        env=cluster.environment,
        capture_output=True,
    )
    assert missing.returncode == 2
    assert missing.stderr.count(b"\n") == 1


@pytest.mark.cluster
def test_without_the_token_or_with_a_wrong_one_it_is_refused(cluster, place, monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(place))  # no token file there
    command = ("submit", "sweep.yaml", "--address", cluster.dashboard, "--storage-path", place)
    assert "wants the token of its head (Authentication required" in refused(*command)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(place / "nowhere"))
    assert "cannot be opened or is empty" in refused(*command)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    assert "wants the token of its head (Authentication failed" in refused(*command)
    monkeypatch.setenv("RAY_AUTH_MODE", "")  # which the last command has set
    assert not (place / "tiny").exists()


@pytest.mark.cluster
def test_a_token_file_is_enough_the_mode_need_not_be_set(cluster, place):
    environment = {k: v for k, v in cluster.environment.items() if not k.startswith("RAY_AUTH")}
    (place / ".ray").mkdir()
    (place / ".ray" / "auth_token").write_text(cluster.token + "\n")
    code = (
        "from dpaudit_ray.orchestration.submission import JobsClient; "
        f"JobsClient({cluster.dashboard!r})._client.list_jobs()"
    )
    environment["HOME"] = str(place)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=400)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--address", "127.0.0.1:6379"], "such as http://127.0.0.1:8265"),
        (["--address", "ray://head:10001"], "such as http://127.0.0.1:8265"),
        (["--address", "http://127.0.0.1:1"], "no Ray dashboard answers"),
        (["--storage-path", "runs"], "would end with the job"),
        (["--exclude", "sweep.yaml"], "leaves out the sweep file"),
        (["--working-dir", "elsewhere"], "must lie in the working directory"),
        (["--set", "audit.trials"], "takes key=value"),
    ],
)
def test_bad_input_is_refused_in_one_line(place, arguments, said):
    (place / "elsewhere").mkdir()
    usual = ["--address", "http://127.0.0.1:1", "--storage-path", "/shared/runs"]
    assert said in refused("submit", "sweep.yaml", *usual, *arguments)


@pytest.mark.parametrize("code", [302, 307])
def test_the_token_does_not_follow_a_redirect(place, code, monkeypatch):
    """To another port, as to another host: whoever answers there gets nothing at all."""
    heard: list[str | None] = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Says nothing."""

    class Redirecting(Elsewhere):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("Location", f"http://127.0.0.1:{other.server_port}/api/version")
            self.end_headers()

    monkeypatch.setenv("RAY_AUTH_TOKEN", "hunter2" * 5)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with (
        http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as other,
        http.server.HTTPServer(("127.0.0.1", 0), Redirecting) as server,
    ):
        for each in (other, server):
            threading.Thread(target=each.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        more = ["--address", address, "--storage-path", "/shared/runs"]
        said = refused("submit", "sweep.yaml", *more)
        for each in (other, server):
            each.shutdown()
    assert f"is not a Ray dashboard (it answered with HTTP {code})" in said
    assert heard == []
