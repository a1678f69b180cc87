"""What a user's module is made of for packing: rules for its layers, and loops for some networks.

| network or layer | computed by |
| --- | --- |
| Linear of at most 64 and ReLU in turn, on vectors (fcnn) | `cpu/mlp_loops`, whole |
| Conv2d, MaxPool2d, ReLU; then Flatten, Linear, ReLU (cnn4, convnet) | `cpu/conv_pool`, whole |
| Conv2d with a small MaxPool2d behind it, in a Sequential | `cpu/conv_pool`, as one layer |
| Linear, Conv1d, Conv2d, GroupNorm, LayerNorm, Embedding | a rule: `RULES` |
| a module that has an `Obstacle`, or fails its self-check | `samplewise`, examples alone |

Loops run on a CPU, in the dtype of the parameters. What runs on every sample alone stays the
module's own code; what mixes samples, or draws from a generator that no pack owns, is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ...errors import SpecError
from ..rules import convolution
from ..rules.base import Rule, Slot, altered, plain
from ..rules.convolution import Conv2dRule
from ..rules.linear import AffineRule, EmbeddingRule, LinearRule
from .passes import Chain, Layer, Passes

if TYPE_CHECKING:
    from ..cpu.conv_pool import ConvChain
    from ..cpu.mlp_loops import MlpLoops

    Loops = MlpLoops | ConvChain  # a whole network in compiled loops, on a CPU

_LOG = logging.getLogger(__name__)

RULES: dict[type[nn.Module], type[Rule]] = {
    nn.Linear: LinearRule,
    nn.Conv1d: Conv2dRule,
    nn.Conv2d: Conv2dRule,
    nn.GroupNorm: AffineRule,
    nn.LayerNorm: AffineRule,
    nn.Embedding: EmbeddingRule,
}


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """A layer that no rule fits, and why."""

    path: str
    kind: str  # its class
    why: str

    @classmethod
    def at(cls, path: str, layer: nn.Module, why: str) -> Obstacle:
        return cls(path or "the model itself", type(layer).__name__, why)


@functools.cache
def warn_of_slow_way(obstacle: Obstacle) -> None:
    """Says, once in a process for each layer, that its model is computed slowly."""
    _LOG.warning(
        "%s (%s) %s: the model's per-sample gradients go through autograd, slowly",
        obstacle.path, obstacle.kind, obstacle.why,
    )  # fmt: skip


def find_obstacle(module: nn.Module) -> Obstacle | None:
    """Returns the first layer that has no rule, or is something else than its rule takes it for.

    Hooks, parametrisations and parameters that two layers share: a shared one's per-sample
    gradient is a sum over uses, so that its norm is not that of either.
    """
    paths: dict[int, str] = {}
    for path, layer in module.named_modules(remove_duplicate=False):
        if (why := altered(layer)) is not None:
            return Obstacle.at(path, layer, why)
        named = dict(layer.named_parameters(recurse=False))
        learnt = {name: p for name, p in named.items() if p.requires_grad}
        for name, parameter in learnt.items():
            full = f"{path}.{name}".lstrip(".")
            if (other := paths.setdefault(id(parameter), full)) != full:
                return Obstacle.at(path, layer, f"shares a parameter ({full} is {other})")
        if learnt and (type(layer) not in RULES or len(learnt) < len(named)):
            return Obstacle.at(path, layer, "has no rule of its own")
    return None


def converted(
    module: nn.Module, slots: dict[str, Slot], passes: Passes, path: str = ""
) -> nn.Module:  # fmt: skip
    """Returns `module`, changed in place, with a `Layer` of the `passes` where parameters are.

    What has no parameters stays torch's own, before the rule: padding that a convolution's rule
    does not know, and the division by norms.
    """
    if learnt := [name for name, p in module.named_parameters(recurse=False) if p.requires_grad]:
        of_layer = {name: slots[f"{path}{name}"] for name in learnt}
        if isinstance(module, nn.Conv1d):
            flat, of_layer = convolution.as_2d(module, of_layer)
            return nn.Sequential(
                nn.Unflatten(1, (-1, 1)), _with_rule(flat, of_layer, passes), nn.Flatten(1, 2)
            )
        return _with_rule(module, of_layer, passes)
    for name, child in module.named_children():
        setattr(module, name, converted(child, slots, passes, f"{path}{name}."))
    if type(module).__module__ == nn.ReLU.__module__ and getattr(module, "inplace", False):
        vars(module)["inplace"] = False  # a rule's output may be a view of all models' outputs
    if plain(module, nn.Sequential):
        from ..cpu import conv_pool  # numba takes half a second to import

        assert isinstance(module, nn.Sequential)
        return Chain(module, conv_pool.merge_pooling(list(module), passes))
    return module


def _with_rule(module: nn.Module, slots: dict[str, Slot], passes: Passes) -> nn.Module:
    layer = Layer(RULES[type(module)](module, slots), passes)
    if isinstance(module, nn.Conv2d) and (padding := convolution.padding(module)) is not None:
        return nn.Sequential(padding, layer)
    if isinstance(module, (nn.GroupNorm, nn.LayerNorm)):
        for name in slots:
            module.register_parameter(name, None)
        return nn.Sequential(module, layer)
    return layer


def find_loops(
    module: nn.Module, packed: nn.Module, slots: dict[str, Slot]
) -> tuple[Loops | None, int]:
    """Loops for all of a module that is `packed` by now; how many convolutions loops pool."""
    from ..cpu.conv_pool import ConvChain, ConvPool
    from ..cpu.mlp_loops import MlpLoops

    chains = [part.merged for part in packed.modules() if isinstance(part, Chain)]
    convolutions = sum(isinstance(part, ConvPool) for chain in chains for part in chain)
    return MlpLoops.from_module(module, slots) or ConvChain.from_module(packed), convolutions


def refuse_layers(module: nn.Module) -> None:
    """Raises SpecError for a layer, anywhere, that no per-sample gradient can be had of."""
    for path, layer in module.named_modules():
        if (why := _reason_to_refuse(layer)) is not None:
            where = f"{path or 'the model itself'} is a {type(layer).__name__}"
            raise SpecError("mechanism.model", f"{where}{why}")


def _reason_to_refuse(layer: nn.Module) -> str | None:
    if isinstance(layer, torch.jit.ScriptModule):
        return (
            ", whose layers cannot be watched; give the module that it was scripted or traced from"
        )
    tracks = getattr(layer, "track_running_stats", False)
    if (isinstance(layer, _BatchNorm) or tracks) and (layer.training or not tracks):
        remedy = ", or call eval() on it when the module is made: its own then stay" * tracks
        return (
            " that takes statistics of a batch: DP-SGD cannot bound what one example changes; "
            f"use GroupNorm{remedy}"
        )
    if isinstance(layer, _DropoutNd) and layer.p > 0 and layer.training:
        return (
            f" with p = {layer.p:g}, whose randomness no pack's seed covers; set p to 0, or call "
            "eval() on it when the module is made"
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (
        layer.max_norm is not None or layer.scale_grad_by_freq
    ):
        return (
            " with max_norm or scale_grad_by_freq, which mix the samples of a batch, so no "
            "gradient belongs to one example; leave both at their defaults"
        )
    return None
