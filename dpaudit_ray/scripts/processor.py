"""Time that a process waits for a processor; this module needs the standard library alone."""

import contextlib
from pathlib import Path

_SCHEDULING = Path(
    "/proc/self/schedstat"
)  # Linux: nanoseconds run, nanoseconds waited, number of time slices


def waited() -> float:
    """Returns the seconds that the process waited for a processor; 0 where that is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_SCHEDULING.read_text().split()[1]) / 1e9
    return 0.0
