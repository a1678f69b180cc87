"""Sequences as canaries: of new tokens (Panda et al. 2025), or of random ones."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpaudit_ray.adversaries.base import (
    FinalModel,
    FinalModelAdversary,
    PublicKnowledge,
    SampleCanary,
)
from jobs.text.language import ALPHABET, LENGTH


@dataclasses.dataclass(frozen=True)
class Sequences(SampleCanary):
    """Canaries, and `references` like them that no training has, with `labels` like theirs."""

    references: Tensor
    labels: Tensor
    start: Tensor  # loss of canaries, then of references, under the first model


class Canaries(FinalModelAdversary[SampleCanary]):
    """`number` sequences in each training; a score is how far the final model's loss has fallen.

    `new`: random letters, and after them a token that occurs nowhere else, whose loss alone counts.
    `random`: random letters, whose losses all count. From a fall is taken the mean fall of
    `references`: what training does to any such sequence.
    """

    name: str = "jobs.text.canaries:Canaries"
    tokens: Literal["new", "random"] = "new"
    number: int = Field(default=1, ge=1)
    references: int = Field(default=16, ge=1)

    @property
    def canaries(self) -> int:
        return self.number

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> Sequences:
        count, learnt = self.number + self.references, 0
        tokens = rng.integers(len(ALPHABET), size=(count, LENGTH))
        if self.tokens == "new":
            learnt = LENGTH - 2
            tokens[self.number :, :-1] = tokens[0, :-1]  # they differ from it by their token alone
            tokens[:, -1] = len(ALPHABET) + np.arange(count)
        like_x, like_y = public.example(0)
        x, y = torch.from_numpy(tokens).to(like_x), like_y.new_full((count,), learnt)
        start = public.losses(public.initial[None], x, y)[0]
        canaries, references = ((x[part], y[part]) for part in self._parts)
        return Sequences(*canaries, *references, start)

    @property
    def _parts(self) -> tuple[slice, slice]:
        return slice(self.number), slice(self.number, None)

    def score(self, canary: SampleCanary, observed: FinalModel) -> Tensor:
        assert isinstance(canary, Sequences)
        x, y = torch.cat([canary.x, canary.references]), torch.cat([canary.y, canary.labels])
        fall = canary.start - observed.losses(x, y)
        canaries, references = (fall[:, part] for part in self._parts)
        scores = canaries - references.mean(1, keepdim=True)
        return scores[:, 0] if self.number == 1 else scores
