"""Layer rules: how one kind of layer is applied to, and clipped for, n models at once.

Activations keep the shape that the module's own code expects, [n*B, ...], model by model. Where
all models see the same input (the first layer), a rule gets it once, [B, ...]. To support another
layer, subclass `Rule` and name its class in `conversion.RULES`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ...errors import SpecError


@dataclasses.dataclass(frozen=True)
class Slot:
    """Where one parameter lies in the flat parameter vector."""

    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        """One past its last entry."""
        return self.start + int(torch.Size(self.shape).numel())

    def of(self, flat: Tensor) -> Tensor:
        """The view [n, *shape] of flat parameters [n, p]."""
        return flat[:, self.start : self.stop].view(len(flat), *self.shape)


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that need a gradient, by name, in the order of the flat vector."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def slots_of(module: nn.Module) -> dict[str, Slot]:
    """Slots of all parameters that are `trained`. Raises SpecError for none, or no real numbers."""
    slots: dict[str, Slot] = {}
    start = 0
    for name, parameter in trained(module).items():
        if not parameter.is_floating_point():
            raise SpecError(
                "mechanism.model",
                f"{name} is of {parameter.dtype}, which no noise is defined for; use real numbers",
            )
        slots[name] = Slot(start, tuple(parameter.shape))
        start += parameter.numel()
    if not slots:
        frozen = "all of its parameters are frozen; leave some with requires_grad"
        why = frozen if list(module.parameters()) else "has no parameters to train"
        raise SpecError("mechanism.model", why)
    return slots


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether `layer` does what `kind` does: it is of this class itself, and nothing is altered."""
    return type(layer) is kind and altered(layer) is None


def flattens(layer: nn.Module) -> bool:
    """Whether the layer makes vectors of examples of any shape."""
    ends = getattr(layer, "start_dim", None), getattr(layer, "end_dim", None)
    return plain(layer, nn.Flatten) and ends == (1, -1)


def altered(layer: nn.Module) -> str | None:
    """What makes this layer do something else than its class says; None for nothing."""
    if any(getattr(layer, hooks) for hooks in _HOOKS):
        return "has hooks"
    if "forward" in vars(layer):
        return "has a forward of its own"
    if parametrize.is_parametrized(layer):
        return "has parametrised weights"
    if any(p._backward_hooks for p in layer.parameters(recurse=False)):
        return "has hooks on its parameters"
    return None


class SampleGradients(ABC):
    """Every sample's gradient of one layer's parameters for n models, in some compact form."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Squared norms, float [n, B]."""

    @abstractmethod
    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        """Writes Σ_j weights[:, j] · (gradient of j) into this layer's part of `out` [n, p]."""


@dataclasses.dataclass(frozen=True)
class Formed(SampleGradients):
    """Per-sample gradients as they are, if few: slots with [n, B, size of the parameter]."""

    parts: tuple[tuple[Slot, Tensor], ...]

    def squared_norms(self) -> Tensor:
        return torch.stack([torch.linalg.vector_norm(g, dim=2) ** 2 for _, g in self.parts]).sum(0)

    def weighted_sums(self, out: Tensor, weights: Tensor) -> None:
        for slot, part in self.parts:
            slot.of(out).copy_(torch.bmm(weights.unsqueeze(1), part).view(len(out), *slot.shape))


def by_model(x: Tensor, n: int) -> Tensor:
    """[n*B, ...] as [n, B, ...]."""
    return x.reshape(n, -1, *x.shape[1:])


class Rule(ABC):
    """One kind of layer, forth and back. `theta` is float [n, p].

    `kept` is what a rule wants to see again on the way back, for most its input; its `nbytes` are
    those that it holds in memory.
    """

    owner: Rule | None = None  # another rule of the same parameters: a pass applies one

    @abstractmethod
    def __init__(self, layer: nn.Module, slots: Mapping[str, Slot]) -> None:
        """Keeps the layer's settings; its parameters are found through `slots` by name."""

    @abstractmethod
    def forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """Output [n*B, ...] from input [n*B, ...], and what is kept."""

    @abstractmethod
    def forward_shared(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Any]:
        """Output [n, B, ...] from the input [B, ...] that all models see, and what is kept."""

    @abstractmethod
    def input_gradient(self, theta: Tensor, kept: Any, g: Tensor) -> Tensor:
        """Gradient of the input [n*B, ...] from that of the output, `g`."""

    @abstractmethod
    def samples(self, theta: Tensor, kept: Any, g: Tensor) -> SampleGradients:
        """Per-sample gradients from what `forward` kept and the output's gradient [n*B, ...]."""

    def samples_shared(
        self, theta: Tensor, kept: Any, parts: Sequence[Tensor], cache: dict[object, Tensor]
    ) -> SampleGradients:
        """The same of `forward_shared`, by default with a copy of the input for each model.

        `parts` are the output's gradients, [models, B, ...] each, n models in all. What depends on
        the input alone may be kept in `cache`, as long as the batch.
        """
        repeated = kept.repeat(len(theta), *[1] * (kept.dim() - 1))
        return self.samples(theta, repeated, torch.cat(list(parts)).flatten(0, 1))
