"""One release an epoch is accounted for, and fifty are made.

The script puts Opacus' parts together itself and calls its accountant in the outer loop. Each
step is noisy as it should be; the promised epsilon is that of two steps.
"""

from __future__ import annotations

from opacus import GradSampleModule
from opacus.accountants import PRVAccountant
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch import nn, optim
from torch.nn import functional

from dpaudit_ray.opacus import audited
from jobs.zoo import common

SIGMA = 0.8
RATE = 0.02


def fit(every_step: bool) -> nn.Module:
    data = common.vectors()
    model = GradSampleModule(common.mlp())
    loader = DPDataLoader(data, sample_rate=RATE)
    optimizer = DPOptimizer(
        optim.SGD(model.parameters(), lr=0.5),
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
        expected_batch_size=64,
    )
    accountant = PRVAccountant()
    for epoch in range(2):
        losses = []
        for x, y in loader:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if every_step:
                accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
        if not every_step:
            accountant.step(noise_multiplier=SIGMA, sample_rate=RATE)
        common.report(epoch, losses, accountant.get_epsilon(common.DELTA))
    return model


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(every_step=False)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(every_step=True)


if __name__ == "__main__":
    main()
