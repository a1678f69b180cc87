"""Linear layers, embeddings, and the scale and shift of GroupNorm and LayerNorm.

Inside the rule for vectors, the memory of an activation runs feature by feature ([features, n, B]),
so that elementwise work and sums over features run along contiguous memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from .base import Formed, Rule, SampleGradients, Slot, by_model
from .ghost_norm import outer_products


class LinearRule(Rule):
    """y = W x + b. A sample's gradient is the outer product g xᵀ, of norm |g| |x|: never formed."""

    def __init__(self, layer: nn.Module, slots: Mapping[str, Slot]) -> None:
        self.weight = slots["weight"]
        self.bias = slots.get("bias")

    def forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.weight.of(theta)
        n, out, width = weight.shape
        if x.dim() > 2:
            y = torch.bmm(x.reshape(n, -1, width), weight.transpose(1, 2))
            if self.bias is not None:
                y = y + self.bias.of(theta).unsqueeze(1)
            return y.view(*x.shape[:-1], out), x
        y = theta.new_empty(out, n, x.shape[0] // n)
        torch.bmm(weight, _columns(x, n), out=y.transpose(0, 1))
        return self._with_bias(y, theta).view(out, -1).t(), x

    def forward_shared(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.weight.of(theta)
        n, out, width = weight.shape
        if x.dim() > 2:
            y, _ = self.forward(theta, x.repeat(n, *[1] * (x.dim() - 1)))
            return y.view(n, *x.shape[:-1], out), x
        stacked = weight.transpose(0, 1).reshape(out * n, width)
        y = (stacked @ x.t()).view(out, n, -1)  # one matrix product for all models
        return self._with_bias(y, theta).permute(1, 2, 0), x

    def input_gradient(self, theta: Tensor, x: Tensor, g: Tensor) -> Tensor:
        weight = self.weight.of(theta)
        n, out, width = weight.shape
        if x.dim() > 2:
            return torch.bmm(g.reshape(n, -1, out), weight).view(x.shape)
        gradient = theta.new_empty(width, n, g.shape[0] // n)
        torch.bmm(weight.transpose(1, 2), _columns(g, n), out=gradient.transpose(0, 1))
        return gradient.view(width, -1).t()

    def samples(self, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        if x.dim() > 2:
            of_x, of_g = (
                v.reshape(len(theta), -1, v[0, ..., 0].numel(), v.shape[-1]) for v in (x, g)
            )
            return outer_products(self.weight, self.bias, of_x, of_g)
        return _VectorProducts(self.weight, self.bias, len(theta), x, g, shared=False)

    def samples_shared(
        self, theta: Tensor, x: Tensor, parts: Sequence[Tensor], cache: dict[object, Tensor]
    ) -> SampleGradients:
        if x.dim() > 2:
            return super().samples_shared(theta, x, parts, cache)
        flat = (parts[0] if len(parts) == 1 else torch.cat(list(parts))).flatten(0, 1)
        return _VectorProducts(self.weight, self.bias, len(theta), x, flat, shared=True)

    def _with_bias(self, y: Tensor, theta: Tensor) -> Tensor:
        return y if self.bias is None else y.add_(self.bias.of(theta).t().unsqueeze(2))


@dataclasses.dataclass(frozen=True)
class _VectorProducts(SampleGradients):
    """Outer products g xᵀ with x [B, d] if `shared`, else [n*B, d]; g [n*B, o]."""

    weight: Slot
    bias: Slot | None
    n: int
    x: Tensor
    g: Tensor
    shared: bool

    def squared_norms(self) -> Tensor:
        size = (self.x * self.x).sum(1)
        if self.bias is not None:
            size = size + 1
        of_g = (self.g * self.g).sum(1).view(self.n, -1)
        return of_g * (size if self.shared else size.view(self.n, -1))

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        n, batch = weights.shape
        scaled = self.g * weights.reshape(-1, 1)
        target = self.weight.of(out)
        if self.shared:
            product = scaled.t().reshape(-1, batch) @ self.x
            target.copy_(product.view(self.g.shape[1], n, -1).transpose(0, 1))
        else:
            target.copy_(torch.bmm(_columns(scaled, n), self.x.view(n, batch, -1)))
        if self.bias is not None:
            self.bias.of(out).copy_(scaled.view(n, batch, -1).sum(1))


def _columns(x: Tensor, n: int) -> Tensor:
    """[n*B, f] as [n, f, B]; a view when memory runs feature by feature."""
    return x.view(n, x.shape[0] // n, -1).transpose(1, 2)


class EmbeddingRule(Rule):
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
        """Of tokens x [n*B, ...] and gradients g [n*B, ..., d] of vectors; padding has none."""
        n = len(theta)
        tokens = x.reshape(n, len(x) // n, -1)
        wide = g.reshape(*tokens.shape, g.shape[-1])
        if self._ignored is not None:
            wide = wide * (tokens != self._ignored).unsqueeze(3)
        return _Rows(self._weight, tokens, wide)


@dataclasses.dataclass(frozen=True)
class _Rows(SampleGradients):
    """Gradients that are rows of g, gathered where a token occurs twice."""

    weight: Slot
    tokens: Tensor  # [n, B, T]
    g: Tensor  # [n, B, T, d]

    def squared_norms(self) -> Tensor:
        g, tokens = self.g.flatten(0, 1), self.tokens.flatten(0, 1)
        squares = torch.bmm(g, g.transpose(1, 2)) * (tokens.unsqueeze(2) == tokens.unsqueeze(1))
        return squares.sum((1, 2)).clamp_(min=0).view(self.tokens.shape[:2])

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        scaled = (self.g * weights[:, :, None, None]).flatten(1, 2)
        target = self.weight.of(out)
        summed = torch.zeros_like(target, memory_format=torch.contiguous_format)
        index = self.tokens.flatten(1).unsqueeze(2).expand_as(scaled)
        target.copy_(summed.scatter_add_(1, index, scaled))


class AffineRule(Rule):
    """y = w ⊙ x̂ + b by channel (GroupNorm) or entry (LayerNorm); x̂ is the module's own code's."""

    def __init__(self, layer: nn.Module, slots: Mapping[str, Slot]) -> None:
        self._weight = slots["weight"]
        self._bias = slots.get("bias")
        self._by_channel = isinstance(layer, nn.GroupNorm)

    def forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._applied(theta, by_model(x, len(theta))).flatten(0, 1), x

    def forward_shared(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._applied(theta, x.unsqueeze(0)), x

    def input_gradient(self, theta: Tensor, x: Tensor, g: Tensor) -> Tensor:
        wide = by_model(g, len(theta))
        return (self._spread(self._weight, theta, wide.dim()) * wide).flatten(0, 1)

    def samples(self, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        n = len(theta)
        parts = [(self._weight, self._reduced(g * x, n))]
        if self._bias is not None:
            parts.append((self._bias, self._reduced(g, n)))
        return Formed(tuple(parts))

    def _applied(self, theta: Tensor, x: Tensor) -> Tensor:
        y = self._spread(self._weight, theta, x.dim()) * x
        return y if self._bias is None else y + self._spread(self._bias, theta, x.dim())

    def _spread(self, slot: Slot, theta: Tensor, dims: int) -> Tensor:
        """A parameter in a shape that multiplies activations [n, B, ...] of `dims` dimensions."""
        n, shape = len(theta), slot.shape
        if self._by_channel:
            return slot.of(theta).view(n, 1, *shape, *[1] * (dims - 3))
        return slot.of(theta).view(n, *[1] * (dims - 1 - len(shape)), *shape)

    def _reduced(self, g: Tensor, n: int) -> Tensor:
        """Output gradients [n*B, ...] summed over positions: [n, B, size of the parameter]."""
        if self._by_channel:
            summed = g if g.dim() == 2 else g.flatten(2).sum(2)
        else:
            flat = g.flatten(-len(self._weight.shape))
            summed = flat if flat.dim() == 2 else flat.flatten(1, -2).sum(1)
        return by_model(summed, n)
