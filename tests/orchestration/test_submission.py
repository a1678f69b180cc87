"""Sweeps as Ray jobs: on a real head, with the Jobs API played, and what is sent with them."""

import dataclasses
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import ray.job_submission

import dpaudit_ray as da
from dpaudit_ray.errors import Exit, NoClusterError, RunDirectoryError, SpecError
from dpaudit_ray.orchestration import submission, working_dir_package
from dpaudit_ray.orchestration.submission import JobsClient, SweepJob
from dpaudit_ray.orchestration.working_dir_package import WorkingDirPackage
from dpaudit_ray.sweep import spec
from jobs import submit
from tests.command import changed, dpaudit, inline, refused, write_sweep
from tests.conftest import ROOT
from tests.head import Head, head, wait_for
from tests.orchestration.nodes import finished


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


def submitting(cluster: Head, place: Path) -> subprocess.Popen[str]:
    command = [
        *(sys.executable, "-m", "dpaudit_ray", "submit", "sweep.yaml"),
        *("--address", cluster.dashboard, "--storage-path", str(place / "runs")),
    ]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=place, env=cluster.environment, **piped)


def packs(place: Path) -> int:
    return len(finished(place / "runs"))


@pytest.mark.cluster
def test_submit_see_stop_resume(cluster, place, light, pace):
    """200 packs of two seconds, of a class that lies beside the sweep."""
    shutil.copy(ROOT / "tests" / "pace.py", place / "own_pace.py")
    light["resources"]["pack_size"] = 20
    write_sweep(place, pace.of(changed(light, "audit.trials", 2000), "own_pace:Paced"))
    pace.slow(2.0)
    first = submitting(cluster, place)
    wait_for(lambda: packs(place) >= 5 or first.poll() is not None, 300)
    (job,) = [j for j in cluster.jobs().values() if j["metadata"]["sweep"] == "tiny"]
    assert job["status"] == "RUNNING"
    assert job["metadata"]["attempt"] == "1"
    assert re.fullmatch("tiny-[0-9a-f]{8}-1", job["submission_id"])
    assert float(job["runtime_env"]["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) >= 60
    assert job["metadata"]["job_name"] == "tiny"  # the dashboard's column Name
    alive = {a["name"]: a["repr_name"] for a in cluster.actors() if a["state"] == "ALIVE"}
    assert alive["tiny-aggregator"].startswith("tiny: stores")
    assert alive["tiny-trainer-0"] == "tiny: trains"
    tasks = {task["name"] for task in cluster.tasks() if task["job_id"] == job["job_id"]}
    ours = {task for task in tasks if task.startswith(("Trainer.", "Aggregator."))}
    assert all("__init__" in task for task in tasks - ours), tasks
    assert any(name.startswith("Trainer.run_pack ") for name in tasks), tasks
    assert any(name.startswith("Aggregator.fold ") for name in tasks), tasks
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
        (["--address", "http://127.0.0.1:1"], "no Ray dashboard answers"),
        (
            ["--address", "http://[::1"],
            "answers at http://[::1 (Invalid IPv6 URL)",
        ),
        (["--storage-path", "runs"], "would end with the job"),
        (["--exclude", "sweep.yaml"], "not be left out by --exclude"),
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

        def log_message(self, *arguments: object) -> None: ...

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


ADDRESS = "http://head:8265"


@dataclasses.dataclass
class Job:
    submission_id: str
    entrypoint: str
    metadata: dict[str, str]
    status: str = "RUNNING"
    driver_exit_code: int | None = None
    message: str = ""


class PlayedJobs:
    """Stands in for `JobSubmissionClient`: jobs run until somebody sets another status."""

    def __init__(self, address: str) -> None:
        assert address == ADDRESS

    jobs: ClassVar[list[Job]]
    refusals: ClassVar[list[str]]
    log: ClassVar[str]
    ended: ClassVar[tuple[Any, ...]]

    def list_jobs(self) -> list[Job]:
        return list(self.jobs)

    def submit_job(self, **job: Any) -> str:
        if self.refusals:
            raise RuntimeError(f"Request failed with status code 500: {self.refusals.pop(0)}")
        new = Job(job["submission_id"], job["entrypoint"], job["metadata"], *self.ended)
        self.jobs.append(new)
        return str(job["submission_id"])

    def get_job_info(self, submission_id: str) -> Job:
        return next(job for job in self.jobs if job.submission_id == submission_id)

    def get_job_logs(self, submission_id: str) -> str:
        return self.log


Jobs = type[PlayedJobs]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    for name, value in {"jobs": [], "refusals": [], "log": "one\n", "ended": ()}.items():
        monkeypatch.setattr(PlayedJobs, name, value, raising=False)
    monkeypatch.setattr(ray.job_submission, "JobSubmissionClient", PlayedJobs)
    monkeypatch.setattr(submission, "require_dashboard", lambda address, tell: None)
    monkeypatch.setattr(submission, "POLL_SECONDS", 0.0)
    return PlayedJobs


@pytest.fixture
def prepared(tiny: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the job of `dpaudit submit` with these changes."""
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path, tiny)

    def prepare(storage: str = "/shared/runs", install: bool = False, **values: Any) -> SweepJob:
        sweep = spec.from_raw(tiny, overrides={k.replace("__", "."): v for k, v in values.items()})
        package = WorkingDirPackage(tmp_path)
        return SweepJob(sweep, "sweep.yaml", storage, package, install=install)

    return prepare


def test_a_running_job_is_followed_and_the_next_attempt_counts_on(jobs, prepared):
    cluster = JobsClient(ADDRESS, (told := []).append)
    first = cluster.submit(prepared())
    assert cluster.submit(prepared()) == first
    page = f"as job {first}: {ADDRESS}/#/jobs/{first}"
    assert told == [f"attempt 1 submitted {page}", f"already running {page}"]
    jobs.jobs[0].status = "STOPPED"
    second = cluster.submit(prepared())
    assert (first[-2:], second) == ("-1", first[:-1] + "2")


def test_nodes_that_have_ray_alone_get_this_package_and_what_it_needs(prepared):
    assert set(prepared().runtime_env) == {"env_vars"}
    sent = prepared(install=True).runtime_env
    (package,) = sent["py_modules"]
    assert Path(package) == Path(da.__file__).parent
    versions = dict(line.split("==") for line in sent["uv"]["packages"])
    assert versions["numpy"] == np.__version__  # so that trials are the same
    assert "+" not in versions["torch"]  # the node's device decides on the build
    assert not {"ray", "pytest", "ruff"} & set(versions)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"audit__trials": 160}, '"trials": 160'),
        ({"audit__stop_when": {"within": 0.5}}, '"stop_when": {'),
        ({"resources__num_cpus": 2}, '"num_cpus": 2,'),
        ({"seed": 9}, "here fingerprint "),
    ],
)
def test_other_settings_than_those_of_the_job_that_runs_are_refused(jobs, prepared, change, said):
    cluster = JobsClient(ADDRESS)
    first = cluster.submit(prepared())
    with pytest.raises(RunDirectoryError) as refused:
        cluster.submit(prepared(**change))
    assert said in str(refused.value)
    assert f"ray job stop {first} --address {ADDRESS}" in str(refused.value)
    jobs.jobs[0].status = "STOPPED"
    assert cluster.submit(prepared(**change)).endswith("-2")  # what a resumed run may change


def test_one_id_per_run_whatever_its_path_is_called(jobs, prepared):
    cluster = JobsClient(ADDRESS)
    first = cluster.submit(prepared("/shared/runs"))
    for same in ("/shared/runs/", "//shared//runs", "/shared/a/../runs", "file:///shared/runs/"):
        assert cluster.submit(prepared(same)) == first
    for other in ("/shared/elsewhere", "s3://bucket/runs"):
        assert cluster.submit(prepared(other)) != first
    assert cluster.submit(prepared("s3://bucket/runs/")) == jobs.jobs[-1].submission_id
    places = [job.entrypoint.rpartition(" ")[2] for job in jobs.jobs]
    assert places == ["/shared/runs", "/shared/elsewhere", "s3://bucket/runs"]


def test_refusals_are_told(jobs, prepared):
    jobs.refusals = ["Traceback (most recent call last):\n  File x\nOSError: disk full"]
    with pytest.raises(NoClusterError, match=r"does not take the job \(.*disk full\); try again"):
        JobsClient(ADDRESS).submit(prepared())


def test_a_finished_sweep_is_said_to_be_complete_and_no_job_is_started(jobs, tmp_path, light):
    """Where its run directory can be seen from here, and nothing more is asked of it."""
    sweep = write_sweep(tmp_path, light)
    assert inline(sweep, tmp_path).code == 0
    where = ["submit", sweep, "--address", ADDRESS, "--storage-path", tmp_path]
    where += ["--working-dir", tmp_path, "--no-wait"]
    done = dpaudit(*where)
    run = tmp_path / light["name"]
    assert (done.code, done.err) == (0, f"dpaudit: {run} is complete; next: dpaudit report {run}\n")
    assert not jobs.jobs
    more = light["audit"]["trials"] + 10
    assert "attempt 1 submitted" in dpaudit(*where, "--set", f"audit.trials={more}").err
    (next((run / "scores").rglob("*.parquet"))).unlink()
    assert "already running" in dpaudit(*where, "--set", f"audit.trials={more}").err
    jobs.jobs.clear()
    assert "attempt 1 submitted" in dpaudit(*where).err, "a file is gone"


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        ("SUCCEEDED", 0, Exit.COMPLETE),
        ("STOPPED", None, Exit.STOPPED),
        *(("FAILED", code, code) for code in (2, 3, 4, 70)),
        *(("FAILED", code, Exit.STOPPED) for code in (-9, 137, 143)),  # signals
    ],
)
def test_the_sweep_s_own_exit_code_is_passed_on(jobs, prepared, status, code, exit_code):
    followed(jobs, prepared, exit_code, status, code)


@pytest.mark.parametrize(
    ("code", "message", "told"),
    [
        *(
            (code, "Traceback\nNo module named dpaudit_ray", rf"exit code {code}, as no sweep does "
             r"\(No module named dpaudit_ray\).*--python PATH")
            for code in (1, 5, 15, 64, 126, 127)
        ),
        (None, "The actor died\nlong advice", r"failed \(The actor died\)"),
    ],
)  # fmt: skip
def test_what_no_sweep_ends_with_is_never_passed_on(jobs, prepared, code, message, told):
    """Exit 1 would be a violation."""
    line = followed(jobs, prepared, Exit.STOPPED, "FAILED", code, message)
    assert re.search(told, line)


def followed(jobs: Jobs, prepared: Any, exit_code: int, *ended: Any) -> str:
    """The last line of `dpaudit submit`, which passes on the log of a job that has `ended` so."""
    prepared()
    jobs.ended = ended
    done = dpaudit("submit", "sweep.yaml", "--address", ADDRESS, "--storage-path", "/shared/runs")
    assert (done.code, done.out, "Traceback" in done.err) == (exit_code, "one\n", False)
    return done.err.splitlines()[-1]


def test_several_sweeps_at_once_end_with_the_first_code_that_is_not_0(jobs, prepared, capfd):
    prepared()
    others = ["--address", ADDRESS, "--storage-path", "/shared/runs"]
    jobs.ended = ("STOPPED", 4)
    assert submit.main(["sweep.yaml", "sweep.yaml", *others]) == 4
    assert len(jobs.jobs) == 2, "the first had ended when the second was submitted"
    assert submit.main(["nowhere.yaml", *others]) == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith("submit: ")


def test_a_pending_job_is_reported_now_and_then_with_what_it_waits_for(jobs, prepared, monkeypatch):
    """Ray starts it within 15 minutes or fails it."""
    cluster = JobsClient(ADDRESS, (lines := list[str]()).append)
    name = cluster.submit(prepared())
    (job,) = jobs.jobs
    job.status = "PENDING"
    job.message = (
        "Job has not started yet. It may be waiting for resources (CPUs, GPUs, memory, custom "
        "resources) to become available. It may be waiting for the runtime environment to be set "
        "up."
    )
    clock = types.SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += 2
        if clock.now >= 50:
            job.status = "RUNNING"
        if clock.now >= 300:
            job.status = "SUCCEEDED"

    monkeypatch.setattr(submission.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(submission.time, "sleep", sleep)
    assert cluster.follow(name, lambda line: None) == 0
    first, second = lines[1:]
    assert first.startswith(f"job {name} is pending for 20 s: Job has not started yet. It may be")
    assert second.startswith(f"job {name} is pending for 40 s: ")


def test_a_taken_port_of_the_head_s_agent_is_named(jobs, prepared):
    text = "No available agent to submit job, please try again later."
    jobs.refusals.append(text)
    with pytest.raises(NoClusterError) as refused:
        JobsClient(ADDRESS).submit(prepared())
    assert text.rstrip(".") in str(refused.value)
    assert "--dashboard-agent-listen-port" in str(refused.value)
    assert "try again soon" not in str(refused.value)


def test_every_line_once_and_whole(jobs, prepared, monkeypatch):
    text = "first\nsecond\nthird\nlast"
    cluster, seen = JobsClient(ADDRESS), list[str]()
    name = cluster.submit(prepared())
    cuts = iter([3, 8, None, len(text) - 3, len(text)])

    def log(self: PlayedJobs, submission_id: str) -> str:
        if (cut := next(cuts)) is None:
            raise RuntimeError("the connection is gone")
        jobs.jobs[0].status = "RUNNING" if cut < len(text) - 3 else "SUCCEEDED"
        return text[:cut]

    monkeypatch.setattr(jobs, "get_job_logs", log)
    assert cluster.follow(name, seen.append) == 0
    assert seen == ["first\n", "second\n", "third\n", "last"]


def laid_out(folder: Path, *names: str) -> Path:
    """The folder, with these files in it."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def sent(folder: Path, *excludes: str, include: tuple[str, ...] = ("*",)) -> list[str]:
    return [path.as_posix() for path in WorkingDirPackage(folder, excludes, include).files()]


def git(folder: Path, *words: str) -> None:
    settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(["git", "-C", folder, *settings, *words], check=True, capture_output=True)


def test_without_git_python_sources_and_what_is_included_are_sent(tmp_path):
    laid_out(
        tmp_path,
        *("sweep.yaml", "plugin.py", "types.pyi", "data/table.csv", "data/big.csv", ".rayignore"),
        *(".git/config", ".venv/bin/python", "runs/a/plan.json", "src/__pycache__/a.pyc"),
        *("notes/draft.py", "build/lib/a.py", "dist/a.whl", "venv/bin/a.py", "kaggle.json"),
    )
    (tmp_path / ".rayignore").write_bytes(b"# comment \xff\ndata/big.csv\n")
    assert sent(tmp_path, "notes/", include=()) == ["plugin.py", "types.pyi"]
    included = sent(tmp_path, "notes", include=("data/", "*.yaml", "runs"))
    assert included == [
        "data/table.csv",
        "plugin.py",
        "runs/a/plan.json",
        "sweep.yaml",
        "types.pyi",
    ]
    assert list(map(str, WorkingDirPackage(tmp_path).listing.unsent)) == [
        "data/table.csv (14 bytes)", "kaggle.json (11 bytes)", "sweep.yaml (10 bytes)",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [19, 25])
def test_what_is_not_sent_is_listed_when_a_job_is_submitted(count, jobs, prepared, tmp_path):
    laid_out(tmp_path, *(f"a{number:02}\n" for number in range(count)))
    laid_out(tmp_path, "id_rsa", "keys/a", "keys/b")
    JobsClient(ADDRESS, (told := []).append).submit(prepared())
    assert told[0] == "not sent (links, what looks like a secret): id_rsa"
    begin = r"not sent (not tracked by git, not named by the sweep): a00\n (4 bytes), a01\n (4 byte"
    assert told[1].startswith(begin)
    end = {19: r"a18\n (4 bytes), keys/ (2 files, 12 bytes)", 25: r"a19\n (4 bytes) and 6 more"}
    assert told[1].endswith(f"{end[count]}; send them with --include NAME")


def test_what_a_sweep_names_is_sent(tmp_path, tiny, monkeypatch):
    """Its data, also where git ignores them, its modules, and what those import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    laid_out(tmp_path, ".gitignore", "tracked.txt", "other.csv", "own_beside.py", "own_unused.py")
    (tmp_path / ".gitignore").write_text("*\n")
    (tmp_path / "own_net.py").write_text(
        "import own_beside\nfrom torch import nn\n\n"
        "def net() -> nn.Module:\n    return nn.Linear(2, 2)\n"
    )
    (tmp_path / "own_beside.py").write_text("")
    (tmp_path / "own_unused.py").write_text("")
    (tmp_path / "data.csv").write_text("a,b,label\n" + "1,0,0\n0,1,1\n" * 200)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-f", "tracked.txt")
    tiny["mechanism"]["data"] = {"name": "csv", "path": "data.csv"}
    tiny["mechanism"]["model"] = {"name": "module", "path": "own_net:net"}
    file = write_sweep(tmp_path, tiny)
    job = SweepJob(spec.load(file), str(file), "/shared/runs", WorkingDirPackage(tmp_path))
    named = ["data.csv", "own_beside.py", "own_net.py", "sweep.yaml", "tracked.txt"]
    assert list(map(str, job.package.files())) == named
    assert [str(entry.path) for entry in job.package.listing.unsent] == [
        "other.csv",
        "own_unused.py",
    ]


SECRETS = (
    *(".netrc", "id_rsa", "id_ed25519.pub", ".git-credentials", ".kube/config", ".aws/credentials"),
    *(".ssh/known_hosts", "server.key", "sub/client.pem", ".ray/dpaudit_token", ".env.prod"),
    *("auth_token", "api-token.txt", "token", "tokens.json", "prod.env", "kubeconfig", ".pypirc"),
    *("credentials.json", "secrets.yaml", "my-service-account.json", ".docker/config.json"),
    *("TOKEN", "Secrets.yaml", "api_key.txt", "apikey", "passwords.yml", "kubeconfig.yaml"),
    *("auth.json", "terraform.tfstate", "terraform.tfstate.backup", "ID_RSA", "openai-api-key"),
    *("secrets/db", ".vault-token", ".config/gcloud/application_default_credentials.json"),
)


def test_secrets_stay_at_home(tmp_path):
    laid_out(tmp_path, "sweep.yaml", *SECRETS)
    assert sent(tmp_path) == ["sweep.yaml"]
    told = [path.as_posix() for path in WorkingDirPackage(tmp_path).listing.withheld]
    assert {"id_rsa", "server.key", "sub/client.pem", "secrets"} <= set(told)
    assert not any(name.startswith(".") for name in told)  # nobody expects those to be sent


@pytest.mark.parametrize("name", ["tokenizer.json", "secrets.py", "token.py", "keys.csv", "key"])
def test_what_only_sounds_like_a_secret_is_sent(tmp_path, name):
    assert sent(laid_out(tmp_path, name)) == [name]


@pytest.mark.parametrize("name", ["build", "dist", "runs", "venv", "secrets", "token"])
def test_sources_of_packages_are_sent_whatever_they_are_called(tmp_path, name):
    files = [f"{name}/__init__.py", f"{name}/dist/part.py", f"{name}/runs/part.py"]
    laid_out(tmp_path, *files, f"{name}/.env", f"{name}/__pycache__/a.pyc", f"{name}/a.pem")
    laid_out(tmp_path, f"{name}/table.csv")
    assert sent(tmp_path, include=()) == files
    assert sent(tmp_path, include=(name,)) == [*files, f"{name}/table.csv"]


def test_links_are_not_sent(tmp_path):
    laid_out(tmp_path, "repo/sweep.yaml", "repo/sub/a.py", "repo/sub/.env", "elsewhere/data.csv")
    targets = {"shadow": "/etc/passwd", "data": tmp_path / "elsewhere", "round": tmp_path / "repo"}
    targets |= {"inside": "sub/.env", "same": "sub", "gone": tmp_path / "nowhere"}
    for name, target in targets.items():
        (tmp_path / "repo" / name).symlink_to(target)
    assert sent(tmp_path / "repo") == ["sub/a.py", "sweep.yaml"]
    assert list(map(str, WorkingDirPackage(tmp_path / "repo").listing.withheld)) == sorted(targets)


def test_what_git_tracks_is_sent_and_nothing_else(tmp_path):
    """Of a folder in a repository, of a submodule in it, and of another worktree."""
    repository = laid_out(
        tmp_path / "repository",
        *("top.txt", "work/sweep.yaml", "work/kept.csv", "work/runs/a.txt", "work/auth.json"),
        *("work/package/__init__.py", "work/package/table.csv"),
    )
    laid_out(tmp_path / "library", "library.py", "table.csv")
    for folder in (tmp_path / "library", repository):
        git(folder, "init", "-q")
        git(folder, "add", "-f", ".")
        git(folder, "commit", "-q", "-m", "all")
    git(repository, "submodule", "add", "../library", "work/sub")
    git(repository, "commit", "-q", "-m", "submodule")
    git(repository, "worktree", "add", "-q", tmp_path / "other")
    work = laid_out(repository / "work", "kaggle.json", "keys/a", "keys/b", "sub/new.py", "own.py")
    tracked = ["kept.csv", "package/__init__.py", "package/table.csv", "runs/a.txt"]
    package = WorkingDirPackage(work)
    submodule = ["sub/library.py", "sub/table.csv"]
    assert sent(work, include=()) == [*tracked, *submodule, "sweep.yaml"]
    assert list(map(str, package.listing.withheld)) == ["auth.json"]
    assert [str(entry).partition(" (")[0] for entry in package.listing.unsent] == [
        "kaggle.json", "keys/", "own.py", "sub/new.py",
    ]  # fmt: skip
    assert str(package.listing.unsent[1]) == "keys/ (2 files, 12 bytes)"
    assert sent(tmp_path / "other" / "work", include=()) == [*tracked, "sweep.yaml"]
    assert {"keys/a", "own.py"} <= set(sent(work, include=("keys", "own.py")))


PROGRAM_SETTINGS = """
[core]
    fsmonitor = {0}
    hooksPath = {1}
    pager = {0}
    editor = {0}
    sshCommand = {0}
    gitProxy = {0}
    askPass = {0}
    attributesFile = {1}/attributes
    excludesFile = {1}/excludes
    untrackedCache = true
[pager]
    ls-files = {0}
[alias]
    ls-files = "!{0}"
[filter "own"]
    clean = {0}
    smudge = {0}
    process = {0}
    required = true
[diff "own"]
    textconv = {0}
    command = {0}
[diff]
    external = {0}
[credential]
    helper = "!{0}"
[include]
    path = {1}/included
[includeIf "gitdir:/"]
    path = {1}/included
[trace2]
    eventTarget = {1}/trace
"""


def test_no_setting_of_a_folder_is_obeyed(tmp_path, light, monkeypatch):
    """A folder that was handed over has its own .git: its settings name programs."""
    monkeypatch.chdir(tmp_path)
    program, hooks, ran = tmp_path / "program", tmp_path / "hooks", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    hooks.mkdir()
    for hook in ("post-index-change", "fsmonitor-watchman", "query-watchman", "pre-auto-gc"):
        shutil.copy(program, hooks / hook)
    (hooks / "included").write_text(f"[core]\n    fsmonitor = {program}\n")
    folder = laid_out(tmp_path / "folder", "plugin.py", ".gitattributes", "notes.txt")
    (folder / ".gitattributes").write_text("* filter=own diff=own\n")
    write_sweep(folder, light)
    git(folder, "init", "-q")
    git(folder, "add", "plugin.py", "sweep.yaml")
    with (folder / ".git/config").open("a") as config:
        config.write(PROGRAM_SETTINGS.format(program, hooks))
    subprocess.run(["git", "-C", folder, "status"], capture_output=True, check=False)
    assert ran.exists(), "git itself obeys them"
    for name in ("GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_SSH_COMMAND", "GIT_CONFIG_PARAMETERS"):
        monkeypatch.setenv(name, f"'core.fsmonitor={program}'")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    linked = laid_out(tmp_path / "linked", "plugin.py", "notes.txt")
    (linked / ".git").write_text(f"gitdir: {folder}/.git\n")
    write_sweep(linked, light)
    for place in (folder, linked):
        ran.unlink(missing_ok=True)
        said = refused(
            "submit", place / "sweep.yaml", "--trust", "", "--working-dir", place,
            "--address", "http://127.0.0.1:1", "--storage-path", "/shared/runs",
        )  # fmt: skip
        assert "no Ray dashboard answers" in said
        assert not ran.exists()
        assert sent(place, include=()) == ["plugin.py", "sweep.yaml"]
        assert not ran.exists()


@pytest.mark.parametrize("link", ["", "gitdir: \0", "gitdir: .", "gitdir: nowhere", "x" * 10**6])
def test_a_foreign_repository_counts_as_none(tmp_path, link):
    laid_out(tmp_path, "a.py", "b.txt")
    (tmp_path / ".git").write_text(link)
    assert sent(tmp_path, include=()) == ["a.py"]
    (tmp_path / ".git").unlink()
    os.mkfifo(tmp_path / "index")
    (tmp_path / ".git").write_text("gitdir: .")
    assert sent(tmp_path, include=()) == ["a.py"]
    (tmp_path / "index").unlink()
    (tmp_path / "index").write_bytes(b"DIRC\0\0\0\2\xff\xff\xff\xff" + bytes(99))
    assert sent(tmp_path, include=()) == ["a.py"]


def test_names_that_are_not_utf8_and_folders_without_end_are_one_line(tmp_path):
    (tmp_path / os.fsdecode(b"\xff\xfe.py")).touch()
    with pytest.raises(SpecError, match=r"name of '\\udcff\\udcfe\.py' is not UTF-8; rename it"):
        WorkingDirPackage(tmp_path).files()
    assert sent(tmp_path, "*.py") == []
    deep, here = tmp_path / "deep", os.getcwd()
    deep.mkdir()
    try:
        os.chdir(deep)
        for _ in range(1100):
            os.mkdir("a")
            os.chdir("a")
    finally:
        os.chdir(here)
    try:
        with pytest.raises(SpecError, match="nested too deep; --exclude it"):
            sent(tmp_path, "*.py")
    finally:
        subprocess.run(["rm", "-rf", deep], check=True)


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch):
    laid_out(tmp_path, "sweep.yaml", "locked/a.csv")
    listed = os.listdir

    def refusing(folder: Path) -> list[str]:
        if Path(folder).name == "locked":
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(os, "listdir", refusing)
    with pytest.raises(SpecError, match=r"cannot read .*locked \(Permission denied\); --exclude"):
        WorkingDirPackage(tmp_path).files()
    assert sent(tmp_path, "locked") == ["sweep.yaml"]


def test_what_ray_packs_is_a_copy_with_modes(tmp_path):
    folder = laid_out(tmp_path / "folder", "venv/__init__.py", "run.sh", ".env")
    (folder / "run.sh").chmod(0o755)
    WorkingDirPackage(folder, includes=("*.sh",)).copy(tmp_path / "copy")
    copied = {str(p.relative_to(tmp_path / "copy")) for p in (tmp_path / "copy").rglob("*.*")}
    assert copied == {"venv/__init__.py", "run.sh"}
    assert (tmp_path / "copy/run.sh").stat().st_mode & 0o777 == 0o755


def test_too_much_is_refused_with_the_largest_files(tmp_path, monkeypatch):
    monkeypatch.setattr(working_dir_package, "LIMIT", 2**20)
    (tmp_path / "huge.bin").write_bytes(bytes(2**20 + 1))
    with pytest.raises(SpecError, match=r"more than 1 MiB .*huge\.bin \(1 MiB\)"):
        sent(tmp_path)
    assert sent(tmp_path, "*.bin") == []
