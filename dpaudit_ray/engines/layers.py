"""A user's module with its parametrised layers replaced by rules.

`RULES` is the list of layers that have one. What runs on every sample alone stays the module's
own code; what mixes samples, or draws from a generator that no pack owns, is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ..errors import SpecError
from . import affine, conv, fallback, pooling
from .affine import AffineRule
from .conv import Conv2dRule
from .embedding import EmbeddingRule
from .fallback import FallbackRule
from .linear import LinearRule
from .rules import LayerRule, Rule, Slot
from .tape import Tapped

RULES: dict[type[nn.Module], type[LayerRule]] = {
    nn.Linear: LinearRule,
    nn.Conv2d: Conv2dRule,
    nn.GroupNorm: AffineRule,
    nn.LayerNorm: AffineRule,
    nn.Embedding: EmbeddingRule,
}

Tap = Callable[[Rule], Tapped]


def slots_of(module: nn.Module) -> dict[str, Slot]:
    """Every parameter's place in the flat vector, in the order of `module.parameters()`.

    Raises:
        SpecError: a parameter that two layers share: its per-sample gradient is a sum over
            uses, so that its norm is not that of either.
    """
    slots: dict[str, Slot] = {}
    seen: dict[int, str] = {}
    start = 0
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if (other := seen.setdefault(id(parameter), name)) != name:
            raise SpecError(
                "mechanism.model",
                f"{name} and {other} are one parameter; the packed engine needs one for each use",
            )
        if not parameter.requires_grad:
            raise SpecError(
                "mechanism.model",
                f"{name} is frozen; put what is not trained into the model's body()",
            )
        slots[name] = Slot(start, tuple(parameter.shape))
        start += parameter.numel()
    if not slots:
        raise SpecError("mechanism.model", "has no parameters to train")
    return slots


def replaced(module: nn.Module, slots: dict[str, Slot], tap: Tap, path: str = "") -> nn.Module:
    """`module`, changed in place, with `tap(rule)` where a layer has parameters.

    Raises:
        SpecError: BatchNorm and others whose output for one sample depends on the rest.
    """
    refuse(module, path)
    if (pool := pooling.replacement(module)) is not None:
        return pool
    if any(True for _ in module.parameters(recurse=False)):
        own = {name: slots[f"{path}{name}"] for name, _ in module.named_parameters()}
        return _tapped(module, own, tap, path)
    for name, child in module.named_children():
        setattr(module, name, replaced(child, slots, tap, f"{path}{name}."))
    if type(module) is nn.Sequential:
        from .convpool import merged  # numba takes half a second to import

        return nn.Sequential(*merged(pooling.reordered(list(module)), tap))
    return module


def refuse(module: nn.Module, path: str) -> None:
    """Raises SpecError for a layer that no per-sample gradient can be had of."""
    where, kind = path.rstrip(".") or "the model itself", type(module).__name__
    if isinstance(module, _BatchNorm) or getattr(module, "track_running_stats", False):
        raise SpecError(
            "mechanism.model",
            f"{where} is a {kind}, whose output for one example depends on the others: DP-SGD "
            "cannot bound what one example changes; use GroupNorm",
        )
    if isinstance(module, _DropoutNd) and module.p > 0:
        raise SpecError(
            "mechanism.model",
            f"{where} is a {kind} with p = {module.p:g}, whose randomness no pack's seed covers; "
            "set p to 0",
        )


def _tapped(module: nn.Module, own: dict[str, Slot], tap: Tap, path: str) -> nn.Module:
    rule = RULES.get(type(module))
    if isinstance(module, nn.Conv2d) and module.groups != 1:
        rule = None
    if rule is None:
        fallback.warn(path.rstrip(".") or "the model itself", type(module).__name__)
        for name, child in module.named_modules():
            refuse(child, f"{path}{name}.")
        return tap(FallbackRule(module, own))
    tapped = tap(rule(module, own))
    if isinstance(module, nn.Conv2d) and conv.needs_padding_first(module):
        return nn.Sequential(conv.Padding(module), tapped)
    if isinstance(module, (nn.GroupNorm, nn.LayerNorm)):
        return nn.Sequential(affine.without_parameters(module), tapped)
    return tapped
