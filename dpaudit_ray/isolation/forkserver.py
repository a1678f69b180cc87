"""The process that calls are forked from: it has imported the modules that take long.

The fork server of the standard library is not enough: a process has one at most, with one list of
modules to import; its children import the main module of the process that started it; and a
`socket.py` in the working directory would be imported in place of the real one.

On Linux, all processes that a call starts end with it, even those in other sessions: the server is
their subreaper, to which the kernel passes orphans. The server's parent is a guardian, which ends
these processes if the server is killed. If the guardian is killed, the server ends them.

Three processes are named here: the caller (which has the `Sandbox`), the guardian (`main`), and the
server (`_serve`), of which each call is a child.
"""

import ctypes
import faulthandler
import gc
import glob
import importlib
import io
import json
import os
import shutil
import signal
import sys
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .. import imports
from ..errors import first_line, printable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS_OF_CALLER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the caller reacts to them
# A process in an uninterruptible call, or of another user, may stay longer.
_END_SECONDS = 5.0


def main() -> None:
    """Starts the server, waits for its end, and ends the processes that it leaves."""
    settings = json.loads(sys.argv[1])
    for number in _SIGNALS_OF_CALLER:
        signal.signal(number, signal.SIG_IGN)
    _set_process_option(_PR_SET_CHILD_SUBREAPER, 1)
    guardian = os.getpid()
    server = os.fork()
    if server == 0:
        try:
            _serve(settings, guardian)
        finally:
            os._exit(1)
    # Else the server would not notice that the caller closes the connection.
    os.close(settings["connection"])
    os.waitpid(server, 0)
    _end_descendants()
    shutil.rmtree(settings["folder"], ignore_errors=True)  # if the server was killed
    os._exit(0)


def _serve(settings: dict[str, Any], guardian: int) -> None:
    """Imports modules, then answers each request with a process id and an exit status.

    Args:
        settings: `connection` (a descriptor), `folder`, `path` and `preload`, as a `Sandbox` has
            them.
        guardian: process id of this process's parent.
    """
    os.setsid()  # a signal for the caller's process group does not end server and guardian at once
    _set_process_option(_PR_SET_CHILD_SUBREAPER, 1)
    caller = Connection(settings["connection"])
    output = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what modules print on import is not output
    path = settings["path"]
    sys.path[:] = [*path, *(folder for folder in sys.path if folder not in path)]
    for module in settings["preload"]:
        with suppress(Exception, SystemExit):  # a child that needs the module raises it again
            importlib.import_module(module)
    gc.freeze()  # else the garbage collector of each child copies all that was imported
    helpers = frozenset(_children(os.getpid()))  # started by imports, and used by all calls
    try:
        while True:
            _answer(caller, output, Path(settings["folder"], "result"), guardian, helpers)
    except (EOFError, OSError):  # the caller has ended
        pass
    finally:  # a caller that was killed does not remove the folder
        shutil.rmtree(settings["folder"], ignore_errors=True)
    os._exit(0)  # tearing down what was imported takes seconds, for which the caller waits


def _answer(
    caller: Connection,
    output: int,
    result: Path,
    guardian: int,
    helpers: frozenset[int],
) -> None:
    """Makes the next call, and ends all processes that it started, except `helpers`.

    Args:
        caller: connection to the caller, which sends the request, and gets the child's process id
            and then its exit status.
        output: descriptor of the call's output.
        result: file for the call's result.
        guardian: process id of this process's parent.
        helpers: process ids of children that do not belong to the call.

    Raises:
        EOFError: the connection was closed meanwhile, or the guardian has ended.
    """
    request = json.loads(caller.recv_bytes())
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            caller.close()
            _run_child(request, output, result)
        finally:  # whatever fails, a child must not continue as the server and end its folder
            os._exit(1)
    try:
        caller.send(pid)
        ended, status = os.waitpid(-1, os.WNOHANG)
        while ended != pid:
            # Waiting takes at most 2 % of a call's time.
            seconds = min(0.05, 0.001 + 0.02 * (time.monotonic() - began))
            # No request comes during a call, so a readable connection is closed.
            if caller.poll(seconds) or os.getppid() != guardian:
                raise EOFError
            ended, status = os.waitpid(-1, os.WNOHANG)  # an orphan may have ended, too
    finally:
        # The child leads a process group. Where the server is no subreaper, the rest is unknown.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        _end_descendants(helpers)
    caller.send(os.waitstatus_to_exitcode(status))


def _end_descendants(spared: frozenset[int] = frozenset()) -> None:
    """Kills all processes below this one except `spared`, for at most _END_SECONDS.

    A process that has lost its parent becomes a child of this process, its subreaper.
    """
    deadline = time.monotonic() + _END_SECONDS
    pause = 0.0
    while time.monotonic() < deadline:
        descendants = set(_children(os.getpid())) - spared
        if not descendants:
            return
        while descendants:
            pid = descendants.pop()
            # Read before the process ends, as its children then become children of this process.
            below = _children(pid)
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # a grandchild
                os.waitpid(pid, os.WNOHANG)
            descendants.update(below)
        time.sleep(pause)  # none at first: a process that forks may be faster
        pause = min(0.05, pause + 0.0001)


def _children(pid: int) -> list[int]:
    """Returns the children of a process, whichever of its threads started them."""
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():  # macOS
        with suppress(ImportError):  # the environment of a script may have no psutil
            import psutil

            with suppress(psutil.Error):  # the process ended meanwhile
                return [process.pid for process in psutil.Process(pid).children()]
        return []
    children = list[int]()
    for path in glob.glob(f"/proc/{pid}/task/*/children"):  # none if the process has ended
        with suppress(OSError):  # the thread ended meanwhile
            children += map(int, Path(path).read_text().split())
    return children


def _set_process_option(option: int, value: int) -> None:
    """Sets an option of this process by the system call `prctl`, which only Linux has."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _run_child(
    request: dict[str, Any],
    output: int,
    result: Path,
) -> None:
    """Calls the target with its argument; never returns.

    Args:
        request: path of the target, and its argument.
        output: file descriptor that takes what is printed.
        result: file to write the result to, as JSON.
    """
    os.setsid()
    for number in _SIGNALS_OF_CALLER:
        signal.signal(number, signal.SIG_DFL)
    _set_process_option(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # So that a killed process has written all lines.
            stream.reconfigure(line_buffering=True)
    faulthandler.enable()
    module, _, name = request["target"].partition(":")
    pid = os.getpid()
    try:
        value = getattr(importlib.import_module(module), name)(request["argument"])
        answer = json.dumps({"how": "returned", "value": value})
    except BaseException as error:  # noqa: BLE001 (process boundary)
        kind = type(error).__name__
        line = first_line(error)
        message = kind if line == kind else f"{kind}: {line}"
        frames = "".join(traceback.format_exception(error)[-8:])
        fields = {"message": printable(message), "traceback": frames, "place": _place(error)}
        answer = json.dumps({"how": "raised", **fields})
    if os.getpid() == pid:  # else it is a fork that has returned from the target
        result.write_text(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # runs no exit handlers of the server


def _place(error: BaseException) -> str:
    """Returns file and line of the last frame of the user's code, or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if imports.is_users(frame.filename)]
    return f"{Path(users[-1].filename).name}, line {users[-1].lineno}" if users else ""


if __name__ == "__main__":
    main()
