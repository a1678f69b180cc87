"""Checkpointing: saving a pack while it is trained, and continuing it on another node.

Saved are θ, the scores of recorded steps, the state of the engine (of the generator of its noise,
and the optimizer's moments), and the state of an observer. All else follows from the seed.
"""

import functools
import logging

import numpy as np
from torch import Tensor

from ...adversaries.base import Canary, ChangingCanary, SavedObserver
from ..base import Arrays, Checkpoints
from .steps import Steps, tensor

_warn = functools.cache(logging.getLogger("dpaudit").warning)  # each message once per process
_OBSERVER = "observer."  # prefix of the observer's state among the names of arrays


class PackCheckpoints:
    """Checkpoints of one pack.

    A pack that cannot be saved is trained in one piece, with one warning per process, when a
    checkpoint is due.

    Args:
        checkpoints: where checkpoints are stored; None if they are not.
        trainer: description of engine and device; a checkpoint of another trainer is ignored.
        canary: canary of the pack.
        observer: observer of the adversary, if there is one.

    Attributes:
        step: last step of the checkpoint that training continues from, or 0.
        recorded: arrays of that checkpoint, by name; to be read before `begin`.
    """

    def __init__(
        self, checkpoints: Checkpoints | None, trainer: str, canary: Canary, observer: object
    ) -> None:
        """Reads the last checkpoint, if the pack can be saved and the same trainer wrote it."""
        self._checkpoints = checkpoints
        self._observer = observer if isinstance(observer, SavedObserver) else None
        self._trainer = np.frombuffer(trainer.encode(), dtype=np.uint8)
        self._steps: Steps | None = None  # the engine, from `begin` on
        self._obstacle = ""  # why the pack cannot be saved; "" if it can be
        if isinstance(canary, ChangingCanary) and not canary.memoryless:
            name = type(canary).__name__
            self._obstacle = f"{name} changes as it likes, and its state is not known"
        elif observer is not self._observer:
            self._obstacle = f"{type(observer).__name__} has no state() and restore()"
        self.step = 0
        self.recorded: Arrays = {}
        if checkpoints is not None and not self._obstacle:
            step, saved = checkpoints.last() or (0, {})
            if step and np.array_equal(saved["by"], self._trainer):
                self.step, self.recorded = step, saved

    def begin(self, steps: Steps, theta: Tensor) -> Tensor:
        """Restores the engine and the observer from the checkpoint, if there is one.

        Args:
            steps: the engine, before its first step.
            theta: the models before the first step, float [n, p].

        Returns:
            The models of the checkpoint, float [n, p]; `theta` without a checkpoint.
        """
        self._steps = steps
        if not self.step:
            return theta
        saved, self.recorded = self.recorded, {}  # frees the arrays when this method ends
        steps.restore(saved, self.step)
        if self._observer is not None:
            state = {
                name.removeprefix(_OBSERVER): tensor(array, theta.device)
                for name, array in saved.items()
                if name.startswith(_OBSERVER)
            }
            self._observer.restore(state)
        return tensor(saved["theta"], theta.device)

    def offer(self, step: int, theta: Tensor, recorded: Arrays) -> None:
        """Saves the pack if a checkpoint is due, and if it can be saved.

        Args:
            step: number of the last step.
            theta: models after this step, float [n, p].
            recorded: scores and measures so far, by name.
        """
        if self._checkpoints is None or self._steps is None or not self._checkpoints.due:
            return
        if self._obstacle:
            _warn("no checkpoint is written: %s", self._obstacle)
            self._checkpoints = None
            return
        arrays = {name: values.copy() for name, values in recorded.items()}
        arrays["by"] = self._trainer
        arrays["theta"] = theta.cpu().numpy().copy()
        if self._observer is not None:
            for name, values in self._observer.state().items():
                arrays[_OBSERVER + name] = values.cpu().numpy().copy()
        self._checkpoints.save(step, self._steps.state() | arrays)
