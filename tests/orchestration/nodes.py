"""Ray nodes of our own beside a head, each with an address on loopback, and drivers on them."""

import contextlib
import dataclasses
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from dpaudit_ray import plan as planning
from dpaudit_ray.plan.finished_trials import stored_packs
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.head import Head, actors, free_port, kill_tree, wait_for

_hosts = itertools.count(2)  # 127.0.0.1 is the head's
SMALL = 80 * 1024 * 1024  # bytes of object store: the least that Ray takes


@dataclasses.dataclass
class Node:
    """A raylet with its agents and workers, below one `ray start --block`."""

    address: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def joined(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        return "Ray runtime started" in self.log.read_text()

    def actors(self, name: str) -> list[psutil.Process]:
        return actors(self.process.pid, name)

    def kill(self) -> None:
        kill_tree(self.process)


class Nodes:
    """The nodes that have joined a head, in the order in which they did."""

    def __init__(self, head: Head, folder: Path) -> None:
        self.head, self._folder = head, folder
        self.all: list[Node] = []

    def join(self, cpus: int = 1, inside: Sequence[str | Path] = ()) -> Node:
        """Starts a node, perhaps `inside` another command, and does not wait for it."""
        number = next(_hosts)
        address, log = f"127.0.0.{number}", self._folder / f"{number}.log"
        command = [
            *inside,
            *("ray", "start", "--block", f"--address={self.head.gcs}", f"--num-cpus={cpus}"),
            *(f"--node-ip-address={address}", f"--temp-dir={self._folder}/{number}"),
            *("--num-gpus=0", f"--object-store-memory={SMALL}", "--disable-usage-stats"),
            *(f"--dashboard-agent-listen-port={free_port()}", "--include-log-monitor=false"),
            *("--min-worker-port=0", "--max-worker-port=0"),
        ]
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, env=self.head.environment, stdout=out, stderr=out, start_new_session=True
            )
        self.all.append(node := Node(address, process, log))
        return node

    def joined(self, cpus: int = 1, inside: Sequence[str | Path] = ()) -> Node:
        node = self.join(cpus, inside)
        wait_for(lambda: node.joined)
        return node

    def lose(self, node: Node) -> None:
        """Takes a node away without a warning; the head notices in some seconds."""
        self.all.remove(node)
        node.kill()


def finished(storage: Path) -> list[tuple[int, int]]:
    """First and last trial of all finished packs in a storage."""
    runs = [RunDirectory(str(file.parent)) for file in storage.glob("*/plan.json")]
    audits = [(run, audit) for run in runs for audit in planning.require(run).audits]
    return [pack for run, audit in audits for pack in stored_packs(run, audit)]


class Driver:
    """`dpaudit run` on the cluster of a head. What it says is added to `storage`.log."""

    def __init__(self, head: Head, sweep: Path, storage: Path, *more: str) -> None:
        self._storage, self._log = storage, storage.with_suffix(".log")
        command = [sys.executable, "-m", "dpaudit_ray", "run", sweep, "--storage-path", storage]
        command += ["--address", head.gcs, *more]
        with self._log.open("a") as out:
            self.process = subprocess.Popen(command, env=head.environment, stdout=out, stderr=out)

    @property
    def output(self) -> str:
        """Returns the output of this head and of those before it."""
        return self._log.read_text()

    @property
    def packs(self) -> int:
        """Finished packs in the storage; many may lie in one file, and for a moment in two."""
        return len(finished(self._storage))

    @property
    def trials(self) -> int:
        return sum(last - first + 1 for first, last in finished(self._storage))

    @property
    def at_work(self) -> int | None:
        """The process that holds the run, and has said so twice: before, it may be refused."""
        for file in self._storage.glob("*/driver.json"):
            with contextlib.suppress(OSError, ValueError):  # it is replaced just now
                entry = json.loads(file.read_text())
                return int(entry["pid"]) if entry["beat"] else None
        return None

    def wait_for(self, what: Callable[[], Any], seconds: float = 300) -> Any:
        """The first true value of `what()` while it works."""

        def works() -> Any:
            assert self.process.poll() is None, self.output
            return what()

        return wait_for(works, seconds)

    def ends(self, seconds: float = 400) -> int:
        return self.process.wait(seconds)

    def kill(self) -> None:
        """SIGKILL, for it and for nothing below it."""
        self.process.kill()
        self.process.wait(200)


def ids(center: Head) -> dict[str, str]:
    """Node ids by address, asked of Ray in a process of its own."""
    ask = "import json, ray, sys; ray.init(sys.argv[1], log_to_driver=False); print(json.dumps("
    ask += "{n['NodeManagerAddress']: n['NodeID'] for n in ray.nodes() if n['Alive']}))"
    command = [sys.executable, "-c", ask, center.gcs]
    done = subprocess.run(command, env=center.environment, check=True, capture_output=True)
    # Ray logs there too, now and then after the answer.
    answer = next(line for line in done.stdout.decode().splitlines() if line.startswith("{"))
    return dict(json.loads(answer))


def drained(center: Head, node: Node) -> None:
    """Has Ray told that a node will be taken back in a minute."""
    notice = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot"]
    command = ["ray", "drain-node", f"--address={center.gcs}", *notice]
    command += [f"--node-id={ids(center)[node.address]}", "--deadline-remaining-seconds=60"]
    subprocess.run(command, env=center.environment, check=True)


@contextlib.contextmanager
def driver(head: Head, sweep: Path, storage: Path) -> Iterator[Driver]:
    """A driver that does not outlive the block."""
    started = Driver(head, sweep, storage)
    try:
        yield started
    finally:
        started.kill()


@contextlib.contextmanager
def nodes(head: Head) -> Iterator[Nodes]:
    """Nodes around a head; their processes, and no others, end with the block."""
    folder = Path(tempfile.mkdtemp(prefix="dpn"))  # short: Ray puts sockets below it
    joined = Nodes(head, folder)
    try:
        yield joined
    finally:
        for node in joined.all:
            node.kill()
        shutil.rmtree(folder, ignore_errors=True)
