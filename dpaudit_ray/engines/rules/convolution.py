"""The rule for convolutions: per-sample gradients on unfolded patches, formed if they are small."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from .base import Rule, SampleGradients, Slot, by_model
from .ghost_norm import should_form_gradients, squared_norms

Pair = tuple[int, int]  # down and across

# Numbers of unfolded patches that exist at once: 64 MiB of float32.
_MOST_NUMBERS = 1 << 24


class Conv2dRule(Rule):
    """A convolution of images [N, c, h, w]; its groups are samples of smaller convolutions.

    Any padding but the same number of zeros on both sides is a separate layer (`padding`).
    """

    def __init__(
        self,
        layer: nn.Module,
        slots: Mapping[str, Slot],
    ) -> None:
        """Takes the settings of an `nn.Conv2d`, and the slots of its parameters."""
        assert isinstance(layer, nn.Conv2d)
        super().__init__(layer, slots)
        self._groups = layer.groups
        self._kernel = pair(layer.kernel_size)
        self.stride = pair(layer.stride)
        self._dilation = pair(layer.dilation)
        across, down = 0, 0
        if padding(layer) is None:  # no other layer pads
            # Torch has them as left, right, top, bottom.
            across, down = pair(layer._reversed_padding_repeated_twice[::2])
        self._padding = (down, across)
        self.zero_pad = (across, across, down, down)  # left, right, top, bottom, as for F.pad
        self._inputs = math.prod(self.weight.shape[1:])  # numbers of a patch, in one group
        self._is_depthwise = self._groups == self.weight.shape[0] == layer.in_channels

    def forward(
        self,
        theta: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Implements `Rule.forward` by one convolution: each model has its groups of channels."""
        n = len(theta)
        y = self._convolve(_side_by_side(x, n), theta, n * self._groups)
        return _model_by_model(y, n), x

    def forward_shared(
        self,
        theta: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Implements `Rule.forward_shared`: one convolution has the outputs of all models."""
        if self._groups > 1:
            return super().forward_shared(theta, x)
        y = self._convolve(x, theta, groups=1)
        outputs = self.weight.shape[0]
        by_sample = y.view(len(x), len(theta), outputs, *y.shape[2:])
        return by_sample.transpose(0, 1), x

    def _convolve(self, x: Tensor, theta: Tensor, groups: int) -> Tensor:
        """Returns outputs [B, n*o, h, w] of all models side by side.

        Args:
            x: images [B, c, h, w] of all models together, or [B, n*c, h, w] side by side.
            theta: parameters [n, p].
            groups: number of groups of channels: 1, or those of the layer for each model.
        """
        weight = self.weight.of(theta).flatten(0, 1)
        bias = None if self.bias is None else self.bias.of(theta).flatten()
        return F.conv2d(x, weight, bias, self.stride, self._padding, self._dilation, groups)

    def input_gradient(self, theta: Tensor, x: Tensor, g: Tensor) -> Tensor:
        """Implements `Rule.input_gradient` by one convolution backward, grouped as in `forward`."""
        n = len(theta)
        weight = self.weight.of(theta).flatten(0, 1)
        x = _side_by_side(x, n)
        g = _side_by_side(g, n)
        gradient = self._backward(weight, x, g, of_x=True, groups=n * self._groups)
        return _model_by_model(gradient, n)

    def samples(self, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        """Implements `Rule.samples`; forms and keeps gradients only where that is cheaper.

        Args:
            theta: parameters [models, p].
            x: input [models * batch, channels, height, width].
            g: gradient of the output [models * batch, outputs, out_height, out_width].
        """
        models = len(theta)
        outputs = g.shape[1]
        groups = self._groups
        batch = len(g) // models
        g = g.flatten(2)
        positions = g.shape[2]
        if groups == 1 and not should_form_gradients(batch, positions, self._inputs, outputs):
            g = g.view(models, batch, outputs, positions)
            return _Unformed(self, x.chunk(models), g)
        columns = self._inputs + 1  # the last one is the bias
        if self._is_depthwise:
            biases = g.sum(2).view(-1, 1)
            gradients = torch.cat([self._formed_by_channel(x, g), biases], 1)
        else:
            # Each group is treated as a sample of a smaller convolution.
            g = g.reshape(len(g) * groups, -1, positions)
            x = x.reshape(len(x) * groups, -1, *x.shape[2:])
            gradients = g.new_empty(*g.shape[:2], columns)
            for rows, patches in self._patches(x):
                torch.bmm(g[rows], patches.mT, out=gradients[rows])
        gradients = gradients.view(models, batch, outputs, columns)
        return _WithBias(self.weight, self.bias, gradients)

    def _formed_by_channel(self, x: Tensor, g: Tensor) -> Tensor:
        """Returns gradients [N * channels, inputs] of a kernel for each channel.

        They are convolutions of the images by the output's gradients, where stride and dilation
        change places (Rochette et al. 2019): 2 to 40 times as fast as patches, on a CPU.

        Args:
            x: input [N, channels, height, width].
            g: gradient of the output [N, channels, positions].
        """
        kernels = g.reshape(-1, 1, *self.output_size(x.shape[2:]))
        images = x.reshape(1, -1, *x.shape[2:])
        stride, dilation = self._dilation, self.stride
        formed = F.conv2d(images, kernels, None, stride, self._padding, dilation, len(kernels))
        height, width = self._kernel
        # There may be further rows and columns, if the strides do not reach the image's end.
        return formed[0, :, :height, :width].flatten(1)

    def samples_shared(
        self,
        theta: Tensor,
        x: Tensor,
        parts: Sequence[Tensor],
        cache: dict[object, Tensor],
    ) -> SampleGradients:
        """Implements `Rule.samples_shared`; patches of the batch are unfolded once, in `cache`."""
        if self._groups > 1:
            return super().samples_shared(theta, x, parts, cache)
        models = len(theta)
        batch = len(x)
        outputs = self.weight.shape[0]
        by_sample = [part.transpose(0, 1).flatten(3) for part in parts]
        g = torch.cat(by_sample, 1)  # [batch, models, outputs, positions]
        if not should_form_gradients(batch, g.shape[3], self._inputs, outputs):
            return _Unformed(self, (x,) * models, g.transpose(0, 1))
        if self not in cache:
            cache[self] = self.unfold(x)
        gradients = torch.bmm(g.flatten(1, 2), cache[self].mT)
        gradients = gradients.view(batch, models, outputs, -1).transpose(0, 1)
        return _WithBias(self.weight, self.bias, gradients)

    def unfold(self, x: Tensor) -> Tensor:
        """Returns patches of x [N, c, h, w], and a row of ones for the bias: [N, inputs + 1, T]."""
        rows, columns = self.output_size(x.shape[2:])
        if any(self.zero_pad):
            x = F.pad(x, self.zero_pad)
        x = x.contiguous()
        samples, channels, height, width = x.shape
        shape = (samples, channels, *self._kernel, rows, columns)
        down, across = self._dilation
        stride_down, stride_across = self.stride
        pixels = height * width
        # Strides of a view of windows, [N, c, kernel height, kernel width, rows, columns].
        strides = (
            channels * pixels,
            pixels,
            down * width,
            across,
            stride_down * width,
            stride_across,
        )
        windows = x.as_strided(shape, strides)  # F.unfold takes more than twice as long on a CPU
        patches = x.new_empty(samples, self._inputs + 1, rows * columns)
        patches[:, :-1].view(shape).copy_(windows)
        patches[:, -1].fill_(1)
        return patches

    @property
    def is_loopable(self) -> bool:
        """Whether compiled loops may take it: a row of a patch is one piece, of all channels."""
        return self._dilation == (1, 1) and self._groups == 1

    def _patches(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yields samples and their unfolded patches, at most `_MOST_NUMBERS` numbers at a time."""
        numbers = self._inputs * x[0, 0].numel()  # numbers of a sample's patches, at stride 1
        samples_at_once = max(1, _MOST_NUMBERS // numbers)
        for start in range(0, len(x), samples_at_once):
            rows = slice(start, start + samples_at_once)
            yield rows, self.unfold(x[rows])

    def _backward(
        self,
        weight: Tensor,
        x: Tensor,
        g: Tensor,
        of_x: bool,
        groups: int = 1,
    ) -> Tensor:
        """Returns the gradient of the input or of the weight, by torch's own backward pass.

        Args:
            weight: kernels [outputs, inputs / groups, height, width].
            x: input [N, c, h, w].
            g: gradient of the output [N, o, h', w'].
            of_x: whether to return the gradient of x; else that of `weight`.
            groups: number of groups of channels.
        """
        no_bias, transposed, output_padding = None, False, (0, 0)
        gradients = torch.ops.aten.convolution_backward(
            g, x, weight, no_bias, self.stride, self._padding, self._dilation,
            transposed, output_padding, groups, (of_x, not of_x, False),
        )  # fmt: skip
        gradient: Tensor = gradients[0 if of_x else 1]
        return gradient

    def squared_norms(self, x: Tensor, g: Tensor) -> Tensor:
        """Returns squared norms [N] from inputs [N, c, h, w] and g [N, o, T]; keeps no gradient."""
        # The last row of the patches is for the bias.
        rows = slice(None) if self.bias is not None else slice(-1)
        parts = []
        for samples, patches in self._patches(x):
            inputs = patches[:, rows].mT
            parts.append(squared_norms(inputs, g[samples].mT, bias=False))
        return torch.cat(parts)

    def write_sum(self, out: Tensor, x: Tensor, g: Tensor) -> None:
        """Writes the sum of one model's gradients over the batch into its parameters.

        Args:
            out: parameters of one model, [1, p].
            x: inputs [B, c, h, w].
            g: gradients of the outputs, times each example's weight, [B, o, T].
        """
        weight = self.weight.of(out)[0]
        y_gradient = g.reshape(*g.shape[:2], *self.output_size(x.shape[2:]))
        weight.copy_(self._backward(weight, x, y_gradient, of_x=False))
        if self.bias is not None:
            self.bias.of(out)[0].copy_(g.sum((0, 2)))

    def output_size(self, size: Sequence[int]) -> Pair:
        """Returns height and width of the output, from height and width of the input.

        Along either axis it is ⌊(size + 2 padding - dilation (kernel - 1) - 1) / stride⌋ + 1.
        """
        sizes = []
        for axis in (0, 1):
            kernel = self._dilation[axis] * (self._kernel[axis] - 1) + 1
            last_start = size[axis] + 2 * self._padding[axis] - kernel
            sizes.append(last_start // self.stride[axis] + 1)
        return sizes[0], sizes[1]


@dataclass(frozen=True)
class _WithBias(SampleGradients):
    """Formed gradients of weights and biases.

    Attributes:
        weight: slot of the weights.
        bias: slot of the biases; None if the layer has none.
        gradients: [n, B, outputs, inputs + 1], the last column being the bias's.
    """

    weight: Slot
    bias: Slot | None
    gradients: Tensor

    def squared_norms(self) -> Tensor:
        """Returns squared norms [n, B]: leaves the last column out if the layer has no bias."""
        columns = slice(None) if self.bias is not None else slice(-1)
        gradients = self.gradients[..., columns]
        norms: Tensor = torch.linalg.vector_norm(gradients.flatten(2), dim=2)
        return norms**2

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        """Writes weighted sums into `out`: a row of weights times the gradients, by model."""
        sums = torch.bmm(weights.unsqueeze(1), self.gradients.flatten(2))
        sums = sums.view(len(out), *self.gradients.shape[2:])
        weight = self.weight.of(out)
        weight.copy_(sums[..., :-1].reshape(weight.shape))
        if self.bias is not None:
            self.bias.of(out).copy_(sums[..., -1])


@dataclass(frozen=True)
class _Unformed(SampleGradients):
    """Gradients that are not kept: for each model, one backward pass computes their sum.

    Attributes:
        rule: rule of the layer.
        inputs: inputs of each model [B, c, h, w].
        g: gradients of the outputs [n, B, o, T].
    """

    rule: Conv2dRule
    inputs: tuple[Tensor, ...]
    g: Tensor

    def squared_norms(self) -> Tensor:
        """Returns squared norms [n, B]: forms the gradients model by model, and drops them."""
        pairs = zip(self.inputs, self.g, strict=True)
        return torch.stack([self.rule.squared_norms(x, g) for x, g in pairs])

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        """Writes weighted sums into `out`: one model's gradient of a batch, whose g is weighted."""
        scaled = self.g * weights[:, :, None, None]
        for row, x, g in zip(torch.split(out, 1), self.inputs, scaled, strict=True):
            self.rule.write_sum(row, x, g)


def _side_by_side(x: Tensor, n: int) -> Tensor:
    """Returns images [n*B, c, h, w] as [B, n*c, h, w]: models become groups of channels."""
    if n == 1:
        return x
    return by_model(x, n).transpose(0, 1).flatten(1, 2)


def _model_by_model(x: Tensor, n: int) -> Tensor:
    """Returns [B, n*c, h, w] as [n*B, c, h, w]: undoes `_side_by_side`."""
    if n == 1:
        return x
    by_sample = x.view(len(x), n, -1, *x.shape[2:])
    return by_sample.transpose(0, 1).flatten(0, 1)


def pair(option: int | Sequence[int]) -> Pair:
    """Returns an option of a layer, such as its stride, as (vertical, horizontal)."""
    if isinstance(option, int):
        return option, option
    return int(option[0]), int(option[1])


def as_2d(
    layer: nn.Conv1d,
    slots: Mapping[str, Slot],
) -> tuple[nn.Conv2d, dict[str, Slot]]:
    """Returns the same convolution of images of height 1, and the slots of its parameters."""
    padding = layer.padding if isinstance(layer.padding, str) else (0, int(layer.padding[0]))
    flat = nn.Conv2d(
        layer.in_channels,
        layer.out_channels,
        kernel_size=(1, layer.kernel_size[0]),
        stride=(1, layer.stride[0]),
        padding=padding,
        dilation=(1, layer.dilation[0]),
        groups=layer.groups,
        bias=layer.bias is not None,
        padding_mode=layer.padding_mode,
        device="meta",
    )
    weight = Slot(slots["weight"].start, tuple(flat.weight.shape))
    return flat, {**slots, "weight": weight}


_PADDINGS = {
    "zeros": nn.ZeroPad2d, "reflect": nn.ReflectionPad2d, "replicate": nn.ReplicationPad2d,
    "circular": nn.CircularPad2d,
}  # fmt: skip


def padding(layer: nn.Conv2d) -> nn.Module | None:
    """Returns the padding as a layer; None if it is the same number of zeros on both sides.

    In that case the convolution pads by itself. A padding of "same" may need one zero more on one
    side than on the other.
    """
    left, right, top, bottom = (int(p) for p in layer._reversed_padding_repeated_twice)
    is_symmetric = left == right and top == bottom
    if is_symmetric and (layer.padding_mode == "zeros" or left == top == 0):
        return None
    return _PADDINGS[layer.padding_mode]((left, right, top, bottom))
