"""A learning rate that falls along a line."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Schedule


class Linear(Schedule):
    """From the whole rate to `final` of it over `over` steps, all that there are if left out."""

    name: Literal["linear"] = "linear"
    final: float = Field(default=0.0, ge=0)
    over: int | None = Field(default=None, ge=1)

    @property
    def length(self) -> int:
        """`over`."""
        return self.over or 1

    def factor(self, step: int, steps: int) -> float:
        """The last step is the one before `final` would be reached: it moves θ too."""
        done = min(1.0, step / (self.over or steps))
        return 1 - (1 - self.final) * done
