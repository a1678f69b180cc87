"""Calls of user-defined functions in child processes, with limits on time and memory.

A `Sandbox` starts one fork server (`forkserver`), which has imported the modules that take long.
Each call is a process forked from it; its result comes back as a file, its output through a pipe.
"""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Literal

from ..errors import ClusterError

# Bytes of a call's output that are kept: from its beginning, and from its end.
_HEAD = 2**12
_TAIL = 2**14
_CHECK_SECONDS = 0.2  # between two checks of a call's limits
_END_SECONDS = 5.0  # time that a server may live on after its connection is closed

Stop = Literal["hung", "memory"]


@dataclass(frozen=True)
class Limits:
    """Limits of one call; None stands for no limit.

    Attributes:
        seconds: duration of the call.
        gib: resident memory of all its processes, in GiB.
    """

    seconds: float | None = None
    gib: float | None = None

    def exceeded_limit(self, child: int, seconds: float) -> Stop | None:
        """Returns the limit that a call exceeds, if any.

        Args:
            child: process id of the call.
            seconds: duration of the call so far.
        """
        if self.seconds is not None and seconds > self.seconds:
            return "hung"
        if self.gib is not None and _resident_bytes(child) > self.gib * 2**30:
            return "memory"
        return None


@dataclass(frozen=True)
class Ended:
    """A call that has ended.

    Attributes:
        how: how the call ended; "died" if the process ended without a result.
        value: the result, plain JSON, if the call returned.
        message: a line on what happened, if the call did not return.
        traceback: the last frames, if the call raised.
        place: file and line of the user's code that raised; "" if other code did.
        output: what the call printed, without the middle if that is long.
        seconds: duration of the call.
    """

    how: Literal["returned", "raised", "hung", "memory", "died"]
    value: Any = None
    message: str = ""
    traceback: str = ""
    place: str = ""
    output: str = ""
    seconds: float = 0.0


