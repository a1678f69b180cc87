"""Conversion of a user's module for packing: rules for its layers, and loops for some networks.

| network or layer | computed by |
| --- | --- |
| Linear of at most 64 and ReLU in turn, on vectors (fcnn) | `cpu/mlp_loops`, whole |
| Conv2d, MaxPool2d, ReLU; then Flatten, Linear, ReLU (cnn4, convnet) | `cpu/conv_pool`, whole |
| Conv2d with a small MaxPool2d behind it, in a Sequential | `cpu/conv_pool`, as one layer |
| Linear, Conv1d, Conv2d, GroupNorm, LayerNorm, Embedding | a rule: `RULES` |
| MultiheadAttention | `attention`, by rules of its projections |
| other layers and parameters, if most numbers have a rule | as they are, by `vmap`: `passes` |
| a module that has an obstacle, or fails its self-check | `samplewise`, examples alone |

Loops run on a CPU, in the dtype of the parameters. What runs on every sample alone stays the
module's own code; what mixes samples, or draws from a generator that no pack owns, is refused.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from ...errors import SpecError
from ..rules import convolution
from ..rules.base import Rule, Slot, alteration, is_plain
from ..rules.convolution import Conv2dRule
from ..rules.linear import AffineRule, EmbeddingRule, LinearRule
from .attention import Attention
from .passes import Chain, Layer, Passes, UnruledParameter

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


def obstacle_at(path: str, layer: nn.Module, problem: str) -> str:
    """Returns why no rule fits a layer: its path and class, and a verb phrase."""
    return f"{path or 'the model itself'} ({type(layer).__name__}) {problem}"


@functools.cache
def warn_of_slow_way(obstacle: str) -> None:
    """Warns, once in a process for each layer, that its model is computed slowly."""
    _LOG.warning("%s: the model's per-sample gradients go through autograd, slowly", obstacle)


def find_obstacle(module: nn.Module) -> str | None:
    """Returns why a layer keeps the module from being packed; None if none does.

    If two layers share a parameter, the module cannot be packed: the parameter's gradient is a sum
    over both layers, and its norm does not follow from the norms of the layers. Layers without a
    rule are an obstacle if they have most of the module's numbers: rules for the other layers
    would gain little.
    """
    first_names: dict[int, str] = {}  # the name under which each parameter comes first, by its id
    without_rule = []
    unruled_numbers = 0  # trainable numbers in layers without a rule
    trained_numbers = 0  # trainable numbers in all layers
    for path, layer in module.named_modules(remove_duplicate=False):
        problem = alteration(layer)
        if problem is not None:
            return obstacle_at(path, layer, problem)
        parameters = layer.named_parameters(recurse=False)
        trainable = {name: p for name, p in parameters if p.requires_grad}
        for name, parameter in trainable.items():
            full_name = f"{path}.{name}".lstrip(".")
            first_name = first_names.setdefault(id(parameter), full_name)
            if first_name != full_name:
                problem = f"shares a parameter ({full_name} is {first_name})"
                return obstacle_at(path, layer, problem)
        layer_numbers = sum(p.numel() for p in trainable.values())
        trained_numbers += layer_numbers
        if trainable and _rule_of(layer) is None and not Attention.takes(layer):
            without_rule.append(obstacle_at(path, layer, "has no rule of this package"))
            unruled_numbers += layer_numbers
    return without_rule[0] if 2 * unruled_numbers > trained_numbers else None


def converted(
    module: nn.Module, slots: dict[str, Slot], passes: Passes, path: str = "",
) -> nn.Module:  # fmt: skip
    """Returns `module`, changed in place, with a `Layer` in place of each layer that has a rule.

    A `Layer` applies the rule to the parameters of all models. What a rule does not compute stays a
    module of torch, as a step before the `Layer`: padding that a convolution's rule does not
    support, and a normalization's division. Layers without parameters stay as they are.

    Args:
        module: a copy of the user's module, or a layer of that copy, without obstacles.
        slots: where each parameter lies in a model's flat parameters, by its full name.
        passes: the passes in which the layers are applied.
        path: path of `module` within the user's module, with a dot at the end.
    """
    if Attention.takes(module):
        assert isinstance(module, nn.MultiheadAttention)
        # Slots by the parameters' names within the layer.
        attention_slots = {
            name.removeprefix(path): s for name, s in slots.items() if name.startswith(path)
        }
        return Attention(module, attention_slots, passes)
    if isinstance(module, nn.TransformerEncoderLayer):
        module.training = True  # in `eval()`, torch would compute the whole without its layers
    parameters = module.named_parameters(recurse=False)
    layer_slots = {name: slots[f"{path}{name}"] for name, p in parameters if p.requires_grad}
    if layer_slots and _rule_of(module) is not None:
        return _with_rule(module, layer_slots, passes)
    # These parameters have no rule, so `vmap` sets them to a separate copy for each example.
    for name, slot in layer_slots.items():
        delattr(module, name)
        passes.unruled.append(UnruledParameter(module, name, slot))
    for name, child in module.named_children():
        setattr(module, name, converted(child, slots, passes, f"{path}{name}."))
    is_torch_activation = type(module).__module__ == nn.ReLU.__module__
    if is_torch_activation and getattr(module, "inplace", False):
        vars(module)["inplace"] = False  # a rule's output may be a view of all models' outputs
    if is_plain(module, nn.Sequential) and passes.by_loops:
        from ..cpu import conv_pool  # numba takes half a second to import

        assert isinstance(module, nn.Sequential)
        return Chain(module._modules, conv_pool.merge_pooling(list(module), passes))
    return module


def _rule_of(layer: nn.Module) -> type[Rule] | None:
    """Returns the rule that computes a layer; None without a rule, or if a parameter is frozen."""
    if not all(p.requires_grad for p in layer.parameters(recurse=False)):
        return None
    for kind, rule in RULES.items():  # a subclass with its own `forward` has no rule
        if isinstance(layer, kind) and type(layer).forward is kind.forward:
            return rule
    return None


def _with_rule(module: nn.Module, slots: dict[str, Slot], passes: Passes) -> nn.Module:
    """Returns a layer that applies the rule of a module's class, after the steps that stay torch's.

    Args:
        module: the user's layer, which has a rule.
        slots: where its parameters lie in a model's flat parameters, by their names in the layer.
        passes: the passes in which the layer is applied.
    """
    if isinstance(module, nn.Conv1d):  # computed on images of height 1
        image_layer, image_slots = convolution.as_2d(module, slots)
        layer_on_images = _with_rule(image_layer, image_slots, passes)
        return nn.Sequential(nn.Unflatten(1, (-1, 1)), layer_on_images, nn.Flatten(1, 2))
    rule = _rule_of(module)
    assert rule is not None
    layer = Layer(rule(module, slots), passes)
    if isinstance(module, nn.Conv2d):
        padding = convolution.padding(module)
        return layer if padding is None else nn.Sequential(padding, layer)
    if isinstance(module, (nn.GroupNorm, nn.LayerNorm)):
        for name in slots:  # without parameters, torch only divides by norms
            module.register_parameter(name, None)
        return nn.Sequential(module, layer)
    return layer


def find_loops(
    module: nn.Module, packed: nn.Module, slots: dict[str, Slot]
) -> tuple[Loops | None, int]:
    """Finds compiled loops for a whole network, and for convolutions with pooling behind them.

    Args:
        module: the user's module.
        packed: converted copy of the module.
        slots: where each parameter lies in a model's flat parameters, by name.

    Returns:
        Loops for the whole network, or None; and the number of convolutions that have loops.
    """
    from ..cpu.conv_pool import ConvChain, ConvPool
    from ..cpu.mlp_loops import MlpLoops

    convolutions = 0
    for part in packed.modules():
        if isinstance(part, Chain):
            convolutions += sum(isinstance(layer, ConvPool) for layer in part.merged)
    loops = MlpLoops.from_module(module, slots) or ConvChain.from_module(packed)
    return loops, convolutions


def refuse_layers(module: nn.Module) -> None:
    """Raises SpecError for a layer, anywhere, whose per-sample gradients do not exist."""
    for path, layer in module.named_modules():
        reason = _reason_to_refuse(layer)
        if reason is not None:
            name = path or "the model itself"
            problem = f"{name} is a {type(layer).__name__}{reason}"
            raise SpecError("mechanism.model", problem)


def _reason_to_refuse(layer: nn.Module) -> str | None:
    """Returns why a layer has no per-sample gradients; None if it has.

    The reason is the end of a sentence that begins with the layer's class.
    """
    if isinstance(layer, torch.jit.ScriptModule):
        return (
            ", whose layers cannot be watched; give the module that it was scripted or traced from"
        )
    # In `eval()`, a layer with running statistics takes these, and not those of the batch.
    tracks = getattr(layer, "track_running_stats", False)
    uses_batch = layer.training or not tracks
    if uses_batch and (tracks or isinstance(layer, _BatchNorm)):
        reason = (
            " that takes statistics of a batch: DP-SGD cannot bound what one example changes; "
            "use GroupNorm"
        )
        if tracks:
            reason += ", or call eval() on it when the module is made: its own then stay"
        return reason
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
