"""Runs of a script, in child processes or on Ray's nodes, and requirements on its first run."""

import collections
import contextlib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .. import imports
from ..errors import ScriptError, SpecError
from ..isolation import Ended, Limits, Sandbox
from ..orchestration.working_dir_package import WorkingDirPackage
from .interpreters import Interpreter
from .protocol import (
    Made,
    Record,
    RunRequest,
    RunResult,
    StepInspection,
    decode_result,
    entries_of,
    read_record,
)

_WATCHED_RUN = "dpaudit_ray.scripts.watch.watched_process:run"
_THREADED = {"jax", "tensorflow", "keras", "ray"}  # modules that start threads
# Modules that each sandbox has loaded. PyTorch would import torch._dynamo where the first optimizer
# is made, and that takes a second.
_ALWAYS_LOADED = ("torch._dynamo", "opacus", _WATCHED_RUN.partition(":")[0])


@dataclass(frozen=True)
class Target:
    """A script, or a function of it.

    Attributes:
        script: a .py or .ipynb file.
        function: the function that trains, without arguments; "" for the whole file.
        delta: δ of the claim, instead of that of the script's marks.
        epsilon: ε of the claim, instead of that of the script's marks.
        arguments: arguments of the command line of a whole file.
        python: interpreter that runs the script; None for the audit's own.
    """

    script: Path
    function: str = ""
    delta: float | None = None
    epsilon: float | None = None
    arguments: tuple[str, ...] = ()
    python: Interpreter | None = None

    def __str__(self) -> str:
        if self.function:
            return f"{self.script.name}:{self.function}"
        return shlex.join([self.script.name, *self.arguments])

    @classmethod
    def from_text(
        cls,
        text: str,
        delta: float | None = None,
        epsilon: float | None = None,
        arguments: Sequence[str] = (),
    ) -> "Target | None":
        """Parses `script.py` or `script.py:main` (or .ipynb); returns None for any other text.

        Args:
            text: the script, and a function of it if only that is to run.
            delta: δ of the claim.
            epsilon: ε of the claim.
            arguments: arguments of the command line.

        Raises:
            SpecError: there is no such file; or the function is not a name, or has arguments.
        """
        match = re.fullmatch(r"(.+\.(?:py|ipynb))(:.*)?", text)
        if not match:
            return None
        script = match[1]
        function = (match[2] or "")[1:]
        path = Path(script).resolve()
        if not path.is_file():
            raise SpecError("", f"there is no script {script}; write path/to/script.py[:function]")
        if match[2] and not function.isidentifier():
            raise SpecError("", f"{function!r} is not a function name; write {script}:main")
        if match[2] and arguments:
            command = shlex.join([script, "--", *arguments])
            raise SpecError("", f"{text} takes no arguments; audit the file: {command}")
        return cls(path, function, delta, epsilon, tuple(arguments))


@dataclass(frozen=True)
class EndedRun:
    """A run that has ended, its record, and its result; None if the run did not reach its end."""

    request: RunRequest
    ended: Ended
    record: Record
    result: RunResult | None = None


def _in_order(
    width: int,
    requests: Iterator[RunRequest],
    submit: Callable[[RunRequest], futures.Future[EndedRun]],
) -> Iterator[EndedRun]:
    """Yields runs in the order of their requests, as the order of their ends may depend on bits.

    Args:
        width: number of runs at a time.
        requests: requests, each of which is made only when it can run.
        submit: starts the run of a request.
    """
    waiting: collections.deque[futures.Future[EndedRun]] = collections.deque()
    while True:
        running = [run for run in waiting if not run.done()]
        request = next(requests, None) if len(running) < width else None
        if request is not None:
            waiting.append(submit(request))
        elif not waiting:
            return
        elif waiting[0].done():
            yield waiting.popleft().result()
        else:
            futures.wait(running, return_when=futures.FIRST_COMPLETED)


