"""API access: a black-box attack on one record's loss (Nasr et al. 2021, section IV-A).

And what a worst-case initialisation adds (Annamalai, De Cristofaro 2024): where other records'
gradients are small at the start, the canary shows more, and a claim holds for any start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from .base import FinalModel, FinalModelAdversary, PublicKnowledge, SampleCanary

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class RecordCanary(FinalModelAdversary[SampleCanary]):
    """Which record is added, and where training begins.

    `canary: record` draws it from those that are not trained on, half of the data where the
    sweep does not say; `mislabelled` gives it the wrong label that is least likely at the
    start, `blank` is an input of zeros with such a label. `start: pretrained` begins where
    `start_steps` steps without noise on those records lead.
    """

    canary: Literal["record", "mislabelled", "blank"] = "record"  # how the added record is made
    start: Literal["drawn", "pretrained"] = "drawn"  # `pretrained`: it chooses θ_0, too
    start_steps: int = Field(default=1000, ge=1)  # steps of that pretraining

    @property
    def reserves(self) -> float | None:
        return 0.5

    @property
    def needs_classes(self) -> bool:
        return self.canary != "record"

    @property
    def chooses_start(self) -> bool:
        return self.start == "pretrained"

    def begin(self, public: PublicKnowledge, rng: np.random.Generator) -> Tensor | None:
        if self.start == "drawn":
            return None
        return public.pretrained(self.start_steps, int(rng.integers(2**63)))

    def added(self, public: PublicKnowledge, rng: np.random.Generator) -> SampleCanary:
        """Makes the record that is added."""
        x, y = draw_record(public, rng)
        if self.canary == "record":
            return SampleCanary(x, y)
        x = x.new_zeros(x.shape) if self.canary == "blank" else x
        return SampleCanary(x, least_likely(public, x, y))


class ApiAccess(RecordCanary):
    """Adds a record of the same kind, and scores by its loss under the final model."""

    name: Literal["api-access"] = "api-access"

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> SampleCanary:
        return self.added(public, rng)

    def score(self, canary: SampleCanary, observed: FinalModel) -> Tensor:
        """Minus its loss (Distinguisher 1)."""
        return -observed.losses(canary.x, canary.y)[:, 0]


def draw_record(public: PublicKnowledge, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draws a record that is not trained on, x [1, ...] and y [1]."""
    assert public.outside is not None  # those who draw one have the mechanism keep some
    x, y = public.outside
    index = int(rng.integers(len(y)))
    return x[index : index + 1], y[index : index + 1]


def least_likely(public: PublicKnowledge, x: Tensor, y: Tensor) -> Tensor:
    """The label other than `y` [1] with the largest loss of x [1, ...] at θ_0, int64 [1]."""
    import torch

    labels = torch.arange(public.classes, device=y.device)
    losses = public.losses(public.initial[None], x.expand(len(labels), *x.shape[1:]), labels)[0]
    losses[y] = -torch.inf
    return losses.argmax().view(1)
