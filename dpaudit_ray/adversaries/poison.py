"""Poisoned records: made, before training, so that shadow models lose most on them.

Static poison sees the final model, intermediate poison every one (Nasr et al. 2021, IV-B and IV-C,
Crafter 2, Distinguishers 1 and 2).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from ..data.base import Data, Dataset
from ..plugins import nested
from .api_access import draw_record
from .base import (
    SHADOWS_PER_PART,
    Adversary,
    FinalModel,
    FinalModelAdversary,
    PublicKnowledge,
    SampleCanary,
    ShadowPlan,
    TrajectoryAdversary,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Poisoner(Adversary):
    """Moves a record `ascent` times by `rate` of each feature's range, up the shadows' mean loss.

    By the gradient's signs, and within the range of the feature among the records that are not
    trained on. Shadows are trained as the private models are, on `shadow_data`, none of which may
    be private too, or on half of the data, which is then not private: once, in packs of their own,
    for all audits whose mechanism, shadow records and number of shadows are the same.
    """

    shadows: int = Field(default=SHADOWS_PER_PART, ge=1, le=10_000)  # models to craft by
    # records to train shadows on; else half of the data, in reserve
    shadow_data: Annotated[Data | None, nested(Data)] = None
    ascent: int = Field(default=50, ge=0, le=10_000)  # moves of the poison
    rate: float = Field(default=0.02, gt=0, le=1)  # of a move, in a feature's range

    @property
    def reserves(self) -> float | None:
        return 0.5 if self.shadow_data is None else None

    def datasets(self) -> Mapping[str, Dataset]:
        data = self.shadow_data
        return {} if data is None else {data.key: data.load()}

    @property
    def shadow_plan(self) -> ShadowPlan:
        return ShadowPlan(self.shadows, self.shadow_data)

    def poison(self, public: PublicKnowledge, rng: np.random.Generator) -> SampleCanary:
        """A random record of the shadows' kind, made worse for them."""
        shadows = public.shadows
        assert shadows is not None
        low, high = ranges(public)
        x, y = draw_record(public, rng)
        for _ in range(self.ascent):
            upwards = public.input_gradient(shadows, x, y).sign()
            x = (x + self.rate * (high - low) * upwards).clamp(low, high)
        return SampleCanary(x, y)


def ranges(public: PublicKnowledge) -> tuple[Tensor, Tensor]:
    """Least and largest value of every feature among records that are not trained on: [1, ...]."""
    assert public.outside is not None  # those who are shadowed have some
    x, _ = public.outside
    return x.amin(0, keepdim=True), x.amax(0, keepdim=True)


class StaticPoison(Poisoner, FinalModelAdversary[SampleCanary]):
    """Scores by the poison's loss under the final model."""

    name: Literal["static-poison"] = "static-poison"

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> SampleCanary:
        return self.poison(public, rng)

    def score(self, canary: SampleCanary, observed: FinalModel) -> Tensor:
        return -observed.losses(canary.x, canary.y)[:, 0]


class IntermediatePoison(Poisoner, TrajectoryAdversary[SampleCanary]):
    """Scores by the poison's mean or largest loss over all models of the training.

    The paper takes the better of the two afterwards: largest up to ε = 2, mean above. No level
    allows it.
    """

    name: Literal["intermediate-poison"] = "intermediate-poison"
    statistic: Literal["mean", "max"] = "mean"  # over the models: mean or largest loss

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> SampleCanary:
        return self.poison(public, rng)

    def observer(self, canary: SampleCanary, public: PublicKnowledge, models: int) -> LossPath:
        return LossPath(public, canary, self.statistic, public.initial.new_zeros(models))


@dataclasses.dataclass
class LossPath:
    """An observer: mean or largest loss of a record over the models so far, from θ_1 on."""

    public: PublicKnowledge
    query: SampleCanary
    statistic: Literal["mean", "max"]
    seen: Tensor  # [n], the sum or the largest
    steps: int = 0

    def see(self, step: int, before: Tensor, after: Tensor) -> None:
        losses = self.public.losses(after, self.query.x, self.query.y)[:, 0]
        if self.statistic == "mean":
            self.seen = self.seen + losses
        else:
            self.seen = self.seen.maximum(losses) if self.steps else losses
        self.steps += 1

    def scores(self) -> Tensor:
        """Minus the mean or the largest loss so far, float [n]."""
        return -self.seen if self.statistic == "max" else -self.seen / max(self.steps, 1)

    def state(self) -> dict[str, Tensor]:
        return {"seen": self.seen, "steps": self.seen.new_tensor(float(self.steps))}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.seen, self.steps = state["seen"], int(state["steps"])
