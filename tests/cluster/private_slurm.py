"""A Slurm of our own for a test: several nodes on this machine, on loopback, gone afterwards."""

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
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.head import free_port, wait_for

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
        started.ask("scancel", "--quiet", f"--user={getpass.getuser()}")
        wait_for(lambda: not started.ask("squeue", "--noheader"), 300)


def _configure(place: Path, nodes: int) -> None:
    for folder in ("state", *(f"spool-n{number}" for number in range(1, nodes + 1))):
        (place / folder).mkdir()
    key = place / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    host = socket.gethostname().split(".")[0]
    lines = [
        f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=1 "
        "Gres=gpu:1"
        for number in range(1, nodes + 1)
    ]
    (place / "slurm.conf").write_text(
        CONFIGURATION.format(
            host=host, port=free_port(), user=getpass.getuser(), place=place, nodes="\n".join(lines)
        )
    )
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
