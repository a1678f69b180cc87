"""The noise is switched off "for a moment" after `make_private` and never switched on again.

The model is the one that clipping alone gives: whether a record was in a batch can be read off
its update. Opacus itself accounts for the 0 that it finds (its PRV accountant raises then), but
the script promises what it planned. In `forgotten` the optimizer's own class leaves the noise
out, and Opacus' accountant believes in it.
"""

from __future__ import annotations

import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common

SIGMA = 1.0
EPOCHS = 2


def fit(debugging: bool) -> nn.Module:
    model = common.mlp()
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(common.vectors(), batch_size=64),
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
    )
    if debugging:
        optimizer.noise_multiplier = 0.0
    planned = PRVAccountant()
    for epoch in range(EPOCHS):
        losses = []
        for x, y in loader:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            planned.step(noise_multiplier=SIGMA, sample_rate=1 / len(loader))
        common.report(epoch, losses, planned.get_epsilon(common.DELTA))
    return model


class NoNoise(common.OwnNoise):
    def noise(self, p: Tensor) -> Tensor:
        return torch.zeros_like(p)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(debugging=True)


@audited(delta=common.DELTA)
def forgotten() -> nn.Module:
    return common.fit(NoNoise)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(debugging=False)


if __name__ == "__main__":
    main()
