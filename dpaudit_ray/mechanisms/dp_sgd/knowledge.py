"""What everybody knows of a training before it begins, handed out to adversaries."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ...accounting import Sampling
from ...adversaries.base import SampleCanary
from ...errors import SpecError
from .lookahead import OneEach
from .schedules.constant import Constant
from .shadowing import Shadows, input_gradient
from .training import DpSgdTraining


@dataclasses.dataclass(frozen=True)
class Known:
    """What `PublicKnowledge` grants, as copies: an adversary may work in place on all it gets."""

    training: DpSgdTraining
    shadowed: Shadows | None = None

    @property
    def shadows(self) -> Tensor | None:
        """See `PublicKnowledge.shadows`."""
        return None if self.shadowed is None else self.shadowed.theta.clone()

    @property
    def outside(self) -> tuple[Tensor, Tensor] | None:
        """See `PublicKnowledge.outside`."""
        own = self.training.reserved if self.shadowed is None else self.shadowed.records
        return None if own is None else (own[0].clone(), own[1].clone())

    def pretrained(self, steps: int, seed: int) -> Tensor:
        """See `PublicKnowledge.pretrained`."""
        own = self.outside
        if own is None:
            raise SpecError("mechanism.reserved", "is needed to pretrain on; give a share")
        recipe = dataclasses.replace(self.training.recipe, steps=steps, schedule=Constant())
        elsewhere = dataclasses.replace(self.training, recipe=recipe).elsewhere(*own, seed)
        *_, last = elsewhere.simulate(1, noisy=False, seed=seed)
        return last[0]

    def input_gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """See `PublicKnowledge.input_gradient`."""
        return input_gradient(self.training, theta, x, y, weights)

    @property
    def initial(self) -> Tensor:
        """θ_0, float [p]."""
        return self.training.initial.clone()

    @property
    def clip_norm(self) -> float:
        """C."""
        return self.training.clip_norm

    @property
    def noise_multiplier(self) -> float:
        """σ."""
        return self.training.recipe.noise_multiplier

    @property
    def batch_size(self) -> int:
        """|B|."""
        return self.training.recipe.batch_size

    @property
    def sample_rate(self) -> float:
        """See `PublicKnowledge.sample_rate`."""
        recipe = self.training.recipe
        return recipe.sampling.rate(recipe.sizes(self.examples))

    @property
    def hidden_coins(self) -> bool:
        """See `PublicKnowledge.hidden_coins`."""
        recipe = self.training.recipe
        return recipe.batches == "secret" and recipe.sampling.claim is Sampling.POISSON

    def rate(self, step: int) -> float:
        """See `PublicKnowledge.rate`."""
        return self.training.recipe.rate(step)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.training.classes

    @property
    def examples(self) -> int:
        """Number of training examples."""
        return self.training.examples

    def example(self, index: int) -> tuple[Tensor, Tensor]:
        """Training example `index` as x [1, ...] and y [1]."""
        return self.training.example(index)

    def batch(self, step: int) -> tuple[Tensor, Tensor] | None:
        """See `PublicKnowledge.batch`."""
        if self.training.recipe.batches == "secret":
            return None
        return self.training.batch(step)

    def losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """See `PublicKnowledge.losses`."""
        return self.training.model.losses(theta, x, y)

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, clip_norm: float = math.inf) -> Tensor:
        """See `PublicKnowledge.gradients`."""
        return self.training.sums(theta, x, y, clip_norm)

    def own_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """See `PublicKnowledge.own_gradients`."""
        return self._own.gradients(theta, x, y)

    def look_ahead(
        self, theta: Tensor, x: Tensor, y: Tensor, query: SampleCanary, rate: float
    ) -> Tensor:
        """See `PublicKnowledge.look_ahead`."""
        return self._own.ahead(theta, x, y, query, rate)

    @functools.cached_property
    def _own(self) -> OneEach:
        return OneEach(self.training.module)

    def shown(self, theta: Tensor, x: Tensor, y: Tensor, direction: Tensor) -> Tensor:
        """See `PublicKnowledge.shown`."""
        one_by_one = zip(torch.split(x, 1), torch.split(y, 1), strict=True)
        sums = (self.gradients(theta, *one, clip_norm=self.clip_norm) for one in one_by_one)
        return torch.stack([each.double() @ direction.double() for each in sums], 1)

    def simulate(
        self, runs: int, noisy: bool, seed: int, canary: SampleCanary | None = None, period: int = 1
    ) -> Iterator[Tensor]:
        """See `PublicKnowledge.simulate`."""
        path = self.training.simulate(runs, noisy, seed, canary, period)
        return (theta.clone() for theta in path)
