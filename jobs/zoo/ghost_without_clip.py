"""Ghost clipping at another norm than the noise is made for (Opacus #664).

In #664 the module never heard of `max_grad_norm` and clipped at its default of 1. In 1.6 this
still happens to a model that is wrapped before `make_private`, which takes it as it is: clipped at
1, noise for 0.1, so ten times too little. In `scheduled` Opacus' own scheduler lowers
`max_grad_norm` on the optimizer only, and the noise shrinks under clipping that stays.
"""

from __future__ import annotations

from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.schedulers import ExponentialGradClip
from torch import nn, optim
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common


def fit(
    model: nn.Module, clip: float, lr: float, gamma: float = 1.0, follow: bool = True
) -> nn.Module:
    engine = PrivacyEngine()
    model, optimizer, criterion, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=lr),
        data_loader=DataLoader(common.vectors(), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=clip,
        grad_sample_mode="ghost",
    )
    scheduler = ExponentialGradClip(optimizer, gamma=gamma)
    for _ in range(2):
        common.train(engine, model, optimizer, loader, criterion, epochs=1)
        scheduler.step()
        if follow:
            model.max_grad_norm = optimizer.max_grad_norm
    return model


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(GradSampleModuleFastGradientClipping(common.mlp()), clip=0.1, lr=0.5, follow=False)


@audited(delta=common.DELTA)
def scheduled() -> nn.Module:
    return fit(common.mlp(), clip=1.0, lr=0.5, gamma=0.25, follow=False)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(common.mlp(), clip=0.1, lr=5.0)


@audited(delta=common.DELTA)
def scheduled_both() -> nn.Module:
    return fit(common.mlp(), clip=1.0, lr=0.5, gamma=0.25)


if __name__ == "__main__":
    main()
