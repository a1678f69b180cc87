"""A_CotS: a random direction, scored by its cosine with the update (Cebere et al., Alg. 7-8).

The audit of Andrew et al. (2024) under hidden state. Its canary points along every dimension, so
the noise and the genuine gradients of all of them count.
"""

from typing import TYPE_CHECKING, Literal

from .base import FinalModel, FinalModelAdversary, GradientCanary, PublicKnowledge

if TYPE_CHECKING:
    from numpy.random import Generator
    from torch import Tensor


class Cosine(FinalModelAdversary[GradientCanary]):
    """Adds C times a uniformly random unit vector; a low cosine is evidence of it."""

    name: Literal["cosine"] = "cosine"

    def craft(self, public: PublicKnowledge, rng: "Generator") -> GradientCanary:
        """Samples p normal numbers and scales them to norm C.

        Alg. 8 of Cebere et al. (2024) prints another scale.
        """
        vector = rng.standard_normal(len(public.initial))
        norm = float((vector**2).sum()) ** 0.5
        scaled = vector * (public.clip_norm / norm)
        return GradientCanary(public.initial.new_tensor(scaled))

    def score(self, canary: GradientCanary, observed: FinalModel) -> "Tensor":
        """Returns minus the cosine of g* and θ_T - θ_0: descent goes along minus the gradient."""
        update = observed.final - observed.initial
        norms: Tensor = update.norm(dim=1) * canary.direction.norm()
        return -(update @ canary.direction) / norms
