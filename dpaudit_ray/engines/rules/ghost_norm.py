"""Gradients that are sums of outer products over positions: Σ_t g_t x_tᵀ.

These are the gradients of a linear layer on a sequence and, on unfolded patches, of a convolution.
With T positions, D inputs and O outputs, forming a sample's gradient takes T·D·O multiplications
and D·O numbers; its norm alone takes T²(D + O), by

    |Σ_t g_t x_tᵀ|² = Σ_{t,s} (g_t · g_s)(x_t · x_s),

the ghost norm (Li et al. 2022, "Large language models can be strong DP learners", section 4).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Formed, SampleGradients, Slot

# Numbers of one layer and model that are kept until clip factors are known: 32 MiB of float32.
_MOST_KEPT = 1 << 23


def should_form_gradients(
    samples: int,
    positions: int,
    inputs: int,
    outputs: int,
) -> bool:
    """Returns whether to form gradients, and to keep them until the clip factors are known.

    If they are kept, the clipped sum is only a weighted sum of them.

    Args:
        samples: number of samples of a model, B.
        positions: number of positions of a sample, T.
        inputs: numbers at each position, D.
        outputs: numbers of the output at each position, O.
    """
    size = inputs * outputs
    return size <= positions**2 * (inputs + outputs) and samples * size <= _MOST_KEPT


def outer_products(
    weight: Slot,
    bias: Slot | None,
    x: Tensor,
    g: Tensor,
) -> SampleGradients:
    """Returns gradients of weights [o, d] and biases [o], formed only where that is cheaper.

    Args:
        weight: slot of the weights.
        bias: slot of the biases; None if the layer has none.
        x: inputs [n, B, T, d].
        g: gradients of the outputs [n, B, T, o].
    """
    n, batch, positions, inputs = x.shape
    outputs = g.shape[3]
    if not should_form_gradients(batch, positions, inputs, outputs):
        return _Ghost(weight, bias, x, g)
    formed = torch.bmm(g.flatten(0, 1).mT, x.flatten(0, 1))
    parts = [(weight, formed.view(n, batch, -1))]
    if bias is not None:
        parts.append((bias, g.sum(2)))
    return Formed(tuple(parts))


def squared_norms(x: Tensor, g: Tensor, bias: bool) -> Tensor:
    """Returns squared norms [N] of gradients that are not kept, by the cheaper of both ways.

    Args:
        x: inputs [N, T, d].
        g: gradients of the outputs [N, T, o].
        bias: whether the layer has one.
    """
    _, positions, inputs = x.shape
    outputs = g.shape[2]
    if inputs * outputs <= positions * (inputs + outputs):
        formed = torch.bmm(g.mT, x)
        squares: Tensor = torch.linalg.vector_norm(formed.flatten(1), dim=1) ** 2
        if bias:
            bias_gradients = g.sum(1)
            squares += (bias_gradients**2).sum(1)
        return squares
    x_products = torch.bmm(x, x.mT)
    if bias:  # it is the weight of an input that is always 1
        x_products += 1
    g_products = torch.bmm(g, g.mT)
    squares = (x_products * g_products).sum((1, 2))
    return squares.clamp_(min=0)  # rounding may make it negative


@dataclass(frozen=True)
class _Ghost(SampleGradients):
    """Gradients that are never formed: their norms are computed by the formula of this module."""

    weight: Slot
    bias: Slot | None
    x: Tensor  # inputs [n, B, T, d]
    g: Tensor  # gradients of the outputs [n, B, T, o]

    def squared_norms(self) -> Tensor:
        """Returns squared norms [n, B], by the cheaper of both ways."""
        x = self.x.flatten(0, 1)
        g = self.g.flatten(0, 1)
        squares = squared_norms(x, g, bias=self.bias is not None)
        return squares.view(self.x.shape[:2])

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        """Writes weighted sums into `out`: a sum over samples and positions at once."""
        scaled = self.g * weights[:, :, None, None]
        sums = torch.bmm(scaled.flatten(1, 2).mT, self.x.flatten(1, 2))
        self.weight.of(out).copy_(sums)
        if self.bias is not None:
            biases = scaled.sum((1, 2))
            self.bias.of(out).copy_(biases)
