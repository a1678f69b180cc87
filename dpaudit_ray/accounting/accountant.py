"""Accountants: classes that bound ε and δ of a training, found by their names.

A subclass of `Accountant` in this package is known by its `name`, one of somebody's own by its
import path, `package.module:Class`. Verdicts rest on what it promises: where it has no proof, it
raises ValueError. One method is enough, `epsilon`; the others follow from it.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from .. import imports
from ..stats.base import subclasses
from .training import Sampling, Training

_LEAST, _SLIP = 1e-300, 1e-9  # the smallest δ that is looked at; how near in log δ


class UnansweredError(Exception):
    """An accountant cannot answer, but its `fallback` may; the message says why, in a few words."""


class Accountant(ABC):
    """Base of all accountants. `samplings` are those that it has a proof for; it may have none.

    Trainings of other samplings reach it as `Training.unamplified`. It is not asked about
    trainings without steps or without noise. Methods raise ValueError where there is no bound.
    """

    name: ClassVar[str]
    samplings: ClassVar[frozenset[Sampling]] = frozenset({Sampling.POISSON})

    @abstractmethod
    def epsilon(self, training: Training, delta: float) -> float:
        """An upper bound on ε at δ, which does not grow with δ."""

    def delta(self, training: Training, epsilon: float) -> float:
        """An upper bound on δ at ε: about the least δ at which `epsilon` allows it."""
        low, high = math.log(_LEAST), 0.0
        while high - low > _SLIP:
            middle = (low + high) / 2
            enough = self.epsilon(training, math.exp(middle)) <= epsilon
            low, high = (low, middle) if enough else (middle, high)
        return math.exp(high)

    def epsilons(self, training: Training, steps: Sequence[int], delta: float) -> list[float]:
        """Upper bounds on ε at δ after each of `steps`, up to `training.steps`; may share work."""
        return [self.epsilon(training.after(count), delta) for count in steps]

    def composed(self, events: tuple[Training, ...], delta: float) -> float:
        """An upper bound on ε at δ of Poisson-sampled trainings that follow each other."""
        raise ValueError(f"{self.name} composes no trainings that differ; use pld, prv or rdp")

    def fallback(self, training: Training) -> str:
        """Name of the accountant that answers after an UnansweredError."""
        raise NotImplementedError

    def remark(self, training: Training) -> str:
        """Assumption of its answer, which is `if-assumed` then; "" for none."""
        return ""


def accountants() -> dict[str, Accountant]:
    """Accountants of this package, by name."""
    home = f"{__package__}."
    classes = (cls for cls in subclasses(Accountant) if f"{cls.__module__}.".startswith(home))
    return {cls.name: _instance(cls) for cls in sorted(classes, key=lambda cls: cls.name)}


def find(name: str) -> Accountant:
    """The accountant of a name or import path; ValueError or SpecError where there is none."""
    named = accountants()
    if ":" in name:
        return _instance(imports.subclass(Accountant, name, "accountant"))
    if name not in named:
        central = ", a central-limit approximation, not an upper bound" * (name in ("gdp", "clt"))
        choices = f"one of {', '.join(named)}, or package.module:Class"
        raise ValueError(f"accountant must be {choices}, got {name!r}{central}")
    return named[name]


@functools.cache
def _instance(cls: type[Accountant]) -> Accountant:
    return cls()
