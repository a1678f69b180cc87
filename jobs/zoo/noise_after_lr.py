"""The noise is added to the parameters after the step, scaled by the learning rate once too often.

An update -lr * mean needs noise of lr * sigma * C / B; here the noise, already scaled by the
learning rate, is multiplied by it again. At a learning rate of 0.25 the noise multiplier is 0.25
instead of 1, and it shrinks further with every schedule.
"""

from __future__ import annotations

import torch
from opacus.accountants import PRVAccountant
from torch import Tensor, nn

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release
from jobs.zoo import common

SIGMA = 1.0
CLIP = 1.0
BATCH = 64
LR = 0.25
RATE = 0.02
STEPS = 100


@audited_release(records=["batch"], noise_multiplier=SIGMA, max_grad_norm=CLIP, sample_rate=RATE)
def private_gradient(model: nn.Module, batch: common.Batch) -> list[Tensor]:
    """Called private, but its noise comes later."""
    return clipped_mean(model, batch)


def clipped_mean(model: nn.Module, batch: common.Batch) -> list[Tensor]:
    return [g.sum(0) / BATCH for g in common.clipped(common.per_example(model, batch), CLIP)]


def healthy_gradient(model: nn.Module, batch: common.Batch) -> list[Tensor]:
    return [g + SIGMA * CLIP / BATCH * torch.randn_like(g) for g in clipped_mean(model, batch)]


@audited(delta=common.DELTA)
def main() -> nn.Module:
    data, labels = common.vectors().tensors
    model = common.mlp()
    accountant = PRVAccountant()
    for _ in range(STEPS):
        chosen = torch.rand(len(data)) < RATE
        common.descend(model, private_gradient(model, (data[chosen], labels[chosen])), LR)
        noise = [LR * SIGMA * CLIP / BATCH * torch.randn_like(p) for p in model.parameters()]
        common.descend(model, noise, LR)
        accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
    epsilon = accountant.get_epsilon(common.DELTA)
    print(f"{STEPS} steps, epsilon {epsilon:.2f} at delta {common.DELTA}")
    return model


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return common.own_loop(healthy_gradient, sigma=SIGMA, rate=RATE, lr=LR, steps=STEPS)


if __name__ == "__main__":
    main()
