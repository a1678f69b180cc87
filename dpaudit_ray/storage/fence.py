"""Whose the run directory is, asked whenever something is put into it.

`driver.json` names the driver that holds the lease; every process that works for it, its aggregator
too, knows that driver's token and writes only while the entry bears it. In a file system the entry
is read, and the file becomes visible, under a lock that whoever takes a lease over needs alone. In
an object store each upload is on a condition that was taken before the entry was read, so a process
that is paused in between replaces nothing that the new driver has written; what it may still put in
place is an older record that the new driver has not written yet, and then does. `cluster/README.md`
says how far that holds.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from ..errors import LeaseLostError
from .buckets import Bucket
from .files import Folder
from .strangers import StrangeFileError

FILE = "driver.json"
LOCK = ".driver.lock"  # of no content; it stays, since a lock that is deleted locks nothing


class Fence:
    """Lets its owner's writes pass while the owner holds the lease."""

    def __init__(self, folder: Folder | Bucket, owner: str) -> None:
        self._folder = folder
        self.owner = owner

    @contextlib.contextmanager
    def passing(self) -> Iterator[None]:
        """What is put in place in here was put there by the holder of the lease.

        Raises LeaseLostError where somebody else holds the lease, nobody does, or the directory is
        gone, OSError where it cannot be asked.
        """
        with self._folder.locked(LOCK, alone=False):
            self.check()
            yield

    def check(self) -> None:
        """Raises LeaseLostError unless this driver still holds the lease of the run directory."""
        try:
            content = self._folder.read(FILE)
        except StrangeFileError:
            content = b""  # of nobody
        entry = parsed(content)
        if owner_of(entry) == self.owner:
            return
        place = self._folder.location
        if content is not None:
            raise LeaseLostError(
                f"another driver has taken over {place} ({process_of(entry)}) and goes on with the "
                "sweep; this one has stopped and writes nothing more"
            )
        raise LeaseLostError(
            f"{place}/{FILE} is gone: another driver had taken over and has ended, or the run "
            "directory was moved or deleted; this one has stopped and writes nothing more: restore "
            "what is missing and run the same command again to resume"
        )


def parsed(content: bytes | None) -> Any:
    """The entry; damage counts as one of nobody."""
    try:
        return None if content is None else json.loads(content)
    except ValueError:
        return {}


def owner_of(entry: Any) -> Any:
    """The token of the driver that an entry names, None where it names none."""
    return entry.get("owner") if isinstance(entry, dict) else None


def process_of(entry: Any) -> str:
    """The driver that an entry names, in words."""
    host, pid = (entry.get(key, "?") if isinstance(entry, dict) else "?" for key in ("host", "pid"))
    return f"process {pid} on {host}"
