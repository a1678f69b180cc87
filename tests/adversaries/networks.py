"""A network for these tests that takes its time to be built."""

import os
import time

from torch import nn

from dpaudit_ray.models.base import Model

SECONDS = "DPAUDIT_TEST_BUILDS"


class Slowly(Model):
    """A linear layer, built so slowly that a run can be killed meanwhile."""

    name: str = f"{__name__}:Slowly"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        time.sleep(float(os.environ.get(SECONDS, 0)))
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 1))
