"""The result of `dpaudit_ray.run` and `open`, and its view in a notebook."""

import contextlib
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
import pandas as pd

from .errors import SpecError
from .imports import Trust, trusting
from .orchestration.progress import Progress
from .plan import outcomes, record
from .plan.finished_trials import FinishedTrials
from .plan.outcomes import Failure
from .plan.score_stream import Trials
from .storage.scores import without_gaps

if TYPE_CHECKING:
    from .report.tables import Run
    from .report.verdict import Answer, Verdict

FigureKind = Literal["bars", "steps", "trend", "heatmap"]


@dataclass(frozen=True)
class Result:
    """A run, complete or not.

    Attributes:
        location: directory or address of the run.
        complete: no trials are missing.
        failures: packs that failed and were not done since.
        lost: trainers that died in this attempt.
        stopped: the run ended early, by request or because its time was up.
        trust: modules that may be imported to read it; None: those that this process may import.
    """

    location: str
    complete: bool
    failures: tuple[Failure, ...] = ()
    lost: int = 0
    stopped: bool = False
    trust: Trust | None = field(default=None, repr=False)

    @classmethod
    def open(
        cls,
        location: str | Path,
        trust: str | None = None,
    ) -> Self:
        """Opens a run in a directory, or at an address, complete or not.

        Args:
            location: the directory or address.
            trust: modules that may be imported, `a,b.c`; by default none that the run names.

        Raises:
            RunDirectoryError: there is no readable run.
        """
        from .report.tables import Run

        modules = Trust.parse(trust, reads=True)
        with trusting(modules):
            run = Run.open(str(location))
        location = run.directory.location
        if newer := record.newer_version(run.directory):
            warnings.warn(f"{location}: {newer}", stacklevel=2)
        failures = outcomes.failed(run.directory, run.plan)
        failures += outcomes.failed_parts(run.directory, run.plan)
        result = cls(location, run.complete, tuple(failures), trust=modules)
        vars(result)["run"] = run
        return result

    @cached_property
    def run(self) -> "Run":
        """The run directory, opened on first use."""
        from .report.tables import Run

        with self._reading:
            return Run.open(self.location)

    @property
    def _reading(self) -> AbstractContextManager[None]:
        """A context in which the modules of `trust` may be imported."""
        return contextlib.nullcontext() if self.trust is None else trusting(self.trust)

    @property
    def estimates(self) -> pd.DataFrame:
        """Bounds, a row each: audit, step and estimator, with the options of the grid.

        A column `claim_NAME` for each accountant has its claims, `epsilon_upper` the first one's.
        """
        from .report import tables

        with self._reading:
            return tables.bounds(self.run)

    @property
    def overview(self) -> pd.DataFrame:
        """Audits at their last step, a row each: `quote`, the ε to quote, what it `assumes`, claim.

        The other columns are those of the grid, and the keys of `dpaudit status --json`.
        """
        from .report import tables, verdict

        with self._reading:
            quotes = verdict.quotes(self.run, verdict.current_or_stored(self.run))
            table = pd.DataFrame(tables.overview(self.run))
            table.insert(2, "quote", [quote.epsilon for quote in quotes])
            table.insert(3, "assumes", [quote.assumes for quote in quotes])
            return tables.with_options(self.run, table)

    @property
    def membership(self) -> pd.DataFrame:
        """Membership inference by the scores: one row per audit and false-positive rate `fpr`.

        Columns: `audit`, `label`, `trainings`; `auc` and `balanced_accuracy`; `fpr` and the
        true-positive rate `tpr`; `claim`, the largest `tpr` that the claim allows at this `fpr`.
        Names with `_low` and `_high` are confidence limits of `auc`, `balanced_accuracy`, `tpr`.
        """
        from .report import membership_rates

        with self._reading:
            return membership_rates.table(self.run)

    def matrix(
        self,
        audit: int = 0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns scores at the last step, and bits, of an audit for `dpaudit_ray.membership`.

        Args:
            audit: index of the audit.

        Returns:
            Scores and bits [training runs, records]; a bit is True if the record was in.
        """
        from .report import membership_rates

        planned = self.run.plan.audits[audit]
        return membership_rates.matrix(
            planned, Trials.joined(planned, self.run.finished_prefix(planned))
        )

    @property
    def scores(self) -> pd.DataFrame:
        """All scores: columns audit, trial, member, step, score; accuracy, loss if measured.

        If single trials failed, `missed` has the reason; it is empty for all others. If training
        ended in NaN or infinity, `diverged` has the reason for one such trial of each pack.
        """
        run = self.run
        audits = range(len(run.plan.audits))
        scores = pd.concat(
            [FinishedTrials(run.directory, run.plan, audit).frame() for audit in audits]
        )
        return without_gaps(scores)

    @cached_property
    def answer(self) -> "Answer":
        """The run's verdict in a sentence, its reason, and what would help; takes seconds."""
        from .report import verdict

        with self._reading:
            return verdict.current(self.run)

    def verdict(self) -> "Verdict":
        """Returns VIOLATION, CONSISTENT or INCONCLUSIVE, as `dpaudit verify` does."""
        return self.answer.verdict

    def plot(
        self,
        steps: bool = False,
        ax: Any = None,
        *,
        kind: FigureKind = "bars",
        style: Literal["screen", "paper"] = "screen",
        columns: int = 1,
    ) -> Any:
        """Draws lower bounds and claims with matplotlib.

        Args:
            steps: the same as `kind="steps"`.
            ax: axes to draw in, for bars and steps; by default those of a new figure.
            kind: "bars" of the last step of all audits; "steps", a plot for each claim; "trend",
                over the only key of the grid with three or more numbers; "heatmap", over two keys.
            style: "paper" has the width of `columns` of a page, and type of 8 points.
            columns: 1 or 2.

        Returns:
            The axes; an array of them for steps and heat maps.

        Raises:
            SpecError: there are too few axes, or the run has nothing to draw in this way.
        """
        from matplotlib import pyplot as plt  # looks for a display

        from .report.figures import paper, whole_run

        if kind not in get_args(FigureKind):
            raise SpecError("kind", f"is {kind!r}; give {', '.join(get_args(FigureKind))}")
        if steps:
            kind = "steps"
        # A notebook's backend that is loaded while a figure is styled shows no later one.
        plt.switch_backend(plt.get_backend())
        with self._reading:
            if kind == "trend":
                trend = whole_run.trend(self.run, None)
                figure = None if trend is None else whole_run.trend_figure(trend)
                reason = "not exactly one key of the grid has three or more numbers; use heatmap"
            elif kind == "heatmap":
                figure = paper.heat_map(self.run)
            else:
                bounds = whole_run.bounds_table(self.run)
                draw = whole_run.evolution_figure if kind == "steps" else whole_run.bars_figure
                figure = draw(bounds, new=plt.figure, ax=ax)
                reason = "one alone is recorded; leave it out"
            if figure is None:
                raise SpecError(kind, f"cannot be drawn: {reason}")
        if style == "paper" and ax is None:
            paper.fit_columns(figure, columns)
        if ax is not None:
            return ax
        if kind in ("steps", "heatmap"):
            return np.array(figure.axes)
        return figure.axes[0]

    def to_latex(self) -> str:
        """Returns the audits as a table of LaTeX, which needs the package booktabs."""
        from .report.figures import paper

        with self._reading:
            return paper.latex(self.run)

    def report(self) -> str:
        """Writes report.html and figures/ into the run directory; returns the report's address."""
        from .report import page

        with self._reading:
            return page.write(self.run)

    def _repr_html_(self) -> str:
        """Returns the view of a notebook: verdict, table and figure."""
        from .report import page
        from .report.figures import primitives, whole_run

        with self._reading:
            figure = whole_run.bars_figure(whole_run.bounds_table(self.run))
            return page.notebook_card(self.run, self.answer, primitives.png(figure))


def notebook_progress() -> Callable[[Progress], None]:
    """Returns a function that shows snapshots in a notebook, and does nothing elsewhere."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if getattr(shell, "kernel", None) is None:
        return lambda snapshot: None
    html = ipython.display.HTML
    display = ipython.display.display(html("dpaudit: starting"), display_id=True)

    def update(snapshot: Progress) -> None:
        """Replaces the bar in the notebook's cell."""
        phase = f", {snapshot.phase}" if snapshot.phase and snapshot.trials_remaining else ""
        display.update(
            html(
                f'<progress max="{max(snapshot.trials, 1)}" value="{snapshot.done}"></progress> '
                f"{snapshot.done:,} of {snapshot.trials:,} trials{phase}"
            )
        )

    return update
