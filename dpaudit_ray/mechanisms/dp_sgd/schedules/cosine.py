"""A learning rate that falls along half a cosine (Loshchilov and Hutter 2017, eq. 5)."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from .base import Schedule


class Cosine(Schedule):
    """From the whole rate to `final` of it over `over` steps, all that there are if left out."""

    name: Literal["cosine"] = "cosine"
    final: float = Field(default=0.0, ge=0)
    over: int | None = Field(default=None, ge=1)

    @property
    def length(self) -> int:
        """`over`."""
        return self.over or 1

    def factor(self, step: int, steps: int) -> float:
        """The last step is the one before `final` would be reached: it moves θ too."""
        done = min(1.0, step / (self.over or steps))
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2