class Sandbox:
    """Makes calls, one at a time, each in a child of one fork server.

    Attributes:
        folder: a temporary folder, which exists until the sandbox is closed.
    """

    def __init__(
        self,
        preload: tuple[str, ...] = (),
        path: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        interpreter: str = sys.executable,
    ) -> None:
        """Creates the folder; the server starts with the first call.

        Args:
            preload: modules that take long to import, and start no threads.
            path: folders in which modules are searched for first.
            environment: variables of the children, in addition to those of this process.
            interpreter: the Python that makes the calls; its environment needs no other package.
        """
        self._preload = preload
        self._path = path
        self._environment = environment or {}
        self._interpreter = interpreter
        # The guardian of the server, the connection to the server, and the output of calls.
        self._server: tuple[subprocess.Popen[bytes], Connection, IO[bytes]] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="dpaudit-"))

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes, and deletes the folder."""
        self._end_server()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(
        self,
        target: str,
        argument: Any,
        limits: Limits | None = None,
    ) -> Ended:
        """Calls a function in a child process, and waits for its end.

        Args:
            target: the function, as `package.module:function`.
            argument: the function's only argument, plain JSON.
            limits: limits of time and memory; none by default.

        Raises:
            ClusterError: the server cannot be started, or has died.
        """
        limits = limits or Limits()
        result = self.folder / "result"
        began = time.monotonic()
        try:
            _, connection, output = self._running_server()
            # Now, since the guardian of a server that was killed removes the folder.
            self.folder.mkdir(exist_ok=True)
            result.unlink(missing_ok=True)
            printed = _Printed(output.fileno())
            connection.send_bytes(json.dumps({"target": target, "argument": argument}).encode())
            status, stop = _watch(connection, printed, limits)
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            self._end_server()
            raise ClusterError(
                "the process that trials are started from has died; run it again"
            ) from error
        except BaseException:  # Ctrl-C too: no child runs on without a process that waits for it
            self._end_server()
            raise
        seconds = time.monotonic() - began
        answer = _read_answer(result, status)
        if stop:
            limit = f"{limits.seconds:g} s" if stop == "hung" else f"{limits.gib:g} GiB"
            answer = {"how": stop, "message": f"took more than {limit}"}
        return Ended(**answer, output=printed.text, seconds=seconds)

    def _running_server(self) -> tuple[subprocess.Popen[bytes], Connection, IO[bytes]]:
        """Returns the fork server, which is started if it does not run.

        Returns:
            Its guardian, the connection to it, and what calls print.

        Raises:
            ClusterError: it cannot be started.
        """
        if self._server:
            guardian, connection, _ = self._server
            # A connection that is readable between calls is closed: the server has died.
            if guardian.poll() is None and not connection.poll():
                return self._server
        self._end_server()
        own_end, server_end = multiprocessing.Pipe()
        settings = {
            "connection": server_end.fileno(), "folder": str(self.folder), "path": self._path,
            "preload": self._preload,
        }  # fmt: skip
        # The server finds this package wherever it was imported from.
        package = Path(__file__).resolve().parents[1]
        home = package.parent
        if self._interpreter != sys.executable:  # and nothing else that lies there
            home = self.folder / "packages"
            home.mkdir(exist_ok=True)
            with suppress(FileExistsError):
                (home / package.name).symlink_to(package)
        folders = [str(home), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        path = os.pathsep.join(filter(None, folders))
        # -P: the working directory gives no module in place of an installed one.
        command = [self._interpreter, "-P", "-m", "dpaudit_ray.isolation.forkserver"]
        try:
            guardian = subprocess.Popen(
                [*command, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=[server_end.fileno()],
                env=os.environ | {"PYTHONPATH": path} | self._environment,
            )
        except OSError as error:
            raise ClusterError(f"no process can be started for trials ({error})") from error
        finally:
            server_end.close()
        assert guardian.stdout
        os.set_blocking(guardian.stdout.fileno(), False)
        self._server = guardian, own_end, guardian.stdout
        return self._server

    def _end_server(self) -> None:
        """Closes the connection, at which the server ends; kills a server that stays."""
        if not self._server:
            return
        guardian, connection, output = self._server
        self._server = None
        connection.close()
        output.close()
        try:
            guardian.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            guardian.kill()
            guardian.wait()


def _watch(
    connection: Connection,
    printed: "_Printed",
    limits: Limits,
) -> tuple[int, Stop | None]:
    """Waits for the end of a call; returns its exit status, and the limit that ended it, if any.

    Args:
        connection: the server sends through it the child's process id, then its exit status.
        printed: reads what the child prints.
        limits: limits of time and memory.

    Returns:
        The exit status; "hung" or "memory", or None if no limit ended the call.
    """
    child = connection.recv()
    began = time.monotonic()
    stop = None
    while connection not in wait([connection, printed.source], _CHECK_SECONDS):
        printed.read()
        stop = stop or limits.exceeded_limit(child, time.monotonic() - began)
        if stop:  # again each time, as the child may not have made its process group yet
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
    status = connection.recv()
    printed.read()
    return status, stop


def _read_answer(result: Path, status: int) -> dict[str, Any]:
    """Returns the fields of `Ended` that a child has written, or why there are none."""
    try:
        answer: dict[str, Any] = json.loads(result.read_text())
    except (OSError, ValueError):
        cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        answer = {"how": "died", "message": f"ended with {cause}"}
    return answer


class _Printed:
    """The beginning and the end of a call's output."""

    def __init__(self, source: int) -> None:
        """Reads nothing yet."""
        self.source = source  # a descriptor that is read without waiting
        self._content = b""
        self._omitted = 0  # bytes between head and tail

    def read(self) -> None:
        """Reads what the call has printed so far, without waiting for more."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.source, 2**16):
                self._content += chunk
                excess = len(self._content) - _HEAD - _TAIL
                if excess > 0:
                    self._omitted += excess
                    self._content = self._content[:_HEAD] + self._content[-_TAIL:]

    @property
    def text(self) -> str:
        """The kept output, with a line in place of what was left out."""
        middle = f"\n... {self._omitted} bytes left out ...\n" if self._omitted else ""
        content = self._content[:_HEAD] + middle.encode() + self._content[_HEAD:]
        return content.decode(errors="replace")


def _resident_bytes(child: int) -> int:
    """Returns the memory of a call's processes: all below the server, which adopts orphans."""
    import psutil  # the interpreter of a script has none

    total = 0
    with suppress(psutil.Error):
        server = psutil.Process(child).parent()
        for process in server.children(recursive=True) if server else ():
            with suppress(psutil.Error):
                total += process.memory_info().rss
    return total
