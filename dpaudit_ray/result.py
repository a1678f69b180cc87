"""What `dpaudit_ray.run` returns, and what a notebook shows meanwhile and afterwards."""

from __future__ import annotations

import dataclasses
import functools
import html
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pandas as pd

from . import plan as planning
from .orchestration.progress import AuditProgress, Progress
from .plan import score_stream
from .plan.outcomes import Failure
from .printable import printable
from .storage.run_directory import RunDirectory
from .storage.scores import MISSED

if TYPE_CHECKING:
    from .report.figures.primitives import Picture
    from .report.tables import Run
    from .report.verdict import Answer, Verdict

_AUDITS = 6  # that are shown, of those that go on


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run left behind.

    `complete` is False while trials are missing; `stopped`: it was asked to end early, or a time
    budget was spent. `failures` holds every pack that failed and was not done since; those that
    failed in an earlier run, and were left out of this one, are `earlier`, too.
    """

    location: str
    complete: bool
    failures: tuple[Failure, ...] = ()
    lost: int = 0
    stopped: bool = False
    earlier: tuple[Failure, ...] = ()

    @functools.cached_property
    def run(self) -> Run:
        """The run directory, opened when it is first asked for, and once."""
        from .report.tables import Run

        return Run.open(self.location)

    @property
    def estimates(self) -> pd.DataFrame:
        """The rows of estimates.parquet."""
        return RunDirectory(self.location).estimates()

    @property
    def overview(self) -> pd.DataFrame:
        """One row per audit, at its last step: μ, ε with its status, ε without assumption, claim.

        The columns are the keys of an audit in `dpaudit status --json`.
        """
        from .report import tables

        return pd.DataFrame(tables.overview(self.run))

    @property
    def scores(self) -> pd.DataFrame:
        """All scores: columns audit, trial, member, step, score; accuracy, loss where measured.

        Where trials were missed one by one, `missed` says why; it is empty for all others.
        """
        run = RunDirectory(self.location)
        plan = planning.require(run)
        scores = pd.concat(
            [score_stream.stored_scores(run, plan, index) for index in range(len(plan.audits))]
        )
        return scores.fillna({MISSED: ""}) if MISSED in scores else scores

    @functools.cached_property
    def answer(self) -> Answer:
        """The run's verdict in a sentence, why, and what would help; takes seconds."""
        from .report import verdict

        return verdict.current(self.run)

    def verdict(self) -> Verdict:
        """VIOLATION, CONSISTENT or INCONCLUSIVE, as `dpaudit verify` says."""
        return self.answer.verdict

    def plot(self) -> Picture:
        """Lower bounds beside claims; a notebook shows it, `save` writes it to a PNG file."""
        from .report.figures import whole_run
        from .report.figures.primitives import Picture

        return Picture(whole_run.bars_figure(whole_run.bounds_table(self.run)))

    def report(self) -> str:
        """Writes report.html and figures/ into the run directory; returns the report's address."""
        from .report import page

        return page.write(self.run)

    def _repr_html_(self) -> str:
        """What a notebook shows: verdict, table and figure."""
        from .report import markup

        return markup.notebook_card(self.run, self.answer, self.plot().content)


def notebook_progress() -> Callable[[Progress], None]:
    """Shows snapshots where this process is a notebook's kernel; does nothing elsewhere."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return lambda snapshot: None
    display = ipython.display
    shown = display.display(display.HTML("dpaudit: starting"), display_id=True)

    def update(snapshot: Progress) -> None:
        shown.update(display.HTML(_progress_line(snapshot)))

    return update


def _progress_line(snapshot: Progress) -> str:
    """A snapshot as HTML: a bar for all trials, and the audits that go on."""
    running = [audit for audit in snapshot.audits if 0 < audit.done < audit.trials][:_AUDITS]
    lines = "".join(f"<br>{_audit_line(audit)}" for audit in running)
    return (
        f'<progress max="{max(snapshot.trials, 1)}" value="{snapshot.done}"></progress> '
        f"{snapshot.done:,} of {snapshot.trials:,} trials{lines}"
    )


def _audit_line(audit: AuditProgress) -> str:
    label = html.escape(printable(audit.label))
    return (
        f"{label}: {audit.done:,} of {audit.trials:,}, ε ≥ {audit.epsilon_lower:.2f} "
        f"({audit.status}, at any time) of {audit.claim:.2f}"
    )
