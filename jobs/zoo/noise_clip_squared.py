"""The noise is multiplied by the clipping norm twice, and C is 0.3.

Its standard deviation is sigma * C^2 where one record moves the sum by C: the noise multiplier is
0.3 times the promised one.
"""

from __future__ import annotations

from torch import Tensor, nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class ClipSquared(common.OwnNoise):
    def noise(self, p: Tensor) -> Tensor:
        return self.max_grad_norm * super().noise(p)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return common.fit(ClipSquared, clip=0.3, lr=1.5)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return common.fit(common.OwnNoise, clip=0.3, lr=1.5)


if __name__ == "__main__":
    main()
