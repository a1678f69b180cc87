"""Gradients of every example alone, by autograd on the user's module: right for any network, slow.

The module is never copied: a copy would lack what its code reaches through closures and lists.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ..rules.base import parameters_of, trained
from ..rules.losses import Loss, classification_losses
from .memory import slices

# Numbers of the gradients that exist at once: 64 MiB of float32, or 2 GiB on a GPU.
_MOST_NUMBERS = 1 << 24
_MOST_ON_GPU = 1 << 29
MODELS = 16  # models that go through `vmap` together
# Numbers whose squares are added in a row. Torch adds them one by one on a CPU: so the norm of 11
# million numbers in float32 would be 4e-4 too small.
_SQUARES_IN_A_ROW = 1 << 16


@dataclass(frozen=True)
class Samplewise:
    """Clipped sums as `PackedModel` gives them, by one backward pass per model and example."""

    module: nn.Module
    loss: Loss = classification_losses
    mapped: int = 0  # models that go through `vmap` together, with all examples; 0: no `vmap`
    single: bool = False  # examples go through the module alone for outputs, too
    views: bool = False  # an example is inputs [K, ...] of one class; its loss is their mean

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Returns the output of every model on every example, float [n, m, c].

        If `single`, the module gets one example at a time.
        """
        outputs = []
        for row in theta:
            with with_parameters(self.module, row), torch.no_grad():
                parts = torch.split(x, 1) if self.single else (x,)
                of_parts = [self.module(part.clone()).flatten(1) for part in parts]
                outputs.append(torch.cat(of_parts))
        return torch.stack(outputs)

    def clipped_sums(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        clip_norm: float,
        weights: Tensor | None,
    ) -> Tensor:
        """Returns Σ_j weights[i, j] · clip(∇ℓ(θ_i; x_j, y_j), C) of every model i, float [n, p].

        Arguments are those of `PackedModel.clipped_sums`.
        """
        out = torch.zeros_like(theta)
        n, size = theta.shape
        # The number of gradients that exist at once follows from sizes alone, not from free memory,
        # so that bits are the same in every attempt at a pack.
        most_numbers = _MOST_NUMBERS if theta.device.type == "cpu" else _MOST_ON_GPU
        most_models = min(most_numbers // (size * max(1, len(y))), self.mapped)
        for models in slices(n, max(1, most_models)):
            for part in slices(len(y), max(1, most_numbers // size)):
                gradients = self._gradients(theta[models], x[part], y[part])
                norms = norms_of(gradients)
                factors = torch.ones_like(norms)
                if clip_norm < math.inf:
                    factors = clip_norm / norms.clamp(min=clip_norm)
                if weights is not None:
                    factors = factors * weights[models, part]
                by_model = zip(out[models], factors, gradients, strict=True)
                for sums, model_factors, model_gradients in by_model:
                    sums += model_factors @ model_gradients
        return out

    def gradients(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Returns the gradient of every example's loss, float [B, p], at parameters `row` [p]."""
        return self._gradients(row[None], x, y)[0]

    def _gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Returns `gradients` of every model, float [n, B, p].

        If `mapped`, `vmap` computes all examples at once, and several models if there are any;
        else each example has a separate backward pass.

        Args:
            theta: parameters [n, p].
            x: examples [B, ...].
            y: targets of the examples [B].
        """
        if self.mapped:
            with _mappable(self.module):
                if len(theta) == 1:
                    return self._by_vmap(theta[0], x, y)[None]
                mapped: Tensor = vmap(self._by_vmap, in_dims=(0, None, None))(theta, x, y)
            return mapped
        gradients = theta.new_empty(len(theta), len(y), theta.shape[1])
        for row, model_gradients in zip(theta, gradients, strict=True):
            with with_parameters(self.module, row) as parameters:
                for j, gradient in enumerate(model_gradients):
                    self._write_gradient(gradient, parameters, x[j : j + 1], y[j : j + 1])
        return gradients

    def mapped_if_right(self, row: Tensor, x: Tensor, y: Tensor) -> "Samplewise":
        """Returns a copy that uses `vmap`, if its gradients of the examples are right; else self.

        Args:
            row: parameters of one model [p].
            x: examples [B, ...].
            y: targets of the examples [B].
        """
        fast = replace(self, mapped=1)
        try:
            mapped = fast.gradients(row, x, y)
            expected = self.gradients(row, x, y)
        except RuntimeError:  # `torch.func` does not take some operation
            return self
        return fast if torch.allclose(mapped, expected, rtol=1e-3, atol=1e-5) else self

    def _write_gradient(
        self, out: Tensor, parameters: Sequence[Tensor], x: Tensor, y: Tensor
    ) -> None:
        """Writes the gradient of one example, x [1, ...] of class y [1], into `out` [p].

        Args:
            out: float [p], to be written.
            parameters: parameters of the module, which have their values already.
            x: one example, or its views [1, K, ...].
            y: class or number of the example [1].
        """
        if self.views:  # the views of one example are a batch, of one class
            x = x[0]
            y = y.expand(len(x))
        for parameter in parameters:
            parameter.grad = None
        with torch.enable_grad():
            loss = self.loss(self.module(x.clone()), y).mean()
            if loss.requires_grad:
                torch.autograd.backward(loss)
        gradients = []
        for parameter in parameters:
            if parameter.grad is None:  # the loss does not depend on it
                gradient = torch.zeros_like(parameter)
            else:
                gradient = parameter.grad.to_dense()  # an embedding's is sparse
            gradients.append(gradient.detach().flatten())
        torch.cat(gradients, out=out)

    def _by_vmap(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Returns the gradient of every example, float [B, p], by mapping one example's gradient.

        Args:
            row: parameters [p].
            x: examples [B, ...].
            y: targets of the examples [B].
        """
        values = parameters_of(self.module, row)
        by_example = vmap(grad(self.example_loss), in_dims=(None, 0, 0))
        gradients: dict[str, Tensor] = by_example(values, x, y)
        return torch.cat([gradients[name].flatten(1) for name in values], 1)

    def example_loss(
        self,
        parameters: dict[str, Tensor],
        example: Tensor,
        label: Tensor,
    ) -> Tensor:
        """Returns the loss of one example under parameters by name, as `torch.func` takes it."""
        inputs = example if self.views else example.unsqueeze(0)
        values_by_name = _under_every_name(self.module, parameters)
        outputs = functional_call(self.module, values_by_name, (inputs,), tie_weights=False)
        # Every view of the example has its label.
        return self.loss(outputs, label.expand(len(inputs))).mean()


def norms_of(gradients: Tensor) -> Tensor:
    """Returns norms over the last dimension, computed from the norms of its parts.

    If all squares were added in a row, their sum would lose digits.
    """
    parts = torch.split(gradients, _SQUARES_IN_A_ROW, dim=-1)
    norms = torch.stack([torch.linalg.vector_norm(part, dim=-1) for part in parts])
    total: Tensor = torch.linalg.vector_norm(norms, dim=0)
    return total


def _under_every_name(module: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the values of parameters, each under all of its names: tied weights have several.

    If the module contains a layer twice, only the layer's first path counts: with both, torch would
    restore its weights wrongly.

    Args:
        module: the user's module.
        parameters: values by the first name of each parameter.
    """
    values = {id(p): parameters[name] for name, p in trained(module).items()}
    values_by_name = {}
    for path, layer in module.named_modules():
        in_layer = layer.named_parameters(path, recurse=False, remove_duplicate=False)
        for name, parameter in in_layer:
            if id(parameter) in values:
                values_by_name[name] = values[id(parameter)]
    return values_by_name


@contextmanager
def with_parameters(module: nn.Module, row: Tensor) -> Iterator[list[nn.Parameter]]:
    """Puts the flat parameters `row` [p] into the module, and restores the module's own at exit."""
    parameters = list(trained(module).values())
    before = [(p.data, p.grad) for p in parameters]
    values = parameters_of(module, row.clone())
    try:
        for parameter, value in zip(parameters, values.values(), strict=True):
            parameter.grad = None
            parameter.data = value
        yield parameters
    finally:
        for parameter, (data, gradient) in zip(parameters, before, strict=True):
            parameter.grad = None
            parameter.data = data
            parameter.grad = gradient


@contextmanager
def _mappable(module: nn.Module) -> Iterator[None]:
    """Lets `vmap` take recurrent layers.

    Two things are in its way. Torch adds to the first hidden state in place: zeros that the layer
    makes lack the dimension over which `vmap` maps, so they are made from the input instead. And
    `vmap` has no rule for the LSTM of oneDNN, nor for the layers of cuDNN: both are switched off.
    """
    recurrent = [m for m in module.modules() if isinstance(m, nn.RNNBase | nn.RNNCellBase)]
    with ExitStack() as stack:
        for layer in recurrent:
            hook = layer.register_forward_pre_hook(_with_state, with_kwargs=True)
            stack.callback(hook.remove)
        if recurrent:
            stack.callback(torch._C._set_mkldnn_enabled, torch._C._get_mkldnn_enabled())
            torch._C._set_mkldnn_enabled(False)
            stack.callback(torch._C._set_cudnn_enabled, torch._C._get_cudnn_enabled())
            torch._C._set_cudnn_enabled(False)
        yield


def _with_state(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]]:  # fmt: skip
    """Returns the arguments of a recurrent layer, with zeros for a missing state.

    It is a forward pre-hook: torch calls it with the positional and keyword arguments of the call.
    """
    if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
        return args, kwargs
    x = args[0]
    if isinstance(layer, nn.RNNBase):
        layers = layer.num_layers * (2 if layer.bidirectional else 1)
        batch: tuple[int, ...] = ()
        if x.dim() == 3:
            batch = (x.shape[0 if layer.batch_first else 1],)
        output_size = layer.proj_size or layer.hidden_size
        h = x.new_zeros(layers, *batch, output_size)
        c = x.new_zeros(layers, *batch, layer.hidden_size)
    else:
        assert isinstance(layer, nn.RNNCellBase)
        h, c = (x.new_zeros(*x.shape[:-1], layer.hidden_size) for _ in range(2))
    state = (h, c) if isinstance(layer, nn.LSTM | nn.LSTMCell) else h
    return (x, state), kwargs


@contextmanager
def in_dtype(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Gives the module copies of its tensors in `dtype`; restores all its attributes at exit."""
    parameters = [(p, p.data) for p in module.parameters()]
    attributes = []  # attributes of each layer, and a copy of them
    containers = []  # dictionaries and lists among the attributes, and a copy of each
    for layer in module.modules():
        attributes.append((vars(layer), dict(vars(layer))))
        for value in vars(layer).values():
            if type(value) in (dict, list):
                containers.append((value, copy.copy(value)))
    try:
        for parameter, data in parameters:
            parameter.data = cast(data.clone(), dtype)
        for layer in module.modules():
            for name, buffer in layer._buffers.items():
                if buffer is not None:
                    layer._buffers[name] = cast(buffer.clone(), dtype)
        yield
    finally:
        for parameter, data in parameters:
            parameter.grad = None
            parameter.data = data
        for present, before in attributes:
            present.clear()
            present.update(before)
        for container, content in containers:
            container.clear()
            if isinstance(container, dict):
                container.update(content)
            else:
                container.extend(content)


def cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns floating-point numbers in `dtype`, integers as they are."""
    return values.to(dtype) if values.is_floating_point() else values
