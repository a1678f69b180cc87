"""One driver at a time on a run directory: a lease that is renewed while its owner lives.

The lease is a small file, so it works wherever runs can be stored. Clocks are never compared, nor
is one trusted not to jump: a lease is stale when it was looked at many times, each a moment after
the last, and has not changed. A driver that lost it stops; `place` says why it cannot do harm.

Of several that start at the same moment one gets it: the entry is created where there is none, by a
link that fails where there is one, and a stale one is replaced under a lock; in an object store,
both are uploads on a condition. On file systems without locks the last one that wrote stays. So a
driver waits there for longer than a write takes, and looks; of two that slip through, because one
was paused meanwhile, `Place` stops one.
"""

import contextlib
import dataclasses
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
from .place import DRIVER, process_of
from .run_directory import RunDirectory

Entry = dict[str, Any]  # of `driver.json`
BEAT_SECONDS = 5.0
STALE_SECONDS = 4 * BEAT_SECONDS
LOOK_SECONDS = 0.5
_LARGEST_PID = 2**31 - 1  # of a process, in the kernel's type for it
SETTLE_SECONDS = 1.0  # or five times what the write took, where there is no lock


class Lease:
    """A run directory that is held; `before` is the owner who left it behind, if one did."""

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
            # Storage may have failed; the lease is stale soon enough.
            with contextlib.suppress(StorageError, LeaseLostError):
                self.run.delete(DRIVER)

    def _renew(self, entry: dict[str, Any], beat: float) -> None:
        count = 0
        while not self._released.wait(beat):
            count += 1
            # A renewal that cannot be stored is tried again at the next beat.
            with contextlib.suppress(StorageError):
                try:
                    self.run.write_json(DRIVER, entry | {"beat": count})
                except LeaseLostError as error:
                    self._lost = error
                    return


def left_behind(
    run: RunDirectory, watch: float | None = None, known: Entry | None = None
) -> Entry | None:
    """Returns the lease of a driver that is gone, None where there is none.

    A driver is gone if it is a process of this container that is, or its lease stands still.

    Args:
        run: the run directory.
        watch: seconds for which a lease must stand still; by default STALE_SECONDS.
        known: a lease that an earlier call returned, which is not watched again.

    Raises:
        RunDirectoryError: another driver works on this run.
    """
    entry = _read(run)
    if entry is None or entry == known or _is_gone(entry):
        return entry
    now = _watched(run, entry, STALE_SECONDS if watch is None else watch)
    if now is not None and now != entry:
        raise _taken(run, now)
    return now


@contextlib.contextmanager
def held(
    run: RunDirectory,
    watch: float | None = None,
    beat: float = BEAT_SECONDS,
    known: Entry | None = None,
) -> Iterator[Lease]:
    """Holds the run directory, and takes over what `left_behind` returns, whose arguments it has.

    Raises:
        RunDirectoryError: another driver works on this run.
        StorageError: the lease cannot be read or written.
    """
    stale = left_behind(run, watch, known)
    before = (stale or {}).get("owner")
    lease = Lease(run, secrets.token_hex(8), before if isinstance(before, str) else None)
    entry = {"owner": lease.owner, **_where(), "pid": os.getpid(), "started": _started(os.getpid())}
    _take(run, entry | {"beat": 0}, stale)
    with lease.renewed(entry, beat):
        yield lease


def _watched(run: RunDirectory, seen: Entry, seconds: float) -> Entry | None:
    """The entry once it is another one than `seen`, or after so many seconds, counted by looks."""
    pause = min(LOOK_SECONDS, seconds / 4)
    for _ in range(math.ceil(seconds / pause)):
        time.sleep(pause)
        if (now := _read(run)) != seen:
            return now
    return seen


def _take(run: RunDirectory, entry: Entry, stale: Entry | None) -> None:
    started = time.monotonic()

    @contextlib.contextmanager
    def unless_replaced() -> Iterator[None]:
        if (now := _read(run)) not in (stale, entry, None):  # ours: a try that failed later
            raise _taken(run, now)
        yield

    with run.locked() as locked:
        if stale is not None:
            run.write_json(DRIVER, entry, unless_replaced)
        elif (other := run.create_json(DRIVER, entry)) is not None:
            raise _taken(run, other)
    time.sleep(0.05 if locked else max(SETTLE_SECONDS, 5 * (time.monotonic() - started)))
    if (now := _read(run)) != entry:
        raise _taken(run, now)


def _taken(run: RunDirectory, entry: Entry | None) -> RunDirectoryError:
    return RunDirectoryError(
        f"another driver works on {run.location} ({process_of(entry)}); wait for it, stop it, or "
        "use a new name and a new seed"
    )


def _read(run: RunDirectory) -> Entry | None:
    """Returns the entry; damage counts as one that nobody renews.

    Anybody may have written the file: a process id that no system call takes is left out.
    """
    try:
        entry = run.read_json(DRIVER)
    except RunDirectoryError:
        return {}
    if entry is None:
        return None
    if not isinstance(entry, dict):
        return {}
    pid = entry.get("pid")
    if type(pid) is not int or not 0 < pid <= _LARGEST_PID:
        return {key: value for key, value in entry.items() if key != "pid"}
    return entry


def _is_gone(entry: Entry) -> bool:
    """Whether the owner is known to be dead; out of this container, an id says nothing."""
    pid, here = entry.get("pid"), _where()
    if not isinstance(pid, int) or not all(v and entry.get(k) == v for k, v in here.items()):
        return False
    if _started(pid) == entry.get("started"):
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False  # somebody else's, which `/proc` may not show
    except (OSError, OverflowError):
        pass
    return True


def _where() -> dict[str, str | None]:
    """What gives a process id its meaning: this start of this kernel, this container."""
    boot = pids = None
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        pids = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": boot, "pids": pids}


def _started(pid: int) -> str | None:
    """The tick that a process started at, which tells it from later ones; None when it is gone."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if after_name[0] == "Z" else after_name[19]


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

    A process of this machine is looked up; another's lease is watched for `wait` seconds at most.
    """
    if (seen := _read(run)) is None or _is_gone(seen):
        return None
    pid = seen.get("pid")
    driver = Holder(str(seen.get("host", "?")), pid)
    here = driver.host == socket.gethostname()
    if here and pid is not None and _started(pid) == seen.get("started"):
        return driver
    if (now := _watched(run, seen, wait)) is None:
        return None
    return driver if now != seen else dataclasses.replace(driver, silent=max(wait, 1))
