"""Calls in child processes: each within its time and memory, and what it printed is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import psutil

from ..errors import ClusterError
from ..printable import printable

_HEAD, _TAIL = 2**12, 2**14  # bytes of what a call prints that are kept
_LOOK_SECONDS = 0.2
_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Limits:
    """Of one call: `seconds`, and `gib` of memory for it and all it starts; None: no limit."""

    seconds: float | None = None
    gib: float | None = None


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a call ended: its `value`, plain JSON, where `how` is "returned"; else `message` says.

    `output` is what it printed, the middle left out where that is much.
    """

    how: Literal["returned", "raised", "hung", "memory", "died"]
    value: Any
    message: str
    traceback: str
    output: str
    seconds: float


class Room:
    """Where calls are made, one at a time, each in a child of one zygote.

    Args:
        preload: modules that take long to import, and that no thread of theirs outlives.
        path: folders that all look for modules in before all others, in this order.
        environment: variables of the children, beside those of this process.
    """

    def __init__(
        self,
        preload: tuple[str, ...] = (),
        path: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        self._preload, self._path, self._environment = preload, path, environment or {}
        self._zygote: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="dpaudit-"))  # is there as long as this is
        self._heard = b""

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what still runs."""
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, target: str, argument: Any, limits: Limits | None = None) -> Ended:
        """What `package.module:function` gives for `argument`; both are plain JSON.

        Raises:
            ClusterError: no process can be started.
        """
        limits = limits or Limits()
        self.folder.mkdir(exist_ok=True)
        output, result = self.folder / "output", self.folder / "result"
        result.unlink(missing_ok=True)
        output.unlink(missing_ok=True)
        os.mkfifo(output)
        printed = _Printed(os.open(output, os.O_RDONLY | os.O_NONBLOCK))
        # A writer of one's own: else the first child that ends looks like the end of all output.
        writer = os.open(output, os.O_WRONLY)
        try:
            began = time.monotonic()
            request = {
                "target": target, "argument": argument,
                "output": str(output), "result": str(result),
            }  # fmt: skip
            try:
                status, stopped = self._watched(request, printed, limits)
            except BaseException:  # a child that nobody waits for must not go on
                self._end()
                raise
            seconds = time.monotonic() - began
        finally:
            os.close(writer)
            printed.close()
        return _ended(status, stopped, result, printed.text, seconds, limits)

    def _watched(
        self, request: dict[str, Any], printed: _Printed, limits: Limits
    ) -> tuple[int, Literal["hung", "memory"] | None]:
        zygote = self._started()
        assert zygote.stdin is not None
        assert zygote.stdout is not None
        try:
            zygote.stdin.write(json.dumps(request).encode() + b"\n")
            zygote.stdin.flush()
        except BrokenPipeError as error:
            raise _died() from error
        stopped: Literal["hung", "memory"] | None = None
        child, deadline = 0, None
        with selectors.DefaultSelector() as selector:
            selector.register(zygote.stdout, selectors.EVENT_READ)
            selector.register(printed.source, selectors.EVENT_READ)
            while True:
                selector.select(_LOOK_SECONDS)
                printed.read()
                for answer in self._answers():
                    if "ended" in answer and answer["ended"] == child:
                        printed.read()
                        return answer["status"], stopped
                    if "began" in answer:
                        child = answer["began"]
                        if limits.seconds is not None:
                            deadline = time.monotonic() + limits.seconds
                if child:
                    stopped = stopped or _over(child, deadline, limits)
                if stopped:  # again, where it had not made its group yet
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child, signal.SIGKILL)

    def _answers(self) -> list[dict[str, int]]:
        assert self._zygote is not None
        assert self._zygote.stdout is not None
        try:
            read = os.read(self._zygote.stdout.fileno(), 2**16)
        except BlockingIOError:
            return []
        if not read:
            raise _died()
        *lines, self._heard = (self._heard + read).split(b"\n")
        return [json.loads(line) for line in lines]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._zygote is not None and self._zygote.poll() is None:
            return self._zygote
        self._end()
        told = {"folder": str(self.folder), "path": self._path, "preload": self._preload}
        # -P: the folder where one works gives no module in place of an installed one.
        command = [sys.executable, "-P", "-m", "dpaudit_ray.isolation.zygote", json.dumps(told)]
        try:
            self._zygote = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._surroundings()
            )
        except OSError as error:
            raise ClusterError(f"no process can be started for trials ({error})") from error
        assert self._zygote.stdout is not None
        os.set_blocking(self._zygote.stdout.fileno(), False)
        self._heard = b""
        return self._zygote

    def _end(self) -> None:
        """Ends the zygote, and with it all children."""
        if self._zygote is None:
            return
        zygote, self._zygote = self._zygote, None
        assert zygote.stdin is not None
        assert zygote.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            zygote.stdin.close()
        zygote.stdout.close()
        try:
            zygote.wait(5)
        except subprocess.TimeoutExpired:
            zygote.kill()
            zygote.wait()

    def _surroundings(self) -> dict[str, str]:
        """The children find this package, wherever it was imported from, and what lies here."""
        package = str(Path(__file__).resolve().parents[2])
        known = [package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        path = os.pathsep.join(each for each in known if each)
        return os.environ | {"PYTHONPATH": path} | self._environment


def _died() -> ClusterError:
    return ClusterError("the process that trials are started from has died; run it again")


class _Printed:
    """What a call prints: its beginning and its end."""

    def __init__(self, source: int) -> None:
        self.source = source
        self._head, self._tail, self._left_out = b"", b"", 0

    def read(self) -> None:
        """Takes what is there."""
        with contextlib.suppress(BlockingIOError):
            while read := os.read(self.source, 2**16):
                room = _HEAD - len(self._head)
                self._head += read[:room]
                self._tail += read[room:]
                self._left_out += max(0, len(self._tail) - _TAIL)
                self._tail = self._tail[-_TAIL:]

    def close(self) -> None:
        """Reads no more."""
        os.close(self.source)

    @property
    def text(self) -> str:
        """As far as it is kept."""
        middle = f"\n... {self._left_out} bytes left out ...\n" if self._left_out else ""
        head, tail = (part.decode(errors="replace") for part in (self._head, self._tail))
        return head + middle + tail


def _over(child: int, deadline: float | None, limits: Limits) -> Literal["hung", "memory"] | None:
    if deadline is not None and time.monotonic() > deadline:
        return "hung"
    if limits.gib is not None and _resident(child) > limits.gib * _GIB:
        return "memory"
    return None


def _resident(child: int) -> int:
    """Bytes that a process and all it has started hold."""
    total = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(child)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += each.memory_info().rss
    return total


def _ended(
    status: int,
    stopped: Literal["hung", "memory"] | None,
    result: Path,
    output: str,
    seconds: float,
    limits: Limits,
) -> Ended:
    if stopped == "hung":
        return Ended("hung", None, f"took more than {limits.seconds:g} s", "", output, seconds)
    if stopped == "memory":
        return Ended("memory", None, f"took more than {limits.gib:g} GiB", "", output, seconds)
    try:
        found = json.loads(result.read_text())
    except (OSError, ValueError):
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        return Ended("died", None, f"ended with {how}", "", output, seconds)
    if "raised" in found:
        raised = found["raised"]
        plain = raised["message"] != raised["kind"]
        message = f"{raised['kind']}: {raised['message']}" if plain else raised["kind"]
        return Ended("raised", None, printable(message), raised["traceback"], output, seconds)
    return Ended("returned", found["value"], "", "", output, seconds)
