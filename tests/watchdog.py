"""Ends the processes that tests have started if pytest ends without doing so, in whatever way.

A SIGTERM ends pytest without the end of its fixtures, as SIGKILL does. Processes of tests inherit a
mark in their environment, in sessions of their own too. The watchdog has another session.
"""

import contextlib
import os
import secrets
import subprocess
import sys
import time

import psutil

MARK = "DPAUDIT_TESTS_OF"  # a variable of all processes that one pytest process starts
LOOK_SECONDS = 0.2
QUIET_SECONDS = 2.0  # without a process of these tests, before they are all gone
END_SECONDS = 30.0


def start() -> None:
    """Marks what this process starts from now on, and starts a watchdog."""
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    os.environ[MARK] = secrets.token_hex(8)
    subprocess.Popen(
        [sys.executable, __file__, str(os.getpid()), os.environ[MARK]],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def marked(mark: str) -> list[psutil.Process]:
    """Returns the living processes with this mark, and all below them.

    Ray's workers overwrite their environment by their title: only their parents have the mark.
    """
    processes: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                processes.update((process, *process.children(recursive=True)))
    return [process for process in processes if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _watch(parent: int, mark: str) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    deadline = time.monotonic() + END_SECONDS
    last = time.monotonic()
    while last + QUIET_SECONDS > time.monotonic() < deadline:
        for process in marked(mark):
            last = time.monotonic()
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2])
