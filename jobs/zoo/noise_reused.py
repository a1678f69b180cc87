"""The same noise at every step: the generator is reseeded with the run's key each time.

One step alone looks as it should. The difference of two steps holds no noise at all, so from the
second step on the records' share is bare.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class Reused(common.OwnNoise):
    key: int | None = None

    def add_noise(self) -> None:
        if self.key is None:
            self.key = int(torch.randint(2**62, ()))
        self.source = torch.Generator().manual_seed(self.key)
        super().add_noise()

    def noise(self, p: Tensor) -> Tensor:
        std = self.noise_multiplier * self.max_grad_norm
        return std * torch.randn(p.shape, generator=self.source)


class KeyPerStep(Reused):
    def add_noise(self) -> None:
        self.key = None
        super().add_noise()


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return common.fit(Reused, lr=0.1)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return common.fit(KeyPerStep, lr=0.1)


if __name__ == "__main__":
    main()
