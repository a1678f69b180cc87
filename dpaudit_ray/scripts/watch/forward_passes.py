"""Repeats forward passes with another record in one place: outputs of others must not change."""

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch.utils._pytree import tree_map

from ..protocol import ForwardInspection
from .generators import preserve_attributes, preserve_generators
from .tensors import tree_leaves

_FEWEST_RECORDS = 3  # records of a batch in which one is exchanged
_REGISTERED = ("_parameters", "_buffers", "_modules")  # attributes in which PyTorch has tensors
_CLOSE = 1e-3  # relative: arithmetic in another order changes outputs by less

Inputs = tuple[Any, Any]  # arguments and keyword arguments


def repeat_forward(module: Any, inputs: Inputs, dim: int) -> ForwardInspection:
    """Repeats a forward pass without gradients: unchanged, and with another record in one place.

    Args:
        module: network that is in training.
        inputs: arguments and keyword arguments of the pass.
        dim: dimension of a batch along which records lie.
    """
    sizes = [t.shape[dim] for t in tree_leaves(inputs) if _has_dim(t, dim)]
    batch = sizes[0] if sizes else 0
    if batch < _FEWEST_RECORDS:
        return ForwardInspection(
            inconclusive=f"a pass with a batch of {batch}; {_FEWEST_RECORDS} records are needed"
        )

    def has_batch(leaf: Any) -> bool:
        """Returns whether a value is a tensor with a row for each record."""
        return _has_dim(leaf, dim) and leaf.shape[dim] == batch

    def with_rows(rows: torch.Tensor) -> Inputs:
        """Returns the inputs with other rows of the batch, by their indices."""

        def select(leaf: Any) -> Any:
            """Returns the rows of a tensor that has the whole batch, and other values unchanged."""
            return leaf.index_select(dim, rows.to(leaf.device)) if has_batch(leaf) else leaf

        return cast(Inputs, tree_map(select, inputs))

    rows = torch.arange(batch)
    second_as_first = with_rows(torch.cat([rows[1:2], rows[1:]]))
    second_only = with_rows(torch.full_like(rows, 1))
    with torch.no_grad():
        first, learned = _forward(module, inputs)
        again, _ = _forward(module, inputs)
        changed, _ = _forward(module, second_as_first)
        _, others_learned = _forward(module, second_only)
    triples = zip(first, again, changed, strict=True)
    outputs = [triple for triple in triples if has_batch(triple[0])]
    if not outputs:
        return ForwardInspection(
            inconclusive="the network returns no tensor with a row for each record of its batch"
        )
    if any(not torch.equal(a, b) for a, b, _ in outputs):
        return ForwardInspection(
            inconclusive="a forward pass repeated with the same generators gave a different result"
        )
    relative_change = 0.0  # change of outputs of records that were not exchanged
    for output, _, other in outputs:
        unchanged = output.narrow(dim, 1, batch - 1)
        change = (unchanged - other.narrow(dim, 1, batch - 1)).abs().max()
        largest = float(unchanged.abs().max()) or 1.0
        relative_change = max(relative_change, float(change) / largest)
    learning = []  # names of tensors in which different batches leave different values
    for name in sorted({*learned, *others_learned}):
        a = learned.get(name)
        b = others_learned.get(name)
        if a is None or b is None or not torch.equal(a, b):
            learning.append(name)
    return ForwardInspection(
        mixes=relative_change > _CLOSE,
        relative_change=relative_change,
        buffers=tuple(learning),
    )


def in_functorch() -> bool:
    """Returns whether a transform of torch.func is active, in which tensors have no numbers."""
    functorch: Any = torch._C._functorch
    return functorch.peek_interpreter_stack() is not None


def mapped_batch(inputs: Inputs) -> int | None:
    """Returns the number of records in each entry that `vmap` maps over; None without `vmap`."""
    functorch: Any = torch._C._functorch
    for leaf in tree_leaves(inputs):
        tensor = leaf
        while isinstance(tensor, torch.Tensor) and functorch.is_functorch_wrapped_tensor(tensor):
            if functorch.is_batchedtensor(tensor):  # `leaf` has no dimension of mapped entries
                return leaf.shape[0] if leaf.dim() > 1 else 1
            tensor = functorch.get_unwrapped(tensor)  # `grad` inside `vmap` wraps a tensor again
    return None


def lies_time_first(inputs: Inputs, records: int) -> bool:
    """Returns whether the first input with two dimensions has its records along the second.

    Args:
        inputs: arguments and keyword arguments of a network.
        records: number of records that were drawn for the batch.
    """
    for leaf in tree_leaves(inputs):
        if _has_dim(leaf, 1):
            return bool(leaf.shape[0] != records and leaf.shape[1] == records)
    return False


def _has_dim(value: Any, dim: int) -> bool:
    """Returns whether a value is a tensor that has a dimension with this index."""
    return isinstance(value, torch.Tensor) and value.dim() > dim


def _forward(module: Any, inputs: Inputs) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Runs a forward pass, and undoes its changes to the network.

    For example, a pass may shorten rows of an embedding, or update a running mean.

    Returns:
        The outputs, and the new values of parameters and buffers that the pass changed, by name.
    """
    args, kwargs = inputs
    before = {name: tensor.clone() for name, tensor in _registered(module)}
    with preserve_generators(), _attributes_preserved(module):
        outputs = module.forward(*args, **kwargs)
    changed = {}
    for name, tensor in _registered(module):
        old = before[name]
        if not torch.equal(tensor, old):
            changed[name] = tensor.clone()
            tensor.data.copy_(old)
    return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)], changed


def _registered(module: Any) -> list[tuple[str, torch.Tensor]]:
    """Returns the parameters and buffers of a network, with their names."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return [(name, tensor.detach()) for name, tensor in tensors]


@contextlib.contextmanager
def _attributes_preserved(module: Any) -> Iterator[None]:
    """Puts back attributes of all layers, and tensors in these attributes, at the end."""
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
