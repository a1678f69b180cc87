"""Means of micro-batches of 8 are clipped, and the claim is made for clipping per example.

A record sits in one micro-batch, and may turn its clipped mean right round: the sum moves by up
to 2 C where the noise is made for C. And as batches are cut in their order, a record that is
added shifts those behind it, so that many means change at once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common

SIGMA = 1.0
CLIP = 1.0
BATCH = 64
MICRO = 8


def private_gradient(model: nn.Module, batch: common.Batch) -> list[Tensor]:
    gradients = common.per_example(model, batch)
    means = [torch.stack([part.mean(0) for part in g.split(MICRO)]) for g in gradients]
    sums = [g.sum(0) for g in common.clipped(means, CLIP)]
    return [(g + SIGMA * CLIP * torch.randn_like(g)) / (BATCH // MICRO) for g in sums]


def healthy_gradient(model: nn.Module, batch: common.Batch) -> list[Tensor]:
    sums = [g.sum(0) for g in common.clipped(common.per_example(model, batch), CLIP)]
    return [(g + SIGMA * CLIP * torch.randn_like(g)) / BATCH for g in sums]


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return common.own_loop(private_gradient, sigma=SIGMA, lr=0.1)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return common.own_loop(healthy_gradient, sigma=SIGMA)


if __name__ == "__main__":
    main()
