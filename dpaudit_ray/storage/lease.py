"""One driver at a time on a run directory: a lease that is renewed while its owner lives.

The lease is a small file, so it works wherever runs can be stored. Clocks are never compared, nor
is one trusted not to jump: a lease is stale when it was looked at many times, each a moment after
the last, and has not changed. A driver that lost it stops; `fence` says why it cannot do harm.

Of several that start at the same moment one gets it: the entry is created where there is none, by a
link that fails where there is one, and a stale one is replaced under a lock; in an object store,
both are uploads on a condition. On file systems without locks the last one that wrote stays. So a
driver waits there for longer than a write takes, and looks; of two that slip through, because one
was paused meanwhile, the fence stops one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import LeaseLostError, RunDirectoryError, StorageError
from .fence import FILE, process_of
from .run_directory import RunDirectory

BEAT_SECONDS = 5.0
STALE_SECONDS = 4 * BEAT_SECONDS
LOOK_SECONDS = 0.5
SETTLE_SECONDS = 1.0  # or five times what the write took, where there is no lock


class Lease:
    """A run directory that is held; `run` may be written while it is.

    `owner` is a random name, and `before` that of the owner who left it behind, if one did.
    """

    def __init__(self, run: RunDirectory, owner: str, before: str | None = None) -> None:
        self.owner, self.before = owner, before
        self.run = run.owned_by(owner)
        self._lost: LeaseLostError | None = None
        self._released = threading.Event()

    def require(self) -> None:
        """Raises LeaseLostError once it is known that the run is another driver's, or gone."""
        if self._lost is not None:
            raise self._lost

    @contextlib.contextmanager
    def renewed(self, entry: dict[str, Any], beat: float) -> Iterator[None]:
        """Renews it while this is open, then gives it back."""
        thread = threading.Thread(target=self._renew, args=(entry, beat), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._released.set()
            thread.join(timeout=beat)
            # Storage that failed is why we stop, perhaps; the lease is stale soon enough.
            with contextlib.suppress(StorageError, LeaseLostError):
                self.run.delete(FILE)

    def _renew(self, entry: dict[str, Any], beat: float) -> None:
        count = 0
        while not self._released.wait(beat):
            count += 1
            # A renewal that cannot be stored is tried again at the next beat.
            with contextlib.suppress(StorageError):
                try:
                    self.run.write_json(FILE, entry | {"beat": count})
                except LeaseLostError as error:
                    self._lost = error
                    return


@contextlib.contextmanager
def held(
    run: RunDirectory, watch: float = STALE_SECONDS, beat: float = BEAT_SECONDS
) -> Iterator[Lease]:
    """Holds the run directory.

    A lease that its owner left behind is taken over: at once when the owner is a process of this
    machine and container that is gone, else after it has stood still for `watch` seconds. Raises
    RunDirectoryError where another driver works on this run, StorageError where storage does not
    answer.
    """
    stale = _left_behind(run, watch)
    before = stale.get("owner") if isinstance(stale, dict) else None
    lease = Lease(run, secrets.token_hex(8), before if isinstance(before, str) else None)
    entry = {
        "owner": lease.owner,
        "host": socket.gethostname(),
        **_where(),
        **_process(os.getpid()),
    }
    _take(run, entry | {"beat": 0}, stale)
    with lease.renewed(entry, beat):
        yield lease


def _left_behind(run: RunDirectory, watch: float) -> Any:
    """The entry to take over, None where there is none.

    Looks are counted, not seconds: however long this process was paused, its owner had its turns.
    """
    seen = _read(run)
    if seen is None or _is_gone(seen):
        return seen
    now = _watched(run, seen, watch)
    if now is not None and now != seen:
        raise _taken(run, now)
    return now


def _watched(run: RunDirectory, seen: Any, seconds: float) -> Any:
    """The entry as soon as it is another one than `seen`, or as it is after so many seconds."""
    pause = min(LOOK_SECONDS, seconds / 4)
    for _ in range(math.ceil(seconds / pause)):
        time.sleep(pause)
        if (now := _read(run)) != seen:
            return now
    return seen


def _take(run: RunDirectory, entry: dict[str, Any], stale: Any) -> None:
    started = time.monotonic()
    with run.locked() as locked:
        there = _read(run)
        if there is None:
            there = run.create_json(FILE, entry)
        elif there == stale:
            try:
                run.write_json(FILE, entry, functools.partial(_unless_changed, run, stale))
                there = None
            except _ChangedError as error:
                there = error.entry
    if there is not None:
        raise _taken(run, there)
    took = time.monotonic() - started
    time.sleep(0.05 if locked else max(SETTLE_SECONDS, 5 * took))
    there = _read(run)
    if there != entry:
        raise _taken(run, there)


class _ChangedError(Exception):
    """Somebody else has replaced the entry that was to be taken over."""

    def __init__(self, entry: Any) -> None:
        super().__init__()
        self.entry = entry


@contextlib.contextmanager
def _unless_changed(run: RunDirectory, stale: Any) -> Iterator[None]:
    if (there := _read(run)) != stale:
        raise _ChangedError(there)
    yield


def _taken(run: RunDirectory, entry: Any) -> RunDirectoryError:
    return RunDirectoryError(
        f"another driver works on {run.location} ({process_of(entry)}); wait for it, stop it, or "
        "use a new name and a new seed"
    )


def _read(run: RunDirectory) -> Any:
    """The entry; damage counts as one that nobody renews."""
    try:
        return run.read_json(FILE)
    except RunDirectoryError:
        return {}


def _is_gone(entry: Any) -> bool:
    """Whether the owner is known to be dead, because it was a process of this container.

    Elsewhere, though the host has the same name, its process id means nothing.
    """
    here = _where()
    if not isinstance(entry, dict) or any(not v or entry.get(k) != v for k, v in here.items()):
        return False
    pid = entry.get("pid")
    if not isinstance(pid, int) or _process(pid) == {k: entry.get(k) for k in ("pid", "started")}:
        return False
    return not _hidden(pid)


def _hidden(pid: int) -> bool:
    """Whether a process is somebody else's, which `/proc` may not show."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def _where() -> dict[str, str | None]:
    """What gives a process id its meaning: this start of this kernel, this container."""
    boot: str | None = None
    pids: str | None = None
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        pids = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": boot, "pids": pids}


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
    driver = Holder(str(entry.get("host", "?")), pid)
    process = {key: entry.get(key) for key in ("pid", "started")}
    if pid is not None and driver.host == socket.gethostname() and _process(pid) == process:
        return driver
    now = _watched(run, seen, wait)
    if now is None:
        return None
    return driver if now != seen else dataclasses.replace(driver, silent=max(wait, 1))
