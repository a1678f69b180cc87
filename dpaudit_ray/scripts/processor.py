"""Time that a process waits for a processor; this module needs the standard library alone."""

import contextlib
from pathlib import Path

# On Linux: nanoseconds that the process ran, nanoseconds that it waited, and its time slices.
_SCHEDULING = Path("/proc/self/schedstat")


def waited() -> float:
    """Returns the seconds that the process waited for a processor; 0 where that is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_SCHEDULING.read_text().split()[1]) / 1e9
    return 0.0
