"""Batch normalization that Opacus 1.6 lets pass.

The validator looks at trainable modules only: `BatchNorm1d(affine=False)` trains nothing, nor does
a frozen one that still runs in training mode. A
record changes everyone's normalization, so everyone's clipped gradient; and its running mean and
variance, raw statistics of the batches, are in the state that is released.
"""

from __future__ import annotations

from opacus import PrivacyEngine
from torch import nn, optim
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common


def fit(norm: nn.Module) -> nn.Module:
    model = nn.Sequential(
        nn.Linear(common.FEATURES, 128), norm, nn.ReLU(), nn.Linear(128, common.CLASSES)
    )
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(common.vectors(), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    return common.train(engine, model, optimizer, loader)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(nn.BatchNorm1d(128, affine=False))


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(nn.GroupNorm(8, 128, affine=False))


if __name__ == "__main__":
    main()
