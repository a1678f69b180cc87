"""Small ReLU networks on vectors, in compiled loops on a CPU, by the formulas of `rules/linear`.

Torch makes some thirty passes over activations of a few kilobytes. Here each model's activations
stay in cache from the first layer to the clipped sum.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ..packing.memory import slices
from ..packing.passes import Step
from ..rules.base import Slot, is_flatten, is_plain
from ..rules.losses import output_gradients
from .vector_code import compiled

WIDEST = 64  # features; a matrix product computes wider layers faster than these loops

Floats = NDArray[np.floating]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class MlpLoops:
    """Linear layers with ReLU between them, computed by loops; one of `conversion.Loops`."""

    widths: Integers  # [L + 1]: of the input and of every layer's output
    starts: Integers  # [L, 2]: where weights and biases begin in the flat parameters; -1 for none
    flattens: bool  # whether examples may have any shape

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        slots: dict[str, Slot],
    ) -> "MlpLoops | None":
        """Returns loops for a small chain of linear layers and ReLU; None for other modules."""
        layers = list(module.named_children()) if is_plain(module, nn.Sequential) else []
        has_flatten = bool(layers) and is_flatten(layers[0][1])
        chain = layers[1:] if has_flatten else layers
        # Linear layers and ReLUs take turns, and a linear one is the last.
        are_linear = all(is_plain(layer, nn.Linear) for _, layer in chain[::2])
        are_rectifiers = all(is_plain(layer, nn.ReLU) for _, layer in chain[1::2])
        if len(chain) % 2 == 0 or not are_linear or not are_rectifiers:
            return None
        widths: list[int] = []
        starts = []
        for name, layer in chain[::2]:
            assert isinstance(layer, nn.Linear)
            if not widths:
                widths.append(layer.in_features)
            widths.append(layer.out_features)
            bias = slots.get(f"{name}.bias")
            bias_start = -1 if bias is None else bias.start
            starts.append((slots[f"{name}.weight"].start, bias_start))
        if max(widths) > WIDEST:
            return None
        return cls(np.array(widths, np.int64), np.array(starts, np.int64), has_flatten)

    def fits(self, theta: Tensor, x: Tensor) -> bool:
        """Returns whether the first layer takes these examples; else the rules compute them."""
        features = x[0].numel() if len(x) else 0
        has_vectors = x.dim() == 2 or (self.flattens and x.dim() > 2)
        return has_vectors and features == int(self.widths[0]) and x.dtype == theta.dtype

    def bytes_of_one(self, x: Tensor) -> int:
        """Returns the bytes of one model's activations."""
        return int(self.widths[1:].sum()) * len(x) * x.itemsize

    def clipped_sums(
        self,
        out: Tensor,
        theta: Tensor,
        step: Step,
        weights: Tensor,
        group_size: int,
    ) -> None:
        """Writes clipped sums into `out` [n, p]; arguments are those of `Passes.clipped_sums`."""
        columns = np.ascontiguousarray(step.x.flatten(1).numpy().T)
        layers = (self.widths, self.starts)
        units = int(self.widths[1:].sum())  # the number of outputs of all layers
        classes = int(self.widths[-1])
        for models in slices(len(theta), group_size):
            group = theta[models].contiguous().numpy()
            activations = theta.new_empty(len(group), units, len(step.y))
            acts = activations.numpy()
            _forward(group, columns, *layers, acts)
            outputs = activations[:, -classes:]
            gradients = output_gradients(outputs, step.y, step.loss).numpy()
            group_weights = weights[models].contiguous().numpy()
            batch = (columns, gradients, group_weights)
            _backward(group, acts, layers, batch, step.clip_norm, out[models].numpy())


@compiled
def _forward(
    theta: Floats,
    x: Floats,
    widths: Integers,
    starts: Integers,
    acts: Floats,
) -> None:
    """Writes the activations of all layers, one layer behind the other.

    Args:
        theta: parameters [n, p].
        x: examples [d, B].
        widths: widths of the input and of every layer's output [L + 1].
        starts: where weights and biases begin [L, 2]; -1 for none.
        acts: [n, Σ widths[1:], B], to be written.
    """
    layers = len(widths) - 1
    batch = x.shape[1]
    zero = theta.dtype.type(0)
    for m in range(theta.shape[0]):
        first = 0  # row of `acts` where the layer's outputs begin
        for layer in range(layers):
            inputs = widths[layer]
            outputs = widths[layer + 1]
            weight_start, bias_start = starts[layer]
            layer_inputs = x if layer == 0 else acts[m, first - inputs : first]
            for o in range(outputs):
                row = acts[m, first + o]
                row[:] = theta[m, bias_start + o] if bias_start >= 0 else zero
                for i in range(inputs):
                    w = theta[m, weight_start + o * inputs + i]
                    input_row = layer_inputs[i]
                    for s in range(batch):
                        row[s] += w * input_row[s]
                if layer < layers - 1:
                    for s in range(batch):  # not max(): NaN must stay NaN, as in torch
                        row[s] = zero if row[s] < 0 else row[s]
            first += outputs


