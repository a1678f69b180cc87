"""A_GC: a gradient of norm C along one parameter (Cebere, Bellet, Papernot, Algorithms 2-4).

Every insertion decreases that parameter by ηC/|B|, so the score is -(θ_T - θ_0)[d]. At period 1
the two worlds are nearly Gaussian with μ = √T/σ whenever genuine gradients hardly change the
parameter: always in large networks, by choice of d in small ones.

Where θ_0 is unknown, the score is -θ_T[d], and the spread of θ_0[d] is noise on top.
"""

from typing import TYPE_CHECKING, Literal

from ..errors import SpecError
from ..plugins import Count
from .base import FinalModel, FinalModelAdversary, GradientCanary, PublicKnowledge

if TYPE_CHECKING:
    from numpy.random import Generator
    from torch import Tensor

Strategy = Literal["noiseless-per-step", "noiseless-final", "noisy-per-step", "noisy-final"]


class BiasedDimension(FinalModelAdversary[GradientCanary]):
    """Biases a random dimension (A_GC-R) or the dimension that simulations change least (A_GC-S).

    `count` canaries in every training run bias as many dimensions, each by a separate secret bit.
    """

    fixed_gradient = True  # C e_d
    name: Literal["biased-dimension"] = "biased-dimension"
    choice: Literal["random", "simulated"] = "random"  # how the parameter is chosen
    strategy: Strategy = "noiseless-per-step"  # how simulated changes are measured
    simulations: Count = 4  # simulated training runs
    count: Count = 1  # canaries of each training run

    @property
    def canaries(self) -> int:
        return self.count

    def craft(self, public: PublicKnowledge, rng: "Generator") -> GradientCanary:
        """Chooses d and returns C e_d, a row for each canary.

        Raises SpecError if there are more canaries than parameters.
        """
        canaries = self.count
        parameters = len(public.initial)
        if canaries > parameters:
            raise SpecError(
                "adversary.count",
                f"is {canaries}, but the model has {parameters} parameters, and each canary biases "
                "another one; use fewer, or a larger model",
            )
        if self.choice == "simulated":
            movement = self._movement(public, int(rng.integers(2**63)))
            # A vector of indices, also for a single canary.
            dimensions = movement.argsort()[:canaries] if canaries > 1 else movement.argmin()[None]
        else:
            # A single draw takes fewer random numbers than a permutation, and the scores of older
            # versions stay the same.
            if canaries == 1:
                chosen = rng.integers(parameters, size=1)
            else:
                chosen = rng.permutation(parameters)[:canaries]
            dimensions = public.initial.new_tensor(chosen).long()
        directions = public.initial.new_zeros(canaries, parameters)
        directions[range(canaries), dimensions] = public.clip_norm
        return GradientCanary(directions if canaries > 1 else directions[0])

    def score(self, canary: GradientCanary, observed: FinalModel) -> "Tensor":
        """Returns -(θ_T - θ_0)[d], as descent goes along minus the gradient."""
        dimension = canary.direction.argmax(-1)
        change = observed.final[:, dimension] - observed.initial[dimension]
        return -change

    def _movement(self, public: PublicKnowledge, seed: int) -> "Tensor":
        """Measures how much simulated training runs change each parameter, float [p].

        The strategy "per-step" adds all squared steps, "final" all |θ_T - θ_0|. An unknown θ_0
        counts as the first step. Cebere et al. (2024), Algorithm 3, keeps only the last run and
        takes a root after each; here all runs have equal weight, as in its text.
        """
        noise, _, measure = self.strategy.partition("-")  # as in "noisy-final"
        noisy = noise == "noisy"
        runs = self.simulations
        if not noisy and bool(public.initial.any()):
            runs = 1  # without noise, all runs from a known θ_0 are the same
        start = previous = public.initial.expand(runs, -1)
        squares = start.new_zeros(start.shape)
        for current in public.simulate(runs, noisy=noisy, seed=seed):
            squares += (current - previous) ** 2
            previous = current
        if measure == "per-step":
            return squares.sum(0)
        return (previous - start).abs().sum(0)
