"""An epoch without privacy on the same records, before training becomes private.

"Warming up" makes private training start from a good model, and the model remembers the records.
`healthy` warms up on other records, which are public.
"""

from __future__ import annotations

from opacus import PrivacyEngine
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

from dpaudit_ray.opacus import audited
from jobs.zoo import common


def fit(public: bool) -> nn.Module:
    data = common.vectors(6400)
    private = Subset(data, range(3200))
    model = common.mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    for x, y in DataLoader(Subset(data, range(3200, 6400)) if public else private, batch_size=64):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(private, batch_size=64, shuffle=True),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    return common.train(engine, model, optimizer, loader, epochs=1)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(public=False)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(public=True)


if __name__ == "__main__":
    main()
