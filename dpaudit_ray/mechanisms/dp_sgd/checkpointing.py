"""Checkpointing: what is saved of a pack, and how it goes on from there on another node.

θ, the scores so far, what the engine's steps depend on (the state of the noise's generator, the
optimizer's moments) and what an observer remembers. All else follows from the seed.
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

    `trainer` says in words what trains it: what another one saved is of no use. `observer` is
    whoever watches, None for nobody. A pack that cannot be saved is trained in one piece, which is
    said once, when a checkpoint would have been due.
    """

    def __init__(
        self, checkpoints: Checkpoints | None, trainer: str, canary: Canary, observer: object
    ) -> None:
        self._checkpoints = checkpoints
        self._observer = observer if isinstance(observer, SavedObserver) else None
        self._trainer = np.frombuffer(trainer.encode(), dtype=np.uint8)
        self._steps: Steps | None = None
        self._hindrance = ""
        if isinstance(canary, ChangingCanary) and not canary.memoryless:
            name = type(canary).__name__
            self._hindrance = f"{name} changes as it likes, and what it remembers is not known"
        elif observer is not self._observer:
            self._hindrance = f"{type(observer).__name__} has no state() and restore()"
        self.step = 0
        self.recorded: Arrays = {}  # up to `step`, by name; to be read before `begin`
        if checkpoints is not None and not self._hindrance:
            step, saved = checkpoints.last() or (0, {})
            if step and np.array_equal(saved["by"], self._trainer):
                self.step, self.recorded = step, saved

    def begin(self, steps: Steps, theta: Tensor) -> Tensor:
        """θ to go on from, float [n, p]; `theta` is where training begins."""
        self._steps = steps
        if not self.step:
            return theta
        saved, self.recorded = self.recorded, {}
        steps.restore(saved, self.step)
        if self._observer is not None:
            names = [name for name in saved if name.startswith(_OBSERVER)]
            state = {n.removeprefix(_OBSERVER): tensor(saved[n], theta.device) for n in names}
            self._observer.restore(state)
        return tensor(saved["theta"], theta.device)

    def offer(self, step: int, theta: Tensor, recorded: Arrays) -> None:
        """Saves what there is after `step`, if it is time."""
        if self._checkpoints is None or self._steps is None or not self._checkpoints.due:
            return
        if self._hindrance:
            _warn(self._hindrance)
            self._checkpoints = None
            return
        arrays = {name: values.copy() for name, values in recorded.items()}
        arrays |= {"by": self._trainer, "theta": theta.cpu().numpy().copy()}
        observed = {} if self._observer is None else self._observer.state()
        arrays |= {_OBSERVER + name: seen.cpu().numpy().copy() for name, seen in observed.items()}
        self._checkpoints.save(step, self._steps.state() | arrays)


@functools.cache  # once in a process, whatever the number of packs
def _warn(hindrance: str) -> None:
    _log.warning("no checkpoint is written: %s", hindrance)
