"""A crafted query: the final model is scored on another example than the one that joined.

After Yoon, Jeung, No 2024 (arXiv 2412.01756): an input is sought whose losses tell models with the
canary from others. The paper seeks it on half of the audited models; here on models that the
adversary trains itself, before any trial, so that every trial counts.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from .api_access import RecordCanary
from .base import FinalModel, PublicKnowledge, SampleCanary
from .poison import ranges

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclasses.dataclass(frozen=True)
class QueriedSample(SampleCanary):
    """An example that joins, and another one to score by: `query_x` [1, ...], `query_y` [1]."""

    query_x: Tensor
    query_y: Tensor


class CraftedQuery(RecordCanary):
    """Adds a record as `api-access` does, and scores by the loss of a query.

    The query begins as the record, and is moved `ascent` times by `rate` of each feature's
    range among records that are not trained on, up the gradient's signs of what tells 2
    `rehearsals` models of its own apart: the difference of the mean losses without and with the
    record, over their spread. Half of these models choose among the inputs on that way.
    """

    crafted_once: ClassVar[bool] = True
    stored_canaries: ClassVar[tuple[type[QueriedSample], ...]] = (QueriedSample,)
    name: Literal["crafted-query"] = "crafted-query"
    rehearsals: int = Field(default=64, ge=4, le=10_000)  # half as many models a world
    ascent: int = Field(default=50, ge=0, le=10_000)  # moves of the query
    rate: float = Field(default=0.02, gt=0, le=1)  # of a move, in a feature's range

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> QueriedSample:
        """Trains models with the record and without, with the same noise, and seeks the query."""
        record = self.added(public, rng)
        seed, half = int(rng.integers(2**63)), self.rehearsals // 2
        worlds: list[Tensor] = []
        for canary in (None, record):
            path = public.simulate(self.rehearsals, True, seed, canary, self.period)
            worlds += collections.deque(path, maxlen=1)  # where they end, [rehearsals, p]
        seek, choose = [theta[:half] for theta in worlds], [theta[half:] for theta in worlds]
        low, high = ranges(public)
        low, high = low.minimum(record.x), high.maximum(record.x)
        x, best = record.x, (-float("inf"), record.x)
        for move in range(self.ascent + 1):
            distance = float(gap(*(public.losses(theta, x, record.y)[:, 0] for theta in choose)))
            best = max(best, (distance, x), key=lambda query: query[0])
            if move < self.ascent:
                x = x + self.rate * (high - low) * _upwards(public, seek, x, record.y)
                x = x.clamp(low, high)
        return QueriedSample(record.x, record.y, best[1], record.y)

    def score(self, canary: SampleCanary, observed: FinalModel) -> Tensor:
        assert isinstance(canary, QueriedSample)
        return -observed.losses(canary.query_x, canary.query_y)[:, 0]


def gap(absent: Tensor, present: Tensor) -> Tensor:
    """How far the mean losses [k] of two worlds are apart, in units of their spread; a scalar."""
    return (absent.mean() - present.mean()) / (absent.var() + present.var() + 1e-12) ** 0.5


def _upwards(public: PublicKnowledge, seek: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Signs of the gap's gradient by x, of its shape."""
    import torch

    theta = torch.cat(seek)
    losses = public.losses(theta, x, y)[:, 0].detach()
    with torch.enable_grad():
        losses.requires_grad_()
        (weights,) = torch.autograd.grad(gap(*torch.split(losses, len(seek[0]))), losses)
    return public.input_gradient(theta, x, y, weights).sign()
