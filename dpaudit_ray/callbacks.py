"""Callbacks of a run: `dpaudit_ray.run(..., callbacks=[MLflowCallback()])`.

A callback gets each audit's estimate as it changes, and the result at the end. One that raises is
reported and not called again: a tracking server that is down does not end a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .errors import first_line
from .orchestration.progress import AuditProgress, Progress, Tell

if TYPE_CHECKING:
    from .result import Result


class Callback:
    """Takes events of a run; a subclass overrides the methods that it needs."""

    def on_estimate(self, audit: AuditProgress) -> None:
        """Takes an audit's bound each time it rests on more trials."""

    def on_end(self, result: Result) -> None:
        """Takes the result when the run is complete, or has stopped early."""


class MLflowCallback(Callback):
    """Logs bounds, claims and the verdict to MLflow, as one of its runs.

    It logs to the active run of MLflow if there is one, and else to a new one, which it ends.
    """

    def __init__(self) -> None:
        """Imports `mlflow`, which the extra `mlflow` installs."""
        import mlflow

        self._mlflow = mlflow
        self._owns_run = mlflow.active_run() is None
        if self._owns_run:
            mlflow.start_run()

    def on_estimate(self, audit: AuditProgress) -> None:
        self._mlflow.log_metrics(_metrics(audit), step=audit.done)

    def on_end(self, result: Result) -> None:
        self._mlflow.set_tags(_tags(result))
        if self._owns_run:
            self._mlflow.end_run()


class WandbCallback(Callback):
    """Logs bounds, claims and the verdict to the run of Weights & Biases that is active.

    Without an active run it begins one, and ends it.
    """

    def __init__(self) -> None:
        """Imports `wandb`, which the extra `wandb` installs."""
        import wandb

        self._owns_run = wandb.run is None
        self._run = wandb.run or wandb.init()

    def on_estimate(self, audit: AuditProgress) -> None:
        self._run.log(_metrics(audit) | {f"{_name(audit)}/trials": audit.done})

    def on_end(self, result: Result) -> None:
        self._run.summary.update(_tags(result))
        if self._owns_run:
            self._run.finish()


class Callbacks:
    """The callbacks of one run."""

    def __init__(self, callbacks: Sequence[Callback], tell: Tell) -> None:
        """Calls no callback yet."""
        self._callbacks = list(callbacks)
        self._tell = tell
        self._done: dict[int, int] = {}  # number of trials at an audit's last estimate, by audit

    def observing(self, show: Callable[[Progress], None]) -> Callable[[Progress], None]:
        """Returns a function that shows snapshots, and passes new estimates to the callbacks."""
        if not self._callbacks:
            return show

        def observe(progress: Progress) -> None:
            """Shows the progress, and calls back for each audit with new trials."""
            show(progress)
            for index, audit in enumerate(progress.audits):
                if audit.done > self._done.get(index, 0):
                    self._done[index] = audit.done
                    self._call("on_estimate", audit)

        return observe

    def end(self, result: Result) -> None:
        """Passes the result to the callbacks."""
        self._call("on_end", result)

    def _call(self, method: str, event: AuditProgress | Result) -> None:
        """Calls a method of every callback; one that raises is reported, and not called again."""
        for callback in tuple(self._callbacks):
            try:
                getattr(callback, method)(event)
            except Exception as error:  # noqa: BLE001 (code of the user's)
                self._callbacks.remove(callback)
                name = type(callback).__name__
                self._tell(f"{name}.{method} failed and is not called again: {first_line(error)}")


def _name(audit: AuditProgress) -> str:
    """Returns an audit's label in the characters that MLflow allows."""
    return re.sub(r"[^\w./ -]", "_", audit.label) or "audit"


def _metrics(audit: AuditProgress) -> dict[str, float]:
    """Returns the bound so far and the claim, by metric names that begin with the audit's name."""
    name = _name(audit)
    return {f"{name}/epsilon_lower": audit.epsilon_lower, f"{name}/claim": audit.claim}


def _tags(result: Result) -> dict[str, Any]:
    """Returns the answer of a run as tags."""
    return {
        "dpaudit.run": result.location,
        "dpaudit.complete": result.complete,
        "dpaudit.verdict": result.answer.verdict.value,
        "dpaudit.sentence": result.answer.sentence,
    }
