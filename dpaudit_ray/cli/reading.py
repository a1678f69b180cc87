"""Runs that verbs read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import terminal

if TYPE_CHECKING:
    from ..report.tables import Run


def opened(location: str) -> Run:
    """A run to read; says what of it is known from its record only."""
    from ..mechanisms.base import Recorded
    from ..report.tables import Run

    found = Run.open(location)
    if untold := sorted(set(found.sweep.unread_modules)):
        modules = ",".join(untold)
        terminal.complain(
            f"what takes code of {modules} to tell, claims among it, is as plan.json has it; "
            f"--trust {modules} runs that code"
        )
    elif any(isinstance(cell.mechanism, Recorded) for cell in found.sweep.cells):
        terminal.complain(
            "data of the sweep cannot be read here, so claims that depend on how many there are "
            "are as plan.json has them"
        )
    return found
