"""Leases: a run directory has one driver at a time, which renews its lease while it lives.

The lease is a small file, so it works wherever runs can be stored. Clocks of machines are never
compared, and may jump: a lease is stale if it was read many times, each a moment after the last,
and has not changed. A driver that lost it stops; `place` explains why it cannot do
harm until then.

If several drivers start at the same moment, one gets it. The entry is created by a link that fails
if there is an entry, and a stale one is replaced under a lock; in an object store, both are
conditional uploads. On file systems without locks the last writer wins, so a driver waits for
longer than a write takes, and reads the entry again. If two drivers still get the lease, because
one was paused meanwhile, `Place` stops one of them.
"""

import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import LeaseLostError, RunDirectoryError, StorageError
from .place import DRIVER, process_of
from .run_directory import RunDirectory

Entry = dict[str, Any]  # content of `driver.json`
BEAT_SECONDS = 5.0  # between renewals of a lease
STALE_SECONDS = 4 * BEAT_SECONDS
LOOK_SECONDS = 0.5  # between reads of a lease that may be stale
SETTLE_SECONDS = 1.0  # until an entry is read again if there are no locks; at least 5 write times
_LOCKED_SETTLE_SECONDS = 0.05
_LARGEST_PID = 2**31 - 1  # the largest number in the kernel's type for it


