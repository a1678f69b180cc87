"""Adaptive poison, crafted at every step (Nasr et al. 2021, IV-D, Crafter 3, Distinguisher 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field, PositiveFloat

from ..plugins import Share
from .base import ChangingCanary, GradientCanary, PublicKnowledge, SampleCanary, TrajectoryAdversary
from .poison import LossPath, Poisoner, ranges

if TYPE_CHECKING:
    from numpy.random import Generator
    from torch import Tensor


class AdaptivePoison(Poisoner, TrajectoryAdversary[ChangingCanary]):
    """Scores by the loss, over all models of the training run, of a query that is never inserted.

    The query is the poison of `static-poison`. The inserted example has the query's label. At each
    step it starts as an input of zeros, and is moved `inner` times by `inner_rate` of each
    feature's range, within that range. Each move goes by the signs of a gradient: that of the
    query's loss after one step of training on the inserted example, at `look_ahead` times the
    learning rate. Moves descend, so that this loss falls, as in the paper's text; line 8 of its
    pseudo-code ascends. To first order, the query's own clipped gradient, which
    `intermediate-poison` inserts, lowers the loss as much.

    Crafting takes 0.4 times (`cnn4` on 28 x 28 pixels) to 6 times (`mlp3` on 600 features) as long
    as a packed step on 128 examples, for the models that a step samples. Networks that `torch.func`
    cannot run are refused.
    """

    name: Literal["adaptive-poison"] = "adaptive-poison"
    inner: int = Field(default=5, ge=1, le=10_000)  # moves of the poison at each insertion
    inner_rate: Share = 0.2  # of a move, in a feature's range
    look_ahead: PositiveFloat = 1.0  # length of the step of training, in learning rates
    statistic: Literal["mean", "max"] = "mean"  # over the models: mean or largest score

    def craft(self, public: PublicKnowledge, rng: Generator) -> ChangingCanary:
        """Crafts the query; inserted examples are crafted during training."""
        query = self.poison(public, rng)
        return AdaptiveCanary(public, query, ranges(public), self)

    def observer(self, canary: ChangingCanary, public: PublicKnowledge, models: int) -> LossPath:
        """Returns an observer of the query's loss in each model; inserted examples do not count."""
        assert isinstance(canary, AdaptiveCanary)
        no_loss_yet = public.initial.new_zeros(models)
        return LossPath(public, canary.query, self.statistic, no_loss_yet)


@dataclass(frozen=True)
class AdaptiveCanary(ChangingCanary):
    """Inserts the clipped gradient of an example that is crafted for every model and step."""

    memoryless = True

    public: PublicKnowledge
    query: SampleCanary
    ranges: tuple[Tensor, Tensor]  # least and largest value of each feature, [1, ...] each
    options: AdaptivePoison

    def at(self, step: int, theta: Tensor) -> GradientCanary:
        """Crafts gradients of norm C at most, float [n, p]; zero for a model that has diverged."""
        import torch

        x = self.examples(step, theta)
        y = self.query.y.repeat(len(theta))
        gradients = self.public.own_gradients(theta, x, y)
        norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True, dtype=torch.float64)
        clip_norm = self.public.clip_norm
        gradients *= clip_norm / norms.clamp(min=clip_norm)
        return GradientCanary(gradients.where(norms.isfinite(), 0.0))

    def examples(self, step: int, theta: Tensor) -> Tensor:
        """Crafts an example for each model: x [n, ...].

        Args:
            step: number of the step, from 1, for the learning rate.
            theta: the models, float [n, p].
        """
        options = self.options
        low, high = self.ranges
        move = options.inner_rate * (high - low)
        x = low.new_zeros(len(theta), *low.shape[1:]).clamp(low, high)
        y = self.query.y.repeat(len(theta))
        rate = options.look_ahead * self.public.rate(step)
        for _ in range(options.inner):
            gradient = self.public.look_ahead(theta, x, y, self.query, rate)
            x = (x - move * gradient.sign()).clamp(low, high)
        return x
