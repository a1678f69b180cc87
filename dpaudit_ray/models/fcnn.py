"""The fully connected network of Cebere et al.: d-3-8-1, 68 parameters on Housing's 8 features."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from .base import Model
from .parts import outputs

if TYPE_CHECKING:
    from torch import nn


class Fcnn(Model):
    """d-3-8-1 for two classes, d-3-8-c beyond; ReLU between layers.

    The paper gives only the count of 68 parameters; 8-6-2 would fit as well.
    """

    name: Literal["fcnn"] = "fcnn"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Flattens examples of any shape."""
        from torch import nn

        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(shape), 3),
            nn.ReLU(),
            nn.Linear(3, 8),
            nn.ReLU(),
            nn.Linear(8, outputs(classes)),
        )
