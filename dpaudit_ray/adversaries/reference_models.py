"""Reference models (Shokri et al. 2017; Carlini et al. 2022): each record is in by a fair coin."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from .base import FinalModel, FinalModelAdversary, PublicKnowledge, RecordCanary, SampleCanary

if TYPE_CHECKING:
    from numpy.random import Generator
    from torch import Tensor

_BLOCK = 4096  # records whose losses are computed together


class ReferenceModels(FinalModelAdversary[SampleCanary]):
    """Tosses a coin for each of `records` private records; reports show LiRA's rates for them.

    The first half of the training runs calibrates LiRA, which then attacks the second half. Batches
    are smaller by the records that are out. `period` is the number of batches in an epoch, one of
    which has the record. A score is log(p / (1 - p)) for the probability p of the record's class,
    or minus the loss of a regression.
    """

    name: Literal["reference-models"] = "reference-models"
    private_records = True
    records: int = Field(ge=2)  # number of records with a coin; all others are always in

    @property
    def canaries(self) -> int:
        return self.records

    def craft(self, public: PublicKnowledge, rng: "Generator") -> RecordCanary:
        """Draws the records whose membership is a secret bit in every training run."""
        import torch

        chosen = rng.permutation(public.examples)[: self.records]
        indices = torch.from_numpy(chosen).sort().values
        examples = [public.example(index) for index in indices.tolist()]
        x = torch.cat([x for x, _ in examples])
        y = torch.cat([y for _, y in examples])
        return RecordCanary(x, y, indices.to(y.device))

    def score(self, canary: SampleCanary, observed: FinalModel) -> "Tensor":
        """Returns log(p / (1 - p)) of each record's label, float64 [n, records].

        p is the probability that a model gives the label. A regression's score is minus the loss.
        """
        import torch

        columns = []
        # Labels of a regression are floats.
        classes = 1 if canary.y.is_floating_point() else int(canary.y.max()) + 1
        x_blocks = torch.split(canary.x, _BLOCK)
        y_blocks = torch.split(canary.y, _BLOCK)
        for x, y in zip(x_blocks, y_blocks, strict=True):
            log_p = -observed.losses(x, y).double()
            if classes > 1:
                # 1 - p as the sum over the other labels: subtracting from 1 would round to 0.
                others = [(y + shift) % classes for shift in range(1, classes)]
                log_p_of_others = [-observed.losses(x, label).double() for label in others]
                log_p = log_p - torch.stack(log_p_of_others).logsumexp(0)
            columns.append(log_p)
        return torch.cat(columns, 1)
