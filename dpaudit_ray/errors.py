"""Every error that a user can meet, in one tree.

    DpauditError            exit 2    wrong usage or input
    ├── SpecError           exit 2    a sweep file says something impossible; carries the key's path
    ├── DataError           exit 2    a data set is missing or unusable
    ├── RunDirectoryError   exit 2    a run directory cannot be used as it is
    │   ├── DamagedScoresError  a score file is damaged: its trials can be run again
    │   ├── DamagedArraysError  a preparation or a checkpoint is damaged: it can be made again
    │   └── ChangedCodeError    it was run with other code; says what has changed
    ├── NoClusterError      exit 2    the cluster cannot be joined, or never fits this sweep
    ├── StorageError        exit 4    storage failed while the sweep ran; the run can be resumed
    ├── LeaseLostError      exit 4    the run is another driver's by now, or its directory is gone
    └── ClusterError        exit 4    the cluster failed, or too many workers died; resumable

Messages are one line: what was wrong, the value, the bound, what to do.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class Exit(IntEnum):
    """Exit codes of the command line."""

    COMPLETE = 0
    VIOLATION = 1
    USAGE = 2
    FAILED_TRIALS = 3
    STOPPED = 4
    INCONCLUSIVE = 5
    BUG = 70  # none of the above may be returned by accident


class DpauditError(Exception):
    """Root of the tree; `exit_code` is what the command line returns for it."""

    exit_code: ClassVar[Exit] = Exit.USAGE


class SpecError(DpauditError):
    """A sweep file that cannot be run. `key` is the dotted path of the offending entry."""

    def __init__(self, key: str, problem: str) -> None:
        self.key = key
        self.problem = problem
        super().__init__(key, problem)

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}" if self.key else self.problem

    def under(self, prefix: str) -> SpecError:
        """Returns the same error with `prefix` in front of its key."""
        return SpecError(f"{prefix}.{self.key}" if self.key else prefix, self.problem)


class DataError(DpauditError):
    """A data set that is missing, unreadable or of the wrong shape."""


class RunDirectoryError(DpauditError):
    """A run directory that belongs to another sweep, is damaged, or cannot be written."""


class DamagedScoresError(RunDirectoryError):
    """A score file that is damaged: its trials can be run again."""


class DamagedArraysError(RunDirectoryError):
    """A part of a preparation, or a checkpoint, that is damaged: it can be made again."""


class ChangedCodeError(RunDirectoryError):
    """A run whose trials were computed by other code. `details` are lines of what has changed."""

    def __init__(self, message: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.details = details


class NoClusterError(DpauditError):
    """Nothing has started: no cluster there, no token for it, or one that can never run this."""


class StorageError(DpauditError):
    """Storage does not answer, or fails a running sweep. What was acknowledged is not lost."""

    exit_code = Exit.STOPPED


class LeaseLostError(DpauditError):
    """Another driver took the run over, or its directory is gone: this one writes no more."""

    exit_code = Exit.STOPPED


class ClusterError(DpauditError):
    """The cluster failed while the sweep ran, or lost more workers than the sweep allows."""

    exit_code = Exit.STOPPED
