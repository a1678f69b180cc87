"""Notes which processes a script starts: they are not watched, and the verdict names them.

Workers of a DataLoader are not noted, since steps are taken where they hand their batches to. A
forked child inherits the watch, so it is switched off there.
"""

import multiprocessing.process
import os
import re
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch.multiprocessing

from .hooks import around, calling_line, is_users
from .run_state import WatchedRun

_LOADERS = "torch.utils.data."  # module of what a DataLoader's worker calls
_POOLS = ("multiprocessing.", "concurrent.")  # modules of what workers of pools and managers call
_PYTHON = re.compile(r"\b(?:python[\d.]*|torchrun|accelerate|deepspeed)(?:\s|$)")
# Libraries that start processes for their own purposes are none of these.
_STARTERS = ("subprocess.", "torch.distributed.", "accelerate.")


def install(run: WatchedRun) -> None:
    """Notes processes from now on."""
    os.register_at_fork(after_in_child=lambda: _switch_off(run))

    @around(multiprocessing.process.BaseProcess, "start")
    def start(original: Any, self: Any) -> None:
        module = str(getattr(self._target, "__module__", ""))
        if not module.startswith(_LOADERS):
            trains = not module.startswith(_POOLS)
            _note(run, _starter("multiprocessing.Process"), trains=trains)
        original(self)

    @around(subprocess.Popen, "__init__")
    def execute(original: Any, self: Any, args: Any, *more: Any, **kwargs: Any) -> None:
        words = [args] if isinstance(args, (str, bytes, os.PathLike)) else args
        starter = _starter("subprocess.Popen")
        if starter.startswith(_STARTERS) and _PYTHON.search(" ".join(map(str, words))):
            _note(run, starter, trains=True)
        original(self, args, *more, **kwargs)

    @around(os, "system")
    def system(original: Any, command: Any) -> Any:
        if _PYTHON.search(str(command)):
            _note(run, "os.system", trains=True)
        return original(command)

    @around(torch.multiprocessing, "spawn")
    def spawn(
        original: Any, fn: Any, args: Any = (), nprocs: int = 1, join: bool = True, **kwargs: Any
    ) -> Any:
        if nprocs == 1 and join:
            return fn(0, *args)  # under watch
        return original(fn, args, nprocs, join, **kwargs)


def _switch_off(run: WatchedRun) -> None:
    run.phase = "child"
    run.record = Path(os.devnull)


def _note(run: WatchedRun, starter: str, *, trains: bool) -> None:
    if run.phase != "child":
        run.processes[starter, calling_line(), trains] += 1


def _starter(default: str) -> str:
    """Returns the library's function that the user's code has called; `default` if it is none."""
    frame: FrameType | None = sys._getframe(1)
    name = default
    while frame is not None and not is_users(frame.f_code.co_filename):
        module = str(frame.f_globals.get("__name__"))
        if not module.startswith("dpaudit_ray."):
            function = frame.f_code.co_qualname
            name = module if module.endswith(f".{function}") else f"{module}.{function}"
        frame = frame.f_back
    return name
