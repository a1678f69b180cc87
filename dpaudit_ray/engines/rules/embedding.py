"""Embeddings: per-sample gradients are rows of g, gathered where a token occurs twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from .base import InputRule, SampleGradients, Slot


class EmbeddingRule(InputRule):
    """y_t = W[x_t]. The norm of a sample's gradient is that of its g, summed by token."""

    def __init__(self, layer: nn.Module, slots: Mapping[str, Slot]) -> None:
        assert isinstance(layer, nn.Embedding)
        self._weight = slots["weight"]
        self._ignored = layer.padding_idx

    def forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        n, weight = len(theta), self._weight.of(theta)
        rows = weight.shape[1]
        first = torch.arange(n, device=x.device).repeat_interleave(len(x) // n) * rows
        return weight.reshape(n * rows, -1)[x + first.view(-1, *[1] * (x.dim() - 1))], x

    def forward_shared(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._weight.of(theta)[:, x], x

    def input_gradient(self, theta: Tensor, x: Tensor, g: Tensor) -> Tensor:
        raise TypeError("tokens have no gradient")

    def samples(self, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        n = len(theta)
        tokens = x.reshape(n, len(x) // n, -1)
        wide = g.reshape(*tokens.shape, g.shape[-1])
        if self._ignored is not None:
            wide = wide * (tokens != self._ignored).unsqueeze(3)
        return _Rows(self._weight, tokens, wide)


@dataclasses.dataclass(frozen=True)
class _Rows(SampleGradients):
    weight: Slot
    tokens: Tensor  # [n, B, T]
    g: Tensor  # [n, B, T, d]

    def squared_norms(self) -> Tensor:
        g, tokens = self.g.flatten(0, 1), self.tokens.flatten(0, 1)
        same = tokens.unsqueeze(2) == tokens.unsqueeze(1)
        wide = torch.promote_types(g.dtype, torch.float32)
        squares = torch.bmm(g, g.transpose(1, 2)).to(wide) * same
        return squares.sum((1, 2)).clamp_(min=0).view(self.tokens.shape[:2])

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        scaled = (self.g * weights.to(self.g.dtype)[:, :, None, None]).flatten(1, 2)
        target = self.weight.of(out)
        summed = torch.zeros_like(target, dtype=scaled.dtype, memory_format=torch.contiguous_format)
        index = self.tokens.flatten(1).unsqueeze(2).expand_as(scaled)
        target.copy_(summed.scatter_add_(1, index, scaled))
