"""Whether a network keeps records apart: what it gives for one must not depend on the others."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

from . import generators
from .run import Run

_LOOKS = 2  # forward passes that are looked at
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
                entry = _looked(self, args, kwargs, 0 if run.batch_first else 1)
            finally:
                run.replaying = False
            if entry is not None:
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


def _looked(module: Any, args: Any, kwargs: Any, dim: int) -> dict[str, Any] | None:
    """Runs it twice more, without gradients: as it is, and with another record in one place."""
    tensors = [one for one in tree_flatten((args, kwargs))[0] if _batched(one, dim)]
    batch = tensors[0].shape[dim] if tensors else 0
    if batch < 3:
        return None
    buffers = {name: one.clone() for name, one in module.named_buffers()}
    other = tree_map(lambda one: _exchanged(one, dim, batch), (args, kwargs))
    with torch.no_grad():
        first, after = _again(module, (args, kwargs), buffers)
        again, _ = _again(module, (args, kwargs), buffers)
        changed, moved = _again(module, other, buffers)
    outputs = [
        (a, b, c)
        for a, b, c in zip(first, again, changed, strict=True)
        if _batched(a, dim) and a.shape[dim] == batch
    ]
    if not outputs or any(not torch.equal(a, b) for a, b, _ in outputs):
        return None
    others = (dim, 1, batch - 1)
    apart = max(_far(a.narrow(*others), c.narrow(*others)) for a, _, c in outputs)
    learnt = [
        name for name, one in after.items()
        if one.is_floating_point() and not torch.equal(one, moved[name])
    ]  # fmt: skip
    return {"mixes": apart > _CLOSE, "by": apart, "buffers": learnt, "batch": batch}


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
