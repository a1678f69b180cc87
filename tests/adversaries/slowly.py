"""A network that takes its time to be built, so that a run can be killed meanwhile."""

from __future__ import annotations

import os
import time

from torch import nn

from dpaudit_ray.models.base import Model

SECONDS = "DPAUDIT_TEST_BUILDS"


class Slowly(Model):
    """A linear layer."""

    name: str = "slowly:Slowly"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        time.sleep(float(os.environ.get(SECONDS, 0)))
        return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 1))
