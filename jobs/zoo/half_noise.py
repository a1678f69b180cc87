"""Half the noise that is accounted for.

The noise multiplier is 0.5 where the accountant is told 1: gradients look as noisy as ever, and
the true epsilon is several times the promised one.
"""

from __future__ import annotations

from torch import Tensor, nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class HalfNoise(common.OwnNoise):
    def noise(self, p: Tensor) -> Tensor:
        return super().noise(p) / 2


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return common.fit(HalfNoise)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return common.fit(common.OwnNoise)


if __name__ == "__main__":
    main()
