"""The interface of learning-rate schedules: a factor for every step, after a warm-up."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from pydantic import Field

from ....errors import SpecError
from ....plugins import Plugin


class Schedule(Plugin):
    """Base of all schedules. Over the first `warmup` steps the rate rises to the whole, linearly.

    What comes after it counts its own steps from 0 on.
    """

    kind: ClassVar[str] = "schedule"
    home: ClassVar[str] = "dpaudit_ray.mechanisms.dp_sgd.schedules"

    warmup: int = Field(default=0, ge=0)

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Of the learning rate, at `step` = 0, 1, ..., steps - 1 after the warm-up."""

    @property
    def length(self) -> int:
        """The steps after the warm-up that it takes to be what it says, at least 1."""
        return 1

    def rate(self, learning_rate: float, step: int, steps: int) -> float:
        """The learning rate of `step` = 1, ..., steps of a training."""
        if step <= self.warmup:
            return learning_rate * step / self.warmup
        return learning_rate * self.factor(step - self.warmup - 1, steps - self.warmup)

    def check(self, steps: int) -> None:
        """Raises SpecError for a schedule that is longer than the training."""
        needed = self.warmup + self.length
        if needed > steps:
            raise SpecError(
                "schedule",
                f"is {self.name} over {needed} steps ({self.warmup} of them to warm up), but there "
                f"are only {steps}; shorten it, or raise mechanism.steps",
            )


class Falling(Schedule):
    """From the whole rate to `final` of it over `over` steps, all that there are if left out."""

    final: float = Field(default=0.0, ge=0)
    over: int | None = Field(default=None, ge=1)

    @property
    def length(self) -> int:
        """`over`."""
        return self.over or 1

    def done(self, step: int, steps: int) -> float:
        """Share of the way down; the last step is the one before `final`: it moves θ too."""
        return min(1.0, step / (self.over or steps))
