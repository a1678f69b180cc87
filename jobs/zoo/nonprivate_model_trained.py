"""`make_private` is called, and then the original model is trained (Opacus #313).

The private model, optimizer and loader are kept beside and never used: plain SGD without clipping
or noise, on batches that are not Poisson. In #313 a Lightning module did so. Opacus' accountant
sees no step and has no epsilon to tell; the script prints what it planned. (Training the very
model that was handed in, Opacus 1.6 raises at the second step: its hooks are there.)
"""

from __future__ import annotations

from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from opacus.validators import ModuleValidator
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common

SIGMA = 1.0


def fit(private: bool) -> nn.Module:
    model = common.mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(common.vectors(), batch_size=64, shuffle=True)
    fixed = ModuleValidator.fix(model)  # a copy
    dp = PrivacyEngine().make_private(
        module=fixed,
        optimizer=optim.SGD(fixed.parameters(), lr=0.5),
        data_loader=loader,
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
    )
    if private:
        model, optimizer, loader = dp
    planned = PRVAccountant()
    for epoch in range(2):
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


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(private=False)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(private=True)


if __name__ == "__main__":
    main()
