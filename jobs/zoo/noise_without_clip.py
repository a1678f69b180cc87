"""The noise has standard deviation sigma instead of sigma * C, and C is 4.

Every record may move the sum by 4, under noise made for 1: the noise multiplier is a quarter of
the promised one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class WithoutClip(common.OwnNoise):
    def noise(self, p: Tensor) -> Tensor:
        return self.noise_multiplier * torch.randn_like(p)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return common.fit(WithoutClip, clip=4.0, lr=0.2)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return common.fit(common.OwnNoise, clip=4.0, lr=0.2)


if __name__ == "__main__":
    main()
