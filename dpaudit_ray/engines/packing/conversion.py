"""What a user's module is made of for packing: rules for its layers, and loops for some networks.

| network or layer | computed by |
| --- | --- |
| Linear of at most 64 and ReLU in turn, on vectors (fcnn) | `cpu/mlp_loops`, whole |
| Conv2d, MaxPool2d, ReLU; then Flatten, Linear, ReLU (cnn4, convnet) | `cpu/conv_pool`, whole |
| Conv2d with a small MaxPool2d behind it, in a Sequential | `cpu/conv_pool`, as one layer |
| Linear, Conv1d, Conv2d, GroupNorm, LayerNorm, Embedding | a rule: `RULES` |
| any other layer of one input and one output | `rules/functional` |
| a module that has an `Obstacle`, or fails its self-check | `samplewise`, examples alone |

Loops run on a CPU, in the dtype of the parameters. What runs on every sample alone stays the
module's own code; what mixes samples, or draws from a generator that no pack owns, is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ...errors import SpecError
from ..rules import convolution, normalization
from ..rules.base import Rule, Slot, altered, plain, trained
from ..rules.convolution import Conv2dRule
from ..rules.functional import FunctionalRule
from ..rules.linear import EmbeddingRule, LinearRule
from ..rules.normalization import AffineRule
from .passes import Chain, Layer, Passes, Step

_LOG = logging.getLogger(__name__)

RULES: dict[type[nn.Module], type[Rule[Any]]] = {
    nn.Linear: LinearRule,
    nn.Conv1d: Conv2dRule,
    nn.Conv2d: Conv2dRule,
    nn.GroupNorm: AffineRule,
    nn.LayerNorm: AffineRule,
    nn.Embedding: EmbeddingRule,
}

_ACTIVATIONS = nn.ReLU.__module__


@dataclasses.dataclass(frozen=True)
class Obstacle:
    """A layer that no rule fits, and why; `whole`: so that nothing around it is packed either."""

    path: str
    kind: str  # its class
    why: str
    whole: bool = True

    @classmethod
    def at(cls, path: str, layer: nn.Module, why: str, whole: bool = True) -> Obstacle:
        """The layer at `path`; a dot at its end does no harm."""
        return cls(path.rstrip(".") or "the model itself", type(layer).__name__, why, whole)


@functools.cache
def warn_of_slow_way(obstacle: Obstacle) -> None:
    """Says, once in a process for each layer, that it or the whole model is computed slowly."""
    slow = "its per-sample gradients go through torch.func"
    if obstacle.whole:
        slow = "the whole model's per-sample gradients go through autograd"
    _LOG.warning("%s (%s) %s: %s, slowly", obstacle.path, obstacle.kind, obstacle.why, slow)


def find_obstacle(module: nn.Module) -> Obstacle | None:
    """Returns the first layer that rules would take for something else than it is.

    Hooks, parametrisations and parameters that two layers share: a shared one's per-sample
    gradient is a sum over uses, so that its norm is not that of either.
    """
    paths: dict[int, str] = {}
    for path, layer in module.named_modules(remove_duplicate=False):
        if (why := altered(layer)) is not None:
            return Obstacle.at(path, layer, why)
        for name, parameter in layer.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue
            full = f"{path}.{name}".lstrip(".")
            if (other := paths.setdefault(id(parameter), full)) != full:
                return Obstacle.at(path, layer, f"shares a parameter ({full} is {other})")
    return None


def converted(
    module: nn.Module,
    slots: dict[str, Slot],
    passes: Passes,
    obstacles: list[Obstacle],
    path: str = "",
) -> nn.Module:
    """Returns `module`, changed in place, with a `Layer` of the `passes` where parameters are.

    Layers without a rule are added to `obstacles`.
    """
    if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        layer_slots = {name: slots[f"{path}{name}"] for name in trained(module)}
        rule = _rule(module)
        if rule is FunctionalRule:
            obstacles.append(Obstacle.at(path, module, "has no rule of its own", whole=False))
        if type(module) is nn.Conv1d and rule is Conv2dRule:
            flat, layer_slots = convolution.as_2d(module, layer_slots)
            layer = _layer(flat, layer_slots, passes, rule)
            return nn.Sequential(nn.Unflatten(1, (-1, 1)), layer, nn.Flatten(1, 2))
        return _layer(module, layer_slots, passes, rule)
    for name, child in module.named_children():
        setattr(module, name, converted(child, slots, passes, obstacles, f"{path}{name}."))
    if type(module).__module__ == _ACTIVATIONS and getattr(module, "inplace", False):
        vars(module)["inplace"] = False  # a rule's output may be a view of all models' outputs
    if plain(module, nn.Sequential):
        from ..cpu import conv_pool  # numba takes half a second to import

        assert isinstance(module, nn.Sequential)
        return Chain(module, conv_pool.merge_pooling(list(module), passes))
    return module


def _rule(module: nn.Module) -> type[Rule[Any]]:
    trained_whole = all(parameter.requires_grad for parameter in module.parameters())
    return RULES.get(type(module), FunctionalRule) if trained_whole else FunctionalRule


def _layer(
    module: nn.Module, slots: Mapping[str, Slot], passes: Passes, rule: type[Rule[Any]]
) -> nn.Module:
    """The module with its rule, which computes per-sample gradients for all models of a pack.

    What has no parameters stays torch's own, before the rule: padding that a convolution's rule
    does not know, and the division by norms.
    """
    layer = Layer(rule(module, slots), passes)
    if rule is FunctionalRule:
        return layer
    if isinstance(module, nn.Conv2d) and convolution.needs_padding_first(module):
        return nn.Sequential(convolution.Padding(module), layer)
    if isinstance(module, (nn.GroupNorm, nn.LayerNorm)):
        return nn.Sequential(normalization.without_parameters(module), layer)
    return layer


class Loops(Protocol):
    """A whole network in compiled loops, on a CPU."""

    def fits(self, theta: Tensor, x: Tensor) -> bool:
        """Whether they take these examples; else it is the rules' turn."""

    def bytes_of_one(self, x: Tensor) -> int:
        """Bytes that one model leaves behind on its way forth."""

    def clipped_sums(
        self, out: Tensor, theta: Tensor, step: Step, weights: Tensor | None, at_once: int
    ) -> None:
        """Writes `PackedModel.clipped_sums` into `out` [n, p], by so many models at a time."""


def whole_network_loops(
    module: nn.Module, packed: nn.Module, slots: dict[str, Slot]
) -> Loops | None:
    """Returns loops for the user's module, which is `packed` once its layers have rules."""
    from ..cpu.conv_pool import ConvChain
    from ..cpu.mlp_loops import MlpLoops

    return MlpLoops.from_module(module, slots) or ConvChain.from_module(packed)


def convolutions_in_loops(packed: nn.Module) -> int:
    """Returns how many convolutions of a converted module are pooled in loops on a CPU."""
    from ..cpu.conv_pool import ConvPool

    chains = [part.merged for part in packed.modules() if isinstance(part, Chain)]
    return sum(isinstance(part, ConvPool) for chain in chains for part in chain)


def refuse_layers(module: nn.Module) -> None:
    """Raises SpecError for a layer, anywhere, that no per-sample gradient can be had of."""
    for path, layer in module.named_modules():
        where = f"{path or 'the model itself'} is a {type(layer).__name__}"
        if (why := _reason_to_refuse(layer)) is not None:
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
