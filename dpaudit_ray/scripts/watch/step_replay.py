"""One step of an Opacus optimizer, tried again and again on copies, and put back.

What a step releases is what reaches the optimizer that it wraps, or the parameters themselves. So
a step is a function of per-example gradients and of generators, whatever its code does, and its
noise and its sensitivity can be measured without knowing either.

Ghost clipping never has a record's gradient, only what it takes for its norm. What one record adds
to the clipped sum is there the difference of two backward passes: with its loss, and without.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from . import step_probe
from .run_state import WatchedRun
from .step_probe import Release

_GHOST_ROWS = 4  # records whose loss is made larger
_GHOST_FACTORS = (1.0, 30.0, 1e3)  # times a record's loss, so that its gradient must be clipped

# What Opacus keeps for one step, or hands through: no state of the user's.
_OPACUS = {
    "grad_sample", "summed_grad", "_norm_sample", "original_optimizer", "param_groups", "state",
    "defaults",
}  # fmt: skip

Change = Callable[[Any], None]  # alters the copies that a step is about to work on


def unchanged(optimizer: Any) -> None:
    """The change that is none."""


def without_row(row: int) -> Change:
    """Leaves one example out, row and all."""

    def change(optimizer: Any) -> None:
        for p in optimizer.params:
            if isinstance(p.grad_sample, list):
                at = row
                for index, part in enumerate(p.grad_sample):
                    if at < len(part):
                        p.grad_sample[index] = torch.cat([part[:at], part[at + 1 :]])
                        break
                    at -= len(part)
            else:
                p.grad_sample = torch.cat([p.grad_sample[:row], p.grad_sample[row + 1 :]])

    return change


def append_row(row: list[torch.Tensor]) -> Change:
    """Adds one example with this gradient, a tensor per parameter."""

    def longer(sample: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        # A new tensor, as Opacus marks a tensor of gradients that it has used.
        return torch.cat([sample, tensor.to(sample).reshape(1, *sample.shape[1:])])

    def change(optimizer: Any) -> None:
        for p, tensor in zip(optimizer.params, row, strict=True):
            sample = getattr(p, "grad_sample", None)
            if isinstance(sample, list) and sample:
                sample[-1] = longer(sample[-1], tensor)
            elif isinstance(sample, torch.Tensor):
                p.grad_sample = longer(sample, tensor)

    return change


def add_to_sum(row: list[torch.Tensor]) -> Change:
    """Adds a tensor per parameter to the sum of clipped gradients, where ghost clipping has it."""

    def change(optimizer: Any) -> None:
        for p, tensor in zip(optimizer.params, row, strict=True):
            if p.grad is not None:
                p.grad = p.grad + tensor.to(p.grad)

    return change


class StepReplay:
    """The step that an optimizer of Opacus is about to take, at the entrance of its `step`.

    `step` takes it as the script would, and may add to the history of `accountants`; in the context
    `arm` it makes a change before it clips.
    """

    def __init__(
        self,
        optimizer: Any,
        step: Callable[[], Any],
        accountants: list[Any],
        arm: Callable[[Change], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._optimizer, self._step, self._accountants = optimizer, step, accountants
        self._arm = arm
        self.params: list[torch.nn.Parameter] = list(optimizer.params)

    @property
    def rows(self) -> int:
        """How many examples the gradients of this step are of; 0 where they are not kept."""
        for p in self.params:
            sample = getattr(p, "grad_sample", None)
            if isinstance(sample, list) and sample:
                return sum(len(part) for part in sample)
            if isinstance(sample, torch.Tensor):
                return len(sample)
        return 0

    def release(
        self, change: Change, seed: int | None, state: dict[str, bytes] | None = None
    ) -> Release:
        """What the step would release after a change; generators as they are (None), or seeded.

        The last part is one number: the logarithm of what the step multiplies its clipping bound
        by, which adaptive clipping publishes. `state` gets digests of what is kept for later.
        """
        optimizer = self._optimizer
        generators = [
            held for held in vars(optimizer).values() if isinstance(held, torch.Generator)
        ]
        with step_probe.preserve_generators(generators), self._copies():
            if seed is not None:
                step_probe.seed_generators(seed, generators)
            caught: list[Release] = []
            before = [p.data.clone() for p in self.params]
            bound = clipping_bound(optimizer)

            def catch(closure: Callable[[], Any] | None = None, *_: Any, **__: Any) -> None:
                if closure is not None:  # evaluated by the optimizer, before it steps
                    with torch.enable_grad():
                        closure()
                caught.append(step_probe.gradients(self.params))

            inner = optimizer.original_optimizer
            kept = vars(inner).get("step")
            inner.step = catch
            try:
                with self._arm(change):
                    self._step()
            finally:
                del inner.step
                if kept is not None:  # a scheduler's, that counts steps
                    inner.step = kept
            moved = step_probe.flat_vectors(
                p.data - old for p, old in zip(self.params, before, strict=True)
            )
            for p, old in zip(self.params, before, strict=True):
                p.data.copy_(old)
            if caught:
                moved = [a + b for a, b in zip(moved, caught[-1], strict=True)]
            elif not any(part.any() for part in moved):
                moved = step_probe.gradients(self.params)
            if state is not None:
                state |= self._digests()
            published = np.log(clipping_bound(optimizer) / bound) if bound > 0 else 0.0
            return [*moved, np.array([published])]

    def carried(self, change: Change) -> list[str]:
        """What an optimizer of the user's own keeps for later that is moved by the change only.

        That is arrays among the attributes of the optimizer and of parameters that other noise
        does not move, so that no noise hides the change in them.
        """
        if type(self._optimizer).__module__.startswith("opacus."):
            return []
        states: list[dict[str, bytes]] = [{}, {}, {}]
        tries = (unchanged, 1), (unchanged, 2), (change, 1)
        for (tried, seed), state in zip(tries, states, strict=True):
            self.release(tried, seed, state)
        first, other_noise, changed = states
        same = (name for name in first if first[name] == other_noise.get(name))
        return sorted(name for name in same if first[name] != changed.get(name))

    def _digests(self) -> dict[str, bytes]:
        """Digests of arrays that the optimizer and parameters have, by attribute."""
        held = [
            (name, value) for name, value in vars(self._optimizer).items() if name not in _OPACUS
        ]
        for index, p in enumerate(self.params):
            held += [
                (f"{name} of {index}", v) for name, v in vars(p).items() if name not in _OPACUS
            ]
        return {
            f"{name} ({number})" if number else name: step_probe.digest(tensor)
            for name, value in held
            for number, tensor in enumerate(tree_flatten(value)[0])
            if step_probe.has_numbers(tensor)
        }

    @contextlib.contextmanager
    def _copies(self) -> Iterator[None]:
        """Everything that a step may alter is copied, and put back at the end."""
        optimizer = self._optimizer
        inner = optimizer.original_optimizer
        inner_state = inner.state
        histories = [list(accountant.history) for accountant in self._accountants]
        with _parameters_copied(self.params), step_probe.preserve_attributes([optimizer]):
            for name, value in list(vars(optimizer).items()):
                if name != "original_optimizer":
                    vars(optimizer)[name] = _copy_tensors(value)
            optimizer.step_hook = None
            inner.state = copy.copy(inner_state)
            try:
                yield
            finally:
                inner.state = inner_state
                for accountant, history in zip(self._accountants, histories, strict=True):
                    accountant.history = history


@contextlib.contextmanager
def _parameters_copied(params: Iterable[torch.Tensor]) -> Iterator[None]:
    """Gradients and what hangs on parameters are copies inside, and put back at the end."""
    kept = [(p, p.grad) for p in params]
    with step_probe.preserve_attributes(p for p, _ in kept):
        for p, grad in kept:
            vars(p).update({name: _copy_tensors(value) for name, value in vars(p).items()})
            p.grad = None if grad is None else grad.clone()
        try:
            yield
        finally:
            for p, grad in kept:
                p.grad = grad


def _copy_tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list):
        return [_copy_tensors(part) for part in value]
    if isinstance(value, dict):
        return {key: _copy_tensors(part) for key, part in value.items()}
    return value


def clipping_bound(optimizer: Any) -> float:
    """The clipping bound; of all layers together where each has its own."""
    bound = optimizer.max_grad_norm
    parts = bound if isinstance(bound, (list, tuple)) else [bound]
    return float(np.sqrt(sum(float(part) ** 2 for part in parts)))


def install_ghost(run: WatchedRun, due: Callable[[Any], int | None]) -> None:
    """Looks at backward passes; `due` gives the step of an optimizer whose turn it is."""
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping as Loss

    original = Loss.backward
    looked_at: set[tuple[int, int]] = set()

    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        step = due(self.optimizer)
        if step is not None and (id(self.optimizer), step) not in looked_at:
            looked_at.add((id(self.optimizer), step))
            with run.replay():
                length, what = _longest_ghost(self, original)
            bound = float(self.optimizer.max_grad_norm)
            run.recorder.put("ghost", step=step, longest=length, what=what, bound=bound)
        return original(self, *args, **kwargs)

    Loss.backward = backward


def _longest_ghost(loss: Any, backward: Callable[..., Any]) -> tuple[float, str]:
    """The length of the longest clipped gradient of a single record, and which that is."""
    longest, what = 0.0, ""
    for row in step_probe.spread_indices(len(loss.loss_per_sample), _GHOST_ROWS):
        without = _ghost_sum(loss, backward, row, 0.0)
        for factor in _GHOST_FACTORS:
            moved = step_probe.difference(_ghost_sum(loss, backward, row, factor), without)
            length = float(np.sqrt(sum(step_probe.squared_lengths(moved))))
            if length >= longest:
                longest = length
                what = f"record {row} of the batch with {factor:.0f} times its loss"
    return longest, what


def _ghost_sum(loss: Any, backward: Callable[..., Any], row: int, factor: float) -> Release:
    """The clipped sum with one record's loss that many times as large."""
    weights = torch.ones_like(loss.loss_per_sample)
    weights[row] = factor
    params = list(loss.optimizer.params)
    with step_probe.preserve_generators(), _backward_undone(loss.module, params):
        tried = type(loss)(
            loss.module, loss.optimizer, loss.loss_per_sample * weights, loss.loss_reduction
        )
        backward(tried)
        return step_probe.gradients(params)


@contextlib.contextmanager
def _backward_undone(hooks: Any, params: list[Any]) -> Iterator[None]:
    """Puts back what a backward pass takes off modules and parameters, and keeps the graph."""
    network = getattr(hooks, "_module", hooks)
    modules = list(network.modules())
    norms = vars(hooks).get("_per_sample_gradient_norms")
    tensor: Any = torch.Tensor
    original = tensor.backward

    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["retain_graph"] = True  # the script's own backward pass comes after
        return original(self, *args, **kwargs)

    with _parameters_copied(params), step_probe.preserve_attributes(modules):
        for module in modules:
            if "activations" in vars(module):
                module.activations = list(module.activations)
        tensor.backward = backward
        try:
            yield
        finally:
            tensor.backward = original
            hooks._per_sample_gradient_norms = norms
