"""Half of every batch is trained on: the examples with the largest losses.

One record more in a batch pushes another one out, and moves the sum by two clipping bounds where
the noise is for one. `healthy` trains on what was drawn.
"""

from __future__ import annotations

import torch
from opacus import PrivacyEngine
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common


def fit(hardest: bool) -> nn.Module:
    model = common.mlp()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(common.vectors(), batch_size=64, shuffle=True),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for x, y in loader:
        if hardest and len(x) > 1:
            with torch.no_grad():
                losses = functional.cross_entropy(model(x), y, reduction="none")
            chosen = losses.topk(len(x) // 2).indices
            x, y = x[chosen], y[chosen]
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"epsilon {engine.get_epsilon(common.DELTA):.2f} at delta {common.DELTA}")
    return model


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(hardest=True)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(hardest=False)


if __name__ == "__main__":
    main()
