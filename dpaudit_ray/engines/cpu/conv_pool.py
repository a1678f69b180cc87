"""Small convolutions with the max-pooling and ReLU behind them, in compiled loops on a CPU.

Pooling sends a gradient to one position of its window, so the gradients of what comes before need
only a part of a convolution's products. `ConvPool` is one such pair of layers in any network,
`ConvChain` a whole network of such pairs with linear layers behind them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from ..packing.memory import slices
from ..packing.passes import Chain, Layer, Passes, Step
from ..rules.base import Rule, SampleGradients, flattens, plain
from ..rules.convolution import Conv2dRule, Pair
from ..rules.ghost_norm import keeps
from ..rules.linear import LinearRule
from ..rules.losses import Loss, output_gradients
from . import conv_pool_loops as loops
from . import vector_code
from .vector_code import Static, static_sizes

SPARE_REGISTERS = 2  # for what is added to the sums that are kept in the others
_BEHIND = 16  # numbers: a vector may be read behind the last row of an image
_DTYPES = torch.float32, torch.float64
_LARGEST_WINDOW = 3  # rows or columns: every entry of a window costs a pass


def window_of(layer: nn.Module | None) -> tuple[Pair, Pair] | None:
    """Size and stride of a max-pooling that the loops take; None for any other layer."""
    if not isinstance(layer, nn.MaxPool2d) or not plain(layer, nn.MaxPool2d):
        return None
    size, stride, padding, dilation = (
        (value, value) if isinstance(value, int) else (value[0], value[1])
        for value in (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    )
    if (padding, dilation) != ((0, 0), (1, 1)) or layer.ceil_mode or layer.return_indices:
        return None
    return (size, stride) if max(size) <= _LARGEST_WINDOW else None


@dataclasses.dataclass(frozen=True)
class PatchCut:
    """How the loops on the way back cut a layer's patches up, for one dtype."""

    lanes: int
    parts: int  # vectors of a row of a patch
    rows: int  # of a patch, computed together: a divisor of its height

    @classmethod
    def from_weight(cls, shape: Sequence[int], dtype: torch.dtype) -> PatchCut | None:
        """None where a row of a patch does not fit into the registers."""
        channels, height, width = shape[1:]
        lanes = vector_code.lanes(dtype.itemsize, width * channels)
        parts = math.ceil(width * channels / lanes)
        registers = vector_code.REGISTERS - SPARE_REGISTERS
        if parts > registers:
            return None
        rows = max(r for r in range(1, height + 1) if height % r == 0 and r * parts <= registers)
        return cls(lanes, parts, rows)


@functools.cache
def tile(positions: Pair, registers: int) -> Pair:
    """Rows and columns that are convolved together: as few positions as can be twice."""

    def cost(tile: Pair) -> tuple[int, int]:
        turns = math.prod(math.ceil(p / t) for p, t in zip(positions, tile, strict=True))
        return turns * math.prod(tile), turns

    down, across = (range(1, min(registers, p) + 1) for p in positions)
    return min(((r, c) for r in down for c in across if r * c <= registers), key=cost)


@dataclasses.dataclass(frozen=True, eq=False)
class Pooled:
    """What the way back needs: the images, and which position won each window."""

    images: Tensor  # [m, B, H, row], one set for all models or one for each
    marks: Tensor  # [n, B, h, w, o]
    size: torch.Size  # height and width of an image, without zeros around it

    @property
    def nbytes(self) -> int:
        """Bytes of both tensors."""
        return int(self.images.nbytes + self.marks.nbytes)


