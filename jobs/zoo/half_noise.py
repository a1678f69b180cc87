"""Half the noise that is accounted for, and shares of it that are harder to see.

In `main` the noise multiplier is 0.5 where the accountant is told 1: gradients look as noisy as
ever, and the true epsilon is several times the promised one. `at_80` has 0.8 of the noise, and so
on; `loop_80` and the like are loops without Opacus.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class LessNoise(common.OwnNoise):
    share = 1.0

    def noise(self, p: Tensor) -> Tensor:
        return self.share * super().noise(p)


def fit(share: float) -> nn.Module:
    return common.fit(type("Less", (LessNoise,), {"share": share}))


def loop(share: float) -> nn.Module:
    def gradient(model: nn.Module, batch: common.Batch) -> list[Tensor]:
        sums = [g.sum(0) for g in common.clipped(common.per_example(model, batch), 1.0)]
        return [(g + share * torch.randn_like(g)) / 64 for g in sums]

    return common.own_loop(gradient, sigma=1.0)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(0.5)


@audited(delta=common.DELTA)
def at_80() -> nn.Module:
    return fit(0.8)


@audited(delta=common.DELTA)
def at_90() -> nn.Module:
    return fit(0.9)


@audited(delta=common.DELTA)
def at_95() -> nn.Module:
    return fit(0.95)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(1.0)


@audited(delta=common.DELTA)
def loop_80() -> nn.Module:
    return loop(0.8)


@audited(delta=common.DELTA)
def loop_90() -> nn.Module:
    return loop(0.9)


@audited(delta=common.DELTA)
def loop_95() -> nn.Module:
    return loop(0.95)


@audited(delta=common.DELTA)
def loop_healthy() -> nn.Module:
    return loop(1.0)


if __name__ == "__main__":
    main()
