"""One noise vector for all parameters: the generator is reseeded for each of them.

Every parameter's noise begins with the same numbers, so differences between parameters hold no
noise at all: subtracting one gradient from another uncovers the records' share.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class OneKey(common.OwnNoise):
    def add_noise(self) -> None:
        self.key = int(torch.randint(2**62, ()))
        super().add_noise()

    def noise(self, p: Tensor) -> Tensor:
        source = torch.Generator().manual_seed(self.key)
        std = self.noise_multiplier * self.max_grad_norm
        return std * torch.randn(p.shape, generator=source)


class KeyPerParameter(OneKey):
    def noise(self, p: Tensor) -> Tensor:
        self.key += 1
        return super().noise(p)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return common.fit(OneKey)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return common.fit(KeyPerParameter)


if __name__ == "__main__":
    main()
