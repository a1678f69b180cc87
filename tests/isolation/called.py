"""Functions that sandboxes call; each ends in another way."""

# ruff: noqa: T201 (what a call prints is what is looked at)

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def given(argument: Any) -> Any:
    print("said")
    print("and complained", file=sys.stderr)
    return argument


def raising(message: str) -> None:
    print("before", end="")
    raise ValueError(message)


leaving = sys.exit


def hanging(seconds: float) -> None:
    print("waits")
    time.sleep(seconds)


def growing(gib: float) -> None:
    kept = bytearray(int(gib * 2**30))
    kept[:: 2**12] = b"x" * len(kept[:: 2**12])  # every page is there
    time.sleep(60)


def growing_below(gib: float) -> None:
    """Takes memory in a child process."""
    code = f"import time; kept = b'x' * int({gib} * 2**30); time.sleep(60)"
    subprocess.run([sys.executable, "-c", code], check=True)


def killed(number: int) -> None:
    os.kill(os.getpid(), number)


quitting = os._exit


def printing(mebibytes: int) -> None:
    print("first line")
    for _ in range(mebibytes):
        print("x" * 2**20)
    print("last line")


def leaving_one_behind(argument: None) -> int:
    return subprocess.Popen(["sleep", "60"]).pid


def starting_apart(argument: tuple[str, str]) -> None:
    """Starts processes that leave the call's process group, and some that resist their end."""
    kind, folder = argument
    if kind == "session":
        subprocess.Popen(["sh", "-c", "sleep 60; :", *sys.argv[1:]], start_new_session=True)
    elif kind == "daemon":
        _detached(lambda: time.sleep(60))
    elif kind == "deaf":
        _detached(_ignoring_signals)
    elif kind == "forking":
        _detached(lambda: _forking_on(Path(folder, "beats")))
    elif kind == "family":
        for _ in range(5):
            _detached(_having_children)


def starting_apart_and_waiting(argument: tuple[str, str]) -> None:
    starting_apart(argument)
    print("started", flush=True)
    Path(argument[1], "started").touch()
    time.sleep(60)


def growing_apart(gib: float) -> None:
    """The process that takes the memory has no parent but the server."""
    _detached(lambda: growing(gib))
    time.sleep(60)


def _detached(work: Callable[[], Any]) -> None:
    """Calls `work` as daemons do: two forks, with a session of its own between them."""
    if first := os.fork():
        os.waitpid(first, 0)
        return
    os.setsid()
    if os.fork() == 0:
        work()
    os._exit(0)


def _ignoring_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(60)


def _forking_on(beats: Path) -> None:
    """Ends as soon as it has a child, which does the same: a list of processes misses most."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        if os.fork():
            os._exit(0)
        with beats.open("a") as file:
            file.write(".")


def _having_children() -> None:
    for _ in range(3):
        os.fork()
    os.setpgid(0, 0)
    time.sleep(60)


def with_threads(number: int) -> int:
    """A process with threads ends all the same."""
    for _ in range(number):
        threading.Thread(target=time.sleep, args=(60,)).start()
    return threading.active_count()


def ending_server(argument: None) -> None:
    os.kill(os.getppid(), 9)
    time.sleep(60)


def stopping_server(argument: None) -> int:
    """Sends its server the signals that end a process group gracefully."""
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getppid(), number)
    time.sleep(0.1)
    return 3


def no_json(argument: None) -> Any:
    return {1, 2}


def where(argument: None) -> dict[str, Any]:
    return {"process": os.getpid(), "parent": os.getppid(), "path": sys.path}
