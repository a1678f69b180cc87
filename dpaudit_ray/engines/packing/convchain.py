"""Small convolutional networks on CPU: convolutions under pooling, then linear layers with ReLU.

Between two layers there is nothing to decide, so that no autograd is asked, and a few calls take
several models from the batch to their clipped sums. Same formulas as the layers' own rules; what a
convolution leaves to a linear layer stays in its order of memory, channels last.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..cpu.descent import Stage, descend, stage
from ..cpu.memory import slices
from ..rules.base import SampleGradients
from ..rules.convpool import ConvPool, ConvPoolRule
from ..rules.layers import Chain
from ..rules.linear import LinearRule
from ..rules.losses import output_gradients
from ..rules.plain import flattens, plain
from ..rules.pooling import Pair
from .passes import Layer


@dataclasses.dataclass(frozen=True)
class ConvChain:
    """Such a network, by the rules of its layers."""

    convolutions: tuple[ConvPoolRule, ...]
    linear: tuple[LinearRule, ...]

    def fits(self, theta: Tensor, x: Tensor) -> bool:
        """Whether the loops take these images; else it is the rules' turn."""
        first = self.convolutions[0]
        if x.dim() != 4 or x.dtype != theta.dtype or x.shape[1] != first.weight.shape[1]:
            return False
        sizes = self._sizes(x)
        for rule, size in zip(self.convolutions, sizes[:-1], strict=True):
            if not rule.takes(size, x.dtype, 1):  # no more than a few samples' gradients are kept
                return False
        features = self.convolutions[-1].weight.shape[0] * math.prod(sizes[-1])
        return features == self.linear[0].weight.shape[1]

    def bytes_of_one(self, x: Tensor) -> int:
        """Maps, what won them, and outputs of linear layers."""
        maps = sum(
            rule.weight.shape[0] * math.prod(size)
            for rule, size in zip(self.convolutions, self._sizes(x)[1:], strict=True)
        )
        outputs = sum(rule.weight.shape[0] for rule in self.linear)
        return len(x) * (maps * (x.itemsize + 1) + outputs * x.itemsize)

    def clipped_sums(
        self, out: Tensor, theta: Tensor, batch: tuple[Tensor, Tensor], clip_norm: float,
        weights: Tensor | None, at_once: int,
    ) -> None:  # fmt: skip
        """As `PackedModel.clipped_sums`, into `out` [n, p]; everything on CPU."""
        x, y = batch
        images, sizes = self.convolutions[0].images(x, 1), self._sizes(x)[1:]
        for rows in slices(len(theta), at_once):
            own = theta[rows]
            part = weights[rows] if weights is not None else own.new_ones(len(own), len(y))
            features, seen = self._convolved(own, images, sizes)
            head = _Head(self.linear, own, features)
            head.back(y)
            stages = self._stages(own, seen)
            above = head.below.flatten(2).contiguous().numpy()
            weigh = part.contiguous().numpy()
            descend(stages, above, head.squares.numpy(), weigh, clip_norm)
            for rule, at in zip(reversed(self.convolutions), stages, strict=True):
                rule.write(out[rows], torch.from_numpy(at.sums), torch.from_numpy(at.biases))
            head.write(out[rows])

    def _sizes(self, x: Tensor) -> list[Pair]:
        """Height and width of the images, and of every stage's outputs."""
        size = x.shape[2], x.shape[3]
        below = itertools.accumulate(self.convolutions, lambda s, r: r.windows(s), initial=size)
        return list(below)

    def _convolved(
        self, theta: Tensor, images: Tensor, sizes: Sequence[Pair]
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """The last pooled outputs [n, B, h, w, o], and the images and marks of all stages."""
        seen: list[tuple[Tensor, Tensor]] = []
        y = images
        for rule, size in zip(self.convolutions, sizes, strict=True):
            if seen:
                images = rule.images(y.flatten(0, 1).permute(0, 3, 1, 2), len(theta))
            y, marks = rule.pooled(theta, images, size)
            seen.append((images, marks))
        return y, seen

    def _stages(self, theta: Tensor, seen: Sequence[tuple[Tensor, Tensor]]) -> tuple[Stage, ...]:
        """For the way back: the last one first."""
        found = []
        for rule, (images, marks) in zip(self.convolutions, seen, strict=True):
            left, _, top, _ = rule.convolution.zero_pad
            found.append(
                stage(
                    (images.numpy(), marks.numpy()),
                    rule.padded_rows(theta).numpy(),
                    0 if rule.bias is None else rule.weight.shape[0],
                    rule.row,
                    (top, left * rule.weight.shape[1]),
                    rule.steps,
                    rule.static(theta.dtype),
                )
            )
        return tuple(reversed(found))


class _Head:
    """The linear layers of n models; `features` [n, B, h, w, o] begin with the last channel."""

    def __init__(self, rules: Sequence[LinearRule], theta: Tensor, features: Tensor) -> None:
        self._rules, self._theta = rules, theta
        self._order = features.shape[2:4].numel(), features.shape[4]
        self._weights = [rule.weight.of(theta) for rule in rules]
        self._weights[0] = _exchanged(self._weights[0], self._order[::-1])
        self._inputs = [features.flatten(2)]
        for rule, weight in zip(rules, self._weights, strict=True):
            y = torch.bmm(self._inputs[-1], weight.mT)
            if rule.bias is not None:
                y += rule.bias.of(theta).unsqueeze(1)
            last = len(self._inputs) == len(rules)
            self._inputs.append(y if last else y.relu_())

    def back(self, y: Tensor) -> None:
        """Finds all gradients for these classes, and `squares` [n, B], norms of these layers'."""
        outputs = self._inputs.pop()
        g = output_gradients(outputs.mT, y).mT
        self.squares = g.new_zeros(g.shape[:2])
        self._samples: list[SampleGradients] = []
        for i in reversed(range(len(self._rules))):
            x, rule = self._inputs[i], self._rules[i]
            own = rule.samples(self._theta, x.flatten(0, 1), g.flatten(0, 1))
            self.squares += own.squared_norms()
            self._samples.append(own)
            g = torch.bmm(g, self._weights[i])
            if i > 0:
                g = torch.ops.aten.threshold_backward(g, x, 0)
        self.below = g  # of the features

    def write(self, out: Tensor) -> None:
        """Their clipped sums into `out` [n, p]; `squares` are factors by now."""
        for own in self._samples:
            own.weighted_sums(out, self.squares)
        first = self._rules[0].weight.of(out)
        first.copy_(_exchanged(first, self._order))


def _exchanged(weight: Tensor, order: Pair) -> Tensor:
    """Weights [n, o, a · b] as [n, o, b · a], a copy."""
    return weight.view(*weight.shape[:2], *order).transpose(2, 3).flatten(2).contiguous()


def conv_chain(module: nn.Module) -> ConvChain | None:
    """A module whose layers have rules as such a network; None unless it is one."""
    if not isinstance(module, Chain):
        return None
    layers = list(module.merged)
    count = sum(isinstance(layer, ConvPool) for layer in layers)
    pooled = [layer for layer in layers[:count] if isinstance(layer, ConvPool)]
    rest = layers[count:]
    if not 0 < count == len(pooled) or len(rest) < 2 or len(rest) % 2 or not flattens(rest[0]):
        return None
    linear = tuple(
        layer.rule
        for layer in rest[1::2]
        if isinstance(layer, Layer) and isinstance(layer.rule, LinearRule)
    )
    if len(linear) != len(rest) // 2 or not all(plain(layer, nn.ReLU) for layer in rest[2::2]):
        return None
    return ConvChain(tuple(layer.rule for layer in pooled), linear)
