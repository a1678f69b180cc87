"""`cluster/slurm.sh` under a Slurm of our own, on loopback, in folders with spaces."""

import contextlib
import dataclasses
import getpass
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import dpaudit_ray as da
from tests.command import write_sweep
from tests.conftest import ROOT
from tests.head import free_port, wait_for
from tests.long import long
from tests.orchestration.test_faults import assert_same

pytestmark = pytest.mark.cluster
# Slow while a file lies beside it, so that what a test does comes before the end of the sweep.
TRAINING = """
import os
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def train(member: bool, seed: int) -> float:
    (HERE / ("on-" + os.environ.get("SLURMD_NODENAME", "no-node"))).touch()
    if (HERE / "slow").exists():
        time.sleep(0.2)
    return float(np.random.default_rng(seed).normal() + 2 * member)
"""


DAEMONS = ("munged", "slurmctld", "slurmd")
SBIN = os.pathsep.join(("/usr/sbin", "/usr/local/sbin"))
# A job that is queued again waits for `cred_expire` (2 minutes, if nothing is said). GPUs are
# counted and not there, so that the script's own request for one is granted.
CONFIGURATION = """
ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket,cred_expire=5
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
# A node's first `ray start`, as where the head is too busy to answer it in Ray's time.
REFUSED_ONCE = """#!/bin/sh
if [ "$1" = start ] && [ ! -e "{folder}/refused" ] && ! echo "$*" | grep -q -- --head; then
  touch "{folder}/refused"
  exit 1
fi
exec "{ray}" "$@"
"""
NODE = "NodeName=n{n} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=1 Gres=gpu:1"


@dataclasses.dataclass(frozen=True)
class Slurm:
    """Where its configuration lies; `control` and `submit` speak to it."""

    environment: dict[str, str]

    def ask(self, *command: str | Path) -> str:
        """What one of Slurm's commands answers."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    def job(self, job: str) -> dict[str, str]:
        """What is known of a job: JobState, Restarts, ..."""
        return dict(re.findall(r"(\w+)=(\S*)", self.ask("scontrol", "show", "job", job)))

    def cancel(self) -> None:
        """Ends all jobs."""
        for state in ("PENDING", "RUNNING"):
            self.ask("scancel", "--quiet", f"--state={state}", f"--user={getpass.getuser()}")
        wait_for(lambda: not self.ask("squeue", "--noheader"), 300)


@contextlib.contextmanager
def slurm(nodes: int) -> Iterator[Slurm]:
    """Starts `nodes` nodes of 1 CPU and 1 counted GPU, and ends them, with the jobs on them.

    Skips where Slurm is not installed.
    """
    path = f"{os.environ['PATH']}{os.pathsep}{SBIN}"
    for daemon in DAEMONS:
        if shutil.which(daemon, path=path) is None:
            pytest.skip(f"{daemon} is not installed (Debian: slurm-wlm, munge)")
    place = Path(tempfile.mkdtemp(prefix="slurm"))  # short: munge has a socket in it
    variables = os.environ | {"PATH": path, "SLURM_CONF": str(place / "slurm.conf")}
    started = Slurm(variables)
    _configure(place, nodes)
    with contextlib.ExitStack() as running:
        running.callback(shutil.rmtree, place, ignore_errors=True)
        for command in _daemons(place, nodes):
            running.enter_context(_daemon(command, place, variables))
        wait_for(lambda: _idle(started, nodes, place), 300)
        yield started
        started.cancel()


def _configure(place: Path, nodes: int) -> None:
    for folder in ("state", *(f"spool-n{number}" for number in range(1, nodes + 1))):
        (place / folder).mkdir()
    key = place / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    host = socket.gethostname().split(".")[0]
    lines = "\n".join(NODE.format(n=n + 1, host=host, port=free_port()) for n in range(nodes))
    values = {"host": host, "port": free_port(), "user": getpass.getuser(), "place": place}
    (place / "slurm.conf").write_text(CONFIGURATION.format(nodes=lines, **values))
    (place / "gres.conf").write_text("Name=gpu Count=1 File=/dev/null\n")


def _daemons(place: Path, nodes: int) -> list[list[str]]:
    files = ("socket", "log", "pid", "seed")
    options = [f"--{name}{'-file' * (name != 'socket')}={place}/munge.{name}" for name in files]
    return [
        ["munged", "--foreground", "--force", f"--key-file={place}/munge.key", *options],
        ["slurmctld", "-D"],
        *(["slurmd", "-D", "-N", f"n{number}"] for number in range(1, nodes + 1)),
    ]


