"""A learning rate that stays what it is."""

from __future__ import annotations

from typing import Literal

from .base import Schedule


class Constant(Schedule):
    """The learning rate, in every step after the warm-up."""

    name: Literal["constant"] = "constant"

    def factor(self, step: int, steps: int) -> float:
        """1."""
        return 1.0
