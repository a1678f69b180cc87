"""A hook for the log takes the place of the accountant's.

`attach_step_hook` keeps one hook only, and Opacus accounts in that hook: from then on no step is
counted, and epsilon stays 0. Training itself is as private as before, but nobody knows how much.
"""

from __future__ import annotations

from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn, optim
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common


def fit(keep: bool) -> nn.Module:
    model = common.mlp()
    # Without a step, the PRV accountant raises, and the RDP accountant says 0.
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(common.vectors(), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    counted = optimizer.step_hook
    norms = []

    def log(optimizer: DPOptimizer) -> None:
        if keep:
            counted(optimizer)
        norms.append(float(sum(p.grad.square().sum() for p in optimizer.params)) ** 0.5)

    optimizer.attach_step_hook(log)
    common.train(engine, model, optimizer, loader)
    print(f"norm of the noisy gradient: {norms[0]:.2f} at first, {norms[-1]:.2f} at last")
    return model


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(keep=False)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(keep=True)


if __name__ == "__main__":
    main()
