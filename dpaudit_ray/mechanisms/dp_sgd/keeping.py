"""Trainings that outlast their node: what is kept of a pack, and how it goes on from there.

θ, the scores so far, what the engine's steps depend on (the state of the noise's generator, the
optimizer's moments) and what an observer remembers. All else follows from the seed. The stream of
noise is the same as without: its generator is saved rather than keyed anew at every step, so that
no score of any sweep changes, and none has to be drawn again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...adversaries.base import Canary, ChangingCanary, SavedObserver
from ..base import Arrays, Checkpoints
from .steps import Steps, tensor

_log = logging.getLogger("dpaudit")
_WATCHED = "observer."


class Kept:
    """A pack between its checkpoints. `step`: where it goes on; 0 where it begins.

    `by` says in words what trains it: what was kept by another engine, or on another kind of
    device, is of no use. `observer` is whoever watches, None for nobody. What cannot be saved is
    trained in one piece: said once, when a checkpoint would have been due.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        by: str,
        canary: Canary,
        observer: object = None,
    ) -> None:
        self._checkpoints, self._observer = checkpoints, observer
        self._by = np.frombuffer(by.encode(), dtype=np.uint8)
        self._steps: Steps | None = None
        self._why = _hindrance(canary, observer)
        self._found: Arrays = {}
        self.step = 0
        if checkpoints is not None and self._why is None:
            step, found = checkpoints.last() or (0, {})
            if step and np.array_equal(found["by"], self._by):
                self.step, self._found = step, found

    def begin(self, steps: Steps, theta: Tensor) -> Tensor:
        """θ to go on from, float [n, p]; `theta` is where training begins."""
        self._steps = steps
        if not self.step:
            return theta
        found, self._found = self._found, {}
        steps.restore(found, self.step)
        if isinstance(self._observer, SavedObserver):
            self._observer.restore(_tensors(found, theta.device))
        return tensor(found["theta"], theta.device)

    @property
    def known(self) -> Arrays:
        """What was recorded up to `step`, by name. Asked before `begin`."""
        return self._found

    def offer(self, step: int, theta: Tensor, recorded: Arrays) -> None:
        """Saves what there is after `step`, if it is time."""
        if self._checkpoints is None or self._steps is None or not self._checkpoints.due:
            return
        if self._why is not None:
            _tell(self._why)
            self._checkpoints = None
            return
        own = {name: values.copy() for name, values in recorded.items()}
        own |= {"by": self._by, "theta": theta.cpu().numpy().copy()}
        if isinstance(self._observer, SavedObserver):
            seen = self._observer.state().items()
            own |= {_WATCHED + name: one.cpu().numpy().copy() for name, one in seen}
        self._checkpoints.save(step, self._steps.state() | own)


@functools.cache  # once in a process, whatever the number of packs
def _tell(why: str) -> None:
    _log.warning("no checkpoint is written: %s", why)


def _hindrance(canary: Canary, observer: object) -> str | None:
    """Why a pack cannot be interrupted; None where it can."""
    if isinstance(canary, ChangingCanary) and not canary.memoryless:
        return f"{type(canary).__name__} changes as it likes, and what it remembers is not known"
    if observer is not None and not isinstance(observer, SavedObserver):
        return f"{type(observer).__name__} has no state() and restore()"
    return None


def _tensors(found: Arrays, device: torch.device) -> Mapping[str, Any]:
    return {
        name.removeprefix(_WATCHED): tensor(array, device)
        for name, array in found.items()
        if name.startswith(_WATCHED)
    }
