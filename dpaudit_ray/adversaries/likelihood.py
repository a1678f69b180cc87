"""The likelihood of what steps show, to an adversary that knows its canary's gradient.

Given θ_{t-1} and the batch of the others, step t shows the sum of their clipped gradients, which
is known, the noise, and g* where the canary is in and sampled. Along g*, less what is known, in
units of C: s_t ~ N(b c_t, σ²) for |g*| = C, with a coin c_t of chance q. The most powerful test
for b adds up

    log(1 - q + q exp((s_t - 1/2) / σ²))

over the steps (Neyman and Pearson), where coins of different steps are independent: exact for
Poisson sampling, and for fixed batches, at q = 1. For one batch an epoch it is close to it. The
plain sum of s_t is as good at q = 1 only. Where nobody knows the batches, see `hidden`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from . import hidden
from .base import GradientCanary, PublicKnowledge

if TYPE_CHECKING:
    from torch import Tensor

Statistic = Literal["likelihood-ratio", "sum"]


@dataclasses.dataclass(frozen=True)
class Reading:
    """A reading of steps: which of them have the canary, and what is added up of them.

    With `subtract`, the others' clipped sum is computed and taken away, which costs about as much
    as training. Where nobody knows their batches, their records' clipped gradients are computed one
    by one, for the exact ratio given all records: N gradients of every model at every step.
    """

    period: int
    subtract: bool = True
    statistic: Statistic = "likelihood-ratio"

    def others_hidden(self, public: PublicKnowledge) -> bool:
        """Whether the likelihood ratio averages over the batches that the other records are in.

        It does where their gradients would be subtracted, and the coins that sample them are
        hidden from the adversary.
        """
        wanted = self.subtract and self.statistic == "likelihood-ratio"
        return wanted and public.hidden_coins

    def score(self, shown: Tensor, public: PublicKnowledge) -> Tensor:
        """What a step adds that shows `shown` along the canary, in units of C, any shape."""
        if self.statistic == "sum":
            return shown
        return sampled_ratio((shown - 0.5) / public.noise_multiplier**2, public.sample_rate)


def sampled_ratio(ratio: Tensor, q: float) -> Tensor:
    """Log likelihood ratio of a step that has the canary at chance `q`, from that of q = 1."""
    import torch

    if q == 1:
        return ratio
    absent = torch.full_like(ratio, math.log1p(-q))
    return torch.logaddexp(absent, ratio + math.log(q))


@dataclasses.dataclass
class Sums:
    """Base of observers that add up what steps show: [n], or [n, m] of several canaries."""

    shown: Tensor  # what the steps so far have shown of each trial, added up

    def scores(self) -> Tensor:
        """The sum so far, float [n] or [n, m]: a copy, since later steps add to it in place."""
        return self.shown.clone()

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint of the training keeps."""
        return {"shown": self.shown}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Goes on with the sum of a checkpoint, `state()` of the process that saved it."""
        self.shown = state["shown"]


@dataclasses.dataclass
class Projected(Sums):
    """An observer: the sum over the steps so far of what each model shows along a canary of norm C.

    It looks at the dimensions in which the canary is not zero.
    """

    public: PublicKnowledge
    reading: Reading
    indices: Tensor  # [k]
    weights: Tensor  # [k], the canary's entries over C

    @classmethod
    def along(
        cls, canary: GradientCanary, public: PublicKnowledge, models: int, reading: Reading
    ) -> Projected:
        """An observer of `models` trainings that have not begun, along the canary."""
        indices = canary.direction.nonzero()[:, 0]
        weights = canary.direction[indices] / public.clip_norm
        return cls(public.initial.new_zeros(models), public, reading, indices, weights)

    def see_update(self, step: int, before: Tensor, update: Tensor) -> None:
        if step % self.reading.period:
            return
        total = self._part(update) * self.public.batch_size
        batch = self.public.batch(step) if self.reading.subtract else None
        if batch is not None:
            others = self.public.gradients(before, *batch, clip_norm=self.public.clip_norm)
            total = total - self._part(others)
        shown = total / self.public.clip_norm
        if self.reading.others_hidden(self.public):
            self.shown += self._among_hidden(before, shown)
        else:
            self.shown += self.reading.score(shown, self.public)

    def _among_hidden(self, before: Tensor, shown: Tensor) -> Tensor:
        import torch

        unit = before.new_zeros(before.shape[1])
        unit[self.indices] = self.weights / self.public.clip_norm
        examples = [self.public.example(i) for i in range(self.public.examples)]
        parts = [self.public.shown(before, *example, unit) for example in examples]
        q, sigma = self.public.sample_rate, self.public.noise_multiplier
        others = hidden.Others(torch.cat(parts, 1).cpu().numpy(), q, sigma)
        return sampled_ratio(torch.from_numpy(others.ratio(shown.double().cpu().numpy())), q).to(
            shown
        )

    def _part(self, gradients: Tensor) -> Tensor:
        return (gradients[:, self.indices] * self.weights).sum(1)
