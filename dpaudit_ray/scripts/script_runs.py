"""Where runs of a script happen: in child processes here, or on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from .. import module_files
from ..isolation import Ended, Limits, Sandbox
from ..orchestration.working_dir_package import WorkingDirPackage
from .locate import Target
from .watch.recorder import entries
from .watch.run_state import Asked

_RUN = "dpaudit_ray.scripts.watch.watched_process:run"
_THREADED = {"jax", "tensorflow", "keras", "ray"}
# torch._dynamo: PyTorch imports it where the first optimizer is made, and that takes a second.
_ALWAYS = ("torch", "torch._dynamo", "opacus", "scipy.special")


@dataclasses.dataclass(frozen=True)
class Seen:
    """A run that has ended, and its record."""

    asked: Asked
    ended: Ended
    record: list[dict[str, Any]]

    @property
    def told(self) -> dict[str, Any] | None:
        """What it returned; None where it did not get that far."""
        found: dict[str, Any] | None = self.ended.value
        return found


class Runner(Protocol):
    """Runs a script, several times at once."""

    width: int

    def run(self, asked: Iterator[Asked], limits: Limits) -> Iterator[Seen]:
        """Runs in any order, as they end; takes the next request where one is free."""


class Here:
    """Child processes of this machine, `width` at a time, each with `threads` threads."""

    def __init__(self, target: Target, width: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        self.width = max(1, width or min(4, cores))
        self._threads = max(1, cores // self.width)
        self._target = target

    def run(self, asked: Iterator[Asked], limits: Limits) -> Iterator[Seen]:
        """See `Runner.run`."""
        arrived: queue.SimpleQueue[Seen | BaseException | None] = queue.SimpleQueue()
        turn, over = threading.Lock(), threading.Event()

        def work() -> None:
            try:
                with room(self._target) as own:
                    while not over.is_set():
                        with turn:
                            request = next(asked, None)
                        if request is None:
                            break
                        arrived.put(one(own, self._target, request, limits, self._threads))
            except BaseException as error:  # noqa: BLE001 (thread boundary: told where it is waited for)
                arrived.put(error)
            finally:
                arrived.put(None)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(self.width)]
        for thread in threads:
            thread.start()
        running = len(threads)
        try:
            while running:
                found = arrived.get()
                if found is None:
                    running -= 1
                elif isinstance(found, BaseException):
                    raise found
                else:
                    yield found
        finally:
            over.set()


class OnRay:
    """Tasks of a Ray cluster: each runs the script in a child process of its worker.

    What lies in the script's folder goes with them, as with a job; this package must be there.

    Raises:
        SpecError: the folder is too large to send.
    """

    def __init__(self, ray: Any, target: Target, cpus: float = 1) -> None:
        self._ray, self._target, self._cpus = ray, target, cpus
        self.width = max(1, int(ray.cluster_resources().get("CPU", 1) // cpus))
        folder = target.script.parent
        files = WorkingDirPackage(folder).files()
        self._files = ray.put({str(path): (folder / path).read_bytes() for path in files})
        self._task = ray.remote(num_cpus=cpus, max_retries=2)(_there)

    def run(self, asked: Iterator[Asked], limits: Limits) -> Iterator[Seen]:
        """See `Runner.run`."""
        waiting: dict[Any, Asked] = {}
        script = self._target.script.name
        while True:
            while len(waiting) < self.width and (request := next(asked, None)) is not None:
                given = (script, self._target.function, self._target.delta)
                raw = dataclasses.asdict(request)
                limit = dataclasses.asdict(limits)
                waiting[self._task.remote(self._files, given, raw, limit, int(self._cpus))] = (
                    request
                )
            if not waiting:
                return
            (done,), _ = self._ray.wait(list(waiting), num_returns=1)
            ended, record = self._ray.get(done)
            yield Seen(waiting.pop(done), Ended(**ended), record)


def _there(
    files: dict[str, bytes],
    given: tuple[str, str, float | None],
    raw: dict[str, Any],
    limits: dict[str, Any],
    threads: int,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """On a node: the script's folder is made again, and worked in."""
    script, function, delta = given
    with tempfile.TemporaryDirectory(prefix="dpaudit-") as name, contextlib.chdir(name):
        folder = Path(name).resolve()
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        target = Target(folder / script, function, delta)
        with room(target) as own:
            found = one(own, target, Asked(**raw), Limits(**limits), threads)
    return dataclasses.asdict(found.ended), found.record


def room(target: Target) -> Sandbox:
    """Where a script is run: what it imports of others is there already."""
    return Sandbox((*_ALWAYS, *imported(target.script)), tuple(each for each in sys.path if each))


def one(own: Sandbox, target: Target, asked: Asked, limits: Limits, threads: int) -> Seen:
    """One run."""
    with tempfile.TemporaryDirectory(prefix="dpaudit-") as folder:
        record = Path(folder) / "record.jsonl"
        request = {
            "script": str(target.script), "function": target.function, "delta": target.delta,
            "record": str(record), "asked": dataclasses.asdict(asked), "threads": threads,
        }  # fmt: skip
        ended = own.call(_RUN, request, limits)
        return Seen(asked, ended, entries(record))


def imported(script: Path) -> list[str]:
    """Modules of others that a script imports, or might: they are imported once for all runs.

    Not those of the user's own: what they do on import must happen in each run. Nor those that
    start threads, which are not there after a fork.
    """
    names = module_files.installed_imports({script.stem: script})
    return [name for name in names if name.partition(".")[0] not in _THREADED]


Tell = Callable[[str], None]
