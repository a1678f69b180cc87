"""Ghost clipping: the backward pass that clips, tried with one record's loss a thousand times more.

Opacus' fast clipping never has a record's gradient, only what it takes for its norm. What one
record adds to the clipped sum is the difference of two backward passes: with its loss, and without.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from . import generators, vectors
from .run_state import Run

_ROWS = 4
_FACTORS = (1.0, 30.0, 1e3)  # times a record's loss, so that its gradient must be clipped


def install(run: Run, due: Callable[[Any], int | None]) -> None:
    """Looks at backward passes; `due` gives the step of an optimizer whose turn it is."""
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping as Loss

    original = Loss.backward
    looked: set[tuple[int, int]] = set()

    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        step = due(self.optimizer)
        if step is not None and (id(self.optimizer), step) not in looked:
            looked.add((id(self.optimizer), step))
            run.replaying = True
            try:
                entry = _looked(self, original)
            finally:
                run.replaying = False
            run.recorder.put("ghost", step=step, **entry)
        return original(self, *args, **kwargs)

    Loss.backward = backward


def _looked(loss: Any, backward: Callable[..., Any]) -> dict[str, Any]:
    count = len(loss.loss_per_sample)
    longest, what = 0.0, ""
    for row in dict.fromkeys(int(i * count / _ROWS) for i in range(min(_ROWS, count))):
        without = _sum(loss, backward, row, 0.0)
        for factor in _FACTORS:
            length = vectors.length(vectors.minus(_sum(loss, backward, row, factor), without))
            if length >= longest:
                longest, what = (
                    length,
                    f"record {row} of the batch with {factor:.0f} times its loss",
                )
    bound = loss.optimizer.max_grad_norm
    return {"longest": longest, "what": what, "bound": float(bound), "rows": count}


def _sum(loss: Any, backward: Callable[..., Any], row: int, factor: float) -> vectors.Release:
    """The clipped sum with one record's loss that many times as large."""
    weights = torch.ones_like(loss.loss_per_sample)
    weights[row] = factor
    params = list(loss.optimizer.params)
    with generators.kept(), _kept(loss.module, params), _graph_retained():
        tried = type(loss)(
            loss.module, loss.optimizer, loss.loss_per_sample * weights, loss.loss_reduction
        )
        backward(tried)
        return vectors.flat(torch.zeros_like(p) if p.grad is None else p.grad for p in params)


@contextlib.contextmanager
def _kept(hooks: Any, params: list[Any]) -> Iterator[None]:
    """What a backward pass takes off modules and parameters is put back."""
    network = getattr(hooks, "_module", hooks)
    modules = [(m, dict(vars(m))) for m in network.modules()]
    for m, state in modules:
        if "activations" in state:
            m.activations = list(state["activations"])
    kept = [dict(vars(p)) for p in params]
    grads = [p.grad for p in params]
    norms = vars(hooks).get("_per_sample_gradient_norms")
    for p in params:
        p.grad = None if p.grad is None else p.grad.clone()
    try:
        yield
    finally:
        for m, state in modules:
            vars(m).clear()
            vars(m).update(state)
        for p, values, gradient in zip(params, kept, grads, strict=True):
            vars(p).clear()
            vars(p).update(values)
            p.grad = gradient
        hooks._per_sample_gradient_norms = norms


@contextlib.contextmanager
def _graph_retained() -> Iterator[None]:
    """The script's own backward pass comes after."""
    tensor: Any = torch.Tensor
    original = tensor.backward

    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["retain_graph"] = True
        return original(self, *args, **kwargs)

    tensor.backward = backward
    try:
        yield
    finally:
        tensor.backward = original
