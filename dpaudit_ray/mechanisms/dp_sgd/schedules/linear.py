"""A learning rate that falls along a line."""

from __future__ import annotations

from typing import Literal

from .base import Falling


class Linear(Falling):
    """As much at every step."""

    name: Literal["linear"] = "linear"

    def factor(self, step: int, steps: int) -> float:
        """1 - (1 - final) done."""
        return 1 - (1 - self.final) * self.done(step, steps)
