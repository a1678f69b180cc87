"""Fully connected networks: that of Cebere et al. for tables, and a wider one as of Nasr et al."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from .base import Model, outputs

if TYPE_CHECKING:
    from torch import nn


class Fcnn(Model):
    """d-3-8-1 for two classes, d-3-8-c beyond; ReLU between layers (Cebere et al.).

    The paper gives only the count, 68 parameters on Housing's 8 features; 8-6-2 would fit as well.
    """

    name: Literal["fcnn"] = "fcnn"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(shape), 3),
            nn.ReLU(),
            nn.Linear(3, 8),
            nn.ReLU(),
            nn.Linear(8, outputs(classes)),
        )


class Mlp3(Model):
    """Three fully connected layers d-width-width-c with ReLU, for binary records as Purchase.

    Nasr et al. 2021, appendix A, train "a three layers fully connected neural network" on
    Purchase and do not give its widths; 128 is this project's choice.
    """

    name: Literal["mlp3"] = "mlp3"
    width: int = Field(default=128, ge=1)  # of both hidden layers

    @property
    def parameters(self) -> int:
        """Counts as many inputs as the layers are wide: the data are not read for it."""
        return 2 * self.width**2

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(shape), self.width),
            nn.ReLU(),
            nn.Linear(self.width, self.width),
            nn.ReLU(),
            nn.Linear(self.width, outputs(classes)),
        )
