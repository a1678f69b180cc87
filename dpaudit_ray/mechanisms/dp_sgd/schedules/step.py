"""A learning rate that drops every so many steps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Schedule


class Step(Schedule):
    """Times `gamma` after every `every` steps."""

    name: Literal["step"] = "step"
    every: int = Field(ge=1)
    gamma: float = Field(default=0.1, gt=0)

    @property
    def length(self) -> int:
        """A training without a single drop is not what was asked for."""
        return self.every + 1

    def factor(self, step: int, steps: int) -> float:
        """A power of `gamma`."""
        return self.gamma ** (step // self.every)
