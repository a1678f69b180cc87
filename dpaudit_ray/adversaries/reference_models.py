"""Reference models (Shokri et al. 2017; Carlini et al. 2022): each record is in by a fair coin."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from .base import FinalModel, FinalModelAdversary, PublicKnowledge, RecordCanary, SampleCanary

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

_AT_ONCE = 4096  # records


class ReferenceModels(FinalModelAdversary[SampleCanary]):
    """Tosses a coin for each of so many private records; reports give LiRA of the second half.

    Records that are out leave their places in batches empty. `period` is the number of batches in
    an epoch, of which a record is in one. A score is log(p / (1 - p)) of its class, or minus loss.
    """

    name: Literal["reference-models"] = "reference-models"
    private_records: ClassVar[bool] = True
    records: int = Field(ge=2)  # whose coins are tossed; all others are always in

    @property
    def canaries(self) -> int:
        return self.records

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> RecordCanary:
        import torch

        places = torch.from_numpy(rng.permutation(public.examples)[: self.records]).sort().values
        x, y = zip(*map(public.example, places.tolist()), strict=True)
        return RecordCanary(torch.cat(x), torch.cat(y), places.to(y[0].device))

    def score(self, canary: SampleCanary, observed: FinalModel) -> Tensor:
        import torch

        columns: list[Tensor] = []
        classes = 1 if canary.y.is_floating_point() else int(canary.y.max()) + 1
        parts = (torch.split(tensor, _AT_ONCE) for tensor in (canary.x, canary.y))
        for x, y in zip(*parts, strict=True):  # 1 - p is the sum of the others: never just 0
            labels = [y, *((y + shift) % classes for shift in range(1, classes))]
            chance, *others = (-observed.losses(x, label).double() for label in labels)
            columns.append(chance - torch.stack(others).logsumexp(0) if others else chance)
        return torch.cat(columns, 1)