@contextlib.contextmanager
def _daemon(command: list[str], place: Path, variables: dict[str, str]) -> Iterator[None]:
    """One of them; what it says is in a file beside the others'."""
    with (place / f"{command[0]}.out").open("a") as out:
        process = subprocess.Popen(
            command, env=variables, stdout=out, stderr=out, start_new_session=True
        )
    try:
        if command[0] == "munged":
            wait_for((place / "munge.socket").exists, 300)
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(200)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _idle(started: Slurm, nodes: int, place: Path) -> bool:
    try:
        states = started.ask("sinfo", "--noheader", "--Node", "--format=%T").split()
    except AssertionError:
        return False  # the controller does not answer yet
    assert "inval" not in states, (place / "slurmctld.out").read_text()[-2000:]
    return states == ["idle"] * nodes


@pytest.fixture(scope="module")
def scheduler() -> Iterator[Slurm]:
    with slurm(nodes=3) as started:
        yield started


@dataclasses.dataclass(frozen=True)
class Place:
    """A user's folder: the sweep, its training, its runs, the jobs' logs."""

    folder: Path
    scheduler: Slurm

    @property
    def done(self) -> bool:
        return (self.folder / "runs/slow/_SUCCESS").exists()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def packs(self) -> int:
        return len(list(self.folder.glob("runs/slow/scores/*/*.parquet")))

    def submit(self, *options: str) -> str:
        """`sbatch`, with less than the script asks for; returns the job's id."""
        variables = {
            "DPAUDIT_ACTIVATE": str(self.folder / "activate"),
            "DPAUDIT_TOKEN_FOLDER": str(self.folder),
            "PYTHONPATH": os.pathsep.join((str(self.folder), str(ROOT))),
        }
        bare = {k: v for k, v in self.scheduler.environment.items() if not k.startswith("RAY_")}
        less = ["--parsable", "--nodes=2", "--cpus-per-task=1", "--time=30"]
        less += [f"--output={self.folder}/log", f"--chdir={self.folder}"]
        return Slurm(bare | variables).ask(
            "sbatch", *less, *options, ROOT / "cluster" / "slurm.sh", "sweep.yaml", "runs"
        ).strip()  # fmt: skip

    def wait(self, job: str, state: str, seconds: float = 300) -> dict[str, str]:
        """Waits until the job is in that state, and fails at once when it has failed."""

        def reached() -> dict[str, str]:
            seen = self.scheduler.job(job)
            assert seen["JobState"] in (state, "PENDING", "RUNNING", "COMPLETING"), (seen, self.log)
            return seen if seen["JobState"] == state else {}

        return wait_for(reached, seconds)

    def trains(self, job: str, nodes: int = 2) -> None:
        """Waits until packs are done, and trials were trained on all nodes."""
        everywhere = [self.folder / f"on-n{n + 1}" for n in range(nodes)]
        wait_for(
            lambda: (
                (self.packs() >= 3 and all(file.exists() for file in everywhere))
                or self.scheduler.job(job)["JobState"] not in ("PENDING", "RUNNING")
            ),
            300,
        )
        assert self.scheduler.job(job)["JobState"] == "RUNNING", self.log

    def hurry(self) -> None:
        (self.folder / "slow").unlink()

    def tidy(self) -> bool:
        """No token is left."""
        return not list(self.folder.glob(".dpaudit-token*"))

    def assert_as_quiet(self, by_hand: bool = False) -> None:
        """It ended as a quiet run does, or does so where it is resumed without Slurm."""
        if by_hand:
            self.hurry()
            da.run(self.folder / "sweep.yaml", str(self.folder / "runs"), "inline")
        assert self.done, self.log
        assert_same(self.folder.parent / "quiet/slow", self.folder / "runs/slow")
        assert self.tidy()


