"""Small convolutions with the max-pooling and ReLU behind them, in compiled loops on a CPU.

Pooling sends a gradient to one position of its window, so the gradients of what comes before need
only a part of a convolution's products. `ConvPool` is a convolution and its pooling as one layer of
any network; `ConvChain` is a whole network of such layers with linear layers behind them.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from ..packing.memory import slices
from ..packing.passes import Chain, Layer, Passes, Step
from ..rules.base import Rule, SampleGradients, by_model, is_flatten, is_plain
from ..rules.convolution import Conv2dRule, Pair, pair
from ..rules.ghost_norm import should_form_gradients
from ..rules.linear import LinearRule
from ..rules.losses import Loss, output_gradients
from . import conv_pool_loops as loops
from . import vector_code
from .vector_code import Static, static_sizes

SPARE_REGISTERS = 2  # registers for the factors of a product; the sums stay in the other registers
# Numbers behind the last one: as many as the longest vector has, 64 bytes of float32.
_SPARE_NUMBERS = 16
_DTYPES = torch.float32, torch.float64
_LARGEST_WINDOW = 3  # rows or columns of a window, as every entry of it costs a pass


def window_of(
    layer: nn.Module | None,
) -> tuple[Pair, Pair] | None:
    """Returns size and stride of a max-pooling that the loops take; None for any other layer."""
    if not isinstance(layer, nn.MaxPool2d) or not is_plain(layer, nn.MaxPool2d):
        return None
    size = pair(layer.kernel_size)
    if max(size) > _LARGEST_WINDOW or layer.ceil_mode or layer.return_indices:
        return None
    if pair(layer.padding) != (0, 0) or pair(layer.dilation) != (1, 1):
        return None
    return size, pair(layer.stride)


@dataclass(frozen=True)
class PatchCut:
    """The division of a layer's patches into vectors, for the backward pass in one dtype."""

    lanes: int  # numbers of a vector
    vectors_per_row: int  # vectors in a row of a patch; the last one may reach beyond the row
    rows: int  # rows of a patch that are computed together: a divisor of its height

    @property
    def padded_length(self) -> int:
        """Numbers in a row of a patch that is filled up to whole vectors."""
        return self.vectors_per_row * self.lanes

    @classmethod
    def from_weight(
        cls,
        shape: Sequence[int],
        dtype: torch.dtype,
    ) -> "PatchCut | None":
        """Returns the division for weights of a shape [outputs, channels, height, width].

        Returns None if a row of a patch does not fit into the registers.
        """
        _, channels, height, width = shape
        row_length = width * channels
        lanes = vector_code.lanes(dtype.itemsize, row_length)
        vectors_per_row = math.ceil(row_length / lanes)
        most_rows = (vector_code.REGISTERS - SPARE_REGISTERS) // vectors_per_row
        for rows in range(min(height, most_rows), 0, -1):
            if height % rows == 0:
                return cls(lanes, vectors_per_row, rows)
        return None


@functools.cache
def tile(positions: Pair, registers: int) -> Pair:
    """Returns rows and columns that are convolved together, a register for each position.

    As few positions as possible are computed twice, since tiles at the edges overlap others.

    Args:
        positions: rows and columns of the convolution's output.
        registers: number of positions of a tile at most.
    """

    rows, columns = positions

    def cost(tile: Pair) -> tuple[int, int]:
        """Returns the number of positions that are computed, and of tiles."""
        tiles = math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
        return tiles * math.prod(tile), tiles

    heights = range(1, min(registers, rows) + 1)
    widths = range(1, min(registers, columns) + 1)
    shapes = itertools.product(heights, widths)
    return min((shape for shape in shapes if math.prod(shape) <= registers), key=cost)


@dataclass(frozen=True, eq=False)
class Pooled:
    """Data saved for backward: the images, and the position that won each window."""

    images: Tensor  # [m, B, H, row], one set for all models or one for each
    marks: Tensor  # [n, B, h, w, o]
    size: torch.Size  # height and width of an image, without zeros around it

    @property
    def nbytes(self) -> int:
        """Bytes of both tensors."""
        return int(self.images.nbytes + self.marks.nbytes)


