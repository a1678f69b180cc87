"""Which script is run, and where: in child processes here, or on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from .. import module_files
from ..errors import SpecError
from ..isolation import Ended, Limits, Sandbox
from ..orchestration.working_dir_package import WorkingDirPackage
from .watch.run_state import Entries, RunRequest, read_entries

_RUN = "dpaudit_ray.scripts.watch.watched_process:run"
_THREADED = {"jax", "tensorflow", "keras", "ray"}
# torch._dynamo: PyTorch imports it where the first optimizer is made, and that takes a second.
_ALWAYS = ("torch", "torch._dynamo", "opacus", "scipy.special")


@dataclasses.dataclass(frozen=True)
class Target:
    """The function of a script; δ and ε are the caller's, before those of its marks."""

    script: Path
    function: str
    delta: float | None = None
    epsilon: float | None = None

    def __str__(self) -> str:
        return f"{self.script.name}:{self.function}"

    @classmethod
    def from_text(
        cls, text: str, delta: float | None = None, epsilon: float | None = None
    ) -> Target | None:
        """Parses `folder/script.py:function`; None for what names no script.

        Raises:
            SpecError: there is no such file.
        """
        script, separator, function = text.rpartition(":")
        if not separator or not script.endswith(".py"):
            if text.endswith(".py") and Path(text).exists():
                raise SpecError("", f"{text} is a script; name its function too: {text}:main")
            return None
        path = Path(script).resolve()
        if not path.is_file():
            raise SpecError("", f"there is no script {script}; write path/to/script.py:function")
        if not function.isidentifier():
            raise SpecError("", f"{function!r} is no function's name; write {script}:main")
        return cls(path, function, delta, epsilon)


@dataclasses.dataclass(frozen=True)
class EndedRun:
    """A run that has ended, and its record."""

    request: RunRequest
    ended: Ended
    record: Entries

    @property
    def result(self) -> dict[str, Any] | None:
        """What it returned; None where it did not get that far."""
        result: dict[str, Any] | None = self.ended.value
        return result

    def entries(self, kind: str) -> Entries:
        """Entries of one kind, in their order."""
        return [entry for entry in self.record if entry["kind"] == kind]


class Runner(Protocol):
    """Runs a script, `width` times at once."""

    width: int

    def run(self, requests: Iterator[RunRequest], limits: Limits) -> Iterator[EndedRun]:
        """Runs in any order, as they end; takes the next request where a place is free."""


class LocalRunner:
    """Child processes of this machine, `width` at a time, which share its cores."""

    def __init__(self, target: Target, width: int | None = None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        self.width = max(1, width or min(4, cores))
        self._threads = max(1, cores // self.width)
        self._target = target

    def run(self, requests: Iterator[RunRequest], limits: Limits) -> Iterator[EndedRun]:
        """Runs in any order, as they end."""
        arrived: queue.SimpleQueue[EndedRun | BaseException | None] = queue.SimpleQueue()
        turn, over = threading.Lock(), threading.Event()

        def work() -> None:
            try:
                with sandbox_for(self._target) as sandbox:
                    while not over.is_set():
                        with turn:
                            request = next(requests, None)
                        if request is None:
                            break
                        run = run_once(sandbox, self._target, request, limits, self._threads)
                        arrived.put(run)
            except BaseException as error:  # noqa: BLE001 (thread boundary: raised where it is waited for)
                arrived.put(error)
            finally:
                arrived.put(None)

        for _ in range(self.width):
            threading.Thread(target=work, daemon=True).start()
        running = self.width
        try:
            while running:
                run = arrived.get()
                if run is None:
                    running -= 1
                elif isinstance(run, BaseException):
                    raise run
                else:
                    yield run
        finally:
            over.set()


class RayRunner:
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
        self._task = ray.remote(num_cpus=cpus, max_retries=2)(_run_on_node)

    def run(self, requests: Iterator[RunRequest], limits: Limits) -> Iterator[EndedRun]:
        """Runs in any order, as they end."""
        waiting: dict[Any, RunRequest] = {}
        target = dataclasses.replace(self._target, script=Path(self._target.script.name))
        while True:
            while len(waiting) < self.width and (request := next(requests, None)) is not None:
                # Dictionaries, which workers of any version of this package read.
                raw = [dataclasses.asdict(part) for part in (target, request, limits)]
                waiting[self._task.remote(self._files, *raw, int(self._cpus))] = request
            if not waiting:
                return
            (done,), _ = self._ray.wait(list(waiting), num_returns=1)
            ended, record = self._ray.get(done)
            yield EndedRun(waiting.pop(done), Ended(**ended), record)


def _run_on_node(
    files: dict[str, bytes],
    target: dict[str, Any],
    request: dict[str, Any],
    limits: dict[str, Any],
    threads: int,
) -> tuple[dict[str, Any], Entries]:
    """Makes the script's folder again on a node, and runs the script in it."""
    with tempfile.TemporaryDirectory(prefix="dpaudit-") as name, contextlib.chdir(name):
        folder = Path(name).resolve()
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        there = Target(**target | {"script": folder / target["script"]})
        with sandbox_for(there) as sandbox:
            run = run_once(sandbox, there, RunRequest(**request), Limits(**limits), threads)
    return dataclasses.asdict(run.ended), run.record


def sandbox_for(target: Target) -> Sandbox:
    """Where a script is run: installed modules that it imports, or might, are there already.

    Not the user's own: what they do on import must happen in each run. Nor those that start
    threads, which are not there after a fork.
    """
    names = module_files.installed_imports({target.script.stem: target.script})
    preload = [name for name in names if name.partition(".")[0] not in _THREADED]
    return Sandbox((*_ALWAYS, *preload), tuple(folder for folder in sys.path if folder))


def run_once(
    sandbox: Sandbox, target: Target, request: RunRequest, limits: Limits, threads: int
) -> EndedRun:
    """Runs the script once, under watch."""
    with tempfile.TemporaryDirectory(prefix="dpaudit-") as folder:
        record = Path(folder) / "record.jsonl"
        argument = {
            "script": str(target.script), "function": target.function, "delta": target.delta,
            "record": str(record), "request": dataclasses.asdict(request), "threads": threads,
        }  # fmt: skip
        ended = sandbox.call(_RUN, argument, limits)
        return EndedRun(request, ended, read_entries(record))
