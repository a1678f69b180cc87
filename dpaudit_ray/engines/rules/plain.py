"""Is this exactly the layer that a rule knows? The one answer for all that replaces layers."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrize

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether `layer` does what `kind` does: it is of this class itself, and nothing is altered."""
    return type(layer) is kind and altered(layer) is None


def flattens(layer: nn.Module) -> bool:
    """Whether it makes vectors of examples of any shape."""
    if not plain(layer, nn.Flatten):
        return False
    assert isinstance(layer, nn.Flatten)
    return (layer.start_dim, layer.end_dim) == (1, -1)


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
