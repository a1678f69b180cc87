"""Momentum of clipped sums, taken before the noise.

Each step releases its own sum and what is left of earlier ones under the noise of one step, so a
record is told of again and again. `healthy` takes momentum of what was released.
"""

from __future__ import annotations

import torch
from torch import nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common

DECAY = 0.9


class RawMomentum(common.OwnNoise):
    def add_noise(self) -> None:
        before = getattr(self, "momentum", [torch.zeros_like(p) for p in self.params])
        self.momentum = [
            DECAY * m + p.summed_grad for m, p in zip(before, self.params, strict=True)
        ]
        for p, m in zip(self.params, self.momentum, strict=True):
            p.grad = m + self.noise(p)


class NoisyMomentum(common.OwnNoise):
    def add_noise(self) -> None:
        super().add_noise()
        before = getattr(self, "momentum", [torch.zeros_like(p) for p in self.params])
        self.momentum = [DECAY * m + p.grad for m, p in zip(before, self.params, strict=True)]
        for p, m in zip(self.params, self.momentum, strict=True):
            p.grad = m.clone()


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return common.fit(RawMomentum, lr=0.05)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return common.fit(NoisyMomentum, lr=0.05)


if __name__ == "__main__":
    main()
