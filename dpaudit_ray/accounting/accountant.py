"""Accountants: classes that bound ε and δ of a training, found by their names.

An accountant is one file: a subclass of `Accountant` in this package is known by its `name`, one of
somebody's own anywhere else by its import path, `package.module:Class`. Verdicts rest on what it
promises: where it has no proof, it raises ValueError, and answers nothing. One method is enough,
`epsilon`; the others follow from it.
"""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from .. import imports
from ..errors import SpecError
from ..stats.base import subclasses
from .training import Sampling, Training

_LEAST, _SLIP = 1e-300, 1e-9  # the smallest δ that is looked at; how near in log δ


class UnansweredError(Exception):
    """An accountant cannot answer, but its `fallback` may; the message says why, in a few words."""


class Accountant(ABC):
    """Base of all accountants. `samplings` are those that it has a proof for; it may have none.

    Trainings of other samplings reach it as what is proven of them without amplification
    (`Training.unamplified`), and never as another sampling. It is not asked about trainings
    without steps or without noise. Methods raise ValueError where there is no bound.
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
            if self.epsilon(training, math.exp(middle)) <= epsilon:
                high = middle
            else:
                low = middle
        return math.exp(high)

    def epsilons(self, training: Training, steps: Sequence[int], delta: float) -> list[float]:
        """Upper bounds on ε at δ after each of `steps`, from 1 to `training.steps`.

        Accountants that can share work between step counts override it.
        """
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
    """The accountant of a name or an import path.

    Raises ValueError for an unknown name, or that of what is no upper bound, SpecError for an
    import path that leads to no accountant, or may not be imported.
    """
    named = accountants()
    if name in named:
        return named[name]
    if ":" not in name:
        central = ", a central-limit approximation, not an upper bound" * (name in ("gdp", "clt"))
        raise ValueError(
            f"accountant must be one of {', '.join(named)}, or package.module:Class, got {name!r}"
            f"{central}"
        )
    cls: type[Accountant] = imports.subclass(Accountant, name, "accountant")
    if "both_ends" in inspect.signature(cls.epsilon).parameters:
        raise SpecError(
            "accountant",
            f"{name!r} bounds ε by three ends; give the upper one, by epsilon(training, delta)",
        )
    return _instance(cls)


@functools.cache
def _instance(cls: type[Accountant]) -> Accountant:
    return cls()
