"""Batches of exactly 64 records without replacement, accounted as Poisson (Opacus #80).

Under one added record someone else leaves the batch when it is drawn, so the sum moves by up to
2 C, and the accountant's curve for Poisson sampling does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from opacus import PrivacyEngine
from torch import nn, optim
from torch.utils.data import DataLoader, Sampler

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class FixedSize(Sampler[list[int]]):
    def __init__(self, records: int, size: int) -> None:
        self.records = records
        self.size = size

    def __len__(self) -> int:
        return self.records // self.size

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield torch.randperm(self.records)[: self.size].tolist()


def fit(poisson: bool) -> nn.Module:
    model = common.mlp()
    data = common.vectors()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_sampler=FixedSize(len(data), 64)),
        noise_multiplier=0.8,
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
