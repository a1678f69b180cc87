"""Checkpointing: what is saved of a pack, and how it goes on from there on another node.

θ, the scores so far, what the engine's steps depend on (the state of the noise's generator, the
optimizer's moments) and what an observer remembers. All else follows from the seed. The stream of
noise is the same as without: its generator is saved rather than keyed anew at every step, so that
no score of any sweep changes, and none has to be drawn again.
"""

from __future__ import annotations

import functools
import logging

import numpy as np
from torch import Tensor

from ...adversaries.base import Canary, ChangingCanary, SavedObserver
from ..base import Arrays, Checkpoints
from .steps import Steps, tensor

_log = logging.getLogger("dpaudit")
_OBSERVER = "observer."


class PackCheckpoints:
    """Checkpoints of one pack. `step`: where it goes on; 0 where it begins.

    `trainer` says in words what trains it: what another engine saved, or another kind of device,
    is of no use. `observer` is whoever watches, None for nobody. A pack that cannot be saved is
    trained in one piece, which is said once, when a checkpoint would have been due.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        trainer: str,
        canary: Canary,
        observer: object = None,
    ) -> None:
        self._checkpoints, self._observer = checkpoints, observer
        self._trainer = np.frombuffer(trainer.encode(), dtype=np.uint8)
        self._steps: Steps | None = None
        self._hindrance = _hindrance(canary, observer)
        self._saved: Arrays = {}
        self.step = 0
        if checkpoints is not None and self._hindrance is None:
            step, saved = checkpoints.last() or (0, {})
            if step and np.array_equal(saved["by"], self._trainer):
                self.step, self._saved = step, saved

    def begin(self, steps: Steps, theta: Tensor) -> Tensor:
        """θ to go on from, float [n, p]; `theta` is where training begins."""
        self._steps = steps
        if not self.step:
            return theta
        saved, self._saved = self._saved, {}
        steps.restore(saved, self.step)
        if isinstance(self._observer, SavedObserver):
            self._observer.restore(
                {
                    name.removeprefix(_OBSERVER): tensor(array, theta.device)
                    for name, array in saved.items()
                    if name.startswith(_OBSERVER)
                }
            )
        return tensor(saved["theta"], theta.device)

    @property
    def recorded(self) -> Arrays:
        """What was recorded up to `step`, by name. To be read before `begin`."""
        return self._saved

    def offer(self, step: int, theta: Tensor, recorded: Arrays) -> None:
        """Saves what there is after `step`, if it is time."""
        if self._checkpoints is None or self._steps is None or not self._checkpoints.due:
            return
        if self._hindrance is not None:
            _warn(self._hindrance)
            self._checkpoints = None
            return
        arrays = {name: values.copy() for name, values in recorded.items()}
        arrays |= {"by": self._trainer, "theta": theta.cpu().numpy().copy()}
        if isinstance(self._observer, SavedObserver):
            for name, values in self._observer.state().items():
                arrays[_OBSERVER + name] = values.cpu().numpy().copy()
        self._checkpoints.save(step, self._steps.state() | arrays)


@functools.cache  # once in a process, whatever the number of packs
def _warn(hindrance: str) -> None:
    _log.warning("no checkpoint is written: %s", hindrance)


def _hindrance(canary: Canary, observer: object) -> str | None:
    """Why a pack cannot be interrupted; None where it can."""
    if isinstance(canary, ChangingCanary) and not canary.memoryless:
        return f"{type(canary).__name__} changes as it likes, and what it remembers is not known"
    if observer is not None and not isinstance(observer, SavedObserver):
        return f"{type(observer).__name__} has no state() and restore()"
    return None
