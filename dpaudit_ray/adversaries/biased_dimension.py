"""A_GC: a gradient of norm C along one parameter (Cebere, Bellet, Papernot, Algorithms 2-4).

Inserting it pushes that parameter down by ηC/|B| at every insertion, so the score is
-(θ_T - θ_0)[d]. At period 1 the two worlds are nearly Gaussian with μ = √T/σ whenever genuine
gradients leave the dimension alone: always in large networks, by choice of d in small ones.

Where θ_0 is unknown, the score is -θ_T[d], and the spread of θ_0[d] is noise on top.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ..errors import SpecError
from .base import FinalModel, FinalModelAdversary, GradientCanary, PublicKnowledge

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Strategy = Literal["noiseless-per-step", "noiseless-final", "noisy-per-step", "noisy-final"]


class BiasedDimension(FinalModelAdversary[GradientCanary]):
    """Biases a random dimension (A_GC-R) or the one that simulations move least (A_GC-S).

    `count` canaries in every training bias as many dimensions, each by a secret bit of its own.
    """

    fixed_gradient: ClassVar[bool] = True  # C e_d
    name: Literal["biased-dimension"] = "biased-dimension"
    choice: Literal["random", "simulated"] = "random"  # how the parameter is chosen
    strategy: Strategy = "noiseless-per-step"  # how simulated moves are measured
    simulations: int = Field(default=4, ge=1)  # trainings to choose by
    count: int = Field(default=1, ge=1)  # canaries of each training

    @property
    def canaries(self) -> int:
        return self.count

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> GradientCanary:
        """Picks d and returns C e_d, a row for each canary. Raises SpecError for more than p."""
        if self.count > (parameters := len(public.initial)):
            raise SpecError(
                "adversary.count",
                f"is {self.count}, but the model has {parameters} parameters, and each canary "
                "biases one of its own; use fewer, or a larger model",
            )
        if self.choice == "simulated":
            moved = self._movement(public, int(rng.integers(2**63)))
            dimensions = moved.argsort()[: self.count] if self.count > 1 else moved.argmin()[None]
        else:
            # One dimension takes fewer draws than a permutation, and keeps the scores of old runs.
            single = self.count == 1
            drawn = rng.integers(parameters, size=1) if single else rng.permutation(parameters)
            dimensions = public.initial.new_tensor(drawn[: self.count]).long()
        directions = public.initial.new_zeros(self.count, parameters)
        directions[range(self.count), dimensions] = public.clip_norm
        return GradientCanary(directions if self.count > 1 else directions[0])

    def score(self, canary: GradientCanary, observed: FinalModel) -> Tensor:
        """-(θ_T - θ_0)[d]: descent moves along minus the gradient."""
        dimension = canary.direction.argmax(-1)
        return -(observed.final[:, dimension] - observed.initial[dimension])

    def _movement(self, public: PublicKnowledge, seed: int) -> Tensor:
        """How far simulated trainings move each parameter, float [p]: the least moved is chosen.

        By "per-step", all squared steps are added; by "final", all |θ_T - θ_0|. An unknown θ_0
        counts as the first step. Cebere et al. (2024), Algorithm 3, keeps the last run alone and
        takes a root after each; here all runs count alike, as its text says.
        """
        noise, _, rank = self.strategy.partition("-")  # as in "noisy-final"
        # Without noise, all runs from a known θ_0 are the same.
        runs = 1 if noise == "noiseless" and bool(public.initial.any()) else self.simulations
        start = previous = public.initial.expand(runs, -1)
        moved = start.new_zeros(start.shape)
        for current in public.simulate(runs, noisy=noise == "noisy", seed=seed):
            moved += (current - previous) ** 2
            previous = current
        return moved.sum(0) if rank == "per-step" else (previous - start).abs().sum(0)
