"""A Poisson sampler that leaves empty batches out.

A rare class of 200 records in batches of 2: one batch in seven is empty, and no step is made for
it. The number of steps then tells how often somebody was drawn; with few records in the data it
gives away whether one more is there. Opacus' sampler for distributed training does the same, each
process for itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from opacus import PrivacyEngine
from torch import nn, optim
from torch.utils.data import DataLoader, Sampler

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class SkipsEmpty(Sampler[list[int]]):
    def __init__(self, records: int, rate: float) -> None:
        self.records = records
        self.rate = rate

    def __len__(self) -> int:
        return round(1 / self.rate)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            drawn = (torch.rand(self.records) < self.rate).nonzero().flatten().tolist()
            if drawn:  # an empty batch cannot be collated
                yield drawn


def fit(poisson: bool) -> nn.Module:
    model = common.mlp()
    data = common.vectors(200)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.02),
        data_loader=DataLoader(data, batch_sampler=SkipsEmpty(len(data), 0.01)),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=poisson,
    )
    return common.train(engine, model, optimizer, loader)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(poisson=False)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(poisson=True)


if __name__ == "__main__":
    main()
