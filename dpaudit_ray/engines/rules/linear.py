"""Rules for linear layers, embeddings, and the scale and shift of GroupNorm and LayerNorm.

Inside the rule for vectors, the memory of an activation runs feature by feature ([features, n, B]),
so that elementwise work and sums over features run along contiguous memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .base import Formed, Rule, SampleGradients, Slot, by_model
from .ghost_norm import outer_products


class LinearRule(Rule):
    """y = W x + b, on vectors [N, d] or on sequences [N, ..., d].

    On vectors, a sample's gradient is the outer product g xᵀ, of norm |g| |x|, and never formed.
    """

    def forward(
        self,
        theta: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Implements `Rule.forward`: one product for each model, of all positions of sequences."""
        weight = self.weight.of(theta)
        n, outputs, inputs = weight.shape
        if x.dim() > 2:
            y = torch.bmm(x.reshape(n, -1, inputs), weight.mT)
            if self.bias is not None:
                y = y + self.bias.of(theta).unsqueeze(1)
            return y.view(*x.shape[:-1], outputs), x
        y = _product(weight, _columns(x, n))
        return self._add_bias(y, theta).view(outputs, -1).t(), x

    def forward_shared(
        self,
        theta: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Implements `Rule.forward_shared`; vectors take one product for all models."""
        if x.dim() > 2:
            return super().forward_shared(theta, x)
        weight = self.weight.of(theta)
        n, outputs, inputs = weight.shape
        stacked = weight.transpose(0, 1).reshape(outputs * n, inputs)
        y = (stacked @ x.t()).view(outputs, n, -1)  # one matrix product for all models
        return self._add_bias(y, theta).permute(1, 2, 0), x

    def input_gradient(self, theta: Tensor, x: Tensor, g: Tensor) -> Tensor:
        """Implements `Rule.input_gradient`: Wᵀ g of every vector, or of every position."""
        weight = self.weight.of(theta)
        n, outputs, inputs = weight.shape
        if x.dim() > 2:
            gradient = torch.bmm(g.reshape(n, -1, outputs), weight)
            return gradient.view(x.shape)
        gradient = _product(weight.mT, _columns(g, n))
        return gradient.view(inputs, -1).t()

    def samples(self, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        """Implements `Rule.samples`: outer products g xᵀ of vectors, never formed.

        On sequences, a sample's gradient is the sum of the products of its positions.

        Args:
            theta: parameters [n, p]; only their number n is used.
            x: vectors [n*B, d], or sequences [n*B, ..., d].
            g: gradients of the outputs, [n*B, o] or [n*B, ..., o].
        """
        n = len(theta)
        if x.dim() == 2:
            return _VectorProducts(self.weight, self.bias, n, x, g, shared=False)
        positions = x[0, ..., 0].numel()  # number of positions of a sequence
        x = x.reshape(n, -1, positions, x.shape[-1])
        g = g.reshape(n, -1, positions, g.shape[-1])
        return outer_products(self.weight, self.bias, x, g)

    def samples_shared(
        self,
        theta: Tensor,
        x: Tensor,
        parts: Sequence[Tensor],
        cache: dict[object, Tensor],
    ) -> SampleGradients:
        """Implements `Rule.samples_shared`; vectors need no copy of the inputs for each model."""
        if x.dim() > 2:
            return super().samples_shared(theta, x, parts, cache)
        g = parts[0] if len(parts) == 1 else torch.cat(list(parts))  # a single part is not copied
        g = g.flatten(0, 1)
        return _VectorProducts(self.weight, self.bias, len(theta), x, g, shared=True)

    def _add_bias(self, y: Tensor, theta: Tensor) -> Tensor:
        """Adds biases to outputs [outputs, n, B], in place."""
        if self.bias is None:
            return y
        return y.add_(self.bias.of(theta).t().unsqueeze(2))


@dataclass(frozen=True)
class _VectorProducts(SampleGradients):
    """Outer products g xᵀ of vectors, which are never formed.

    Attributes:
        weight: slot of the weights.
        bias: slot of the biases; None if the layer has none.
        n: number of models.
        x: inputs, [B, d] if `shared` by all models, else [n*B, d].
        g: gradients of the outputs [n*B, o].
        shared: whether all models have the same inputs.
    """

    weight: Slot
    bias: Slot | None
    n: int
    x: Tensor
    g: Tensor
    shared: bool

    def squared_norms(self) -> Tensor:
        """Returns squared norms [n, B]: |g|² |x|², or |g|² (|x|² + 1) with a bias."""
        x_squares = (self.x * self.x).sum(1)
        if self.bias is not None:
            x_squares = x_squares + 1
        if not self.shared:
            x_squares = x_squares.view(self.n, -1)
        g_squares = (self.g * self.g).sum(1)
        return g_squares.view(self.n, -1) * x_squares

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        """Writes weighted sums into `out`: Σ_j (w_j g_j) x_jᵀ is one matrix product."""
        n, batch = weights.shape
        scaled = self.g * weights.reshape(-1, 1)
        target = self.weight.of(out)
        if self.shared:
            # One matrix product for all models.
            products = scaled.t().reshape(-1, batch) @ self.x
            by_output = products.view(-1, n, target.shape[2])
            sums = by_output.transpose(0, 1)
        else:
            x = self.x.view(n, batch, -1)
            sums = torch.bmm(_columns(scaled, n), x)
        target.copy_(sums)
        if self.bias is not None:
            biases = scaled.view(n, batch, -1).sum(1)
            self.bias.of(out).copy_(biases)


def _columns(x: Tensor, n: int) -> Tensor:
    """Returns [n*B, f] as [n, f, B]; a view if memory runs feature by feature."""
    return x.view(n, len(x) // n, -1).mT


def _product(weight: Tensor, x: Tensor) -> Tensor:
    """Returns weights [n, o, f] times x [n, f, B], feature by feature: [o, n, B]."""
    n, outputs, _ = weight.shape
    product = x.new_empty(outputs, n, x.shape[2])
    torch.bmm(weight, x, out=product.transpose(0, 1))
    return product


class EmbeddingRule(Rule):
    """y_t = W[x_t]. A sample's gradient has, in the row of each token, the sum of its g_t."""

    def __init__(
        self,
        layer: nn.Module,
        slots: Mapping[str, Slot],
    ) -> None:
        assert isinstance(layer, nn.Embedding)
        super().__init__(layer, slots)
        self._padding_token = layer.padding_idx

    def forward(
        self,
        theta: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Implements `Rule.forward` for tokens x [n*B, ...], by stacked weights of all models."""
        weight = self.weight.of(theta)
        n, tokens, _ = weight.shape
        # Row of each model's token 0 in the stacked weights.
        first_rows = tokens * torch.arange(n, device=x.device)
        rows = x.reshape(n, -1) + first_rows.unsqueeze(1)
        return weight.flatten(0, 1)[rows.view(x.shape)], x

    def forward_shared(
        self,
        theta: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Implements `Rule.forward_shared` for tokens x [B, ...]."""
        return self.weight.of(theta)[:, x], x

    def input_gradient(self, theta: Tensor, x: Tensor, g: Tensor) -> Tensor:
        """Raises TypeError: tokens are integers, so they have no gradient."""
        raise TypeError("tokens have no gradient")

    def samples(self, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        """Implements `Rule.samples` for tokens x [n*B, ...]; the padding token has no gradient."""
        n = len(theta)
        tokens = x.reshape(n, len(x) // n, -1)
        g = g.reshape(*tokens.shape, g.shape[-1])
        if self._padding_token is not None:
            g = g * (tokens != self._padding_token).unsqueeze(3)
        return _Rows(self.weight, tokens, g)


@dataclass(frozen=True)
class _Rows(SampleGradients):
    """Gradients of an embedding: rows of g, summed over positions with the same token."""

    weight: Slot
    tokens: Tensor  # [n, B, T]
    g: Tensor  # [n, B, T, d]

    def squared_norms(self) -> Tensor:
        """Returns squared norms [n, B]: Σ g_s · g_t over pairs of equal tokens."""
        g = self.g.flatten(0, 1)
        tokens = self.tokens.flatten(0, 1)
        same_token = tokens.unsqueeze(2) == tokens.unsqueeze(1)
        products = torch.bmm(g, g.mT) * same_token
        squares = products.sum((1, 2)).clamp_(min=0)  # rounding may make it negative
        return squares.view(self.tokens.shape[:2])

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        """Writes weighted sums into `out`: adds each weighted g to its token's row."""
        scaled = self.g * weights[:, :, None, None]
        scaled = scaled.flatten(1, 2)
        rows = self.tokens.flatten(1).unsqueeze(2).expand_as(scaled)
        target = self.weight.of(out)
        sums = torch.zeros_like(target, memory_format=torch.contiguous_format)
        target.copy_(sums.scatter_add_(1, rows, scaled))


class AffineRule(Rule):
    """y = w ⊙ x̂ + b by channel (GroupNorm) or entry (LayerNorm); x̂ is computed by the module."""

    def __init__(
        self,
        layer: nn.Module,
        slots: Mapping[str, Slot],
    ) -> None:
        super().__init__(layer, slots)
        self._by_channel = isinstance(layer, nn.GroupNorm)

    def forward(
        self,
        theta: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Implements `Rule.forward`; x is normalised already."""
        x_by_model = by_model(x, len(theta))
        return self._output(theta, x_by_model).flatten(0, 1), x

    def forward_shared(
        self,
        theta: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Implements `Rule.forward_shared`; x is normalised already."""
        return self._output(theta, x.unsqueeze(0)), x

    def input_gradient(self, theta: Tensor, x: Tensor, g: Tensor) -> Tensor:
        """Implements `Rule.input_gradient`: w ⊙ g, where the input is already normalised."""
        g = by_model(g, len(theta))
        scale = self._broadcast(self.weight, theta, g.dim())
        return (scale * g).flatten(0, 1)

    def samples(self, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        """Forms every example's gradient of scale and bias, which are small."""
        n = len(theta)
        parts = [(self.weight, self._sum_positions(g * x, n))]
        if self.bias is not None:
            parts.append((self.bias, self._sum_positions(g, n)))
        return Formed(tuple(parts))

    def _output(self, theta: Tensor, x: Tensor) -> Tensor:
        """Returns w ⊙ x + b of n models, [n, B, ...].

        Args:
            theta: parameters [n, p].
            x: normalised inputs [n, B, ...], or [1, B, ...] that all models share.
        """
        y = self._broadcast(self.weight, theta, x.dim()) * x
        if self.bias is not None:
            y = y + self._broadcast(self.bias, theta, x.dim())
        return y

    def _broadcast(self, slot: Slot, theta: Tensor, dimensions: int) -> Tensor:
        """Returns parameters in a shape that multiplies activations [n, B, ...].

        Channels come before positions, [n, 1, c, 1, ...]; entries of a LayerNorm after them.

        Args:
            slot: slot of the scale or the bias.
            theta: parameters [n, p].
            dimensions: number of the activations' dimensions.
        """
        parameter = slot.of(theta)
        # The activations have one dimension more, that of the examples, and those of positions.
        ones = [1] * (dimensions - parameter.dim() - 1)
        if self._by_channel:
            return parameter.view(len(theta), 1, *slot.shape, *ones)
        return parameter.view(len(theta), 1, *ones, *slot.shape)

    def _sum_positions(self, g: Tensor, n: int) -> Tensor:
        """Returns gradients [n*B, ...] summed over positions: [n, B, size of the parameter]."""
        if self._by_channel:
            if g.dim() > 2:  # positions follow the channels
                g = g.flatten(2).sum(2)
        else:
            g = g.flatten(-len(self.weight.shape))  # the parameter's dimensions are the last ones
            if g.dim() > 2:  # positions come before them
                g = g.flatten(1, -2).sum(1)
        return by_model(g, n)
