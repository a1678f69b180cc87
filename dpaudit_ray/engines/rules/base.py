"""The interface of layer rules: how one kind of layer is computed and clipped for n models at once.

A rule has the forward pass of a layer, its backward pass, and its per-sample gradients in a compact
form. Activations keep the shape that the user's module expects, [n*B, ...], model by model. The
first layer gets the same batch in all models, so its rule takes the batch once, [B, ...]. For
another kind of layer, subclass `Rule` and name the layer's class in `conversion.RULES`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ...errors import SpecError


@dataclass(frozen=True)
class Slot:
    """The range of one parameter in the flat parameter vector."""

    start: int  # index of the first entry
    shape: tuple[int, ...]  # shape of the parameter

    @property
    def stop(self) -> int:
        """The index after the last entry."""
        return self.start + int(torch.Size(self.shape).numel())

    def of(self, flat: Tensor) -> Tensor:
        """Returns this parameter of n models, a view [n, *shape] of flat parameters [n, p]."""
        return flat[:, self.start : self.stop].view(len(flat), *self.shape)


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that need a gradient, by name, in the order of the flat vector."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def flat_parameters(module: nn.Module) -> Tensor:
    """Returns the `trained` parameters as one vector [p], without a gradient."""
    return torch.cat([p.detach().flatten() for p in trained(module).values()])


def parameters_of(module: nn.Module, flat: Tensor) -> dict[str, Tensor]:
    """Cuts a flat vector [p] into `trained` parameters of the module, by name."""
    parameters = trained(module)
    parts = torch.split(flat, [p.numel() for p in parameters.values()])
    named = zip(parameters.items(), parts, strict=True)
    return {name: part.view(p.shape) for (name, p), part in named}


def slots_of(module: nn.Module) -> dict[str, Slot]:
    """Returns the slot of each `trained` parameter by name: its interval of the flat vector.

    Raises:
        SpecError: no parameter is trained, or one has integer or complex numbers.
    """
    slots = {}
    start = 0
    for name, parameter in trained(module).items():
        if not parameter.is_floating_point():
            raise SpecError(
                "mechanism.model",
                f"{name} is of {parameter.dtype}, which no noise is defined for; use real numbers",
            )
        slot = Slot(start, tuple(parameter.shape))
        slots[name] = slot
        start = slot.stop
    if not slots:
        problem = "has no parameters to train"
        if list(module.parameters()):
            problem = "all of its parameters are frozen; leave some with requires_grad"
        raise SpecError("mechanism.model", problem)
    return slots


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Returns whether a layer is of class `kind` itself, not a subclass, and is not altered."""
    return type(layer) is kind and alteration(layer) is None


def is_flatten(layer: nn.Module) -> bool:
    """Returns whether the layer only flattens examples of any shape to vectors."""
    dimensions = (getattr(layer, "start_dim", None), getattr(layer, "end_dim", None))
    return is_plain(layer, nn.Flatten) and dimensions == (1, -1)


def alteration(layer: nn.Module) -> str | None:
    """Returns why the layer may differ from its class, as a verb phrase; None if it does not."""
    if any(getattr(layer, hooks) for hooks in _HOOKS):
        return "has hooks"
    if "forward" in vars(layer):
        return "has its own forward()"
    if parametrize.is_parametrized(layer):
        return "has parametrised weights"
    if any(p._backward_hooks for p in layer.parameters(recurse=False)):
        return "has hooks on its parameters"
    return None


class SampleGradients(ABC):
    """Gradients of one layer's parameters for n models and B samples, in some compact form."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Returns the squared norm of each sample's gradient, float [n, B]."""

    @abstractmethod
    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        """Writes Σ_j weights[:, j] · (gradient of j) into this layer's slots of `out` [n, p]."""


@dataclass(frozen=True)
class Formed(SampleGradients):
    """Per-sample gradients as they are, for small parameters.

    Attributes:
        parts: slot of each parameter, and its gradients [n, B, size of the parameter].
    """

    parts: tuple[tuple[Slot, Tensor], ...]

    def squared_norms(self) -> Tensor:
        """Returns squared norms [n, B], summed over all parameters."""
        norms = [torch.linalg.vector_norm(gradients, dim=2) for _, gradients in self.parts]
        return torch.stack([norm**2 for norm in norms]).sum(0)

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        """Writes weighted sums into `out`: weights [1, B] times gradients [B, size], by model."""
        rows = weights.unsqueeze(1)
        for slot, gradients in self.parts:
            target = slot.of(out)
            target.copy_(torch.bmm(rows, gradients).view_as(target))


def by_model(x: Tensor, n: int) -> Tensor:
    """Returns values of all models [n*B, ...] with one dimension for the models: [n, B, ...]."""
    return x.reshape(n, -1, *x.shape[1:])


def repeated(x: Tensor, n: int) -> Tensor:
    """Returns [B, ...] as [n*B, ...], a copy for each model."""
    return x.repeat(n, *[1] * (x.dim() - 1))


class Rule(ABC):
    """The forward pass, backward pass and per-sample gradients of one kind of layer.

    In all methods, `theta` is float [n, p], the flat parameters of n models. `saved` is the value
    that a forward pass saves for backward, mostly the input. It has a size in bytes, `nbytes`.
    """

    # Another rule for the same parameters, of which each pass applies one; None if there is none.
    owner: "Rule | None" = None

    def __init__(
        self,
        layer: nn.Module,
        slots: Mapping[str, Slot],
    ) -> None:
        """Reads the layer's settings.

        Args:
            layer: the user's layer.
            slots: slots of the layer's parameters, by their names there, such as "weight".
        """
        self.weight = slots["weight"]
        self.bias = slots.get("bias")

    @abstractmethod
    def forward(
        self,
        theta: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Any]:
        """Returns the output [n*B, ...] of input x [n*B, ...], and what is saved."""

    def forward_shared(
        self,
        theta: Tensor,
        x: Tensor,
    ) -> tuple[Tensor, Any]:
        """Returns the output [n, B, ...] of input x [B, ...] of all models, and what is saved."""
        y, _ = self.forward(theta, repeated(x, len(theta)))
        return by_model(y, len(theta)), x

    @abstractmethod
    def input_gradient(self, theta: Tensor, saved: Any, g: Tensor) -> Tensor:
        """Returns the gradient of the input [n*B, ...] from that of the output, `g`."""

    @abstractmethod
    def samples(self, theta: Tensor, saved: Any, g: Tensor) -> SampleGradients:
        """Returns per-sample gradients from the output's gradient g [n*B, ...]."""

    def samples_shared(
        self,
        theta: Tensor,
        saved: Any,
        parts: Sequence[Tensor],
        cache: dict[object, Tensor],
    ) -> SampleGradients:
        """Returns per-sample gradients after `forward_shared`.

        Args:
            theta: parameters [n, p].
            saved: what `forward_shared` saved; here the input [B, ...], copied for each model.
            parts: gradients of the output by group of models, [models of the group, B, ...].
            cache: a rule may store here, for further passes of the same batch, tensors that depend
                on the input alone.
        """
        g = torch.cat(list(parts)).flatten(0, 1)
        return self.samples(theta, repeated(saved, len(theta)), g)
