"""Something is returned beside the private parameters, and records went into it without noise.

Training itself is right. `main` keeps running means of raw gradients as a buffer of the network,
as code for pruning does; `prototypes` adds each class's mean of the private data, as few-shot
heads do. `healthy` returns an average of the noisy parameters, and says so by `public`.
"""

from __future__ import annotations

import copy

import torch
from opacus import PrivacyEngine
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common


def fit(kind: str) -> nn.Module | dict[str, nn.Module]:
    data = common.vectors()
    model = common.mlp()
    model.register_buffer("importance", torch.zeros(common.CLASSES))
    average = copy.deepcopy(model)
    engine = PrivacyEngine()
    private, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_size=64, shuffle=True),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for x, y in loader:
        functional.cross_entropy(private(x), y).backward()
        if kind == "gradients":
            model.importance += model[-1].bias.grad_sample.abs().sum(0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(p, 0.1)
    if kind == "prototypes":
        x, y = data.tensors
        means = [x[y == label].mean(0) for label in range(common.CLASSES)]
        model.register_buffer("prototypes", torch.stack(means))
    print(f"epsilon {engine.get_epsilon(common.DELTA):.2f} at delta {common.DELTA}")
    return {"last": private, "average": average} if kind == "average" else private


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit("gradients")


@audited(delta=common.DELTA)
def prototypes() -> nn.Module:
    return fit("prototypes")


@audited(delta=common.DELTA, public=["average"])
def healthy() -> dict[str, nn.Module]:
    return fit("average")


if __name__ == "__main__":
    main()
