"""The head of the private model has a plain optimizer of its own.

Only parameters that the private optimizer holds are clipped and noised; the head is moved by the
raw mean gradient. The accountant counts the private half's steps and knows nothing of the rest.
"""

from __future__ import annotations

from opacus import PrivacyEngine
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common


def fit(own_head: bool) -> nn.Module:
    model = common.mlp()
    body, head = model[:-1], model[-1]
    engine = PrivacyEngine()
    private, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD((body if own_head else model).parameters(), lr=0.5),
        data_loader=DataLoader(common.vectors(), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    optimizers = [optimizer, optim.Adam(head.parameters(), lr=0.01)] if own_head else [optimizer]
    for epoch in range(2):
        losses = []
        for x, y in loader:
            loss = functional.cross_entropy(private(x), y)
            loss.backward()
            for each in optimizers:
                each.step()
            optimizer.zero_grad()
            private.zero_grad()  # the head's, which the private optimizer does not hold
            losses.append(loss.item())
        common.report(epoch, losses, engine.get_epsilon(common.DELTA))
    return private


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(own_head=True)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(own_head=False)


if __name__ == "__main__":
    main()
