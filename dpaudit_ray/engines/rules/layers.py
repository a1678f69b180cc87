"""A user's module with its parametrised layers replaced by rules.

`RULES` is the list of layers that have one. What runs on every sample alone stays the module's
own code; what mixes samples, or draws from a generator that no pack owns, is refused.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ...errors import SpecError
from ..packing.fallback import FallbackRule
from ..packing.passes import Layer, Passes
from . import affine, conv, pooling
from .affine import AffineRule
from .base import Rule, Slot, trained
from .conv import Conv2dRule, GroupedConv2dRule
from .embedding import EmbeddingRule
from .linear import LinearRule
from .plain import altered, plain

RULES: dict[type[nn.Module], type[Rule[Any]]] = {
    nn.Linear: LinearRule,
    nn.Conv2d: Conv2dRule,
    nn.GroupNorm: AffineRule,
    nn.LayerNorm: AffineRule,
    nn.Embedding: EmbeddingRule,
}

_ACTIVATIONS = nn.ReLU.__module__


def slots_of(module: nn.Module) -> dict[str, Slot]:
    """The place in the flat vector of every parameter that is `trained`.

    Raises:
        SpecError: a parameter that is no real number, or none that is trained.
    """
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
        frozen = any(True for _ in module.parameters())
        why = "all of its parameters are frozen; leave some with requires_grad" if frozen else ""
        raise SpecError("mechanism.model", why or "has no parameters to train")
    return slots


@dataclasses.dataclass(frozen=True)
class Odd:
    """A layer that no rule fits, and why; `whole`: so that nothing around it is packed either."""

    where: str
    kind: str
    why: str
    whole: bool = True

    @classmethod
    def of(cls, module: nn.Module, path: str, why: str, whole: bool = True) -> Odd:
        """The layer at `path`; a dot at its end does no harm."""
        return cls(path.rstrip(".") or "the model itself", type(module).__name__, why, whole)


def unpackable(module: nn.Module) -> Odd | None:
    """The first layer that rules would take for something else than it is.

    Hooks, parametrisations and parameters that two layers share: a shared one's per-sample
    gradient is a sum over uses, so that its norm is not that of either.
    """
    seen: dict[int, str] = {}
    for path, layer in module.named_modules(remove_duplicate=False):
        if (why := altered(layer)) is not None:
            return Odd.of(layer, path, why)
        for name, parameter in layer.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            own = f"{path}.{name}".lstrip(".")
            if (other := seen.setdefault(id(parameter), own)) != own:
                return Odd.of(layer, path, f"shares a parameter ({own} is {other})")
    return None


def replaced(
    module: nn.Module, slots: dict[str, Slot], passes: Passes, odd: list[Odd], path: str = ""
) -> nn.Module:
    """`module`, changed in place, with a `Layer` of the `passes` where a layer has parameters.

    Layers without a rule are added to `odd`.
    """
    if (pool := pooling.replacement(module)) is not None:
        return pool
    if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        own = {name: slots[f"{path}{name}"] for name in trained(module)}
        whole = all(parameter.requires_grad for parameter in module.parameters())
        if type(module) is nn.Conv1d and whole:
            flat, own = conv.as_2d(module, own)
            layer = _ruled(flat, own, passes, _rule(flat) or FallbackRule)
            return nn.Sequential(nn.Unflatten(1, (-1, 1)), layer, nn.Flatten(1, 2))
        if (rule := _rule(module)) is None:
            odd.append(Odd.of(module, path, "has no rule of its own", whole=False))
        return _ruled(module, own, passes, rule or FallbackRule)
    for name, child in module.named_children():
        setattr(module, name, replaced(child, slots, passes, odd, f"{path}{name}."))
    if type(module).__module__ == _ACTIVATIONS and getattr(module, "inplace", False):
        vars(module)["inplace"] = False  # a rule's output may be a view of all models' outputs
    if plain(module, nn.Sequential):
        return Chain(module, passes)
    return module


class Chain(nn.Sequential):
    """A Sequential whose call merges layers; to who indexes it or goes through it, itself."""

    def __init__(self, layers: nn.Module, passes: Passes) -> None:
        super().__init__(OrderedDict(layers.named_children()))
        from .convpool import merged  # numba takes half a second to import

        self.merged = tuple(merged(pooling.reordered(list(self)), passes))

    def __getitem__(self, idx: slice | int) -> Any:
        if isinstance(idx, slice):
            return nn.Sequential(OrderedDict(list(self.named_children())[idx]))
        return super().__getitem__(idx)

    def forward(self, input: Any) -> Any:
        """As Sequential."""
        for layer in self.merged:
            input = layer(input)
        return input


def refuse(module: nn.Module) -> None:
    """Raises SpecError for a layer, anywhere, that no per-sample gradient can be had of."""
    for path, layer in module.named_modules():
        _refuse_layer(layer, path or "the model itself", type(layer).__name__)


def _refuse_layer(layer: nn.Module, where: str, kind: str) -> None:
    if isinstance(layer, torch.jit.ScriptModule):
        raise SpecError(
            "mechanism.model",
            f"{where} is a {kind}, whose layers cannot be watched; give the module that it was "
            "scripted or traced from",
        )
    counts = getattr(layer, "track_running_stats", False)
    if (isinstance(layer, _BatchNorm) or counts) and (layer.training or not counts):
        remedy = ", or call eval() on it when the module is made: its own then stay" * counts
        raise SpecError(
            "mechanism.model",
            f"{where} is a {kind} that takes statistics of a batch: DP-SGD "
            f"cannot bound what one example changes; use GroupNorm{remedy}",
        )
    if isinstance(layer, _DropoutNd) and layer.p > 0 and layer.training:
        raise SpecError(
            "mechanism.model",
            f"{where} is a {kind} with p = {layer.p:g}, whose randomness no pack's seed covers; "
            "set p to 0, or call eval() on it when the module is made",
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (
        layer.max_norm is not None or layer.scale_grad_by_freq
    ):
        raise SpecError(
            "mechanism.model",
            f"{where} is a {kind} with max_norm or scale_grad_by_freq, which mix the samples of a "
            "batch, so no gradient belongs to one example; leave both at their defaults",
        )


def _rule(module: nn.Module) -> type[Rule[Any]] | None:
    if not all(parameter.requires_grad for parameter in module.parameters()):
        return None
    grouped = type(module) is nn.Conv2d and module.groups != 1
    return GroupedConv2dRule if grouped else RULES.get(type(module))


def _ruled(
    module: nn.Module, own: dict[str, Slot], passes: Passes, rule: type[Rule[Any]]
) -> nn.Module:
    layer = Layer(rule(module, own), passes)
    if rule is FallbackRule:
        return layer
    if isinstance(module, nn.Conv2d) and conv.needs_padding_first(module):
        return nn.Sequential(conv.Padding(module), layer)
    if isinstance(module, (nn.GroupNorm, nn.LayerNorm)):
        return nn.Sequential(affine.without_parameters(module), layer)
    return layer