class ConvPoolRule(Rule):
    """relu(pool(x * W + b)), of a convolution without dilation and groups."""

    def __init__(self, convolution: Conv2dRule, window: tuple[Pair, Pair], rectified: bool) -> None:
        self.owner = self.convolution = convolution
        self.size, self.stride = window
        self.rectified = rectified
        self.weight, self.bias = convolution.weight, convolution.bias
        channels, width = self.weight.shape[1::2]
        self.row = width * channels  # numbers in a row of a patch
        down, across = convolution.stride
        self.steps = loops.Steps(down, across * channels, *self.stride, *self.size)
        cuts = {d: PatchCut.from_weight(self.weight.shape, d) for d in _DTYPES}
        self.cuts = {dtype: cut for dtype, cut in cuts.items() if cut is not None}

    def takes(self, size: Sequence[int], dtype: torch.dtype, batch: int) -> bool:
        """Whether loops take images of this size, with so many samples of a model kept at once."""
        windows, inputs = math.prod(self.windows(size)), math.prod(self.weight.shape[1:])
        kept = keeps(batch, windows, inputs, self.weight.shape[0])
        return dtype in self.cuts and windows > 0 and kept

    def forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Pooled]:
        y, kept = self.forward_shared(theta, x, len(theta))
        return y.flatten(0, 1), kept

    def forward_shared(self, theta: Tensor, x: Tensor, inputs: int = 1) -> tuple[Tensor, Pooled]:
        images = self.images(x, inputs)
        y, marks = self.pooled(theta, images, self.windows(x.shape[2:]))
        return y.movedim(-1, 2), Pooled(images, marks, x.shape[2:])

    def images(self, x: Tensor, inputs: int) -> Tensor:
        """x [inputs * B, c, h, w] amid zeros: [inputs, B, H, row], room for a vector behind it."""
        pad = self.convolution.zero_pad
        images = (F.pad(x, pad) if any(pad) else x).permute(0, 2, 3, 1)
        end = (images.storage_offset() + images.numel() + _BEHIND) * images.itemsize
        if not images.is_contiguous() or end > images.untyped_storage().nbytes():
            images = _with_room(images.shape, x).copy_(images)
        return images.view(inputs, -1, images.shape[1], images.shape[2] * images.shape[3])

    def pooled(self, theta: Tensor, images: Tensor, windows: Pair) -> tuple[Tensor, Tensor]:
        """Outputs and marks, [n, B, h, w, o], from images for all models or for each."""
        n, outputs = len(theta), self.weight.shape[0]
        inputs = len(images)
        y = _with_room((n, images.shape[1], *windows, outputs), images)
        marks = torch.empty(y.shape, dtype=torch.uint8)
        lanes = vector_code.lanes(y.itemsize, n // inputs * outputs)
        w, bias = self._stacked(theta, inputs, lanes)
        steps = self.steps
        rows, columns = tile(steps.positions(windows), vector_code.REGISTERS - SPARE_REGISTERS)
        static = static_sizes(lanes, rows, columns, steps.across), static_sizes(lanes, *self.size)
        floor = np.array([0.0 if self.rectified else -math.inf], dtype=y.numpy().dtype)
        weights, out = (w.numpy(), bias.numpy()), (y.numpy(), marks.numpy())
        room = loops.line_room(out, bias.shape[1], steps)
        loops.convolve_and_pool(images.numpy(), weights, floor, out, room, steps, static)
        return y, marks

    def _stacked(self, theta: Tensor, inputs: int, lanes: int) -> tuple[Tensor, Tensor]:
        """Weights and biases of models with the same input side by side, in whole vectors."""
        weight = self.weight.of(theta).permute(0, 1, 3, 4, 2)  # [n, o, height, width, c]
        wide = len(theta) // inputs * self.weight.shape[0]
        blocks = math.ceil(wide / lanes)
        height, width, channels = weight.shape[2:]
        w = theta.new_zeros(inputs, blocks * lanes, height, width * channels)
        w[:, :wide] = weight.reshape(inputs, wide, height, -1)
        bias = theta.new_zeros(inputs, blocks * lanes)
        if self.bias is not None:
            bias[:, :wide] = self.bias.of(theta).reshape(inputs, -1)
        w = w.view(inputs, blocks, lanes, height, -1).permute(0, 1, 3, 4, 2)
        return w.contiguous(), bias

    def input_gradient(self, theta: Tensor, kept: Pooled, g: Tensor) -> Tensor:
        channels, gradient = self.weight.shape[1], _with_room(kept.images.shape, g)
        weight, winners = self.padded_rows(theta).numpy(), _winners(g, kept.marks)
        images = gradient.numpy()
        room = (loops.scratch(images, winners, self.steps), *loops.image_room(images, weight))
        loops.input_gradients(winners, weight, images, room, self.steps, self.static(g.dtype))
        left, _, top, _ = self.convolution.zero_pad
        gradient = gradient.view(-1, gradient.shape[2], gradient.shape[3] // channels, channels)
        return gradient[:, top : top + kept.size[0], left : left + kept.size[1]].permute(0, 3, 1, 2)

    def samples(self, theta: Tensor, kept: Pooled, g: Tensor) -> SampleGradients:
        return self.samples_shared(theta, kept, [g.reshape(len(theta), -1, *g.shape[1:])], {})

    def samples_shared(
        self, theta: Tensor, kept: Pooled, parts: Sequence[Tensor], cache: dict[object, Tensor]
    ) -> SampleGradients:
        outputs, _, height, _ = self.weight.shape
        cut, (n, batch) = self.cuts[parts[0].dtype], kept.marks.shape[:2]
        formed = parts[0].new_empty(n, batch, outputs, height, cut.parts * cut.lanes)
        biases = parts[0].new_empty(n, batch, outputs if self.bias is not None else 0)
        squares = parts[0].new_empty(n, batch)
        images, steps, static = kept.images.numpy(), self.steps, self.static(squares.dtype)
        sizes = [len(g) for g in parts]
        by_part = (torch.split(t, sizes) for t in (kept.marks, formed, biases, squares))
        for g, marks, *written in zip(parts, *by_part, strict=True):
            winners, out = _winners(g, marks), tuple(tensor.numpy() for tensor in written)
            room = loops.scratch(images, winners, steps)
            loops.sample_gradients(images, winners, out, self.row, room, steps, static)
        return _Samples(self, formed, biases, squares)

    def static(self, dtype: torch.dtype) -> tuple[Static, Static]:
        """Sizes that the loops on the way back are compiled for, of an input that fits."""
        cut = self.cuts[dtype]
        lanes = vector_code.lanes(dtype.itemsize, self.weight.shape[0])
        return static_sizes(cut.lanes, cut.rows, cut.parts), static_sizes(lanes, *self.size)

    def padded_rows(self, theta: Tensor) -> Tensor:
        """Weights [n, o, height, row], with zeros behind a row: whole vectors."""
        outputs, _, height, _ = self.weight.shape
        cut = self.cuts[theta.dtype]
        rows = self.weight.of(theta).permute(0, 1, 3, 4, 2).reshape(-1, outputs, height, self.row)
        return F.pad(rows, (0, cut.parts * cut.lanes - self.row))

    def write(self, out: Tensor, sums: Tensor, biases: Tensor) -> None:
        """Writes sums [n, o, height, row], padded as above, and [n, o] into `out` [n, p]."""
        n, (outputs, channels, height, width) = len(out), self.weight.shape
        rows = sums[..., : self.row].reshape(n, outputs, height, width, channels)
        self.weight.of(out).copy_(rows.permute(0, 1, 4, 2, 3))
        if self.bias is not None:
            self.bias.of(out).copy_(biases)

    def windows(self, size: Sequence[int]) -> Pair:
        """Rows and columns of what is pooled of images of this height and width."""
        sizes = zip(self.convolution.output_size(size), self.size, self.stride, strict=True)
        rows, columns = (max(0, (of - size) // stride + 1) for of, size, stride in sizes)
        return rows, columns


@dataclasses.dataclass(frozen=True)
class _Samples(SampleGradients):
    """Gradients [n, B, o, height, padded width] and [n, B, o], or of 0 biases; squares [n, B]."""

    rule: ConvPoolRule
    formed: Tensor
    biases: Tensor
    squares: Tensor

    def squared_norms(self) -> Tensor:
        return self.squares

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        row = weights.unsqueeze(1)
        summed = torch.bmm(row, self.formed.flatten(2)).view(len(out), *self.formed.shape[2:])
        self.rule.write(out, summed, torch.bmm(row, self.biases).squeeze(1))


class ConvPool(nn.Module):
    """Convolution, pooling and, if it follows, ReLU: by loops where they can, else one by one."""

    def __init__(self, rule: ConvPoolRule, behind: Sequence[nn.Module], passes: Passes) -> None:
        super().__init__()
        self.rule, self._passes = rule, passes
        self._together = Layer(rule, passes)
        self._apart = nn.Sequential(Layer(rule.convolution, passes), *behind)

    def forward(self, x: Tensor) -> Tensor:
        """[N, c, h, w], pooled."""
        by_loops = self._passes.by_loops and x.device.type == "cpu"
        fits = by_loops and self.rule.takes(x.shape[2:], x.dtype, len(self._passes.input))
        result: Tensor = (self._together if fits else self._apart)(x)
        return result


def merge_pooling(layers: Sequence[nn.Module], passes: Passes) -> list[nn.Module]:
    """Returns the layers with every convolution and the pooling behind it as one `ConvPool`.

    A ReLU is moved behind the pooling that follows it, where it has less to do: the maximum of
    positive parts is the positive part of the maximum, and so are their gradients.
    """
    merged: list[nn.Module] = []
    left = list(layers)
    for i in range(len(left) - 1):
        if plain(left[i], nn.ReLU) and window_of(left[i + 1]) is not None:
            left[i], left[i + 1] = left[i + 1], left[i]
    while left:
        layer = left.pop(0)
        rule = layer.rule if isinstance(layer, Layer) else None
        window = window_of(left[0] if left else None)
        if isinstance(rule, Conv2dRule) and rule.in_runs and window is not None:
            rectified = len(left) > 1 and plain(left[1], nn.ReLU)
            behind = [left.pop(0) for _ in range(1 + rectified)]
            layer = ConvPool(ConvPoolRule(rule, window, rectified), behind, passes)
        merged.append(layer)
    return merged


@dataclasses.dataclass(frozen=True)
class ConvChain:
    """Convolutions under pooling, then linear layers with ReLU between them; `Loops` of them."""

    convolutions: tuple[ConvPoolRule, ...]
    linear: tuple[LinearRule, ...]

    @classmethod
    def from_module(cls, module: nn.Module) -> ConvChain | None:
        """The network of a module whose layers have rules; None unless it is such a chain."""
        layers = list(module.merged) if isinstance(module, Chain) else []
        pooled: list[ConvPoolRule] = []
        while layers and isinstance(first := layers[0], ConvPool):
            pooled.append(first.rule)
            del layers[0]
        rules = [layer.rule if isinstance(layer, Layer) else None for layer in layers[1::2]]
        linear, activations = [r for r in rules if isinstance(r, LinearRule)], layers[2::2]
        if not pooled or not layers or not flattens(layers[0]):
            return None
        if len(linear) != len(activations) + 1 or not all(plain(a, nn.ReLU) for a in activations):
            return None
        return cls(tuple(pooled), tuple(linear))

    def fits(self, theta: Tensor, x: Tensor) -> bool:
        """Whether the loops take these images; else it is the rules' turn."""
        first = self.convolutions[0]
        if x.dim() != 4 or x.dtype != theta.dtype or x.shape[1] != first.weight.shape[1]:
            return False
        sizes = self._sizes(x)
        features = self.convolutions[-1].weight.shape[0] * math.prod(sizes[-1])
        # No more than a few samples' gradients are kept.
        taken = (r.takes(s, x.dtype, 1) for r, s in zip(self.convolutions, sizes, strict=False))
        return all(taken) and features == self.linear[0].weight.shape[1]

    def bytes_of_one(self, x: Tensor) -> int:
        """Bytes that one model leaves behind: maps, what won them, outputs of linear layers."""
        maps = sum(
            rule.weight.shape[0] * math.prod(size)
            for rule, size in zip(self.convolutions, self._sizes(x)[1:], strict=True)
        )
        outputs = sum(rule.weight.shape[0] for rule in self.linear)
        return len(x) * (maps * (x.itemsize + 1) + outputs * x.itemsize)

    def clipped_sums(
        self, out: Tensor, theta: Tensor, step: Step, weights: Tensor, at_once: int
    ) -> None:
        """Writes clipped sums into `out` [n, p], as `Passes.clipped_sums`."""
        y, sizes = step.y, self._sizes(step.x)[1:]
        images = self.convolutions[0].images(step.x, 1)
        for rows in slices(len(theta), at_once):
            group = theta[rows]
            weigh = weights[rows].contiguous().numpy()
            features, stages = self._convolved(group, images, sizes)
            head = _Head(self.linear, group, features)
            head.back(y, step.loss)
            g = head.below.flatten(2).contiguous().numpy()
            room = loops.window_room(stages)
            loops.descend(stages, g, head.squares.numpy(), weigh, step.clip_norm, room)
            for rule, stage in zip(reversed(self.convolutions), stages, strict=True):
                rule.write(out[rows], torch.from_numpy(stage.sums), torch.from_numpy(stage.biases))
            head.write(out[rows])

    def _sizes(self, x: Tensor) -> list[Pair]:
        """Height and width of the images, and of every stage's outputs."""
        size = x.shape[2], x.shape[3]
        below = itertools.accumulate(self.convolutions, lambda s, r: r.windows(s), initial=size)
        return list(below)

    def _convolved(
        self, theta: Tensor, images: Tensor, sizes: Sequence[Pair]
    ) -> tuple[Tensor, tuple[loops.Stage, ...]]:
        """The last pooled outputs [n, B, h, w, o], and stages for the way back, the last first."""
        stages: list[loops.Stage] = []
        y = images
        for rule, size in zip(self.convolutions, sizes, strict=True):
            below = (0, 0)
            if stages:
                below = y.shape[2], y.shape[3] * y.shape[4]
                images = rule.images(y.flatten(0, 1).permute(0, 3, 1, 2), len(theta))
            y, marks = rule.pooled(theta, images, size)
            left, _, top, _ = rule.convolution.zero_pad
            w, (outputs, channels) = rule.padded_rows(theta).numpy(), rule.weight.shape[:2]
            biases = 0 if rule.bias is None else outputs
            seen = images.numpy(), marks.numpy()
            stages.insert(0, loops.Stage(
                *seen, w=w, sums=np.zeros_like(w), biases=np.zeros((len(w), biases), w.dtype),
                room=loops.scratch(seen[0], (w, seen[1]), rule.steps),
                gradients=loops.gradient_room(w, biases), image_room=loops.image_room(seen[0], w),
                width=rule.row, edge=(top, left * channels), below=below, steps=rule.steps,
                static=rule.static(theta.dtype),
            ))  # fmt: skip
        return y, tuple(stages)


class _Head:
    """The linear layers of n models on features [n, B, h, w, o], which stay in this order."""

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
            self._inputs.append(y if len(self._inputs) == len(rules) else y.relu_())

    def back(self, y: Tensor, loss: Loss) -> None:
        """Finds all gradients for these labels, and `squares` [n, B], norms of these layers'."""
        g = output_gradients(self._inputs.pop().mT, y, loss).mT
        self.squares = g.new_zeros(g.shape[:2])
        self._samples: list[SampleGradients] = []
        for i in reversed(range(len(self._rules))):
            x, rule = self._inputs[i], self._rules[i]
            gradients = rule.samples(self._theta, x.flatten(0, 1), g.flatten(0, 1))
            self.squares += gradients.squared_norms()
            self._samples.append(gradients)
            g = torch.bmm(g, self._weights[i])
            if i > 0:
                g = torch.ops.aten.threshold_backward(g, x, 0)
        self.below = g  # of the features

    def write(self, out: Tensor) -> None:
        """Writes their clipped sums into `out` [n, p]; `squares` are factors by now."""
        for gradients in self._samples:
            gradients.weighted_sums(out, self.squares)
        first = self._rules[0].weight.of(out)
        first.copy_(_exchanged(first, self._order))


def _exchanged(weight: Tensor, order: Pair) -> Tensor:
    """Weights [n, o, a · b] as [n, o, b · a], a copy."""
    return weight.view(*weight.shape[:2], *order).transpose(2, 3).flatten(2).contiguous()


def _with_room(shape: Sequence[int], like: Tensor) -> Tensor:
    """An empty tensor behind which a vector may be read."""
    size = math.prod(shape)
    return like.new_empty(size + _BEHIND)[:size].view(*shape)


def _winners(g: Tensor, marks: Tensor) -> loops.Winners:
    """Gradients [..., o, h, w] and marks [n, B, h, w, o] for the loops, channels last."""
    return g.movedim(-3, -1).reshape(marks.shape).contiguous().numpy(), marks.numpy()
