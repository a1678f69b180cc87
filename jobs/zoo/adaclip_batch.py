"""Adaptive clipping of Opacus 1.6, as it is.

The clipping norm follows a noisy count of unclipped records. Theorem 1 of the method's paper
(arXiv 1905.03871) centres the count, so that a record moves it by 1/2, and divides by the expected
batch; Opacus counts whole records and divides by the true batch. With sigma = 1 and a standard
deviation of 0.6 on the count, gradients get sigma 1.81 and the pair has mu = 1.76 where 1 is
accounted for; the true batch size leaks besides.
"""

from __future__ import annotations

import math

from opacus import PrivacyEngine
from opacus.optimizers import AdaClipDPOptimizer
from torch import nn, optim
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common

ADAPTIVE = {
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.05,
    "unclipped_num_std": 0.6,
}


class Centred(AdaClipDPOptimizer):
    """The count as the theorem has it: a record adds 1/2 or -1/2."""

    def update_max_grad_norm(self) -> None:
        centred = float(self.unclipped_num) - self.sample_size / 2
        fraction = 0.5 + centred / self.expected_batch_size
        change = self.clipbound_learning_rate * (fraction - self.target_unclipped_quantile)
        norm = float(self.max_grad_norm) * math.exp(-change)
        self.max_grad_norm = min(max(norm, self.min_clipbound), self.max_clipbound)


def fit(kind: type[AdaClipDPOptimizer] | None = None) -> nn.Module:
    model = common.mlp()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.05),
        data_loader=DataLoader(common.vectors(), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        clipping="adaptive",
        **ADAPTIVE,
    )
    if kind is not None:
        optimizer = common.own_optimizer(optimizer, kind, **ADAPTIVE)
    return common.train(engine, model, optimizer, loader)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit()


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(Centred)


if __name__ == "__main__":
    main()
