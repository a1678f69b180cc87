"""Poisoned records: crafted before training, so that shadow models have a large loss on them.

Static poison observes the final model, intermediate poison every model (Nasr et al. 2021, IV-B and
IV-C, Crafter 2, Distinguishers 1 and 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from ..data.base import Data, Dataset
from ..plugins import Share, nested
from .api_access import draw_record
from .base import (
    SHADOWS_PER_PART,
    Adversary,
    LossAdversary,
    PublicKnowledge,
    SampleCanary,
    ShadowPlan,
    TrajectoryAdversary,
)

if TYPE_CHECKING:
    from numpy.random import Generator
    from torch import Tensor


Moves = Annotated[int, Field(ge=0, le=10_000)]  # number of moves of a record that is crafted


class Poisoner(Adversary):
    """Moves a record `ascent` times by `rate` of each feature's range, up the shadows' mean loss.

    Moves have the gradient's signs and stay within the feature's range among the records that are
    not trained on. Shadow models are trained as the private ones are, on `shadow_data`, of which no
    record may be private, or on half of the data, which is not private then. They are trained once
    for all audits with the same mechanism, shadow records and number of shadow models.
    """

    shadows: int = Field(default=SHADOWS_PER_PART, ge=1, le=10_000)  # models to craft by
    # records to train shadows on; else half of the data, which is reserved
    shadow_data: Annotated[Data | None, nested(Data)] = None
    ascent: Moves = 50  # moves of the poison
    rate: Share = 0.02  # of a move, in a feature's range

    @property
    def reserves(self) -> float | None:
        return 0.5 if self.shadow_data is None else None

    def datasets(self) -> Mapping[str, Dataset]:
        if self.shadow_data is None:
            return {}
        return {self.shadow_data.key: self.shadow_data.load()}

    @property
    def shadow_plan(self) -> ShadowPlan:
        return ShadowPlan(self.shadows, self.shadow_data)

    def poison(self, public: PublicKnowledge, rng: Generator) -> SampleCanary:
        """Draws a record that is not trained on, and raises the shadow models' loss on it."""
        shadows = public.shadows
        assert shadows is not None  # `shadow_plan` provides them
        low, high = ranges(public)
        step = self.rate * (high - low)
        x, y = draw_record(public, rng)
        for _ in range(self.ascent):
            signs = public.input_gradient(shadows, x, y).sign()
            x = (x + step * signs).clamp(low, high)
        return SampleCanary(x, y)


def ranges(public: PublicKnowledge) -> tuple[Tensor, Tensor]:
    """Returns each feature's extremes among records that are not trained on, [1, ...] each."""
    assert public.outside is not None  # from `reserves` or shadow data
    x, _ = public.outside
    return x.amin(0, keepdim=True), x.amax(0, keepdim=True)


class StaticPoison(Poisoner, LossAdversary):
    """Scores by the poison's loss under the final model."""

    name: Literal["static-poison"] = "static-poison"

    def craft(self, public: PublicKnowledge, rng: Generator) -> SampleCanary:
        return self.poison(public, rng)


class IntermediatePoison(Poisoner, TrajectoryAdversary[SampleCanary]):
    """Scores by the poison's mean or largest loss over all models of the training run.

    The paper takes the better of the two afterwards: largest up to ε = 2, mean above. A bound that
    is chosen so does not hold at its level.
    """

    name: Literal["intermediate-poison"] = "intermediate-poison"
    statistic: Literal["mean", "max"] = "mean"  # over the models: mean or largest loss

    def craft(self, public: PublicKnowledge, rng: Generator) -> SampleCanary:
        return self.poison(public, rng)

    def observer(self, canary: SampleCanary, public: PublicKnowledge, models: int) -> LossPath:
        """Returns an observer of the poison's loss in each model."""
        no_loss_yet = public.initial.new_zeros(models)
        return LossPath(public, canary, self.statistic, no_loss_yet)


@dataclass
class LossPath:
    """An observer of a record's mean or largest loss over the models so far, from θ_1 on."""

    public: PublicKnowledge
    query: SampleCanary
    statistic: Literal["mean", "max"]
    total: Tensor  # float [n]: sum of the losses, or the largest one
    steps: int = 0

    def see(self, step: int, before: Tensor, after: Tensor) -> None:
        """Adds the query's loss in the models after a step, or keeps the larger one.

        Args:
            step: number of the step, from 1.
            before: θ_{t-1}, not used.
            after: θ_t, float [n, p].
        """
        losses = self.public.losses(after, self.query.x, self.query.y)[:, 0]
        if self.statistic == "mean":
            self.total = self.total + losses
        elif self.steps == 0:
            self.total = losses
        else:
            self.total = self.total.maximum(losses)
        self.steps += 1

    def scores(self) -> Tensor:
        """Returns minus the mean or the largest loss so far, float [n]."""
        if self.statistic == "max":
            return -self.total
        return -self.total / max(self.steps, 1)

    def state(self) -> dict[str, Tensor]:
        """Implements `SavedObserver.state`, by the names of checkpoints that exist already."""
        steps = self.total.new_tensor(float(self.steps))
        return {"seen": self.total, "steps": steps}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Implements `SavedObserver.restore`."""
        self.total = state["seen"]
        self.steps = int(state["steps"])
