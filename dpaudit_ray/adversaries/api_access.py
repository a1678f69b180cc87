"""API access: a black-box attack on one record's loss (Nasr et al. 2021, section IV-A).

With a worst-case initialisation (Annamalai, De Cristofaro 2024) it shows more: other records'
gradients are small there, and a claim holds for any initialisation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..plugins import Count
from .base import LossAdversary, PublicKnowledge, SampleCanary

if TYPE_CHECKING:
    from numpy.random import Generator
    from torch import Tensor


class AddedRecord(LossAdversary):
    """Adds a record, and may choose where training begins.

    `canary: record` draws it from records that are not trained on, half of the data by default;
    `mislabelled` gives it the wrong label that is least likely at θ_0; `blank` is an input of zeros
    with such a label. `start: pretrained` begins with the result of `start_steps` steps without
    noise on those records.
    """

    canary: Literal["record", "mislabelled", "blank"] = "record"  # how the added record is made
    start: Literal["drawn", "pretrained"] = "drawn"  # `pretrained`: it also chooses θ_0
    start_steps: Count = 1000  # steps of that pretraining

    @property
    def reserves(self) -> float | None:
        return 0.5

    @property
    def needs_classes(self) -> bool:
        return self.canary != "record"

    @property
    def chooses_start(self) -> bool:
        return self.start == "pretrained"

    def begin(self, public: PublicKnowledge, rng: Generator) -> Tensor | None:
        """Returns a start that was trained on reserved records; None to keep the mechanism's."""
        if self.start == "drawn":
            return None
        seed = int(rng.integers(2**63))
        return public.pretrained(self.start_steps, seed)

    def craft(self, public: PublicKnowledge, rng: Generator) -> SampleCanary:
        """Returns a record, or an input with the wrong label that is least likely at θ_0."""
        x, y = draw_record(public, rng)
        if self.canary == "record":
            return SampleCanary(x, y)
        if self.canary == "blank":
            x = x.new_zeros(x.shape)
        return SampleCanary(x, least_likely_label(public, x, y))


class ApiAccess(AddedRecord):
    """Adds a record of the same kind, and scores by its loss (Distinguisher 1)."""

    name: Literal["api-access"] = "api-access"


def draw_record(public: PublicKnowledge, rng: Generator) -> tuple[Tensor, Tensor]:
    """Draws a record that is not trained on, x [1, ...] and y [1]."""
    assert public.outside is not None  # an adversary that draws one also `reserves` some
    x, y = public.outside
    index = int(rng.integers(len(y)))
    row = slice(index, index + 1)
    return x[row], y[row]


def least_likely_label(public: PublicKnowledge, x: Tensor, y: Tensor) -> Tensor:
    """Returns the wrong label with the largest loss at θ_0, int64 [1].

    Args:
        public: computes losses, and has θ_0.
        x: an input, [1, ...].
        y: its right label, which is excluded, int64 [1].
    """
    import torch

    labels = torch.arange(public.classes, device=y.device)
    inputs = x.expand(len(labels), *x.shape[1:])
    losses = public.losses(public.initial[None], inputs, labels)[0]
    losses[y] = -torch.inf  # the right label is never the largest
    return losses.argmax().view(1)
