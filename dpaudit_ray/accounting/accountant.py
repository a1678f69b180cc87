"""Accountants: classes that bound ε and δ of a training run, found by their names.

A subclass of `Accountant` in this package is found by its `name`, a user-defined one by its import
path, `package.module:Class`. Verdicts depend on its bounds: without a proof it must raise
ValueError. One method is enough, `epsilon`; the others follow from it.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from .. import imports
from ..stats.base import subclasses
from .training import Sampling, Training

_LEAST_DELTA = 1e-300  # smallest δ of a search
_TOLERANCE = 1e-9  # largest error of a search for log δ


class UnansweredError(Exception):
    """An accountant cannot answer, but its `fallback` may; the message is a short reason."""


class Accountant(ABC):
    """Base of all accountants.

    A `Training` with a sampling that is not among `samplings` is passed as `Training.unamplified`;
    one without steps or without noise is never passed. Methods raise ValueError if they have no
    bound.

    Attributes:
        name: the name by which users choose the accountant.
        samplings: those for which it has a proof of amplification.
    """

    name: ClassVar[str]
    samplings: ClassVar[frozenset[Sampling]] = frozenset({Sampling.POISSON})

    @abstractmethod
    def epsilon(self, training: Training, delta: float) -> float:
        """Returns an upper bound on ε at δ, which must not grow with δ.

        Args:
            training: the training run, with steps and with noise.
            delta: δ, in (0, 1).
        """

    def delta(self, training: Training, epsilon: float) -> float:
        """Returns an upper bound on δ at ε, by bisection of log δ: `epsilon` falls with δ.

        It is at least `_LEAST_DELTA`, and 1 if no smaller δ reaches `epsilon`.

        Args:
            training: the training run, with steps and with noise.
            epsilon: ε, at least 0.
        """
        low, high = math.log(_LEAST_DELTA), 0.0
        while high - low > _TOLERANCE:
            middle = (low + high) / 2
            if self.epsilon(training, math.exp(middle)) <= epsilon:
                high = middle
            else:
                low = middle
        return math.exp(high)

    def epsilons(
        self,
        training: Training,
        steps: Sequence[int],
        delta: float,
    ) -> list[float]:
        """Returns upper bounds on ε at δ after each of `steps`, up to `training.steps`."""
        return [self.epsilon(training.after(count), delta) for count in steps]

    def composed(
        self,
        events: tuple[Training, ...],
        delta: float,
    ) -> float:
        """Returns an upper bound on ε at δ of Poisson-sampled events that follow each other.

        Args:
            events: steps of different kinds, each kind with its number of steps.
            delta: δ, in (0, 1).
        """
        raise ValueError(f"{self.name} composes no events that differ; use pld, prv or rdp")

    def fallback(self, training: Training) -> str:
        """Returns the name of the accountant that answers after an UnansweredError."""
        raise NotImplementedError

    def remark(self, training: Training) -> str:
        """Returns the assumption of an answer, whose status is then `if-assumed`; "" for none."""
        return ""


def accountants() -> dict[str, Accountant]:
    """Returns the accountants of this package, by name."""
    named = {}
    for cls in subclasses(Accountant):
        if cls.__module__.startswith(f"{__package__}."):  # not a user's class
            named[cls.name] = _instance(cls)
    return dict(sorted(named.items()))


def find(name: str) -> Accountant:
    """Returns the accountant of a name or import path.

    Raises:
        ValueError: if no accountant has this name.
        SpecError: if the import path does not lead to an accountant.
    """
    if ":" in name:
        return _instance(imports.subclass(Accountant, name, "accountant"))
    named = accountants()
    if name not in named:
        names = ", ".join(named)
        problem = f"accountant must be one of {names}, or package.module:Class, got {name!r}"
        if name in ("gdp", "clt"):
            problem += ", a central-limit approximation, not an upper bound"
        raise ValueError(problem)
    return named[name]


@functools.cache
def _instance(cls: type[Accountant]) -> Accountant:
    """Returns the one instance of a class, whose caches then serve all callers."""
    return cls()
