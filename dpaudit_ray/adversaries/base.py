"""The interface of adversaries against DP-SGD: craft before training, score what is released.

The access level is the type an adversary derives from. A `FinalModelAdversary` is handed θ_0,
θ_T and the canary it crafted, nothing else: neither the secret bit nor an intermediate model is
in any object that reaches `score`.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from pydantic import Field

from ..plugins import Plugin

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclasses.dataclass(frozen=True)
class GradientCanary:
    """A gradient that is added to the clipped sum: `direction` [p], norm at most C."""

    direction: Tensor


@dataclasses.dataclass(frozen=True)
class SampleCanary:
    """One example that joins the batch: `x` [1, ...], `y` [1]; clipped like any other."""

    x: Tensor
    y: Tensor


Canary = GradientCanary | SampleCanary
C = TypeVar("C", GradientCanary, SampleCanary)


class PublicKnowledge(Protocol):
    """All that the hidden-state threat model grants before training (Cebere et al., section 4)."""

    @property
    def initial(self) -> Tensor:
        """θ_0, float [p]."""

    @property
    def clip_norm(self) -> float:
        """C."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    def example(self, index: int) -> tuple[Tensor, Tensor]:
        """Training example `index` as x [1, ...] and y [1]."""

    @property
    def examples(self) -> int:
        """Number of training examples."""

    def simulate(self, runs: int, noisy: bool, seed: int) -> Iterator[Tensor]:
        """Yields θ_0, θ_1, ..., θ_T of `runs` simulated trainings without the canary, [runs, p].

        Noiseless simulations neither clip nor add noise, and are all alike.
        """


class FinalModel(Protocol):
    """What a hidden-state adversary observes of each of n trained models."""

    @property
    def initial(self) -> Tensor:
        """θ_0, float [p]."""

    @property
    def final(self) -> Tensor:
        """θ_T, float [n, p]."""

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss of every final model on examples x [m, ...], y [m]: float [n, m]."""


class Adversary(Plugin):
    """Base of all adversaries. The canary enters at steps t with t mod `period` = 0."""

    kind: ClassVar[str] = "adversary"
    home: ClassVar[str] = "dpaudit_ray.adversaries"
    one_run: ClassVar[bool] = False  # True: a trial is a canary, and all are in one training

    period: int = Field(default=1, ge=1)


class FinalModelAdversary(Adversary, Generic[C]):
    """An adversary under `final_model` access, for the canary type it crafts."""

    @abstractmethod
    def craft(self, known: PublicKnowledge, rng: np.random.Generator) -> C:
        """Chooses the canary before training; `rng` is the adversary's own randomness."""

    @abstractmethod
    def score(self, canary: C, observed: FinalModel) -> Tensor:
        """Float [n], higher = more confident that the canary was in."""
