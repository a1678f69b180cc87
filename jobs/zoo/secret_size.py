"""The number of records leaks through the scale of the update (Opacus #571, #819).

Nothing is wrong while the size of the data is public. `make_private` divides by
int(N / len(loader)): one record more than 4,000 makes 81 batches of 49 instead of 80 of 50, so
every coordinate of every update grows by 2 %, noise included. If N is a secret, a step or
two tell it over thousands of coordinates. The twin takes rate and divisor from constants.
"""

from __future__ import annotations

from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from torch import nn, optim
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common

RATE = 1 / 80
BATCH = 50


def fit(public_size: bool, records: int = 4000) -> nn.Module:
    data = common.vectors(records)
    model = common.mlp()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=(
            DataLoader(data, batch_size=BATCH)
            if public_size
            else DPDataLoader(data, sample_rate=RATE)
        ),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    if not public_size:
        optimizer.expected_batch_size = BATCH
    return common.train(engine, model, optimizer, loader, epochs=1)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(public_size=True)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(public_size=False)


if __name__ == "__main__":
    main()
