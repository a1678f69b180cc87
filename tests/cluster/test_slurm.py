"""`cluster/slurm.sh` under Slurm itself, on nodes of this machine, in folders with spaces."""

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import dpaudit_ray as da
from tests.cluster.private_slurm import Slurm, slurm
from tests.command import write_sweep
from tests.conftest import ROOT
from tests.head import wait_for
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
    def run(self) -> Path:
        return self.folder / "runs" / "slow"

    @property
    def done(self) -> bool:
        return (self.run / "_SUCCESS").exists()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def packs(self) -> int:
        return len(list(self.run.glob("scores/*/*.parquet")))

    def trained_on(self, node: str) -> bool:
        return (self.folder / f"on-{node}").exists()

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
        wait_for(
            lambda: (
                (self.packs() >= 3 and all(self.trained_on(f"n{n + 1}") for n in range(nodes)))
                or self.scheduler.job(job)["JobState"] not in ("PENDING", "RUNNING")
            ),
            120,
        )
        assert self.scheduler.job(job)["JobState"] == "RUNNING", self.log

    def hurry(self) -> None:
        (self.folder / "slow").unlink()

    def resume_by_hand(self) -> None:
        """The same sweep without Slurm."""
        self.hurry()
        da.run(self.folder / "sweep.yaml", str(self.folder / "runs"), "inline")

    def tidy(self) -> bool:
        """No token is left."""
        return not list(self.folder.glob(".dpaudit-token*"))


@pytest.fixture
def place(scheduler: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A sweep that takes 100 s while it is slow, and a moment when it is not."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "slow_training.py").write_text(TRAINING)
    (folder / "activate").write_text(f'export PATH="{Path(sys.executable).parent}:$PATH"\n')
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
    scheduler.ask("scancel", "--quiet", "--state=PENDING")
    scheduler.ask("scancel", "--quiet", "--state=RUNNING")
    wait_for(lambda: not scheduler.ask("squeue", "--noheader"), 300)


def assert_as_quiet(place: Place) -> None:
    assert place.done, place.log
    assert_same(place.folder.parent / "quiet" / "slow", place.run)
    assert place.tidy()


def test_signalled_before_the_limit_it_queues_again_and_completes(place):
    """Slurm itself sends what --signal asks for, at its next look at the limits (every 30 s)."""
    job = place.submit()
    place.trains(job)
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
    assert_as_quiet(place)


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
    place.resume_by_hand()
    assert_as_quiet(place)


@long("waits for Slurm's 30 s between looks at the limits")
def test_a_limit_without_a_signal_before_it(place):
    job = place.submit("--time=1", "--signal=B:USR1@0")
    ended = place.wait(job, "TIMEOUT", 200)
    assert ended["Restarts"] == "0"
    assert place.tidy()
    place.resume_by_hand()
    assert_as_quiet(place)


@long("a job is killed and queued again")
@pytest.mark.parametrize("lost", ["n1", "n2"], ids=["the first node", "another node"])
def test_a_node_fails(place, lost):
    """Slurm kills the job and queues it again, whichever node it was."""
    job = place.submit()
    place.trains(job)
    place.scheduler.ask(
        "scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=a test says so"
    )
    wait_for(lambda: place.scheduler.job(job)["Restarts"] == "1", 300)
    place.hurry()
    place.wait(job, "COMPLETED")
    assert_as_quiet(place)


@long("two minutes until another node is lost")
def test_with_no_kill_the_other_nodes_go_on(place):
    job = place.submit("--nodes=3", "--no-kill")
    place.trains(job, nodes=3)
    place.scheduler.ask("scontrol", "update", "NodeName=n3", "State=DOWN", "Reason=a test says so")
    place.hurry()
    ended = place.wait(job, "COMPLETED")
    assert ended["Restarts"] == "0"
    assert_as_quiet(place)


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
