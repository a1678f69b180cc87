"""Adaptive poison, crafted at every step (Nasr et al. 2021, IV-D, Crafter 3, Distinguisher 2)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from .base import ChangingCanary, GradientCanary, PublicKnowledge, SampleCanary, TrajectoryAdversary
from .poison import LossPath, Poisoner, ranges

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class AdaptivePoison(Poisoner, TrajectoryAdversary[ChangingCanary]):
    """Scores by the loss, over all models of the training, of a query that is never inserted.

    The query is the poison of `static-poison`. What is inserted at a step starts as an input of
    zeros with the query's label and is moved `inner` times by `inner_rate` of each feature's range,
    within it, by the signs of a gradient through one step of training on it, at `look_ahead` times
    the learning rate. It descends, to lower the query's loss after that step, as the paper's text
    says; line 8 of its pseudo-code ascends. To first order the query's own clipped gradient, which
    `intermediate-poison` inserts, lowers it as much.

    Crafting takes .4 (`cnn4` on 28 x 28 pixels) to 6 (`mlp3` on 600 features) times as long as a
    packed step on 128 examples, for the models that a step samples. Networks that `torch.func` does
    not run are refused.
    """

    name: Literal["adaptive-poison"] = "adaptive-poison"
    inner: int = Field(default=5, ge=1, le=10_000)  # moves of the poison at each insertion
    inner_rate: float = Field(default=0.2, gt=0, le=1)  # of a move, in a feature's range
    look_ahead: float = Field(default=1.0, gt=0)  # the step looked ahead, in learning rates
    statistic: Literal["mean", "max"] = "mean"  # over the models: mean or largest score

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> ChangingCanary:
        """Makes the query; the rest is crafted as training goes."""
        return AdaptiveCanary(public, self.poison(public, rng), ranges(public), self)

    def observer(self, canary: ChangingCanary, public: PublicKnowledge, models: int) -> LossPath:
        assert isinstance(canary, AdaptiveCanary)
        return LossPath(public, canary.query, self.statistic, public.initial.new_zeros(models))


@dataclasses.dataclass(frozen=True)
class AdaptiveCanary(ChangingCanary):
    """Inserts the clipped gradient of an example that is crafted for every model and step."""

    memoryless: ClassVar[bool] = True

    public: PublicKnowledge
    query: SampleCanary
    ranges: tuple[Tensor, Tensor]  # within which features stay, [1, ...] each
    options: AdaptivePoison

    def at(self, step: int, theta: Tensor) -> GradientCanary:
        """Gradients of norm C at most, float [n, p]; zero for a model that has diverged."""
        import torch

        x = self.examples(step, theta)
        gradients = self.public.own_gradients(theta, x, self.query.y.repeat(len(theta)))
        norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True, dtype=torch.float64)
        clip_norm = self.public.clip_norm
        gradients *= clip_norm / norms.clamp(min=clip_norm)
        return GradientCanary(gradients.where(norms.isfinite(), 0.0))

    def examples(self, step: int, theta: Tensor) -> Tensor:
        """Crafts what is inserted into models `theta`, float [n, p], at `step`: x [n, ...]."""
        low, high = self.ranges
        x = low.new_zeros(len(theta), *low.shape[1:]).clamp(low, high)
        y = self.query.y.repeat(len(theta))
        rate = self.options.look_ahead * self.public.rate(step)
        for _ in range(self.options.inner):
            upwards = self.public.look_ahead(theta, x, y, self.query, rate).sign()
            x = (x - self.options.inner_rate * (high - low) * upwards).clamp(low, high)
        return x
