"""A crafted query: the final model is scored on another example than the inserted one.

After Yoon, Jeung, No 2024 (arXiv 2412.01756): the input is optimised until its losses distinguish
models with the canary from models without. The paper uses half of the audited models for that;
here the adversary trains models itself, before any trial, so that every trial counts.
"""

from __future__ import annotations

import collections
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ..plugins import Share
from .api_access import AddedRecord
from .base import FinalModel, PublicKnowledge, SampleCanary
from .poison import Moves, ranges

if TYPE_CHECKING:
    from numpy.random import Generator
    from torch import Tensor


@dataclass(frozen=True)
class QueriedSample(SampleCanary):
    """An example to insert, and another example to score by: `query_x` [1, ...], `query_y` [1]."""

    query_x: Tensor
    query_y: Tensor


class CraftedQuery(AddedRecord):
    """Adds a record as `api-access` does, and scores by the loss of a query.

    The query begins as the record, and is moved `ascent` times by `rate` of each feature's range
    among records that are not trained on. Moves go by the signs of a gradient, up the `gap` between
    `rehearsals` models that the adversary trains with the record and as many without. One half of
    these models gives the gradients; the other half decides which input on the way is the query.
    """

    crafted_once = True
    stored_canaries = (QueriedSample,)
    name: Literal["crafted-query"] = "crafted-query"
    rehearsals: int = Field(default=64, ge=4, le=10_000)  # half as many models a world
    ascent: Moves = 50  # moves of the query
    rate: Share = 0.02  # of a move, in a feature's range

    def craft(self, public: PublicKnowledge, rng: Generator) -> QueriedSample:
        """Trains models without the record and with it, by the same noise, and seeks the query."""
        record = super().craft(public, rng)
        seed = int(rng.integers(2**63))
        worlds: list[Tensor] = []
        for canary in (None, record):
            path = public.simulate(self.rehearsals, True, seed, canary, self.period)
            worlds += collections.deque(path, maxlen=1)  # only the final models, [rehearsals, p]
        half = self.rehearsals // 2
        fitting = [theta[:half] for theta in worlds]
        choosing = [theta[half:] for theta in worlds]
        low, high = ranges(public)
        low = low.minimum(record.x)
        high = high.maximum(record.x)
        move = self.rate * (high - low)
        # One half of the models moves x, the other half chooses the best x so far.
        x = best_x = record.x
        best_gap = -math.inf
        for move_number in range(self.ascent + 1):
            losses = [public.losses(theta, x, record.y)[:, 0] for theta in choosing]
            gap_at_x = float(gap(*losses))
            if gap_at_x > best_gap:
                best_gap = gap_at_x
                best_x = x
            if move_number < self.ascent:
                x = x + move * _ascent(public, fitting, x, record.y)
                x = x.clamp(low, high)
        return QueriedSample(record.x, record.y, best_x, record.y)

    def score(self, canary: SampleCanary, observed: FinalModel) -> Tensor:
        """Returns minus the loss of the query."""
        assert isinstance(canary, QueriedSample)
        query = SampleCanary(canary.query_x, canary.query_y)
        return super().score(query, observed)


def gap(absent: Tensor, present: Tensor) -> Tensor:
    """Returns the difference of two worlds' mean losses, in units of their spread; a scalar.

    Args:
        absent: losses of models without the record, float [k].
        present: losses of models with the record, float [k].
    """
    # Without the last term, it would be 0 if all losses of each world are equal.
    spread = (absent.var() + present.var() + 1e-12) ** 0.5
    return (absent.mean() - present.mean()) / spread


def _ascent(
    public: PublicKnowledge,
    worlds: list[Tensor],
    x: Tensor,
    y: Tensor,
) -> Tensor:
    """Returns signs of the gradient of the `gap` by x, in the shape of x.

    Args:
        public: computes losses and gradients.
        worlds: models without the record, and as many with it, float [k, p] each.
        x: the query, [1, ...].
        y: label of the query, [1].
    """
    import torch

    # By the chain rule, the gradient of the gap is a sum of the models' gradients, weighted by the
    # derivatives of the gap by the models' losses.
    theta = torch.cat(worlds)
    losses = public.losses(theta, x, y)[:, 0].detach()
    with torch.enable_grad():
        losses.requires_grad_()
        difference = gap(*torch.split(losses, len(worlds[0])))
        (weights,) = torch.autograd.grad(difference, losses)
    return public.input_gradient(theta, x, y, weights).sign()
