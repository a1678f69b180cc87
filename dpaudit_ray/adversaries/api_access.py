"""API access: a black-box attack on one record's loss (Nasr et al. 2021, section IV-A).

And what a worst-case initialisation adds (Annamalai, De Cristofaro 2024): training that starts
where other records' gradients are small shows the canary more, and a claim holds for any start.
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

    `canary: record` draws it from those that are not trained on, half of the data where the sweep
    does not say; `mislabelled` gives it the wrong label that is least likely at the start, `blank`
    is an input of zeros with such a label. `start: pretrained` has training begin where
    `start_steps` steps without noise on those records lead.
    """

    canary: Literal["record", "mislabelled", "blank"] = "record"
    start: Literal["drawn", "pretrained"] = "drawn"
    start_steps: int = Field(default=1000, ge=1)

    @property
    def reserves(self) -> float | None:
        """Half of the data."""
        return 0.5

    @property
    def chooses_start(self) -> bool:
        """Where it is pretrained."""
        return self.start == "pretrained"

    def begin(self, known: PublicKnowledge, rng: np.random.Generator) -> Tensor | None:
        """Where training begins, if it is not where the mechanism says."""
        if self.start == "drawn":
            return None
        return known.pretrained(self.start_steps, int(rng.integers(2**63)))

    def added(self, known: PublicKnowledge, rng: np.random.Generator) -> SampleCanary:
        """The record."""
        x, y = drawn(known, rng)
        if self.canary == "record":
            return SampleCanary(x, y)
        x = x.new_zeros(x.shape) if self.canary == "blank" else x
        return SampleCanary(x, least_likely(known, x, y))


class ApiAccess(RecordCanary):
    """Adds a record of the same kind, and scores by its loss under the final model."""

    name: Literal["api-access"] = "api-access"

    def craft(self, known: PublicKnowledge, rng: np.random.Generator) -> SampleCanary:
        """Draws a record from those that are not trained on."""
        return self.added(known, rng)

    def score(self, canary: SampleCanary, observed: FinalModel) -> Tensor:
        """Minus its loss (Distinguisher 1)."""
        return -observed.losses(canary.x, canary.y)[:, 0]


def drawn(known: PublicKnowledge, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A random record that is not trained on, x [1, ...] and y [1]."""
    outside = known.outside
    assert outside is not None  # those who draw one have the mechanism keep some
    x, y = outside
    place = int(rng.integers(len(y)))
    return x[place : place + 1], y[place : place + 1]


def least_likely(known: PublicKnowledge, x: Tensor, y: Tensor) -> Tensor:
    """The label with the largest loss at θ_0, other than `y`; as [1]."""
    import torch

    labels = torch.arange(known.classes, device=y.device)
    losses = known.losses(known.initial[None], x.expand(len(labels), *x.shape[1:]), labels)[0]
    losses[y] = -torch.inf
    return losses.argmax().view(1)
