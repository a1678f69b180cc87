"""The process that calls are forked from: it has imported what takes long, and nothing else.

The fork server of the standard library is not enough: a process has one at most, with one list of
modules to import; its children import the main module of whoever asks; and a `socket.py` in the
folder where one works would be imported in place of the real one.
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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..errors import first_line

_PR_SET_PDEATHSIG = 1
_LEFT_TO_ASKER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # who asks decides what they mean
RAISED = 7  # exit status of a child whose code raised; its result says what


def main() -> None:
    """Imports what its settings name, then answers each request with a process id and a status."""
    settings = json.loads(sys.argv[1])
    asker, output = Connection(settings["connection"]), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what modules print on import is no output
    sys.path[:] = [*settings["path"], *(p for p in sys.path if p not in settings["path"])]
    for module in settings["preload"]:
        with contextlib.suppress(Exception, SystemExit):  # the child that needs it tells
            importlib.import_module(module)
    try:
        _serve(asker, output, Path(settings["folder"], "result"))
    except (EOFError, OSError):  # whoever asks is gone
        pass
    finally:  # of one that was killed, nobody else removes it
        shutil.rmtree(settings["folder"], ignore_errors=True)
    os._exit(0)  # tearing down what was imported takes seconds, and whoever asked waits


def _serve(asker: Connection, output: int, result: Path) -> None:
    """One call at a time, until whoever asks closes the connection."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    for number in _LEFT_TO_ASKER:
        signal.signal(number, signal.SIG_IGN)
    while True:
        request = json.loads(asker.recv_bytes())
        pid = os.fork()
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                for descriptor in (woken, wake):
                    os.close(descriptor)
                asker.close()
                _run_child(request, output, result)
            finally:  # whatever fails, a child must not go on as the server and end its folder
                os._exit(1)
        try:
            asker.send(pid)
            ended, status = os.waitpid(pid, os.WNOHANG)
            while not ended:
                readable, _, _ = select.select([asker.fileno(), woken], [], [])
                if asker.fileno() in readable:  # nothing is asked meanwhile: it has ended
                    raise EOFError
                os.read(woken, 4096)
                ended, status = os.waitpid(pid, os.WNOHANG)
        finally:  # a child is a session of its own: all that it started ends with it
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        asker.send(os.waitstatus_to_exitcode(status))


def _run_child(request: dict[str, Any], output: int, result: Path) -> None:
    """Calls the target with its argument; never returns."""
    os.setsid()
    for number in (signal.SIGCHLD, *_LEFT_TO_ASKER):
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 1
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)  # what is killed has said all it said
        faulthandler.enable()
        status = _call(request, result)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)  # what the server has open is not to be ended here


def _call(request: dict[str, Any], result: Path) -> int:
    try:
        module, _, name = request["target"].partition(":")
        value = getattr(importlib.import_module(module), name)(request["argument"])
        written = json.dumps({"value": value})
    except BaseException as error:  # noqa: BLE001 (process boundary)
        detail = "".join(traceback.format_exception(error)[-8:])
        raised = [type(error).__name__, first_line(error), detail]
        result.write_text(json.dumps({"raised": raised}))
        return RAISED
    result.write_text(written)
    return 0


if __name__ == "__main__":
    main()
