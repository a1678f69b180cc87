"""The process that trials are forked from: it has imported what takes long, and nothing else.

`python -m dpaudit_ray.isolation.zygote SETTINGS` imports the modules that its settings name, then
reads requests as JSON lines and answers each with the process it forked for it, and again when that
has ended. Every child is a session of its own, so that all it starts can be ended with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import io
import json
import os
import select
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from ..errors import first_line

_PR_SET_PDEATHSIG = 1
_ASKERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # whoever asks decides what they mean
FAILED = 7  # exit status of a child whose code raised; the result says what


def main() -> None:
    """Serves until whoever asks is gone."""
    told = json.loads(sys.argv[1])
    requests, answers = os.dup(0), os.dup(1)
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, 0)
    os.dup2(empty, 1)
    sys.path[:] = [*told["path"], *(each for each in sys.path if each not in told["path"])]
    for module in told["preload"]:
        with contextlib.suppress(Exception, SystemExit):  # the child that needs it tells
            importlib.import_module(module)
    try:
        _serve(requests, answers)
    except BrokenPipeError:  # whoever asks is gone, too
        pass
    finally:  # of one that was killed, nobody else removes it
        shutil.rmtree(told["folder"], ignore_errors=True)
    os._exit(0)  # tearing down what was imported takes seconds, and whoever asked waits


def _serve(requests: int, answers: int) -> None:
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    for number in _ASKERS:
        signal.signal(number, signal.SIG_IGN)
    children: set[int] = set()
    kept = b""
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(children, answers)
        if requests in ready:
            read = os.read(requests, 2**16)
            if not read:
                break
            *lines, kept = (kept + read).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    for each in (requests, answers, woken, wake):
                        os.close(each)
                    _child(json.loads(line))
                children.add(pid)
                _tell(answers, {"began": pid})
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _reap(children: set[int], answers: int) -> None:
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # what it has started and left behind
            _tell(answers, {"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _tell(answers: int, what: dict[str, int]) -> None:
    os.write(answers, json.dumps(what).encode() + b"\n")


def _child(request: dict[str, Any]) -> None:
    """Calls the target with its argument; never returns."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in _ASKERS:
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(request["output"], os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 1
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)  # what is killed has said all it said
        faulthandler.enable()
        status = _call(request)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)  # nothing of the zygote is to be ended here


def _call(request: dict[str, Any]) -> int:
    result = Path(request["result"])
    try:
        module, _, name = request["target"].partition(":")
        found = getattr(importlib.import_module(module), name)(request["argument"])
        written = json.dumps({"value": found})
    except BaseException as error:  # noqa: BLE001 (process boundary)
        detail = "".join(traceback.format_exception(error)[-8:])
        raised = {"kind": type(error).__name__, "message": first_line(error), "traceback": detail}
        result.write_text(json.dumps({"raised": raised}))
        return FAILED
    result.write_text(written)
    return 0


if __name__ == "__main__":
    main()
