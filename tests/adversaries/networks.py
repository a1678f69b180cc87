"""Networks for these tests: one that takes its time to be built, and a tiny convolutional one."""

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


class TinyCnn(Model):
    """For images of 8 x 8."""

    name: str = f"{__name__}:TinyCnn"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        convolved = nn.Sequential(nn.Conv2d(shape[0], 3, 3), nn.ReLU(), nn.MaxPool2d(2))
        return nn.Sequential(*convolved, nn.Flatten(), nn.Linear(27, classes))
