"""The noise meant for the mean is added to the sum, and the sum is divided again.

Noise of standard deviation sigma * C / B belongs to the mean of B gradients; here it is added
before the division, so the noise is B = 64 times too small. One record moves the sum by up to C:
every step gives away its batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common

SIGMA = 1.0
CLIP = 1.0
BATCH = 64


def private_gradient(model: nn.Module, batch: common.Batch) -> list[Tensor]:
    sums = [g.sum(0) for g in common.clipped(common.per_example(model, batch), CLIP)]
    return [(g + SIGMA * CLIP / BATCH * torch.randn_like(g)) / BATCH for g in sums]


def healthy_gradient(model: nn.Module, batch: common.Batch) -> list[Tensor]:
    sums = [g.sum(0) for g in common.clipped(common.per_example(model, batch), CLIP)]
    return [(g + SIGMA * CLIP * torch.randn_like(g)) / BATCH for g in sums]


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return common.own_loop(private_gradient, sigma=SIGMA)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return common.own_loop(healthy_gradient, sigma=SIGMA)


if __name__ == "__main__":
    main()
