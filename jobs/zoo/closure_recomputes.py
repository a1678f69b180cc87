"""The optimizer hands its closure on to the inner optimizer (Opacus #330).

Clipping and noise are put into `p.grad`, then the inner optimizer calls the closure, which
computes the gradients anew: every update is the raw mean gradient. Opacus 1.6 calls the closure
first and keeps it; `step` here is as it was before.
"""

from __future__ import annotations

from collections.abc import Callable

from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class HandsClosureOn(DPOptimizer):
    def step(self, closure: Callable[[], Tensor]) -> Tensor | None:
        closure()
        return self.original_optimizer.step(closure) if self.pre_step() else None


def fit(kind: type[DPOptimizer]) -> nn.Module:
    model = common.mlp()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(common.vectors(), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    optimizer = common.own_optimizer(optimizer, kind)
    for epoch in range(2):
        losses = []
        for x, y in loader:

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(x), y)
                loss.backward()
                losses.append(loss.item())  # noqa: B023 (called within this round)
                return loss

            optimizer.step(closure)
            optimizer.zero_grad()
        common.report(epoch, losses, engine.get_epsilon(common.DELTA))
    return model


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(HandsClosureOn)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(DPOptimizer)


if __name__ == "__main__":
    main()
