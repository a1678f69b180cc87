"""What sandboxes call: each ends in its own way."""

# ruff: noqa: T201 (what a call prints is what is looked at)

import os
import signal
import subprocess
import sys
import threading
import time
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
    """What holds the memory is a process of its own."""
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


def with_threads(number: int) -> int:
    """A process with threads ends all the same."""
    for _ in range(number):
        threading.Thread(target=time.sleep, args=(60,)).start()
    return threading.active_count()


def ending_server(argument: None) -> None:
    os.kill(os.getppid(), 9)
    time.sleep(60)


def stopping_server(argument: None) -> int:
    """What a process group is sent when it is to end gracefully."""
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getppid(), number)
    time.sleep(0.1)
    return 3


def no_json(argument: None) -> Any:
    return {1, 2}


def where(argument: None) -> dict[str, Any]:
    return {"process": os.getpid(), "parent": os.getppid(), "path": sys.path}
