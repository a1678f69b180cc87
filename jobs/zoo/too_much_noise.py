"""Twice the noise that is accounted for: no bug, and no audit may raise an alarm.

The model is more private than promised, and worse than it need be.
"""

from __future__ import annotations

from torch import Tensor, nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class TwiceTheNoise(common.OwnNoise):
    def noise(self, p: Tensor) -> Tensor:
        return 2 * super().noise(p)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return common.fit(TwiceTheNoise)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return common.fit(common.OwnNoise)


if __name__ == "__main__":
    main()
