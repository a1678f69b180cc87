"""The noise comes from a generator with a constant seed.

Whoever knows the script knows the noise and subtracts it: there is no privacy at all, though the
noise has the right size. `global_seed` does the same with `torch.manual_seed`, which seeds
Opacus' noise (and its sampling) too when no generator is given.
"""

from __future__ import annotations

import torch
from torch import nn

from dpaudit_ray.opacus import audited
from jobs.zoo import common


@audited(delta=common.DELTA)
def main() -> nn.Module:
    return common.fit(noise_generator=torch.Generator().manual_seed(42))


@audited(delta=common.DELTA)
def global_seed() -> nn.Module:
    torch.manual_seed(42)
    return common.fit()


@audited(delta=common.DELTA)
def healthy() -> nn.Module:
    source = torch.Generator()
    source.seed()  # from the system's entropy
    return common.fit(noise_generator=source)


if __name__ == "__main__":
    main()
