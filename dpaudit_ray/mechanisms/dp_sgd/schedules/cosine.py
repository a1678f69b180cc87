"""A learning rate that falls along half a cosine (Loshchilov and Hutter 2017, eq. 5)."""

from __future__ import annotations

import math
from typing import Literal

from .base import Falling


class Cosine(Falling):
    """Slowly at first and at last."""

    name: Literal["cosine"] = "cosine"

    def factor(self, step: int, steps: int) -> float:
        """final + (1 - final) (1 + cos π done) / 2."""
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * self.done(step, steps))) / 2