class LocalRunner:
    """Runs scripts in child processes of this machine, `width` at a time."""

    def __init__(self, target: Target, cores: int | None = None) -> None:
        """Starts the sandboxes, up to four.

        Args:
            target: the script.
            cores: number of cores that all runs share; None for the cores of this process.
        """
        self._target = target
        self._sandboxes = contextlib.ExitStack()
        if cores is None:  # macOS has no such function
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        self.width = min(4, cores)
        self._threads = cores // self.width
        # Free sandboxes, last in, first out: the server of a sandbox that was used runs already.
        self._free = [self._sandboxes.enter_context(sandbox_for(target)) for _ in range(self.width)]

    def close(self) -> None:
        """Ends the sandboxes, and the runs in them."""
        self._sandboxes.close()

    def run(self, requests: Iterator[RunRequest], limits: Limits) -> Iterator[EndedRun]:
        """Yields ended runs in the order of their requests.

        Args:
            requests: requests of the runs.
            limits: limits of time, in addition to the request's, and of memory.
        """

        def call(request: RunRequest) -> EndedRun:
            """Runs one request in a free sandbox; there are as many sandboxes as threads."""
            sandbox = self._free.pop()
            try:
                return run_once(sandbox, self._target, request, limits, self._threads)
            finally:
                self._free.append(sandbox)

        with futures.ThreadPoolExecutor(self.width) as pool:
            try:
                yield from _in_order(
                    self.width, requests, lambda request: pool.submit(call, request)
                )
            except BaseException:  # Ctrl-C too: else runs would continue that no one waits for
                self.close()
                raise


class RayRunner:
    """Runs scripts in tasks on Ray, which take the files of the script's folder along."""

    def __init__(self, ray: Any, target: Target) -> None:
        """Stores the files of the script's folder in Ray's object store.

        Args:
            ray: the module, connected to a cluster.
            target: the script.

        Raises:
            SpecError: the folder is too large.
        """
        self._target = target
        self.width = max(1, int(ray.cluster_resources().get("CPU", 1)))
        folder = target.script.parent
        files = WorkingDirPackage(folder).files()
        self._files = ray.put({str(path): (folder / path).read_bytes() for path in files})
        self._task = ray.remote(num_cpus=1, max_retries=2)(_run_on_node)

    def close(self) -> None:
        """Does nothing: tasks end by themselves."""

    def run(self, requests: Iterator[RunRequest], limits: Limits) -> Iterator[EndedRun]:
        """Yields ended runs in the order of their requests.

        Args:
            requests: requests of the runs.
            limits: limits of time, in addition to the request's, and of memory.
        """
        return _in_order(
            self.width,
            requests,
            lambda request: self._task.remote(self._files, self._target, request, limits).future(),
        )


def _run_on_node(
    files: dict[str, bytes], target: Target, request: RunRequest, limits: Limits
) -> EndedRun:
    """Copies the script's folder to a node, and runs the script in it.

    Args:
        files: contents by path below the script's folder.
        target: the script.
        request: the request for the run.
        limits: limits of time and memory.
    """
    with tempfile.TemporaryDirectory(prefix="dpaudit-") as name, contextlib.chdir(name):
        folder = Path(name).resolve()
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        copied = replace(target, script=folder / target.script.name)
        with sandbox_for(copied) as sandbox:
            return run_once(sandbox, copied, request, limits, 1)


Runner = LocalRunner | RayRunner


def sandbox_for(target: Target) -> Sandbox:
    """Returns a sandbox for a script, with the installed modules that it may import loaded.

    Modules that start threads are left out: their threads would be missing after a fork.
    """
    default = Interpreter(sys.executable, imports.installed_imports({"": target.script}))
    python = target.python or default
    preload = [name for name in python.imports if name.partition(".")[0] not in _THREADED]
    path = () if target.python else tuple(filter(None, sys.path))
    return Sandbox((*_ALWAYS_LOADED, *preload), path, interpreter=python.path)