@pytest.fixture
def place(scheduler: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A sweep that takes 100 s while it is slow, and a moment when it is not."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "slow_training.py").write_text(TRAINING)
    programs = Path(sys.executable).parent
    (folder / "activate").write_text(f'export PATH="{folder}/bin:{programs}:$PATH"\n')
    (folder / "bin").mkdir()
    (folder / "bin/ray").write_text(REFUSED_ONCE.format(folder=folder, ray=programs / "ray"))
    (folder / "bin/ray").chmod(0o755)
    sweep = {
        "name": "slow", "seed": 3, "adversary": "own",
        "mechanism": {
            "name": "tests.pace:WithoutTorch", "path": "slow_training:train",
            "steps": 4, "noise_multiplier": 1.0,
        },
        "audit": {"trials": 1000, "delta": 1e-5, "estimators": ["accuracy"]},
        "resources": {"pack_size": 5, "num_cpus": 1},
    }  # fmt: skip
    write_sweep(folder, sweep)
    monkeypatch.syspath_prepend(folder)
    quiet = da.run(sweep, str(tmp_path / "quiet"), "inline")
    assert quiet.complete
    (folder / "slow").touch()
    yield Place(folder, scheduler)
    del sys.modules["slow_training"]
    scheduler.cancel()


def test_signalled_before_the_limit_it_queues_again_and_completes(place):
    """Slurm itself sends what --signal asks for, at its next look at the limits (every 30 s)."""
    job = place.submit()
    place.trains(job)
    assert "Ray has ended on n2 (start 1 of 5)" in place.log
    started = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    ours = [command for command in started if "/raylet " in command and "/tmp/dpaudit." in command]
    assert len(ours) == 2
    # Ports of Ray's own range were taken by another Ray on the node, between its look and its use.
    assert all("--min_worker_port=0 --max_worker_port=0" in command for command in ours)
    place.scheduler.ask("scontrol", "update", f"JobId={job}", "TimeLimit=3")  # minutes: 180 s
    again = wait_for(lambda: (seen := place.scheduler.job(job))["Restarts"] == "1" and seen, 300)
    assert again["Requeue"] == "1"
    assert "running packs have 30 s to finish" in place.log
    assert "run the same command to resume" in place.log
    kept = place.packs()
    assert 3 <= kept < 200
    assert place.tidy()
    place.scheduler.ask("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    place.hurry()
    ended = place.wait(job, "COMPLETED")
    assert ended["Restarts"] == "1"
    assert f"\n{5 * kept}/1000 trials" in place.log  # where the second start began
    place.assert_as_quiet()


def test_a_cancelled_job_stays_away(place):
    job = place.submit("--nodes=1")
    place.trains(job, nodes=1)
    place.scheduler.ask("scancel", job)
    ended = place.wait(job, "CANCELLED")
    # Slurm would wait for 30 s and kill.
    wait_for(lambda: not place.scheduler.ask("squeue", "--noheader"), 300)
    assert place.tidy()
    assert ended["Restarts"] == "0"
    assert not place.done
    place.assert_as_quiet(by_hand=True)


@long("waits for Slurm's 30 s between looks at the limits")
def test_a_limit_without_a_signal_before_it(place):
    job = place.submit("--time=1", "--signal=B:USR1@0")
    ended = place.wait(job, "TIMEOUT", 200)
    assert ended["Restarts"] == "0"
    assert place.tidy()
    place.assert_as_quiet(by_hand=True)


@long("two minutes until a node is lost")
@pytest.mark.parametrize(
    ("lost", "nodes", "options", "restarts"),
    [("n1", 2, (), "1"), ("n2", 2, (), "1"), ("n3", 3, ("--nodes=3", "--no-kill"), "0")],
)
def test_a_node_fails(place, lost, nodes, options, restarts):
    """Slurm kills the job and queues it again, whichever node it was; not with --no-kill."""
    job = place.submit(*options)
    place.trains(job, nodes)
    place.scheduler.ask(
        "scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=a test says so"
    )
    wait_for(lambda: place.scheduler.job(job)["Restarts"] == restarts, 300)
    place.hurry()
    assert place.wait(job, "COMPLETED")["Restarts"] == restarts
    place.assert_as_quiet()


def test_a_job_that_is_signalled_at_its_start_is_not_queued_again(place):
    """It would go round for ever."""
    job = place.submit("--nodes=1")
    wait_for(lambda: place.scheduler.job(job)["JobState"] == "RUNNING", 300)
    wait_for(lambda: (place.folder / "log").exists() and not place.tidy(), 300)
    place.scheduler.ask("scancel", "--batch", "--signal=USR1", job)
    ended = place.wait(job, "FAILED", 60)
    assert (ended["ExitCode"], ended["Restarts"]) == ("4:0", "0")
    assert "give the job more --time" in place.log
    assert place.tidy()