class Lease:
    """The right to write to a run directory.

    Attributes:
        owner: token of this driver.
        previous_owner: token of the driver whose stale lease was taken over, if there was one.
        run: the run directory, for this owner.
    """

    def __init__(
        self,
        run: RunDirectory,
        owner: str,
        previous_owner: str | None,
    ) -> None:
        """Makes a lease that is not stored yet: `held` stores and renews it.

        Args:
            run: the run directory.
            owner: token of this driver.
            previous_owner: token of the driver whose stale lease is taken over; None without one.
        """
        self.owner = owner
        self.previous_owner = previous_owner
        self.run = run.owned_by(owner)
        self._lost: LeaseLostError | None = None
        self._released = threading.Event()

    def require(self) -> None:
        """Raises LeaseLostError once a renewal has found that the lease is lost."""
        if self._lost is not None:
            raise self._lost

    @contextmanager
    def renewed(self, entry: Entry, beat: float) -> Iterator[None]:
        """Renews the lease every `beat` seconds while this is open, then deletes it."""
        thread = threading.Thread(
            target=self._renew,
            args=(entry, beat),
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            self._released.set()
            thread.join(timeout=beat)
            # If storage fails, the lease is stale soon enough.
            with suppress(StorageError, LeaseLostError):
                self.run.delete(DRIVER)

    def _renew(self, entry: Entry, beat: float) -> None:
        """Writes the lease at every beat, until it is released or another driver has it."""
        count = 0
        while not self._released.wait(beat):
            count += 1
            try:
                self.run.write_json(DRIVER, entry | {"beat": count})
            except LeaseLostError as error:
                self._lost = error
                return
            except StorageError:
                continue  # the next beat tries again


def left_behind(
    run: RunDirectory, watch: float | None = None, earlier: Entry | None = None
) -> Entry | None:
    """Returns the lease of a driver that is gone; None without a lease.

    A driver is gone if it is a process of this container that has ended, or if its lease does not
    change.

    Args:
        run: the run directory.
        watch: seconds in which a stale lease does not change; by default STALE_SECONDS.
        earlier: a lease that an earlier call returned, which is not watched again.

    Raises:
        RunDirectoryError: another driver works on this run.
    """
    entry = _read(run)
    if entry is None or entry == earlier or _is_gone(entry):
        return entry
    current = _watch(run, entry, STALE_SECONDS if watch is None else watch)
    if current is not None and current != entry:
        raise _lease_taken(run, current)
    return current


@contextmanager
def held(
    run: RunDirectory,
    watch: float | None = None,
    beat: float = BEAT_SECONDS,
    earlier: Entry | None = None,
) -> Iterator[Lease]:
    """Holds the lease of a run directory while this is open, and renews it.

    Args:
        run: the run directory.
        watch: seconds in which a stale lease does not change; as in `left_behind`.
        beat: seconds between renewals.
        earlier: a lease that an earlier call of `left_behind` returned.

    Raises:
        RunDirectoryError: another driver works on this run.
        StorageError: the lease cannot be read or written.
    """
    stale = left_behind(run, watch, earlier)
    previous_owner = (stale or {}).get("owner")
    if not isinstance(previous_owner, str):
        previous_owner = None
    lease = Lease(run, secrets.token_hex(8), previous_owner)
    pid = os.getpid()
    entry = {
        "owner": lease.owner,
        **_where(),
        "pid": pid,
        "started": _started(pid),
    }
    _take(run, entry | {"beat": 0}, stale)
    with lease.renewed(entry, beat):
        yield lease


def _watch(run: RunDirectory, entry: Entry, seconds: float) -> Entry | None:
    """Reads the lease for `seconds`, or until it is no longer `entry`; returns the last reading.

    Args:
        run: the run directory.
        entry: the lease as it was read before.
        seconds: time for which the lease is watched.
    """
    pause = min(LOOK_SECONDS, seconds / 4)
    for _ in range(math.ceil(seconds / pause)):
        time.sleep(pause)
        current = _read(run)
        if current != entry:
            return current
    return entry


def _take(run: RunDirectory, entry: Entry, stale: Entry | None) -> None:
    """Stores an entry in place of the stale one.

    Args:
        run: the run directory.
        entry: entry of this driver.
        stale: entry of a driver that is gone, which is replaced; None if there was no entry.

    Raises:
        RunDirectoryError: another driver has stored its entry.
    """
    started = time.monotonic()

    @contextmanager
    def unless_replaced() -> Iterator[None]:
        """Raises RunDirectoryError if another driver has taken the lease meanwhile."""
        current = _read(run)
        # `entry`: an earlier attempt of this driver stored it, although it seemed to fail.
        if current not in (stale, entry, None):
            raise _lease_taken(run, current)
        yield

    with run.locked() as locked:
        if stale is not None:
            run.write_json(DRIVER, entry, unless_replaced)
        elif (stored := run.create_json(DRIVER, entry)) is not None:
            raise _lease_taken(run, stored)
    # Without locks the last writer wins: an entry written after this driver's appears meanwhile.
    settle_seconds = max(SETTLE_SECONDS, 5 * (time.monotonic() - started))
    time.sleep(_LOCKED_SETTLE_SECONDS if locked else settle_seconds)
    current = _read(run)
    if current != entry:
        raise _lease_taken(run, current)


def _lease_taken(run: RunDirectory, entry: Entry | None) -> RunDirectoryError:
    """Returns the error for a run directory whose lease another driver holds."""
    return RunDirectoryError(
        f"another driver works on {run.location} ({process_of(entry)}); wait for it, stop it, or "
        "use a new name and a new seed"
    )


def _read(run: RunDirectory) -> Entry | None:
    """Returns the driver's entry; {} if the entry is damaged, as no driver renews such an entry.

    An attacker may have written the file: a process id that no system call accepts is removed.
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
        entry.pop("pid", None)
    return entry


def _is_gone(entry: Entry) -> bool:
    """Returns whether the owner is known to have ended.

    A process id means something only in the container that gave it. Ids are used again, so a
    process is the owner only if it also started at the recorded tick.
    """
    pid = entry.get("pid")
    is_here = all(value and entry.get(key) == value for key, value in _where().items())
    # Equal ticks: the owner runs. Both None: no start was recorded, so nothing is known.
    if pid is None or not is_here or _started(pid) == entry.get("started"):
        return False
    try:
        os.kill(pid, 0)  # signal 0 only asks whether the process exists
    except PermissionError:
        return False  # another user's process, whose start `/proc` may hide
    except (OSError, OverflowError):
        return True  # there is no such process
    return True  # a zombie, or a later process that got the same id


def _where() -> dict[str, str | None]:
    """Returns host, start of the kernel, and container: together they make process ids unique."""
    boot = pids = None
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        pids = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "boot": boot, "pids": pids}


def _started(pid: int) -> str | None:
    """Returns the tick at which a process started; None if it has ended.

    A later process with the same id has started at another tick.
    """
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    # Z: a zombie, which has ended. The other field is the 22nd of the file, `starttime`.
    return None if after_name[0] == "Z" else after_name[19]


@dataclass(frozen=True)
class Holder:
    """The driver of a run, as other processes know it.

    Attributes:
        host: name of the driver's machine.
        pid: id of the driver's process there, if it is known.
        silent: seconds without a renewal of the lease; 0 if the driver is alive.
    """

    host: str
    pid: int | None
    silent: float = 0.0

    def __str__(self) -> str:
        """The driver in the words of messages, and how long it has been silent."""
        process = f"process {'?' if self.pid is None else self.pid} on {self.host}"
        if not self.silent:
            return f"a driver is at work: {process}"
        return (
            f"the driver, {process}, has given no sign for {self.silent:.0f} s: it is gone, "
            "paused, or cut off from the storage"
        )


def holder(
    run: RunDirectory,
    wait: float = 2 * BEAT_SECONDS + 2,
) -> Holder | None:
    """Returns the driver that works on a run now, on any machine; None without one.

    Args:
        run: the run directory.
        wait: seconds for which the lease of another machine's process is watched.
    """
    entry = _read(run)
    if entry is None or _is_gone(entry):
        return None
    pid = entry.get("pid")
    driver = Holder(str(entry.get("host", "?")), pid)
    is_here = driver.host == socket.gethostname()
    if is_here and pid is not None and _started(pid) == entry.get("started"):
        return driver
    current = _watch(run, entry, wait)
    if current is None:
        return None
    # A renewed lease differs. 0 would mean that the driver is alive.
    return driver if current != entry else replace(driver, silent=max(wait, 1))
