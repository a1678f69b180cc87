"""Which script is run, and where: in child processes here, or on the nodes of a Ray cluster."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import queue
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

from .. import imports
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
        """Parses `folder/script.py:function`, else None. Raises SpecError where no such file is."""
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


def _in_order(
    width: int,
    requests: Iterator[RunRequest],
    submit: Callable[[RunRequest], futures.Future[EndedRun]],
) -> Iterator[EndedRun]:
    """Yields runs in the order of their requests; `width` go on at a time.

    Which of two ends first may depend on their coins, and no trial may tell its coin so.
    """
    waiting: collections.deque[futures.Future[EndedRun]] = collections.deque()
    while True:
        running = [run for run in waiting if not run.done()]
        if len(running) < width and (request := next(requests, None)) is not None:
            waiting.append(submit(request))
        elif not waiting:
            return
        elif waiting[0].done():
            yield waiting.popleft().result()
        else:
            futures.wait(running, return_when=futures.FIRST_COMPLETED)


class LocalRunner:
    """Child processes of this machine, `width` at a time, which share its cores."""

    def __init__(self, target: Target) -> None:
        self._sandboxes = contextlib.ExitStack()
        # Last in, first out: a sandbox that was used has its server already.
        self._free: queue.LifoQueue[Sandbox] = queue.LifoQueue()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        self.width = min(4, cores)
        self._threads = cores // self.width
        self._target = target
        for _ in range(self.width):
            self._free.put(self._sandboxes.enter_context(sandbox_for(target)))

    def close(self) -> None:
        """Ends all processes."""
        self._sandboxes.close()

    def run(self, requests: Iterator[RunRequest], limits: Limits) -> Iterator[EndedRun]:
        """Ended runs in the order of their requests.

        `limits`, of memory and output, hold for each run; its seconds are in its request.
        """

        def call(request: RunRequest) -> EndedRun:
            sandbox = self._free.get()
            try:
                return run_once(sandbox, self._target, request, limits, self._threads)
            finally:
                self._free.put(sandbox)

        with futures.ThreadPoolExecutor(self.width) as pool:
            try:
                yield from _in_order(self.width, requests, lambda asked: pool.submit(call, asked))
            except BaseException:
                self.close()  # then no call goes on that nobody waits for
                raise


class RayRunner:
    """Tasks of a Ray cluster: each runs the script in a child process of its worker.

    What lies in the script's folder goes with them, as with a job; this package must be there.
    Raises SpecError where the folder is too large to send.
    """

    def __init__(self, ray: Any, target: Target) -> None:
        self._target = target
        self.width = max(1, int(ray.cluster_resources().get("CPU", 1)))
        folder = target.script.parent
        files = WorkingDirPackage(folder).files()
        self._files = ray.put({str(path): (folder / path).read_bytes() for path in files})
        self._task = ray.remote(num_cpus=1, max_retries=2)(_run_on_node)

    def close(self) -> None:
        """Nothing: tasks end by themselves."""

    def run(self, requests: Iterator[RunRequest], limits: Limits) -> Iterator[EndedRun]:
        """Runs in the order of their requests; each may take `limits` beside its own seconds."""

        def submit(request: RunRequest) -> Any:
            return self._task.remote(self._files, self._target, request, limits).future()

        return _in_order(self.width, requests, submit)


def _run_on_node(
    files: dict[str, bytes], target: Target, request: RunRequest, limits: Limits
) -> EndedRun:
    """Makes the script's folder again on a node, and runs the script in it."""
    with tempfile.TemporaryDirectory(prefix="dpaudit-") as name, contextlib.chdir(name):
        folder = Path(name).resolve()
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        there = dataclasses.replace(target, script=folder / target.script.name)
        with sandbox_for(there) as sandbox:
            return run_once(sandbox, there, request, limits, 1)


Runner = LocalRunner | RayRunner


def sandbox_for(target: Target) -> Sandbox:
    """Where a script is run: installed modules that it imports, or might, are there already.

    Not the user's own: what they do on import must happen in each run. Nor those that start
    threads, which are not there after a fork.
    """
    names = imports.installed_imports({target.script.stem: target.script})
    preload = [name for name in names if name.partition(".")[0] not in _THREADED]
    return Sandbox((*_ALWAYS, *preload), tuple(folder for folder in sys.path if folder))


def run_once(
    sandbox: Sandbox, target: Target, request: RunRequest, limits: Limits, threads: int
) -> EndedRun:
    """Runs the script once, under watch; `limits` come on top of the request's seconds."""
    if limits.seconds is not None and request.seconds is not None:
        limits = dataclasses.replace(limits, seconds=request.seconds + limits.seconds)
    with tempfile.TemporaryDirectory(prefix="dpaudit-") as folder:
        record = Path(folder) / "record.jsonl"
        argument = {
            "script": str(target.script), "function": target.function, "delta": target.delta,
            "record": str(record), "request": dataclasses.asdict(request), "threads": threads,
        }  # fmt: skip
        ended = sandbox.call(_RUN, argument, limits)
        return EndedRun(request, ended, read_entries(record))
