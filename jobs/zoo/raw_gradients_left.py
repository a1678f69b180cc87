"""The noisy gradient lands beside `p.grad`, and the inner optimizer uses the raw one.

The optimizer keeps its result in an attribute of its own (as for master copies in full
precision), but `p.grad` still holds what `backward` left: unclipped, without noise. In
`left_behind` training is right, but a last backward pass, made for a figure in the log, leaves
raw gradients, and every example's own, in the returned model; `torch.save(model)` writes the
latter to disk. (So do loops that call `zero_grad` before each step and not after the last.)
"""

from __future__ import annotations

import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class Beside(DPOptimizer):
    def add_noise(self) -> None:
        std = self.noise_multiplier * self.max_grad_norm
        for p in self.params:
            p.noisy = p.summed_grad + std * torch.randn_like(p)

    def scale_grad(self) -> None:
        for p in self.params:
            p.noisy /= self.expected_batch_size


class Inside(Beside):
    def scale_grad(self) -> None:
        super().scale_grad()
        for p in self.params:
            p.grad = p.noisy


def log_last_norm(clean: bool) -> nn.Module:
    model = common.mlp()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(common.vectors(), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    common.train(engine, model, optimizer, loader)
    x, y = next(iter(loader))
    functional.cross_entropy(model(x), y).backward()
    if clean:
        optimizer.zero_grad(set_to_none=True)
    return model


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return common.fit(Beside, lr=0.1)


@audited(delta=common.DELTA)
def left_behind() -> nn.Module:
    return log_last_norm(clean=False)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return common.fit(Inside)


@audited(delta=common.DELTA)
def cleaned() -> nn.Module:
    return log_last_norm(clean=True)


if __name__ == "__main__":
    main()
