"""Accounted at a smaller sampling rate than the one used.

The rate comes from the table's size before filtering, 12,800 rows of which 3,200 are left: every
record is drawn four times as often as the accountant is told. Each step is noisy as it should be;
the promised epsilon is far too small.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common

SIGMA = 0.8
CLIP = 1.0
BATCH = 64
ROWS_BEFORE_FILTERING = 12_800
ROWS = 3_200


def private_gradient(model: nn.Module, batch: common.Batch) -> list[Tensor]:
    sums = [g.sum(0) for g in common.clipped(common.per_example(model, batch), CLIP)]
    return [(g + SIGMA * CLIP * torch.randn_like(g)) / BATCH for g in sums]


def fit(rows: int) -> nn.Module:
    return common.own_loop(private_gradient, sigma=SIGMA, rate=BATCH / ROWS, accounted=BATCH / rows)


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return fit(ROWS_BEFORE_FILTERING)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return fit(ROWS)


if __name__ == "__main__":
    main()
