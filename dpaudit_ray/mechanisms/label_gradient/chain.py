"""A network of fully connected layers in float64, and its logit's derivatives, record by record."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import special

from ...errors import SpecError

if TYPE_CHECKING:
    from torch import nn

Floats = npt.NDArray[np.float64]
ACTIVATIONS = ("relu", "tanh", "sigmoid")


@dataclasses.dataclass(frozen=True)
class Shape:
    """Widths from the input to the logit, and which of `ACTIVATIONS` lies between layers."""

    sizes: tuple[int, ...]
    activation: str

    @classmethod
    def of(cls, module: nn.Module) -> Shape:
        """Of a torch module.

        Raises:
            SpecError: it is no chain of linear layers with biases, one activation and one logit.
        """
        from torch import nn

        from ...engines.rules.layers import unpackable

        kinds = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
        layers = list(module._modules.values()) if type(module) is nn.Sequential else []
        layers = layers[1:] if layers and type(layers[0]) is nn.Flatten else layers
        linear = [one for one in layers[::2] if type(one) is nn.Linear and one.bias is not None]
        between = {kinds.get(type(one), "") for one in layers[1::2]}
        plain = unpackable(module) is None and len(layers) % 2 == 1
        plain &= len(linear) == len(layers[::2]) >= 2
        if not plain or len(between) != 1 or "" in between or linear[-1].out_features != 1:
            raise SpecError(
                "mechanism.training.model",
                "is not a chain of fully connected layers with one activation between them "
                "(ReLU, tanh or sigmoid) and one logit; use mlp3 or fcnn",
            )
        sizes = [linear[0].in_features, *(one.out_features for one in linear)]
        return cls(tuple(sizes), between.pop())

    def chain(self, theta: npt.NDArray[np.floating]) -> Chain:
        """The network with parameters [p], in the order of torch's."""
        at, weights, biases = 0, [], []
        values = np.asarray(theta, dtype=np.float64)
        for into, out in zip(self.sizes, self.sizes[1:], strict=False):
            weights.append(values[at : at + into * out].reshape(out, into))
            biases.append(values[at + into * out : at + (into + 1) * out])
            at += (into + 1) * out
        return Chain(tuple(weights), tuple(biases), self.activation)


@dataclasses.dataclass(frozen=True)
class Passed:
    """What N records leave in a network, layer by layer.

    `inputs` [N, in] of every layer; `derivatives` [N, out] of the logit by what each layer gives
    before its activation; `probabilities` [N] of label 1.
    """

    inputs: tuple[Floats, ...]
    derivatives: tuple[Floats, ...]
    probabilities: Floats

    def columns(self, layer: int, neuron: int | None) -> Floats:
        """Derivatives of each logit by a layer's weights, or those into one of its neurons: [d, N].

        Yuan et al., the matrix C of equation 1, and of equation 4 with its W_J.
        """
        values, slopes = self.inputs[layer], self.derivatives[layer]
        if neuron is not None:
            return (slopes[:, neuron, None] * values).T
        return (slopes[:, :, None] * values[:, None, :]).reshape(len(values), -1).T

    @property
    def norms(self) -> Floats:
        """Norms of the derivatives by all parameters, biases too: float64 [N]."""
        squares = sum(
            (slopes**2).sum(axis=1) * ((values**2).sum(axis=1) + 1)
            for values, slopes in zip(self.inputs, self.derivatives, strict=True)
        )
        return np.asarray(np.sqrt(squares))


@dataclasses.dataclass(frozen=True)
class Chain:
    """Layers of `weights` [out, in] and `biases` [out]."""

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    activation: str

    def passed(self, x: npt.NDArray[np.floating]) -> Passed:
        """Records x [N, ...], forward and back."""
        values = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
        inputs, before = [values], []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            before.append(inputs[-1] @ weight.T + bias)
            inputs.append(self._activated(before[-1]))
        slopes = [np.ones_like(before[-1])]
        for weight, z in zip(self.weights[:0:-1], before[-2::-1], strict=True):
            slopes.append((slopes[-1] @ weight) * self._slope(z))
        chances = special.expit(before[-1][:, 0])
        return Passed(tuple(inputs[:-1]), tuple(slopes[::-1]), chances)

    def _activated(self, z: Floats) -> Floats:
        if self.activation == "relu":
            return np.maximum(z, 0.0)
        return np.asarray(np.tanh(z) if self.activation == "tanh" else special.expit(z))

    def _slope(self, z: Floats) -> Floats:
        if self.activation == "relu":
            return np.asarray(z > 0, dtype=np.float64)
        if self.activation == "tanh":
            return 1 - np.tanh(z) ** 2
        return np.asarray(special.expit(z) * special.expit(-z))
