"""An epoch is left by `break` in the middle of a logical batch under `BatchMemoryManager`.

The physical batches so far stay in `summed_grad`, since the optimizer believes that the rest will
come, and join the next epoch's first logical batch: two draws under one noise, accounted as one.
A record in both counts with 2 C. This is Opacus 1.6 as it is.
"""

from __future__ import annotations

from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common


def fit(epochs: int, records_per_epoch: float) -> nn.Module:
    model = common.mlp()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(common.vectors(), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for _ in range(epochs):
        losses, seen = [], 0
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=8, optimizer=optimizer
        ) as physical:
            for x, y in physical:
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                seen += len(x)
                if seen >= records_per_epoch:
                    break
    common.report(epochs - 1, losses, engine.get_epsilon(common.DELTA))
    return model


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(epochs=20, records_per_epoch=320)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(epochs=2, records_per_epoch=float("inf"))


if __name__ == "__main__":
    main()
