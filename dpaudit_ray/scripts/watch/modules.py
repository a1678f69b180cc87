"""Whether a network keeps records apart: what it gives for one must not depend on the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from . import generators
from .run_state import Run

_LOOKS = 2  # forward passes that are looked at
_REGISTERED = ("_parameters", "_buffers", "_modules")
_CLOSE = 1e-3  # relative: arithmetic in another order, at most


def install(run: Run) -> None:
    """Looks at forward passes of networks once they are private."""
    original = torch.nn.Module.__call__
    looked: dict[int, int] = {}

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _due(run, self, looked):
            looked[id(self)] = looked.get(id(self), 0) + 1
            run.replaying = True
            try:
                entry = looked_at(self, args, kwargs, 0 if run.batch_first else 1)
            finally:
                run.replaying = False
            run.recorder.put("forward", **entry)
        return original(self, *args, **kwargs)

    torch.nn.Module.__call__ = called  # type: ignore[method-assign]


def _due(run: Run, module: Any, looked: dict[int, int]) -> bool:
    return (
        run.asked.looks
        and not run.replaying
        and run.phase == "main"
        and bool(run.modules)
        and looked.get(id(module), 0) < _LOOKS
        and any(module is one for one in run.modules)
        and module.training
        and torch.is_grad_enabled()
    )


def looked_at(module: Any, args: Any, kwargs: Any, dim: int) -> dict[str, Any]:
    """Runs it again, without gradients: as it is, and with another record in one place.

    `unseen` is why that shows nothing; `carried` names attributes that a pass leaves to the next,
    where the next gives something else by them. All attributes are put back.
    """
    tensors = [one for one in tree_flatten((args, kwargs))[0] if _batched(one, dim)]
    batch = tensors[0].shape[dim] if tensors else 0
    if batch < 3:
        return {"unseen": f"a forward pass with a batch of {batch}; 3 records are needed"}
    buffers = {name: one.clone() for name, one in module.named_buffers()}
    other = tree_map(lambda one: _exchanged(one, dim, batch), (args, kwargs))
    with torch.no_grad():
        with _attributes(module):
            first, after = _again(module, (args, kwargs), buffers)
        with _attributes(module):
            again, _ = _again(module, (args, kwargs), buffers)
        with _attributes(module):
            changed, moved = _again(module, other, buffers)
        with _attributes(module) as kept:
            _again(module, (args, kwargs), buffers)
            carried = kept()
            following = _again(module, (args, kwargs), buffers)[0] if carried else first
    outputs = [
        (a, b, c)
        for a, b, c in zip(first, again, changed, strict=True)
        if _batched(a, dim) and a.shape[dim] == batch
    ]
    if not outputs:
        return {"unseen": "the network gives nothing with a row for each record of its batch"}
    if any(not torch.equal(a, b) for a, b, _ in outputs):
        return {"unseen": "a forward pass repeated with the same generators gave another result"}
    if all(torch.equal(a, b) for a, b in zip(first, following, strict=True)):
        carried = []
    others = (dim, 1, batch - 1)
    apart = max(_far(a.narrow(*others), c.narrow(*others)) for a, _, c in outputs)
    learnt = [
        name for name, one in after.items()
        if one.is_floating_point() and not torch.equal(one, moved[name])
    ]  # fmt: skip
    return {
        "mixes": apart > _CLOSE,
        "by": apart,
        "buffers": learnt,
        "batch": batch,
        "carried": carried,
    }


@contextlib.contextmanager
def _attributes(module: Any) -> Iterator[Callable[[], list[str]]]:
    """Puts plain attributes of all layers back at the end; gives what names those changed so far.

    Tensors in them too, where a pass writes into them. Parameters and buffers are not among them.
    """
    kept = [(name, one, dict(vars(one))) for name, one in module.named_modules()]
    tensors = [
        (tensor, tensor.detach().clone())
        for _, _, values in kept
        for key, value in values.items()
        if key not in _REGISTERED
        for tensor in tree_flatten(value)[0]
        if isinstance(tensor, torch.Tensor)
    ]

    def changed() -> list[str]:
        written = {id(one) for one, old in tensors if not torch.equal(one, old)}
        return [
            ".".join(filter(None, (name.removeprefix("_module").lstrip("."), key)))
            for name, one, values in kept
            for key, value in vars(one).items()
            if key not in _REGISTERED
            and (
                value is not values.get(key)
                or any(id(part) in written for part in tree_flatten(value)[0])
            )
        ]

    try:
        yield changed
    finally:
        for _, one, values in kept:
            vars(one).clear()
            vars(one).update(values)
        for tensor, old in tensors:
            if not torch.equal(tensor, old):
                tensor.detach().copy_(old)


def _again(
    module: Any, given: Any, buffers: dict[str, torch.Tensor]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Its outputs and its buffers afterwards, which are put back."""
    args, kwargs = given
    with generators.kept():
        found = module.forward(*args, **kwargs)
    after = {name: one.clone() for name, one in module.named_buffers()}
    for name, one in module.named_buffers():
        one.copy_(buffers[name])
    return [one for one in tree_flatten(found)[0] if isinstance(one, torch.Tensor)], after


def _batched(value: Any, dim: int) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > dim


def _exchanged(value: Any, dim: int, batch: int) -> Any:
    """With the second record in the place of the first, too."""
    if not _batched(value, dim) or value.shape[dim] != batch:
        return value
    value = value.clone()
    value.select(dim, 0).copy_(value.select(dim, 1))
    return value


def _far(first: torch.Tensor, second: torch.Tensor) -> float:
    size = float(first.abs().max()) or 1.0
    return float((first - second).abs().max()) / size
