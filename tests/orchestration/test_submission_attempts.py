"""Attempts at one run: which job is followed, which is refused, and what an ended one means.

Ray's Jobs API is played; `test_submission.py` has the real one.
"""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import ray.job_submission

import dpaudit_ray as da
from dpaudit_ray.errors import ClusterError, Exit, NoClusterError, RunDirectoryError
from dpaudit_ray.orchestration import submission
from dpaudit_ray.orchestration.submission import JobsClient, SweepJob, job_metadata
from dpaudit_ray.orchestration.working_dir_package import WorkingDirPackage
from dpaudit_ray.sweep import spec
from tests.command import changed, dpaudit, inline, write_sweep

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

    def list_jobs(self) -> list[Job]:
        return list(self.jobs)

    def submit_job(self, **job: Any) -> str:
        if self.refusals:
            raise RuntimeError(f"Request failed with status code 500: {self.refusals.pop(0)}")
        if job["submission_id"] in {known.submission_id for known in self.jobs}:
            name = job["submission_id"]
            raise RuntimeError(f"status code 500: Job with submission_id {name} already exists.")
        self.jobs.append(Job(job["submission_id"], job["entrypoint"], job["metadata"]))
        return str(job["submission_id"])

    def get_job_info(self, submission_id: str) -> Job:
        return next(job for job in self.jobs if job.submission_id == submission_id)

    def get_job_logs(self, submission_id: str) -> str:
        return self.log


Jobs = type[PlayedJobs]


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    class Fresh(PlayedJobs):
        jobs: ClassVar[list[Job]] = []
        refusals: ClassVar[list[str]] = []
        log = "one\n"

    monkeypatch.setattr(ray.job_submission, "JobSubmissionClient", Fresh)
    monkeypatch.setattr(submission, "require_dashboard", lambda address, tell: None)
    monkeypatch.setattr(submission, "POLL_SECONDS", 0.0)
    return Fresh


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
    told: list[str] = []
    cluster = JobsClient(ADDRESS, told.append)
    first = cluster.submit(prepared())
    assert cluster.submit(prepared()) == first
    assert told[0] == f"attempt 1 submitted as job {first}: {ADDRESS}/#/jobs/{first}"
    assert told[-1] == f"already running as job {first}: {ADDRESS}/#/jobs/{first}"
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
        ({"audit__trials": 160}, 'here settings {"audit.trials": 160'),
        ({"audit__stop_when": {"within": 0.5}}, '"audit.stop_when": {'),
        ({"resources__num_cpus": 2}, '"resources.num_cpus": 2.0'),
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
    assert [job.entrypoint.rpartition(" ")[2] for job in jobs.jobs] == [
        "/shared/runs",
        "/shared/elsewhere",
        "s3://bucket/runs",
    ]


NOT_YET = "No available agent to submit job, please try again later."


def test_a_cluster_that_has_no_agent_yet_is_asked_again(jobs, prepared):
    jobs.refusals = [NOT_YET] * 3
    told: list[str] = []
    assert JobsClient(ADDRESS, told.append).submit(prepared()) == jobs.jobs[0].submission_id
    assert [line for line in told if "not ready" in line] == told[:1]


@pytest.mark.parametrize(
    ("refusal", "seconds", "asked", "said"),
    [
        (NOT_YET, 0.01, 2, NOT_YET),
        ("Traceback (most recent call last):\n  File x\nOSError: disk full", 60, 1, "disk full"),
    ],
)
def test_refusals_are_told(jobs, prepared, monkeypatch, refusal, seconds, asked, said):
    """That of a cluster which only starts after a bounded time, others at once."""
    monkeypatch.setattr(submission, "START_SECONDS", seconds)
    jobs.refusals = [refusal] * 10**5
    with pytest.raises(NoClusterError, match=rf"does not take the job \(.*{said}\)"):
        JobsClient(ADDRESS).submit(prepared())
    assert 10**5 - len(jobs.refusals) >= asked
    assert asked > 1 or len(jobs.refusals) == 10**5 - 1


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


def test_of_two_that_submit_together_one_follows_the_other(jobs, prepared, monkeypatch):
    cluster = JobsClient(ADDRESS)
    first = cluster.submit(prepared())
    seen = iter([[], []])  # the other's job was not there yet
    monkeypatch.setattr(jobs, "list_jobs", lambda self: next(seen, jobs.jobs))
    told: list[str] = []
    assert JobsClient(ADDRESS, told.append).submit(prepared()) == first
    assert told == [f"already running as job {first}: {ADDRESS}/#/jobs/{first}"]


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
    assert followed(jobs, prepared, status, code) == exit_code


@pytest.mark.parametrize("code", [1, 5, 15, 64, 126])
def test_what_no_sweep_ends_with_is_never_passed_on(jobs, prepared, code):
    with pytest.raises(ClusterError, match=f"exit code {code}, as no sweep does"):
        followed(jobs, prepared, "FAILED", code, "Traceback")


@pytest.mark.parametrize(
    ("code", "last", "said"),
    [
        (1, "/usr/bin/python: No module named dpaudit_ray", "has no module dpaudit_ray"),
        (1, "ModuleNotFoundError: No module named 'typer'", "has no module typer"),
        (127, "/bin/sh: 1: python: not found", "is not there"),
    ],
)
def test_a_cluster_without_the_package_is_told_in_one_line(jobs, prepared, code, last, said):
    with pytest.raises(NoClusterError, match=f"{said}; install .* --python PATH") as caught:
        followed(jobs, prepared, "FAILED", code, f"failed with exit code, logs:\n{last}\n")
    assert caught.value.exit_code == Exit.USAGE


def test_a_job_without_an_exit_code_says_the_first_line_of_why(jobs, prepared):
    with pytest.raises(ClusterError, match=r"failed \(The actor died\)"):
        followed(jobs, prepared, "FAILED", None, "The actor died\nlong advice")


def test_the_command_line_returns_it(jobs, prepared, monkeypatch):
    """Exit 1 would be a violation."""
    command = ("submit", "sweep.yaml", "--address", ADDRESS, "--storage-path", "/shared/runs")
    for code, exit_code in [(1, 4), (137, 4), (70, 70)]:
        ended = Job("", "", {}, "FAILED", code, "Killed")
        monkeypatch.setattr(submission.JobsClient, "_info", lambda self, name, ended=ended: ended)
        outcome = dpaudit(*command)
        assert outcome.code == exit_code
        assert "Traceback" not in outcome.err
        jobs.jobs.clear()


def followed(jobs: Jobs, prepared: Any, status: str, code: int | None, message: str = "") -> int:
    cluster, seen = JobsClient(ADDRESS), list[str]()
    name = cluster.submit(prepared())
    job = jobs.jobs[0]
    job.status, job.driver_exit_code, job.message = status, code, message
    try:
        return cluster.follow(name, seen.append)
    finally:
        assert seen == ["one\n"]


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


def test_settings_that_differ_by_audit_are_shown_by_audit(tiny):
    plain = job_metadata(spec.from_raw(tiny), "/r/tiny")
    del tiny["grid"]
    changed(tiny, "grid", {"audit.trials": [90, 180]})
    both = job_metadata(spec.from_raw(tiny), "/r/tiny")
    assert plain["settings"].startswith('{"audit.trials": 90')
    assert both["settings"].startswith('{"audit.trials": [90, 180]')
