"""One driver at a time on a run directory: a lease that is renewed while its owner lives.

The lease is a small file, so it works wherever runs can be stored. Clocks of different machines
are never compared: a lease is stale when it has not changed for as long as we have watched it.
Two drivers that slip through together would do double work and no damage, because a pack has the
same content whoever stores it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import RunDirectoryError, StorageError
from .storage import RunDirectory

FILE = "driver.json"
BEAT_SECONDS = 5.0
STALE_SECONDS = 4 * BEAT_SECONDS


@contextlib.contextmanager
def held(
    run: RunDirectory, watch: float = STALE_SECONDS, beat: float = BEAT_SECONDS
) -> Iterator[str]:
    """Holds the run directory; yields the owner's name, a random one.

    A lease that its owner left behind is taken over: at once when the owner is a process of this
    machine that is gone, else after it has stood still for `watch` seconds.

    Raises:
        RunDirectoryError: another driver works on this run.
    """
    _wait_for_the_last_owner(run, watch)
    owner = secrets.token_hex(4)
    entry = {"owner": owner, "host": socket.gethostname(), **_process(os.getpid())}
    _write(run, entry, 0)
    _refuse_another(run, owner)
    released = threading.Event()
    thread = threading.Thread(target=_renew, args=(run, entry, beat, released), daemon=True)
    thread.start()
    try:
        yield owner
    finally:
        released.set()
        thread.join(timeout=beat)
        # Storage that failed is why we stop, perhaps; the lease is stale soon enough.
        with contextlib.suppress(StorageError, RunDirectoryError):
            if _owner(run.read_json(FILE)) == owner:
                run.delete(FILE)


def _wait_for_the_last_owner(run: RunDirectory, watch: float) -> None:
    seen = _read(run)
    if seen is None or _is_gone(seen):
        return
    deadline = time.monotonic() + watch
    while time.monotonic() < deadline:
        time.sleep(min(0.5, watch / 4))
        now = _read(run)
        if now is None:
            return
        if now != seen:
            raise _taken(run, now)


def _refuse_another(run: RunDirectory, owner: str) -> None:
    """Of two that start together the one that wrote last stays."""
    time.sleep(0.05)
    now = _read(run)
    if now is not None and _owner(now) != owner:
        raise _taken(run, now)


def _taken(run: RunDirectory, lease: Any) -> RunDirectoryError:
    host, pid = (lease.get(key, "?") if isinstance(lease, dict) else "?" for key in ("host", "pid"))
    return RunDirectoryError(
        f"another driver works on {run.location} (process {pid} on {host}); wait for it, stop it, "
        "or use a new name and a new seed"
    )


def _renew(
    run: RunDirectory, entry: dict[str, Any], beat: float, released: threading.Event
) -> None:
    count = 0
    while not released.wait(beat):
        count += 1
        # A renewal that cannot be stored is tried again at the next beat.
        with contextlib.suppress(StorageError, RunDirectoryError):
            if _owner(run.read_json(FILE)) in (entry["owner"], None):
                _write(run, entry, count)


def _write(run: RunDirectory, entry: dict[str, Any], beat: int) -> None:
    run.write_json(FILE, entry | {"beat": beat})


def _read(run: RunDirectory) -> Any:
    """The lease; damage counts as one that nobody renews."""
    try:
        return run.read_json(FILE)
    except RunDirectoryError:
        return {}


def _owner(lease: Any) -> Any:
    return lease.get("owner") if isinstance(lease, dict) else None


def _is_gone(lease: Any) -> bool:
    """Whether the owner is known to be dead, because it was a process of this machine."""
    if not isinstance(lease, dict) or lease.get("host") != socket.gethostname():
        return False
    pid = lease.get("pid")
    return isinstance(pid, int) and _process(pid) != {k: lease.get(k) for k in ("pid", "started")}


def _process(pid: int) -> dict[str, Any]:
    """A process as nobody else is: its id and the tick it started at; None when it is gone."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return {"pid": pid, "started": None}
    state, started = after_name[0], after_name[19]
    return {"pid": pid, "started": None if state == "Z" else started}


@dataclasses.dataclass(frozen=True)
class Holder:
    """Whoever holds a run, as others see it; `silent` for so many seconds, 0 with signs of life."""

    host: str
    pid: int | None
    silent: float = 0.0

    def __str__(self) -> str:
        who = f"process {'?' if self.pid is None else self.pid} on {self.host}"
        if not self.silent:
            return f"a driver is at work: {who}"
        return (
            f"the driver, {who}, has given no sign for {self.silent:.0f} s: it is gone, paused, or "
            "cut off from the storage"
        )


def holder(run: RunDirectory, wait: float = 2 * BEAT_SECONDS + 2) -> Holder | None:
    """Who works on the run now, told on any machine; None when nobody does.

    A process of this machine is looked up. Of another's, the lease is watched until it is renewed,
    as it is every `BEAT_SECONDS`, or for `wait` seconds.
    """
    seen = _read(run)
    if seen is None or _is_gone(seen):
        return None
    entry = seen if isinstance(seen, dict) else {}
    pid = entry.get("pid") if isinstance(entry.get("pid"), int) else None
    found = Holder(str(entry.get("host", "?")), pid)
    known = {key: entry.get(key) for key in ("pid", "started")}
    if pid is not None and found.host == socket.gethostname() and _process(pid) == known:
        return found
    began = time.monotonic()
    while (waited := time.monotonic() - began) < wait:
        time.sleep(min(0.25, wait / 4))
        now = _read(run)
        if now is None:
            return None
        if now != seen:
            return found
    return dataclasses.replace(found, silent=max(waited, 1))
