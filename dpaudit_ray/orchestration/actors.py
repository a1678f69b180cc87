"""The two kinds of Ray actors: long-lived trainers, and one aggregator.

Scores travel from a trainer's process straight into the aggregator's. The driver sees a small
outcome per pack.
"""

from __future__ import annotations

import functools
import signal
from typing import Any

import ray

from ..plan import Pack, Plan
from ..storage import PackScores, RunDirectory
from .aggregation import Aggregation, Progress
from .driver import Done, Outcome
from .trainer import Failure
from .trainer import Trainer as PackTrainer


@ray.remote
class Aggregator:
    """One per sweep. Restarted by Ray after a crash, it rebuilds itself from the run directory."""

    def __init__(self, location: str) -> None:
        _leave_signals_to_the_driver()
        self._open = functools.cache(lambda: Aggregation.rebuild(RunDirectory(location)))

    # Rebuilt on the first call rather than in the constructor, so that a damaged run directory
    # reaches the driver as the error it is and not as the death of an actor.

    def fold(self, pack: Pack, scores: PackScores) -> None:
        """Stores and folds a pack; safe to call twice."""
        self._open().fold(pack, scores)

    def progress(self) -> Progress:
        """A snapshot for the terminal."""
        return self._open().progress()

    def flush(self) -> None:
        """Writes the estimates."""
        self._open().flush()


@ray.remote
class Trainer:
    """Trains packs one after another and hands their scores to the aggregator."""

    def __init__(self, raw_sweep: dict[str, Any], plan: Plan, aggregator: Any) -> None:
        _leave_signals_to_the_driver()
        self._trainer = PackTrainer(raw_sweep, plan)
        self._aggregator = aggregator

    def run_pack(self, pack: Pack) -> Outcome:
        """Returns when the pack is stored, or with the failure of the user's code."""
        result = self._trainer.attempt(pack)
        if isinstance(result, Failure):
            return result
        ray.get(self._aggregator.fold.remote(pack, result))
        return Done(pack)


def _leave_signals_to_the_driver() -> None:
    """Ctrl-C reaches the whole process group; only the driver may decide what it means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
