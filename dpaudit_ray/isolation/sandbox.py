"""Calls in child processes: each within its time and memory, and what it printed is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import psutil

from ..errors import ClusterError, printable

_HEAD, _TAIL = 2**12, 2**14  # bytes of what a call prints that are kept
_LOOK_SECONDS = 0.2
_END_SECONDS = 5.0  # for a server that was told to end

Stop = Literal["hung", "memory"]


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of one call: `seconds`, and `gib` of memory for it and all it starts; None: no limit."""

    seconds: float | None = None
    gib: float | None = None

    def exceeded(self, child: int, seconds: float) -> Stop | None:
        """Returns the limit that a call of `child` exceeds after so many seconds."""
        if self.seconds is not None and seconds > self.seconds:
            return "hung"
        if self.gib is not None and _resident_beside(child) > self.gib * 2**30:
            return "memory"
        return None


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a call ended: its `value`, plain JSON, where `how` is "returned"; else `message` says."""

    how: Literal["returned", "raised", "hung", "memory", "died"]
    value: Any
    message: str
    traceback: str
    output: str  # what it printed, the middle left out where that is much
    seconds: float


class Sandbox:
    """Where calls are made, one at a time, each in a child of one fork server.

    `preload` are modules that take long to import and leave no threads, `path` folders to look for
    modules in first, `environment` variables of the children, beside those of this process.
    """

    def __init__(
        self,
        preload: tuple[str, ...] = (),
        path: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self._preload, self._path, self._environment = preload, path, environment or {}
        self._server: tuple[subprocess.Popen[bytes], Connection] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="dpaudit-"))  # is there as long as this is

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what still runs."""
        self._end_server()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, target: str, argument: Any, limits: Limits | None = None) -> Ended:
        """What `package.module:function` gives for `argument`, both JSON. Raises ClusterError."""
        limits = limits or Limits()
        result = self.folder / "result"
        printed, began = _Printed(), time.monotonic()
        try:
            server, connection = self._running_server()
            # Now, since the guardian of a server that was killed removes the folder.
            self.folder.mkdir(exist_ok=True)
            result.unlink(missing_ok=True)
            assert server.stdout is not None
            printed.source = server.stdout.fileno()
            connection.send_bytes(json.dumps({"target": target, "argument": argument}).encode())
            status, stopped = _watched(connection, printed, limits)
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            self._end_server()
            raise ClusterError(
                "the process that trials are started from has died; run it again"
            ) from error
        except BaseException:  # Ctrl-C too: a child that nobody waits for must not go on
            self._end_server()
            raise
        seconds, output = time.monotonic() - began, printed.text
        if stopped:
            limit = f"{limits.seconds:g} s" if stopped == "hung" else f"{limits.gib:g} GiB"
            return Ended(stopped, None, f"took more than {limit}", "", output, seconds)
        try:
            answer = json.loads(result.read_text())
        except (OSError, ValueError):
            by = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            return Ended("died", None, f"ended with {by}", "", output, seconds)
        if "raised" not in answer:
            return Ended("returned", answer["value"], "", "", output, seconds)
        kind, message, traceback = answer["raised"]
        line = printable(kind if message == kind else f"{kind}: {message}")
        return Ended("raised", None, line, traceback, output, seconds)

    def _running_server(self) -> tuple[subprocess.Popen[bytes], Connection]:
        if self._server is not None:
            guardian, connection = self._server
            # A connection that is readable between calls is a closed one: the server has died.
            if guardian.poll() is None and not connection.poll():
                return self._server
        self._end_server()
        ours, theirs = multiprocessing.Pipe()
        settings = {
            "connection": theirs.fileno(), "folder": str(self.folder), "path": self._path,
            "preload": self._preload,
        }  # fmt: skip
        # The server finds this package wherever it was imported from.
        package = str(Path(__file__).resolve().parents[2])
        places = [package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        path = os.pathsep.join(filter(None, places))
        # -P: the folder where one works gives no module in place of an installed one.
        command = [sys.executable, "-P", "-m", "dpaudit_ray.isolation.forkserver"]
        try:
            server = subprocess.Popen(
                [*command, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=os.environ | {"PYTHONPATH": path} | self._environment,
            )
        except OSError as error:
            raise ClusterError(f"no process can be started for trials ({error})") from error
        finally:
            theirs.close()
        assert server.stdout is not None
        os.set_blocking(server.stdout.fileno(), False)
        self._server = server, ours
        return self._server

    def _end_server(self) -> None:
        if self._server is None:
            return
        (server, connection), self._server = self._server, None
        connection.close()
        assert server.stdout is not None
        server.stdout.close()
        try:
            server.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _watched(connection: Connection, printed: _Printed, limits: Limits) -> tuple[int, Stop | None]:
    """The exit status of a call, and the limit that it was ended for."""
    child: int = connection.recv()
    began = time.monotonic()
    stopped: Stop | None = None
    while connection not in wait([connection, printed.source], _LOOK_SECONDS):
        printed.read()
        stopped = stopped or limits.exceeded(child, time.monotonic() - began)
        if stopped:  # again, where it had not made its group yet
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
    status: int = connection.recv()
    printed.read()
    return status, stopped


class _Printed:
    """The beginning and the end of what a call prints."""

    def __init__(self) -> None:
        self.source = -1  # a descriptor that is read without waiting
        self._kept, self._left_out = b"", 0

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while read := os.read(self.source, 2**16):
                self._kept += read
                if (more := len(self._kept) - _HEAD - _TAIL) > 0:
                    self._left_out += more
                    self._kept = self._kept[:_HEAD] + self._kept[-_TAIL:]

    @property
    def text(self) -> str:
        middle = f"\n... {self._left_out} bytes left out ...\n" if self._left_out else ""
        kept = self._kept[:_HEAD] + middle.encode() + self._kept[_HEAD:]
        return kept.decode(errors="replace")


def _resident_beside(child: int) -> int:
    """Returns the bytes of a call's processes: all below the server, which adopts orphans."""
    total = 0
    with contextlib.suppress(psutil.Error):
        server = psutil.Process(child).parent()
        for process in server.children(recursive=True) if server else ():
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
    return total
