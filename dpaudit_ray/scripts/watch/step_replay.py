"""One step of an Opacus optimizer, tried again and again on copies, and put back.

What a step releases is what reaches the optimizer that it wraps, or the parameters themselves. So
a step is a function of per-example gradients and of generators, whatever its code does, and its
noise and its sensitivity can be measured without knowing either.
"""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from . import generators, vectors
from .vectors import Release

Change = Callable[[Any], None]  # alters the copies that a step is about to work on


def unchanged(optimizer: Any) -> None:
    """The step as it comes."""


class Replay:
    """The step that `optimizer` is about to take, at the entrance of its `step` or `pre_step`.

    Args:
        optimizer: Opacus', whose gradients are there.
        step: takes the step on it, as the script would.
        accountants: whose history a step may add to.
    """

    def __init__(
        self, optimizer: Any, step: Callable[[], Any], accountants: list[Any], arm: Any
    ) -> None:
        self._optimizer, self._step, self._accountants = optimizer, step, accountants
        self._arm = arm
        self.params: list[torch.nn.Parameter] = list(optimizer.params)
        self.rows = rows(optimizer)

    def release(self, change: Change = unchanged, seed: int | None = None) -> Release:
        """What the step would release after `change`; with generators as they are, or seeded."""
        own = generators.of(self._optimizer)
        with generators.kept(own), self._copies():
            if seed is not None:
                generators.seed(seed, own)
            caught: list[Release] = []
            before = [p.data.clone() for p in self.params]
            bound = clipping_bound(self._optimizer)

            def catch(closure: Callable[[], Any] | None = None, *_: Any, **__: Any) -> None:
                if closure is not None:  # evaluated by the optimizer, before it steps
                    with torch.enable_grad():
                        closure()
                caught.append(vectors.flat(_gradients(self.params)))

            inner = self._optimizer.original_optimizer
            kept = vars(inner).get("step")
            inner.step = catch
            try:
                with self._arm(change):
                    self._step()
            finally:
                del inner.step
                if kept is not None:  # a scheduler's, that counts steps
                    inner.step = kept
            moved = vectors.flat(p.data - old for p, old in zip(self.params, before, strict=True))
            for p, old in zip(self.params, before, strict=True):
                p.data.copy_(old)
            if caught:
                moved = [a + b for a, b in zip(moved, caught[-1], strict=True)]
            elif not any(one.any() for one in moved):
                moved = vectors.flat(_gradients(self.params))
            # Adaptive clipping tells its next bound.
            told = np.log(clipping_bound(self._optimizer) / bound) if bound > 0 else 0.0
            return [*moved, np.array([told])]

    @contextlib.contextmanager
    def _copies(self) -> Iterator[None]:
        """Everything that a step may alter, copied and put back."""
        optimizer = self._optimizer
        state = dict(vars(optimizer))
        inner = optimizer.original_optimizer
        inner_state = inner.state
        kept = [dict(vars(p)) for p in self.params]
        grads = [p.grad for p in self.params]
        histories = [list(one.history) for one in self._accountants]
        for name, value in state.items():
            if name != "original_optimizer":
                vars(optimizer)[name] = _copied(value)
        optimizer.step_hook = None
        for p in self.params:
            for name, value in vars(p).items():
                vars(p)[name] = _copied(value)
            p.grad = None if p.grad is None else p.grad.clone()
        inner.state = copy.copy(inner_state)
        try:
            yield
        finally:
            inner.state = inner_state
            vars(optimizer).clear()
            vars(optimizer).update(state)
            for p, values, grad in zip(self.params, kept, grads, strict=True):
                vars(p).clear()
                vars(p).update(values)
                p.grad = grad
            for one, history in zip(self._accountants, histories, strict=True):
                one.history = history


def _gradients(params: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in params]


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list):
        return [_copied(one) for one in value]
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, (types.MethodType, types.FunctionType, torch.Generator)):
        return value
    return value


def clipping_bound(optimizer: Any) -> float:
    """The clipping bound; of all layers together where each has its own."""
    bound = optimizer.max_grad_norm
    parts = bound if isinstance(bound, (list, tuple)) else [bound]
    return float(np.sqrt(sum(float(one) ** 2 for one in parts)))


def rows(optimizer: Any) -> int | None:
    """How many examples the gradients of this step are of; None where they are not kept."""
    for p in optimizer.params:
        sample = getattr(p, "grad_sample", None)
        if isinstance(sample, list) and sample:
            return int(sum(len(one) for one in sample))
        if isinstance(sample, torch.Tensor):
            return len(sample)
    return None


def without(row: int) -> Change:
    """Leaves one example out, row and all."""

    def change(optimizer: Any) -> None:
        for p in optimizer.params:
            if isinstance(p.grad_sample, list):
                at = row
                for index, one in enumerate(p.grad_sample):
                    if at < len(one):
                        p.grad_sample[index] = torch.cat([one[:at], one[at + 1 :]])
                        break
                    at -= len(one)
            else:
                p.grad_sample = torch.cat([p.grad_sample[:row], p.grad_sample[row + 1 :]])

    return change


def appended(row: list[torch.Tensor]) -> Change:
    """Adds one example with this gradient, a tensor per parameter.

    To gradients that are clipped already, as ghost clipping has them, it is added as it is.
    """

    def change(optimizer: Any) -> None:
        for p, own in zip(optimizer.params, row, strict=True):
            sample = getattr(p, "grad_sample", None)
            if isinstance(sample, list) and sample:
                sample[-1] = _with(sample[-1], own)
            elif isinstance(sample, torch.Tensor):
                p.grad_sample = _with(sample, own)

    return change


def added(row: list[torch.Tensor]) -> Change:
    """Adds a tensor per parameter to the sum of clipped gradients, where ghost clipping has it."""

    def change(optimizer: Any) -> None:
        for p, own in zip(optimizer.params, row, strict=True):
            if p.grad is not None:
                p.grad = p.grad + own.to(p.grad)

    return change


def _with(sample: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """As a new tensor, which bears the same mark of having been used, or none."""
    return torch.cat([sample, own.to(sample).reshape(1, *sample.shape[1:])])
