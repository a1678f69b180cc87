"""Progress in a notebook: one line that is written anew, and nothing where there is none."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable
from typing import Any

from .orchestration.progress import Progress
from .printable import printable

_AUDITS = 6  # that are shown, of those that go on


def progress() -> Callable[[Progress], None]:
    """Shows snapshots where this process is a notebook's kernel; does nothing elsewhere."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return lambda snapshot: None
    display = ipython.display
    shown = display.display(display.HTML("dpaudit: starting"), display_id=True)

    def update(snapshot: Progress) -> None:
        shown.update(display.HTML(line(snapshot)))

    return update


def line(snapshot: Progress) -> str:
    """A snapshot as HTML: a bar for all trials, and the audits that go on."""
    running = [audit for audit in snapshot.audits if 0 < audit.done < audit.trials][:_AUDITS]
    lines = "".join(f"<br>{_audit(audit)}" for audit in running)
    return (
        f'<progress max="{max(snapshot.trials, 1)}" value="{snapshot.done}"></progress> '
        f"{snapshot.done:,} of {snapshot.trials:,} trials{lines}"
    )


def _audit(audit: Any) -> str:
    label = html.escape(printable(audit.label))
    return (
        f"{label}: {audit.done:,} of {audit.trials:,}, ε ≥ {audit.epsilon_lower:.2f} "
        f"({audit.status}, at any time) of {audit.claim:.2f}"
    )
