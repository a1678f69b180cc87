"""The batch's mean gradient is clipped instead of every example's own.

One example with a large gradient turns the mean wherever it likes, and clipping keeps the
direction: the released mean moves by up to 2 C, while the noise is made for C / B. The norm that
gets noise for one record's influence is that of the whole batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpaudit_ray.opacus import audited
from jobs.zoo import common

SIGMA = 1.0
CLIP = 1.0
BATCH = 64


def private_gradient(model: nn.Module, batch: common.Batch) -> list[Tensor]:
    x, y = batch
    loss = functional.cross_entropy(model(x), y)
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    norm = torch.cat([g.flatten() for g in gradient]).norm()
    scale = min(1.0, CLIP / float(norm + 1e-6))
    return [scale * g + SIGMA * CLIP / BATCH * torch.randn_like(g) for g in gradient]


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