@compiled
def _backward(
    theta: Floats,
    acts: Floats,
    layers: tuple[Integers, Integers],
    batch: tuple[Floats, Floats, Floats],
    clip: float,
    out: Floats,
) -> None:
    """Writes clipped, weighted sums of all models.

    For each model it goes down all layers for the norms, and up again for the sums: gradients of
    all outputs stay in cache between the two.

    Args:
        theta: parameters [n, p].
        acts: activations by `_forward`.
        layers: widths and starts.
        batch: x [d, B], gradients of the outputs [n, c, B], weights [n, B].
        clip: C.
        out: [n, p], to be written.
    """
    widths, starts = layers
    x, last_gradients, weights = batch
    units = acts.shape[1]
    last = len(widths) - 2  # number of the last layer
    grads = np.empty(acts.shape[1:], dtype=theta.dtype)  # of every layer's outputs, in one model
    squares = np.empty(x.shape[1], dtype=theta.dtype)
    for m in range(len(theta)):
        squares[:] = 0
        first = units - widths[-1]  # row where the outputs of a layer begin
        grads[first:] = last_gradients[m]
        for layer in range(last, -1, -1):
            inputs = widths[layer]
            weight_start, bias_start = starts[layer]
            layer_inputs = x if layer == 0 else acts[m, first - inputs : first]
            layer_gradients = grads[first : first + widths[layer + 1]]
            _add_squares(layer_inputs, layer_gradients, bias_start >= 0, squares)
            if layer > 0:
                input_gradients = grads[first - inputs : first]
                _write_input_gradients(
                    theta[m, weight_start:], layer_inputs, layer_gradients, input_gradients
                )
                first -= inputs
        for s in range(len(squares)):  # each square is replaced by the sample's factor
            norm = math.sqrt(squares[s])
            clip_factor = clip / norm if norm > clip else 1.0
            squares[s] = weights[m, s] * clip_factor
        for layer in range(last + 1):
            inputs = widths[layer]
            outputs = widths[layer + 1]
            layer_inputs = x if layer == 0 else acts[m, first - inputs : first]
            layer_gradients = grads[first : first + outputs]
            _write_sums(layer_inputs, layer_gradients, squares, starts[layer], out[m])
            first += outputs


@compiled
def _add_squares(
    x: Floats,
    g: Floats,
    bias: bool,
    squares: Floats,
) -> None:
    """Adds |g|² (|x|² + 1) of every sample, without the 1 if there is no bias.

    Args:
        x: inputs of the layer, [inputs, B].
        g: gradients of the layer's outputs, [outputs, B].
        bias: whether the layer has a bias.
        squares: numbers [B] to which the squares are added.
    """
    g_squares = np.zeros_like(squares)
    x_squares = np.zeros_like(squares)
    if bias:
        x_squares[:] = 1
    for o in range(len(g)):
        for s in range(len(squares)):
            g_squares[s] += g[o, s] * g[o, s]
    for i in range(len(x)):
        for s in range(len(squares)):
            x_squares[s] += x[i, s] * x[i, s]
    for s in range(len(squares)):
        squares[s] += g_squares[s] * x_squares[s]


@compiled
def _write_input_gradients(
    weight: Floats,
    x: Floats,
    g: Floats,
    out: Floats,
) -> None:
    """Writes the gradients of a layer's inputs, passed back through the ReLU before the layer.

    Args:
        weight: flat parameters from the layer's weights on.
        x: inputs of the layer, [inputs, B]; 0 where the ReLU cut them off.
        g: gradients of its outputs, [outputs, B].
        out: [inputs, B], to be written.
    """
    inputs, batch = x.shape
    for i in range(inputs):
        gradients = out[i]
        x_row = x[i]
        gradients[:] = 0
        for o in range(len(g)):
            w = weight[o * inputs + i]
            g_row = g[o]
            for s in range(batch):
                gradients[s] += w * g_row[s]
        for s in range(batch):
            gradients[s] = 0 if x_row[s] <= 0 else gradients[s]


@compiled
def _write_sums(
    x: Floats, g: Floats, factors: Floats, start: Integers, out: Floats
) -> None:  # fmt: skip
    """Writes Σ_s factor · g xᵀ and Σ_s factor · g of one layer.

    Args:
        x: inputs of the layer, [inputs, B].
        g: gradients of its outputs, [outputs, B]; multiplied by the factors in place.
        factors: clip factor times weight of every sample, [B].
        start: where weights and biases begin in `out`; -1 for no biases.
        out: flat parameters of one model [p], to be written.
    """
    zero = out.dtype.type(0)
    weight_start, bias_start = start
    for o in range(len(g)):
        g_row = g[o]
        summed = zero
        for s in range(len(factors)):
            g_row[s] *= factors[s]
            summed += g_row[s]
        if bias_start >= 0:
            out[bias_start + o] = summed
        for i in range(len(x)):
            x_row = x[i]
            summed = zero
            for s in range(len(factors)):
                summed += g_row[s] * x_row[s]
            out[weight_start + o * len(x) + i] = summed