class ConvPoolRule(Rule):
    """relu(pool(x * W + b)), of a convolution without dilation and groups."""

    def __init__(
        self,
        convolution: Conv2dRule,
        window: tuple[Pair, Pair],
        rectified: bool,
    ) -> None:
        """Takes the settings of a convolution and of what follows it.

        Args:
            convolution: rule of the convolution.
            window: size and stride of the max-pooling.
            rectified: whether a ReLU follows.
        """
        self.owner = convolution
        self.convolution = convolution
        self.window_size, self.window_stride = window
        self.rectified = rectified
        self.weight = convolution.weight
        self.bias = convolution.bias
        _, channels, _, width = self.weight.shape
        self.row_length = width * channels  # numbers in a row of a patch
        down, across = convolution.stride
        self.steps = loops.Steps(down, across * channels, *self.window_stride, *self.window_size)
        # By dtype; without those for which the loops cannot take the layer.
        self.patch_cuts: dict[torch.dtype, PatchCut] = {}
        for dtype in _DTYPES:
            cut = PatchCut.from_weight(self.weight.shape, dtype)
            if cut is not None:
                self.patch_cuts[dtype] = cut

    def takes(
        self,
        size: Sequence[int],
        dtype: torch.dtype,
        batch: int,
    ) -> bool:
        """Returns whether loops can compute this layer.

        Args:
            size: height and width of the images.
            dtype: dtype of images and parameters.
            batch: number of samples of a model whose gradients are kept at once.
        """
        windows = math.prod(self.windows(size))
        if dtype not in self.patch_cuts or windows == 0:
            return False
        outputs, *patch = self.weight.shape  # each output is one product with a patch
        return should_form_gradients(batch, windows, inputs=math.prod(patch), outputs=outputs)

    def forward(
        self,
        theta: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Pooled]:
        """Implements `Rule.forward`: each model has its own images."""
        y, saved = self.forward_shared(theta, x, image_sets=len(theta))
        return y.flatten(0, 1), saved

    def forward_shared(
        self,
        theta: Tensor,
        x: Tensor,
        image_sets: int = 1,
    ) -> tuple[Tensor, Pooled]:
        """Implements `Rule.forward_shared`.

        Args:
            theta: parameters [n, p].
            x: images [image_sets * B, c, h, w].
            image_sets: number of sets of images: 1 for all models together, or n.
        """
        images = self.padded_images(x, image_sets)
        y, marks = self.convolve_and_pool(theta, images, self.windows(x.shape[2:]))
        return y.movedim(-1, 2), Pooled(images, marks, x.shape[2:])

    def padded_images(self, x: Tensor, image_sets: int) -> Tensor:
        """Returns images surrounded by zeros, with channels last: [image_sets, B, H, row].

        Behind the last image there is memory for one more vector, which loops may read.

        Args:
            x: images [image_sets * B, c, h, w].
            image_sets: number of sets of images.
        """
        pad = self.convolution.zero_pad
        if any(pad):
            x = F.pad(x, pad)
        images = x.permute(0, 2, 3, 1)  # [image_sets * B, H, W, c]
        end = images.storage_offset() + images.numel() + _SPARE_NUMBERS
        has_spare_numbers = end * images.itemsize <= images.untyped_storage().nbytes()
        if not images.is_contiguous() or not has_spare_numbers:
            images = _with_spare_numbers(images.shape, x).copy_(images)
        _, height, width, channels = images.shape
        return images.view(image_sets, -1, height, width * channels)

    def convolve_and_pool(
        self,
        theta: Tensor,
        images: Tensor,
        windows: Pair,
    ) -> tuple[Tensor, Tensor]:
        """Computes outputs, and marks: the position in its window that each output comes from.

        Args:
            theta: parameters [n, p].
            images: the layer's images, for all models or for each.
            windows: rows and columns of windows, h and w.

        Returns:
            Outputs and marks, both [n, B, h, w, o].
        """
        image_sets, batch = images.shape[:2]
        n = len(theta)
        outputs = self.weight.shape[0]
        y = _with_spare_numbers((n, batch, *windows, outputs), images)
        marks = torch.empty(y.shape, dtype=torch.uint8)
        lanes = vector_code.lanes(y.itemsize, n // image_sets * outputs)
        w, bias = self._stacked(theta, image_sets, lanes)
        positions = self.steps.positions(windows)
        rows, columns = tile(positions, vector_code.REGISTERS - SPARE_REGISTERS)
        convolved_sizes = static_sizes(lanes, rows, columns, self.steps.across)
        out = (y.numpy(), marks.numpy())
        # Smaller outputs become this number; in an array, since the loops load it from memory.
        floor = np.full(1, 0.0 if self.rectified else -math.inf, out[0].dtype)
        loops.convolve_and_pool(
            images.numpy(),
            (w.numpy(), bias.numpy()),
            floor,
            out,
            loops.line_buffers(out, bias.shape[1], self.steps),
            self.steps,
            (convolved_sizes, static_sizes(lanes, *self.window_size)),
        )
        return y, marks

    def _stacked(
        self,
        theta: Tensor,
        image_sets: int,
        lanes: int,
    ) -> tuple[Tensor, Tensor]:
        """Returns weights and biases of models with the same input side by side.

        Their outputs are filled up with zeros to blocks of one vector.

        Args:
            theta: parameters [n, p].
            image_sets: number of sets of images: 1 for all models together, or n.
            lanes: length of a vector.
        """
        rows = self._rows(theta)
        _, outputs, height, row_length = rows.shape
        stacked = len(theta) // image_sets * outputs
        blocks = math.ceil(stacked / lanes)
        w = theta.new_zeros(image_sets, blocks * lanes, height, row_length)
        w[:, :stacked] = rows.reshape(image_sets, stacked, height, row_length)
        bias = theta.new_zeros(image_sets, blocks * lanes)
        if self.bias is not None:
            bias[:, :stacked] = self.bias.of(theta).reshape(image_sets, -1)
        w = w.view(image_sets, blocks, lanes, height, row_length)
        return w.permute(0, 1, 3, 4, 2).contiguous(), bias

    def _rows(self, theta: Tensor) -> Tensor:
        """Returns weights [n, o, height, row], channels last."""
        weight = self.weight.of(theta).permute(0, 1, 3, 4, 2)
        return weight.flatten(3)

    def input_gradient(self, theta: Tensor, saved: Pooled, g: Tensor) -> Tensor:
        """Scatters the gradients of winning positions over images, and cuts their padding off.

        Args:
            theta: parameters [n, p].
            saved: images and winning positions of the forward pass.
            g: gradient of the pooled outputs [n*B, o, h, w].
        """
        gradient = _with_spare_numbers(saved.images.shape, g)
        images = gradient.numpy()
        weight = self.padded_rows(theta).numpy()
        winners = _as_winners(g, saved.marks)
        scratch = loops.scratch(images, winners[1], images.dtype, self.steps)
        buffers = (scratch, *loops.image_buffers(images, weight))
        loops.input_gradients(winners, weight, images, buffers, self.steps, self.static(g.dtype))
        channels = self.weight.shape[1]
        gradient = gradient.view(*gradient.shape[:3], -1, channels).flatten(0, 1)  # [n*B, H, W, c]
        top, first = self.edge
        rows, columns = saved.size
        inside = gradient[:, top : top + rows, first : first + columns]
        return inside.permute(0, 3, 1, 2)

    def samples(self, theta: Tensor, saved: Pooled, g: Tensor) -> SampleGradients:
        """Implements `Rule.samples`."""
        return self.samples_shared(theta, saved, [by_model(g, len(theta))], {})

    def samples_shared(
        self,
        theta: Tensor,
        saved: Pooled,
        parts: Sequence[Tensor],
        cache: dict[object, Tensor],
    ) -> SampleGradients:
        """Forms each example's gradient of weights and biases, and its squared norm, by loops.

        Arguments are those of `Rule.samples_shared`; `cache` is not used.
        """
        like = parts[0]
        n, batch = saved.marks.shape[:2]
        outputs, _, height, _ = self.weight.shape
        cut = self.patch_cuts[like.dtype]
        formed = like.new_empty(n, batch, outputs, height, cut.padded_length)
        biases = like.new_empty(n, batch, 0 if self.bias is None else outputs)
        squares = like.new_empty(n, batch)
        images = saved.images.numpy()
        static = self.static(like.dtype)
        start = 0  # the first model of the part
        for g in parts:
            models = slice(start, start + len(g))
            start = models.stop
            winners = _as_winners(g, saved.marks[models])
            out = (formed[models].numpy(), biases[models].numpy(), squares[models].numpy())
            buffers = loops.scratch(images, winners[1], images.dtype, self.steps)
            loops.sample_gradients(
                images, winners, out, self.row_length, buffers, self.steps, static
            )
        return _Samples(self, formed, biases, squares)

    def static(self, dtype: torch.dtype) -> tuple[Static, Static]:
        """Returns sizes that backward loops are compiled for: of patches, and of pooling.

        Args:
            dtype: dtype of the parameters; a vector has more lanes of a smaller dtype.
        """
        cut = self.patch_cuts[dtype]
        lanes = vector_code.lanes(dtype.itemsize, self.weight.shape[0])
        patch_sizes = static_sizes(cut.lanes, cut.rows, cut.vectors_per_row)
        return patch_sizes, static_sizes(lanes, *self.window_size)

    def padded_rows(self, theta: Tensor) -> Tensor:
        """Returns weights [n, o, height, padded row]: zeros fill each row up to whole vectors."""
        cut = self.patch_cuts[theta.dtype]
        zeros = cut.padded_length - self.row_length
        return F.pad(self._rows(theta), (0, zeros))

    def write_sums(self, out: Tensor, sums: Tensor, biases: Tensor) -> None:
        """Writes sums of gradients into `out` [n, p].

        Args:
            out: array for the sums, in the order of flat parameters.
            sums: sums for the weights, in the form of `padded_rows`.
            biases: [n, o], or [n, 0] if the layer has none.
        """
        weight = self.weight.of(out).permute(0, 1, 3, 4, 2)
        without_zeros = sums[..., : self.row_length]
        weight.copy_(without_zeros.reshape(weight.shape))
        if self.bias is not None:
            self.bias.of(out).copy_(biases)

    @property
    def edge(self) -> Pair:
        """Rows and columns of zeros before an image."""
        across, _, down, _ = self.convolution.zero_pad
        return down, across

    def windows(self, size: Sequence[int]) -> Pair:
        """Returns how many pooling windows fit below each other, and in a row; 0 where none fits.

        Args:
            size: height and width of the images.
        """
        counts = []
        for axis, positions in enumerate(self.convolution.output_size(size)):
            further = (positions - self.window_size[axis]) // self.window_stride[axis]
            counts.append(max(0, further + 1))
        return counts[0], counts[1]


@dataclass(frozen=True)
class _Samples(SampleGradients):
    """Formed gradients of a convolution under pooling.

    Attributes:
        rule: rule of the layer.
        formed: gradients of weights [n, B, o, height, padded row].
        biases: gradients of biases [n, B, o], or [n, B, 0] if the layer has none.
        squares: squared norms of both together [n, B].
    """

    rule: ConvPoolRule
    formed: Tensor
    biases: Tensor
    squares: Tensor

    def squared_norms(self) -> Tensor:
        """Returns squared norms [n, B]: the loops have computed them."""
        return self.squares

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        """Writes weighted sums into `out`: weights [1, B] times formed gradients, by model."""
        rows = weights.unsqueeze(1)
        sums = torch.bmm(rows, self.formed.flatten(2))
        sums = sums.view(len(out), *self.formed.shape[2:])
        biases = torch.bmm(rows, self.biases).squeeze(1)
        self.rule.write_sums(out, sums, biases)


class ConvPool(nn.Module):
    """A convolution, its pooling and the ReLU behind it, by loops if they fit, else one by one."""

    def __init__(
        self,
        rule: ConvPoolRule,
        layers_behind: Sequence[nn.Module],
        passes: Passes,
    ) -> None:
        """Makes the layer, and layers in its place if the loops do not fit.

        Args:
            rule: computes convolution, pooling and ReLU by loops.
            layers_behind: the pooling, and the ReLU if there is one.
            passes: the passes in which the layer is applied.
        """
        super().__init__()
        self.rule = rule
        self._passes = passes
        self._by_loops = Layer(rule, passes)
        self._by_layers = nn.Sequential(Layer(rule.convolution, passes), *layers_behind)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the pooled output of images [N, c, h, w]."""
        passes = self._passes
        loops_allowed = passes.by_loops and x.device.type == "cpu"
        if loops_allowed and self.rule.takes(x.shape[2:], x.dtype, len(passes.input)):
            y: Tensor = self._by_loops(x)
        else:
            y = self._by_layers(x)
        return y


def merge_pooling(
    layers: Sequence[nn.Module],
    passes: Passes,
) -> list[nn.Module]:
    """Returns the layers, with a convolution and the pooling behind it as one `ConvPool`.

    That is done if the loops may take both; other layers stay as they are. A ReLU is moved behind
    the pooling that follows it, where it has less to do: the maximum of positive parts is the
    positive part of the maximum, and so are their gradients.

    Args:
        layers: the layers of a network, in order.
        passes: the passes that the layers belong to.
    """
    queue = list(layers)
    for i in range(len(queue) - 1):
        if is_plain(queue[i], nn.ReLU) and window_of(queue[i + 1]) is not None:
            queue[i], queue[i + 1] = queue[i + 1], queue[i]
    merged = []
    while queue:
        layer = queue.pop(0)
        rule = layer.rule if isinstance(layer, Layer) else None
        window = window_of(queue[0] if queue else None)
        if isinstance(rule, Conv2dRule) and rule.is_loopable and window is not None:
            layers_behind = [queue.pop(0)]
            rectified = bool(queue) and is_plain(queue[0], nn.ReLU)
            if rectified:
                layers_behind.append(queue.pop(0))
            merged_rule = ConvPoolRule(rule, window, rectified=rectified)
            layer = ConvPool(merged_rule, layers_behind, passes)
        merged.append(layer)
    return merged


@dataclass(frozen=True)
class ConvChain:
    """A network of convolutions under pooling, then linear layers with ReLU between them.

    It is one of `conversion.Loops`: compiled loops for a whole network.
    """

    convolutions: tuple[ConvPoolRule, ...]
    linear: tuple[LinearRule, ...]

    @classmethod
    def from_module(cls, module: nn.Module) -> "ConvChain | None":
        """Returns the network of a converted module; None unless it is such a chain."""
        layers = list(module.merged) if isinstance(module, Chain) else []
        pooled = []
        for layer in layers:
            if not isinstance(layer, ConvPool):
                break
            pooled.append(layer.rule)
        head = layers[len(pooled) :]
        if not pooled or not head or not is_flatten(head[0]):
            return None
        # After the flattening, every other layer is linear, and those between are ReLUs.
        rules = [layer.rule for layer in head[1::2] if isinstance(layer, Layer)]
        linear = [rule for rule in rules if isinstance(rule, LinearRule)]
        activations = head[2::2]
        are_plain = all(is_plain(activation, nn.ReLU) for activation in activations)
        if not are_plain or len(linear) != len(activations) + 1:
            return None
        return cls(tuple(pooled), tuple(linear))

    def fits(self, theta: Tensor, x: Tensor) -> bool:
        """Returns whether the loops can compute images x; else the rules do."""
        if x.dim() != 4 or x.dtype != theta.dtype:
            return False
        if x.shape[1] != self.convolutions[0].weight.shape[1]:
            return False
        *image_sizes, last_size = self._sizes(x)
        for rule, image_size in zip(self.convolutions, image_sizes, strict=True):
            if not rule.takes(image_size, x.dtype, 1):  # gradients of few samples are kept
                return False
        channels = self.convolutions[-1].weight.shape[0]
        features = channels * math.prod(last_size)
        return features == self.linear[0].weight.shape[1]

    def bytes_of_one(self, x: Tensor) -> int:
        """Returns the bytes that one model's forward pass keeps: outputs, and a mark per window.

        Args:
            x: the batch, images [B, c, h, w].
        """
        pooled = 0
        for rule, size in zip(self.convolutions, self._sizes(x)[1:], strict=True):
            pooled += rule.weight.shape[0] * math.prod(size)
        outputs = pooled + sum(rule.weight.shape[0] for rule in self.linear)
        mark_bytes = pooled  # a mark of one byte for each window
        return len(x) * (outputs * x.itemsize + mark_bytes)

    def clipped_sums(
        self,
        out: Tensor,
        theta: Tensor,
        step: Step,
        weights: Tensor,
        group_size: int,
    ) -> None:
        """Writes clipped sums into `out` [n, p]; arguments are those of `Passes.clipped_sums`."""
        images = self.convolutions[0].padded_images(step.x, 1)
        sizes = self._sizes(step.x)[1:]
        for models in slices(len(theta), group_size):
            group = theta[models]
            sums = out[models]
            features, stages = self._convolve(group, images, sizes)
            head = _Head(self.linear, group, features)
            head.backward(step.y, step.loss)
            loops.add_clipped_sums(
                stages,
                head.features_gradient.flatten(2).contiguous().numpy(),
                head.squares.numpy(),
                weights[models].contiguous().numpy(),
                step.clip_norm,
                loops.window_buffers(stages),
            )
            for rule, stage in zip(reversed(self.convolutions), stages, strict=True):
                biases = torch.from_numpy(stage.biases)
                rule.write_sums(sums, torch.from_numpy(stage.sums), biases)
            head.write_sums(
                sums, factors=head.squares
            )  # `add_clipped_sums` has made factors of them

    def _sizes(self, x: Tensor) -> list[Pair]:
        """Returns height and width of the images, and of the output of every convolution."""
        sizes = [(x.shape[2], x.shape[3])]
        for rule in self.convolutions:
            sizes.append(rule.windows(sizes[-1]))
        return sizes

    def _convolve(
        self, theta: Tensor, images: Tensor, sizes: Sequence[Pair]
    ) -> tuple[Tensor, tuple[loops.Stage, ...]]:
        """Returns the last pooled output [n, B, h, w, o], and stages of the backward pass.

        Args:
            theta: parameters [n, p].
            images: images of the batch, for all models.
            sizes: rows and columns of the pooled output of each convolution.
        """
        stages: list[loops.Stage] = []
        y = layer_images = images
        for rule, size in zip(self.convolutions, sizes, strict=True):
            # Rows, and numbers of a row, of the output of the layer below. (0, 0): no gradient is
            # computed below the first convolution.
            output_below = (0, 0)
            if stages:
                output_below = (y.shape[2], y.shape[3] * y.shape[4])
                x = y.flatten(0, 1).permute(0, 3, 1, 2)
                layer_images = rule.padded_images(x, len(theta))
            y, marks = rule.convolve_and_pool(theta, layer_images, size)
            outputs, channels = rule.weight.shape[:2]
            zero_rows, zero_columns = rule.edge
            stages.append(
                loops.stage_of(
                    layer_images.numpy(),
                    marks.numpy(),
                    rule.padded_rows(theta).numpy(),
                    biases=0 if rule.bias is None else outputs,
                    steps=rule.steps,
                    width=rule.row_length,
                    edge=(zero_rows, zero_columns * channels),
                    below=output_below,
                    static=rule.static(theta.dtype),
                )
            )
        return y, tuple(reversed(stages))  # the backward pass begins with the last


class _Head:
    """The linear layers of n models, on features that stay in the order [n, B, h, w, o].

    Attributes:
        squares: squared norms of these layers' gradients [n, B], after `backward`.
        features_gradient: gradient of the features [n, B, h · w · o], after `backward`.
    """

    def __init__(
        self,
        rules: Sequence[LinearRule],
        theta: Tensor,
        features: Tensor,
    ) -> None:
        """Computes the outputs of all layers.

        Args:
            rules: rules of the linear layers, in order.
            theta: parameters [n, p].
            features: output of the convolutions, [n, B, h, w, o], channels last.
        """
        self._rules = rules
        self._theta = theta
        _, _, rows, columns, channels = features.shape
        self._positions_and_channels = (rows * columns, channels)
        self._weights = [rule.weight.of(theta) for rule in rules]
        # The user's layer has its inputs channel by channel, features come position by position.
        channels_and_positions = self._positions_and_channels[::-1]
        self._weights[0] = _swap_input_axes(self._weights[0], channels_and_positions)
        self._activations = [features.flatten(2)]
        for i, (rule, weight) in enumerate(zip(rules, self._weights, strict=True)):
            y = torch.bmm(self._activations[i], weight.mT)
            if rule.bias is not None:
                y += rule.bias.of(theta).unsqueeze(1)
            if i < len(rules) - 1:
                y.relu_()
            self._activations.append(y)

    def backward(self, y: Tensor, loss: Loss) -> None:
        """Computes all gradients for labels y [B], from the last layer to the first.

        It sets `squares` and `features_gradient`, and keeps what `write` sums up.
        """
        outputs = self._activations.pop()
        # Gradients of a layer's outputs [n, B, outputs], at first of the last layer.
        g = output_gradients(outputs.mT, y, loss).mT
        self.squares = g.new_zeros(g.shape[:2])
        self._samples: list[SampleGradients] = []
        for i in reversed(range(len(self._rules))):
            x = self._activations[i]
            rule = self._rules[i]
            samples = rule.samples(self._theta, x.flatten(0, 1), g.flatten(0, 1))
            self.squares += samples.squared_norms()
            self._samples.append(samples)
            g = torch.bmm(g, self._weights[i])
            if i > 0:  # through the ReLU between two layers
                g = torch.ops.aten.threshold_backward(g, x, 0)
        self.features_gradient = g

    def write_sums(self, out: Tensor, factors: Tensor) -> None:
        """Writes sums of gradients, times factors [n, B], into `out` [n, p]."""
        for samples in self._samples:
            samples.weighted_sums(out, factors)
        first = self._rules[0].weight.of(out)
        first.copy_(_swap_input_axes(first, self._positions_and_channels))


def _swap_input_axes(weight: Tensor, axes: Pair) -> Tensor:
    """Returns a copy of weights in which two axes of the inputs have changed places.

    Args:
        weight: weights [n, o, a · b].
        axes: lengths a and b of the two axes.

    Returns:
        The weights as [n, o, b · a].
    """
    by_axis = weight.view(*weight.shape[:2], *axes)
    return by_axis.transpose(2, 3).flatten(2).contiguous()


def _with_spare_numbers(shape: Sequence[int], like: Tensor) -> Tensor:
    """Returns an empty tensor, with memory for one more vector behind its last number.

    The loops read and write whole vectors: the last one may reach beyond the last row.
    """
    size = math.prod(shape)
    return like.new_empty(size + _SPARE_NUMBERS)[:size].view(*shape)


def _as_winners(pooled_gradient: Tensor, marks: Tensor) -> loops.Winners:
    """Returns gradients and marks as the compiled loops take them: NumPy arrays, channels last.

    Args:
        pooled_gradient: gradient of the pooled outputs [..., o, h, w].
        marks: number of the position that won, by window [n, B, h, w, o].
    """
    channels_last = pooled_gradient.movedim(-3, -1).reshape(marks.shape)
    return channels_last.contiguous().numpy(), marks.numpy()
