"""Shuffled batches, accounted as if they were Poisson (Opacus #80).

With `poisson_sampling=False` Opacus keeps the loader, and its accountant its amplification by
sampling. Every record is used once an epoch for certain; at a small sigma, worst-case data lose
several times the epsilon that is promised.
"""

from __future__ import annotations

from torch import nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return common.fit(sigma=0.6, poisson_sampling=False)


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    return common.fit(sigma=0.6)


if __name__ == "__main__":
    main()
