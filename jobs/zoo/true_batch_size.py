"""The mean is taken over the records that were drawn, not over the expected number.

One record more changes the divisor of sum and noise alike. The noise's size then tells the
batch's size: over thousands of coordinates it can be read off to a record or so at each step,
whatever the record's own gradient is.
"""

from __future__ import annotations

from opacus.optimizers import DPOptimizer
from torch import nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class TrueBatchSize(DPOptimizer):
    def scale_grad(self) -> None:
        for p in self.params:
            p.grad /= max(1, len(p.grad_sample))


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return common.fit(TrueBatchSize)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return common.fit()


if __name__ == "__main__":
    main()
