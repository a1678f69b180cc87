"""A plain network for tables and binary records, such as Purchase."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from .base import Model
from .parts import outputs

if TYPE_CHECKING:
    from torch import nn


class Mlp3(Model):
    """Three fully connected layers d-width-width-c with ReLU between them.

    Nasr et al. 2021, appendix A, train "a three layers fully connected neural network" on
    Purchase and do not give its widths; 128 is this project's choice.
    """

    name: Literal["mlp3"] = "mlp3"
    width: int = Field(default=128, ge=1)

    @property
    def parameters(self) -> int:
        """Of as many inputs as the layers are wide: the data tells, which is not read for it."""
        return 2 * self.width**2

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Flattens examples of any shape."""
        from torch import nn

        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(shape), self.width),
            nn.ReLU(),
            nn.Linear(self.width, self.width),
            nn.ReLU(),
            nn.Linear(self.width, outputs(classes)),
        )
