"""Notes which processes a script starts: they are not watched, and the verdict names them.

Workers of a DataLoader are not noted, since steps are taken in the process that gets their batches.
A forked child inherits the watch, so the watch is switched off there.
"""

import multiprocessing.process
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import torch.multiprocessing

from .hooks import around, before, calling_line
from .run_state import WatchedRun

_LOADERS = "torch.utils.data."  # module of the function that a DataLoader's worker calls
# Commands that may train: a launcher, or Python with a file that is not a library's.
_TRAINING = re.compile(
    r"\b(?:torchrun|accelerate|deepspeed) |\bpython[\d.]* (?!.*-packages).*\.py\b"
)


def install(run: WatchedRun) -> None:
    """Notes processes from now on."""

    def switch_off() -> None:
        """Stops the watch in a forked child."""
        run.phase = "child"
        run.record = Path(os.devnull)

    def note(kind: str) -> None:
        """Counts a process of a kind that the script itself starts, by the line that starts it."""
        if run.phase != "child":
            run.processes[kind, calling_line()] += 1

    os.register_at_fork(after_in_child=switch_off)

    @before(multiprocessing.process.BaseProcess, "start")
    def start(process: Any) -> None:
        """Notes a process of `multiprocessing`, unless it loads data."""
        target = str(getattr(process._target, "__module__", ""))
        if not target.startswith(_LOADERS):
            note(f"{type(process).__name__} of {target}")

    def execute(*args: Any, **kwargs: Any) -> None:
        """Notes a command that may train."""
        # The command is the first argument. In a call of `Popen.__init__` the object is before it.
        command = kwargs.get("args", args[:2][-1])
        if program := _TRAINING.search(re.sub(r"[\[\]',]", "", str(command))):
            note(program[0].strip())

    before(subprocess.Popen, "__init__")(execute)
    before(os, "system")(execute)

    @around(torch.multiprocessing, "spawn")
    def spawn(
        original: Any, fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **kw: Any
    ) -> Any:
        """Calls the function in this process if only one process was to run it."""
        if nprocs == 1:
            return fn(0, *args)  # under watch
        return original(fn, args, nprocs, *more, **kw)
