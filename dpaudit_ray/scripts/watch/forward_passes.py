"""Repeats forward passes with another record in one place: outputs of the others must stay."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..protocol import ForwardInspection
from .generators import preserve_attributes, preserve_generators

_FEWEST = 3  # records
_REGISTERED = ("_parameters", "_buffers", "_modules")
_CLOSE = 1e-3  # relative: arithmetic in another order changes outputs by less

Buffers = dict[str, torch.Tensor]
Inputs = tuple[Any, Any]  # arguments and keyword arguments


def repeat_forward(module: Any, inputs: Inputs, dim: int) -> ForwardInspection:
    """Runs a forward pass again without gradients: as it is, and with another record in one place.

    Args:
        module: network that is in training.
        inputs: its arguments, and its keyword arguments.
        dim: dimension of a batch along which records lie.
    """
    sizes = [t.shape[dim] for t in tree_leaves(inputs) if _has_dim(t, dim)]
    batch = sizes[0] if sizes else 0
    if batch < _FEWEST:
        why = f"a forward pass with a batch of {batch}; {_FEWEST} records are needed"
        return ForwardInspection(unseen=why)

    def exchange(leaf: Any) -> Any:  # the second record is in the place of the first, too
        if not _has_dim(leaf, dim) or leaf.shape[dim] != batch:
            return leaf
        leaf = leaf.clone()
        leaf.select(dim, 0).copy_(leaf.select(dim, 1))
        return leaf

    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        first, after = _forward(module, inputs, buffers)
        again, _ = _forward(module, inputs, buffers)
        changed, after_change = _forward(module, tree_map(exchange, inputs), buffers)
    triples = zip(first, again, changed, strict=True)
    outputs = [t for t in triples if _has_dim(t[0], dim) and t[0].shape[dim] == batch]
    if not outputs:
        why = "the network gives nothing with a row for each record of its batch"
        return ForwardInspection(unseen=why)
    if any(not torch.equal(a, b) for a, b, _ in outputs):
        why = "a forward pass repeated with the same generators gave another result"
        return ForwardInspection(unseen=why)
    by = 0.0
    for output, _, other in outputs:
        unchanged = output.narrow(dim, 1, batch - 1)
        change = (unchanged - other.narrow(dim, 1, batch - 1)).abs().max()
        by = max(by, float(change) / (float(unchanged.abs().max()) or 1.0))
    learning = [
        name
        for name, buffer in after.items()
        if buffer.is_floating_point() and not torch.equal(buffer, after_change[name])
    ]
    return ForwardInspection(mixes=by > _CLOSE, by=by, buffers=tuple(learning))


def in_functorch() -> bool:
    """Returns whether a transform of torch.func is active: its tensors have no numbers to read."""
    functorch: Any = torch._C._functorch
    return functorch.peek_interpreter_stack() is not None


def mapped_batch(inputs: Inputs) -> int | None:
    """Returns how many records a call under `vmap` has for each mapped entry; None without it."""
    functorch: Any = torch._C._functorch
    for leaf in tree_leaves(inputs):
        tensor = leaf
        while isinstance(tensor, torch.Tensor) and functorch.is_functorch_wrapped_tensor(tensor):
            if functorch.is_batchedtensor(tensor):
                return leaf.shape[0] if leaf.dim() > 1 else 1
            tensor = functorch.get_unwrapped(tensor)  # `grad` inside `vmap` wraps it once more
    return None


def lies_time_first(inputs: Inputs, records: int) -> bool:
    """Returns whether the second dimension of a batch, and not the first, has its records."""
    for leaf in tree_leaves(inputs):
        if _has_dim(leaf, 1):
            return bool(leaf.shape[0] != records and leaf.shape[1] == records)
    return False


def _has_dim(value: Any, dim: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > dim


def _forward(
    module: Any,
    inputs: Inputs,
    buffers: Buffers,
) -> tuple[list[torch.Tensor], Buffers]:
    """Returns the network's outputs, and its buffers afterwards, which are put back."""
    args, kwargs = inputs
    with preserve_generators(), _attributes_preserved(module):
        outputs = module.forward(*args, **kwargs)
    after = {name: buffer.clone() for name, buffer in module.named_buffers()}
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)], after


@contextlib.contextmanager
def _attributes_preserved(module: Any) -> Iterator[None]:
    """Puts layers' attributes back, and tensors in them."""
    layers = list(module.modules())
    attributes = []
    for layer in layers:
        attributes += [value for key, value in vars(layer).items() if key not in _REGISTERED]
    leaves = [leaf for leaf in tree_leaves(attributes) if isinstance(leaf, torch.Tensor)]
    before = [(tensor, tensor.detach().clone()) for tensor in leaves]
    with preserve_attributes(layers):
        try:
            yield
        finally:
            for tensor, old in before:
                if not torch.equal(tensor, old):
                    tensor.detach().copy_(old)
