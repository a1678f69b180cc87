"""The target of label attacks: a network that DP-SGD trains once, and the steps of its training.

What an attacker knows of a step is computed here, in float64: the batch, the model before it, and
the derivatives of its logit, record by record.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import special

from ...errors import SpecError
from ..base import Arrays

if TYPE_CHECKING:
    from torch import nn

    from ..dp_sgd.training import DpSgdTraining

Floats = npt.NDArray[np.float64]
ACTIVATIONS = ("relu", "tanh", "sigmoid")


@dataclasses.dataclass(frozen=True)
class Shape:
    """Shape of a chain of layers: widths from the input to the logit, and the activation."""

    sizes: tuple[int, ...]
    activation: str

    @classmethod
    def from_module(cls, module: nn.Module) -> Shape:
        """Reads the shape of a torch module.

        Raises:
            SpecError: it is no chain of linear layers with biases, one activation and one logit.
        """
        from torch import nn

        from ...engines.packing.conversion import find_obstacle

        kinds = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
        layers = list(module._modules.values()) if type(module) is nn.Sequential else []
        layers = layers[1:] if layers and type(layers[0]) is nn.Flatten else layers
        linear = [p for p in layers[::2] if type(p) is nn.Linear and p.bias is not None]
        between = {kinds.get(type(layer), "") for layer in layers[1::2]}
        plain = find_obstacle(module) is None and len(layers) % 2 == 1
        plain &= len(linear) == len(layers[::2]) >= 2
        if not plain or len(between) != 1 or "" in between or linear[-1].out_features != 1:
            raise SpecError(
                "mechanism.training.model",
                "is not a chain of fully connected layers with one activation between them "
                "(ReLU, tanh or sigmoid) and one logit; use mlp3 or fcnn",
            )
        sizes = [linear[0].in_features, *(layer.out_features for layer in linear)]
        return cls(tuple(sizes), between.pop())

    def network(self, theta: npt.NDArray[np.floating]) -> Network:
        """The network with parameters [p], in the order of torch's."""
        start, weights, biases = 0, [], []
        values = np.asarray(theta, dtype=np.float64)
        for into, out in zip(self.sizes, self.sizes[1:], strict=False):
            weights.append(values[start : start + into * out].reshape(out, into))
            biases.append(values[start + into * out : start + (into + 1) * out])
            start += (into + 1) * out
        return Network(tuple(weights), tuple(biases), self.activation)


@dataclasses.dataclass(frozen=True)
class Pass:
    """A forward and backward pass of N records through a network, layer by layer.

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
class Network:
    """Fully connected layers of `weights` [out, in] and `biases` [out]."""

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    activation: str

    def run(self, x: npt.NDArray[np.floating]) -> Pass:
        """Runs records x [N, ...] forward and back, in float64."""
        values = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
        inputs, before = [values], []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            before.append(inputs[-1] @ weight.T + bias)
            inputs.append(self._activated(before[-1]))
        slopes = [np.ones_like(before[-1])]
        for weight, z in zip(self.weights[:0:-1], before[-2::-1], strict=True):
            slopes.append((slopes[-1] @ weight) * self._slope(z))
        chances = special.expit(before[-1][:, 0])
        return Pass(tuple(inputs[:-1]), tuple(slopes[::-1]), chances)

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


@dataclasses.dataclass(frozen=True)
class Batch:
    """A step of the target: the model before it, its `records` by number, their x [N, d], y [N]."""

    model: Network
    x: Floats
    y: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Target:
    """A trained target, as arrays: `theta` [steps, p], `x` [steps, N, d], `y`, `records`."""

    arrays: Arrays

    @classmethod
    def trained(cls, training: DpSgdTraining, shape: Shape, steps: int, seed: int) -> Target:
        """Trains without a canary, and keeps what is needed of the first `steps`.

        Raises:
            SpecError: it diverged, or a batch has a record twice.
        """
        import torch

        nobody = torch.zeros(1, dtype=training.initial.dtype, device=training.initial.device)
        thetas = []
        for step, theta in enumerate(training.run(nobody, seed, None, 1)):
            if step == steps:
                break
            thetas.append(theta[0].cpu().numpy().copy())
            if not np.isfinite(thetas[-1]).all():
                raise SpecError(
                    "mechanism.training.learning_rate",
                    f"is {training.recipe.learning_rate:g}, with which the target has diverged "
                    f"before step {step + 1}; lower it",
                )
        batches = training.batches[:steps]
        size = training.recipe.batch_size
        if any(not len(set(batch.tolist())) == len(batch) == size for batch in batches):
            raise SpecError(
                "mechanism.training.sampling",
                f"is {training.recipe.sampling.address}, which has batches with a record twice, or "
                f"of another size than {size}; use fixed or shuffle",
            )
        return cls(
            {
                "theta": np.stack(thetas),
                "x": np.stack([training.x[batch].cpu().numpy() for batch in batches]),
                "y": np.stack([training.y[batch].cpu().numpy() for batch in batches]),
                "records": np.stack([batch.cpu().numpy() for batch in batches]),
                "sizes": np.array(shape.sizes),
                "activation": np.array(ACTIVATIONS.index(shape.activation)),
                "seed": np.array(seed % 2**63),
            }
        )

    @property
    def steps(self) -> int:
        """Number of steps that are kept."""
        return len(self.arrays["theta"])

    @property
    def shape(self) -> Shape:
        """The shape of its network."""
        sizes = tuple(int(size) for size in self.arrays["sizes"])
        return Shape(sizes, ACTIVATIONS[int(self.arrays["activation"])])

    def batch(self, step: int) -> Batch:
        """The batch and the model of step number `step`, from 0 on."""
        arrays = self.arrays
        model = self.shape.network(arrays["theta"][step])
        x = arrays["x"][step].reshape(len(arrays["x"][step]), -1).astype(np.float64)
        return Batch(model, x, arrays["y"][step], arrays["records"][step])

    def crafting(self, step: int) -> np.random.Generator:
        """Randomness of the records that an attacker crafts for a step: the same on every call."""
        return np.random.default_rng([int(self.arrays["seed"]), step])
