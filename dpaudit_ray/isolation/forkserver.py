"""The process that calls are forked from: it has imported what takes long, and nothing else.

The fork server of the standard library is not enough: a process has one at most, with one list of
modules to import; its children import the main module of whoever asks; and a `socket.py` in the
folder where one works would be imported in place of the real one.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import json
import os
import shutil
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..errors import first_line

_PR_SET_PDEATHSIG = 1
_LEFT_TO_ASKER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # who asks decides what they mean


def main() -> None:
    """Imports what its settings name, then answers each request with a process id and a status."""
    settings = json.loads(sys.argv[1])
    asker, output = Connection(settings["connection"]), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what modules print on import is no output
    sys.path[:] = [*settings["path"], *(p for p in sys.path if p not in settings["path"])]
    for module in settings["preload"]:
        with contextlib.suppress(Exception, SystemExit):  # the child that needs it tells
            importlib.import_module(module)
    gc.freeze()  # it stays: children that walk through it for garbage would copy it
    for number in _LEFT_TO_ASKER:
        signal.signal(number, signal.SIG_IGN)
    try:
        while True:
            _answer(asker, output, Path(settings["folder"], "result"))
    except (EOFError, OSError):  # whoever asks is gone
        pass
    finally:  # of one that was killed, nobody else removes it
        shutil.rmtree(settings["folder"], ignore_errors=True)
    os._exit(0)  # tearing down what was imported takes seconds, and whoever asked waits


def _answer(asker: Connection, output: int, result: Path) -> None:
    """Makes the next call. Raises EOFError where the connection is closed meanwhile, too."""
    request = json.loads(asker.recv_bytes())
    pid, began = os.fork(), time.monotonic()
    if pid == 0:
        try:
            asker.close()
            _run_child(request, output, result)
        finally:  # whatever fails, a child must not go on as the server and end its folder
            os._exit(1)
    try:
        asker.send(pid)
        ended, status = os.waitpid(pid, os.WNOHANG)
        while not ended:
            # Nothing is asked meanwhile: what comes is the end. A look costs a call 2 % at most.
            if asker.poll(min(0.05, 0.001 + 0.02 * (time.monotonic() - began))):
                raise EOFError
            ended, status = os.waitpid(pid, os.WNOHANG)
    finally:  # a child is a session of its own: all that it started ends with it
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    asker.send(os.waitstatus_to_exitcode(status))


def _run_child(request: dict[str, Any], output: int, result: Path) -> None:
    """Calls the target with its argument; never returns."""
    os.setsid()
    for number in _LEFT_TO_ASKER:
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # what is killed has said all it said
    faulthandler.enable()
    module, _, name = request["target"].partition(":")
    try:
        value = getattr(importlib.import_module(module), name)(request["argument"])
        answer = json.dumps({"value": value})
    except BaseException as error:  # noqa: BLE001 (process boundary)
        detail = "".join(traceback.format_exception(error)[-8:])
        answer = json.dumps({"raised": [type(error).__name__, first_line(error), detail]})
    result.write_text(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what the server has open is not to be ended here


if __name__ == "__main__":
    main()
