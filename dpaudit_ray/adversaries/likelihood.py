"""Likelihood ratios of released steps, for an adversary that knows its canary's gradient.

Given θ_{t-1} and the other examples of the batch, step t releases the sum of their clipped
gradients, which is known, noise, and g* if the canary is in and sampled. Let s_t be the release
minus the known sum, projected on g*, in units of C: s_t ~ N(b c_t, σ²) for |g*| = C, with a random
bit c_t of probability q. The most powerful test for b adds up log(1 - q + q exp((s_t - 1/2) / σ²))
over the steps (Neyman and Pearson) if the bits of different steps are independent. It is exact for
Poisson sampling, and for fixed batches, at q = 1; close for one batch an epoch.

Of correlated noise C⁻¹ z, with the canary in steps π, let y_t be that projection at any step. Then
x = C y = b Cπ + z has independent noise, and is known step by step, since C is lower triangular.
The test adds up (Cπ)_t (x_t - (Cπ)_t / 2) / σ² for z of deviation σ, over all steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from .base import GradientCanary, PublicKnowledge

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Statistic = Literal["likelihood-ratio", "sum"]
_TOTAL = "shown"  # name of the sum in a checkpoint, kept for checkpoints that exist already


@dataclass(frozen=True)
class Reading:
    """The steps that have the canary, and how they are scored.

    With `subtract`, the clipped sum of the other examples is computed and subtracted, which costs
    about as much as training.
    """

    period: int  # steps from one insertion to the next
    subtract: bool = True
    statistic: Statistic = "likelihood-ratio"

    def score(self, projection: Tensor, public: PublicKnowledge) -> Tensor:
        """Returns the score of a step, of the shape of its projection.

        Args:
            projection: projection of the release on the canary, in units of C, any shape.
            public: knows noise and sampling.
        """
        import torch

        if self.statistic == "sum":
            return projection
        ratio = (projection - 0.5) / public.noise_multiplier**2
        q = public.sample_rate
        if q == 1:
            return ratio
        # The step has the canary with probability q: log(1 - q + q e^ratio).
        not_sampled = torch.full_like(ratio, math.log1p(-q))
        return torch.logaddexp(not_sampled, ratio + math.log(q))


@dataclass
class Whitening:
    """Makes the noise of different steps independent, to compute the evidence in each step."""

    strategy: Tensor  # C, float [T, T]
    shifts: NDArray[np.float64]  # Cπ, by which the canary shifts the white releases, [T]
    past: Tensor  # y of the steps so far, then zeros, float [T, n] or [T, n, m]

    @classmethod
    def of(cls, public: PublicKnowledge, period: int, scores: Tensor) -> Whitening | None:
        """Returns an object for training runs that have not begun; None if noise is independent.

        Args:
            public: knows the noise.
            period: steps from one insertion of the canary to the next.
            scores: any tensor of the shape of the scores, [n] or [n, m].
        """
        import numpy as np

        strategy = public.strategy
        if strategy is None:
            return None
        steps = np.arange(1, len(strategy) + 1)
        has_canary = (steps - public.offset) % period == 0  # π
        past = scores.new_zeros(len(strategy), *scores.shape)
        return cls(scores.new_tensor(strategy), strategy @ has_canary, past)

    def evidence(self, step: int, projection: Tensor) -> Tensor:
        """Returns what a step adds to the log likelihood ratio, times σ².

        A row of the strategy times all releases so far is N(0, σ²) without the canary, and N(s, σ²)
        with it, for s = (Cπ)_t. So the step adds s (white - s / 2).

        Args:
            step: number of the step, from 1; every step must be passed, in order.
            projection: projection of the release on the canary, in units of C, [n] or [n, m].
        """
        import torch

        self.past[step - 1] = projection
        white: Tensor = torch.tensordot(self.strategy[step - 1], self.past, dims=1)
        shift = float(self.shifts[step - 1])
        return shift * (white - shift / 2)


@dataclass
class Sums:
    """Base of observers that add up scores of steps: [n], or [n, m] for several canaries."""

    total: Tensor  # sum over the steps so far
    whitening: Whitening | None  # None: noise is independent, or scored as if it were

    def scores(self) -> Tensor:
        """Returns a copy of the sum so far, float [n] or [n, m]: later steps change it in place."""
        return self.total.clone()

    def state(self) -> dict[str, Tensor]:
        """Implements `SavedObserver.state`: the sum, and if noise is correlated, all releases."""
        state = {_TOTAL: self.total}
        if self.whitening is not None:
            state["past"] = self.whitening.past
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Implements `SavedObserver.restore`."""
        self.total = state[_TOTAL]
        if self.whitening is not None:
            self.whitening.past = state["past"]


@dataclass
class Projected(Sums):
    """An observer that adds up the scores of steps by their projection on a canary of norm C."""

    public: PublicKnowledge
    reading: Reading
    indices: Tensor  # parameters where the canary is not 0, [k]
    weights: Tensor  # the canary's entries there, over C, [k]

    @classmethod
    def for_direction(
        cls, canary: GradientCanary, public: PublicKnowledge, models: int, reading: Reading
    ) -> Projected:
        """Returns an observer of training runs that have not begun.

        Args:
            canary: one direction, float [p].
            public: all that the adversary knows before training.
            models: number of training runs.
            reading: which steps have the canary, and how a step is scored.
        """
        zeros = public.initial.new_zeros(models)
        whitening = None
        if reading.statistic == "likelihood-ratio":
            whitening = Whitening.of(public, reading.period, zeros)
        indices = canary.direction.nonzero()[:, 0]
        weights = canary.direction[indices] / public.clip_norm
        return cls(zeros, whitening, public, reading, indices, weights)

    def see_update(self, step: int, before: Tensor, update: Tensor) -> None:
        """Adds the evidence of one step.

        With independent noise, only steps that the canary may join have evidence.

        Args:
            step: the step's number, from 1.
            before: θ_{t-1}, float [n, p].
            update: the step's release, its noisy mean gradient, float [n, p].
        """
        public = self.public
        has_canary = (step - public.offset) % self.reading.period == 0
        if self.whitening is None and not has_canary:
            return
        projection = self._project(update) * public.batch_size
        if self.reading.subtract:
            x, y = public.batch(step)
            known_sum = public.gradients(before, x, y, clip_norm=public.clip_norm)
            projection = projection - self._project(known_sum)
        projection = projection / public.clip_norm
        if self.whitening is None:  # each step is scored alone
            self.total += self.reading.score(projection, public)
        else:
            evidence = self.whitening.evidence(step, projection)
            self.total += evidence / public.noise_multiplier**2

    def _project(self, gradients: Tensor) -> Tensor:
        """Returns the projection of gradients [n, p] on the canary, over C: [n]."""
        return (gradients[:, self.indices] * self.weights).sum(1)