def run_once(
    sandbox: Sandbox, target: Target, request: RunRequest, limits: Limits, threads: int
) -> EndedRun:
    """Runs the script once, under watch.

    Args:
        sandbox: the sandbox in which the script runs.
        target: the script.
        request: the request for the run.
        limits: limits of time, in addition to the request's, and of memory.
        threads: number of threads of torch.
    """
    # The run itself ends at its first release after `request.seconds`, if it comes that far.
    if limits.seconds is not None and request.seconds is not None:
        limits = replace(limits, seconds=request.seconds + limits.seconds)
    with tempfile.TemporaryDirectory(prefix="dpaudit-") as folder:
        record = Path(folder) / "record.jsonl"
        argument = {
            "script": str(target.script), "function": target.function, "delta": target.delta,
            "arguments": target.arguments, "threads": threads,
            "record": str(record), "request": asdict(request),
        }  # fmt: skip
        ended = sandbox.call(_WATCHED_RUN, argument, limits)
        result = None if ended.value is None else decode_result(ended.value)
        return EndedRun(request, ended, read_record(record), result)


# Words in code that adds noise by itself, or by a library that the audit does not know.
_PRIVATE_CODE = re.compile(r"(?i)noise|randn|normal_?\(|laplace|privacy|fastdp|clip")
_MADE_VISIBLE = (
    "decorate the function that returns the noisy gradient of a batch: "
    "@audited_release(records=[...], noise_multiplier=..., max_grad_norm=...) "
    "from dpaudit_ray.releases"
)


def require_usable(target: Target, run: EndedRun, budget: float) -> RunResult:
    """Returns the result of a script's first run, if the checks can judge it.

    Args:
        target: the script.
        run: the first run of the script.
        budget: budget of the audit, in seconds.

    Raises:
        ScriptError: the run failed, or took no private step. Steps without noise are judged all
            the same if an ε is claimed, and nothing in the script's text hints at noise.
    """
    result = run.result
    if result is None:
        raise _failure(target, run, budget)
    if any(entry.phase == "import" for entry in entries_of(run.record, Made)):
        file = target.script.name
        raise ScriptError(
            f"{file} trains when it is imported; audit the file: dpaudit audit {file}"
        )
    if sum(result.steps) or (result.made and result.outside_steps):
        return result  # a check judges these steps
    why = "took no private step: it calls neither make_private nor audited_step"
    if result.processes:
        why = f"took no private step itself: {result.unwatched_processes}"
        why += "; train in the main process (nprocs=1)"
    elif result.made:
        why = (
            "took no step with the optimizer of make_private; call its step() or pre_step(), not "
            "their parts, or give a longer --budget"
        )
    elif result.outside_steps:
        source = target.script.read_text(encoding="utf-8", errors="replace")
        is_claimed = target.epsilon is not None or result.marks.epsilon is not None
        if is_claimed and not _PRIVATE_CODE.search(source):
            return result
        steps = result.outside_steps[0].steps
        why = f"never calls make_private, and {steps} steps have no noise that this audit knows"
    elif not target.function:
        why += f"; if one of its functions trains, name it: {target.script.name}:FUNCTION"
    if not (result.processes or result.made):
        why += f"; {_MADE_VISIBLE}"
    raise ScriptError(f"{target} {why}")


def _failure(target: Target, run: EndedRun, budget: float) -> ScriptError:
    """Returns the error that states why a run failed, with the last lines that the run printed.

    Args:
        target: the script.
        run: a run that has no result.
        budget: budget of the audit, in seconds.
    """
    ended = run.ended
    if ended.how == "raised" and ended.message.startswith("SpecError: "):
        return ScriptError(ended.message.removeprefix("SpecError: "))
    if ended.how == "hung":
        steps = [entry.step for entry in entries_of(run.record, StepInspection)]
        last = f"nothing came after step {max(steps) + 1}" if steps else "no step ended"
        reason = f": {last} within the budget of {budget:.0f} s; give a longer --budget"
    elif ended.how == "memory":
        reason = f" {ended.message}; raise the limit with --memory"
    else:
        where = f" ({ended.place})" if ended.place else ""
        verb = "raised " if ended.how == "raised" else ""
        reason = f" {verb}{ended.message}{where}; run it without the audit first"
    lines = tuple(line[:300] for line in ended.output.strip().splitlines()[-5:])
    return ScriptError(f"{target}{reason}", details=lines)
