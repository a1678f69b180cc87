"""Measures the gradient that one record adds to the clipped sum of ghost clipping.

Ghost clipping computes no record's gradient. So it is measured as the difference of two backward
passes: with the record's loss, and without.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from ..protocol import GhostInspection
from .generators import preserve_attributes, preserve_generators
from .hooks import around, before, import_if_there
from .run_state import WatchedRun
from .step_probe import INSPECTED
from .tensors import Release, difference, gradients, spread_indices, squared_lengths

_CHANGED_RECORDS = 4  # records whose loss is made larger
_FACTORS = (1.0, 30.0, 1e3)  # times a record's loss, so that its gradient must be clipped


def install(run: WatchedRun) -> None:
    """Inspects backward passes of ghost clipping from now on, if this version of Opacus has it."""
    inspected = set()  # keys of steps whose backward pass was inspected

    def backward(
        original: Any,
        loss: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Inspects the backward pass of a loss if its step is to be inspected, then calls it."""
        for watched in run.optimizers if run.inspects else ():
            # The first backward pass stands for all of its step.
            is_due = watched.steps in INSPECTED and watched.at not in inspected
            if watched.optimizer is loss.optimizer and is_due:
                inspected.add(watched.at)
                with run.replay():
                    longest, change = _longest_gradient(loss, original)
                entry = GhostInspection(
                    step=watched.steps,
                    longest=longest,
                    change=change,
                    bound=float(loss.optimizer.max_grad_norm),
                )
                run.put(entry)
        return original(loss, *args, **kwargs)

    if ghost := import_if_there("opacus.grad_sample.grad_sample_module_fast_gradient_clipping"):

        @before(ghost.GradSampleModuleFastGradientClipping, "get_norm_sample")
        def note_norms(*_: Any) -> None:
            """Notes that lengths of gradients were computed, as clipping needs them."""
            run.networks.has_norms = True

    if ghost := import_if_there("opacus.utils.fast_gradient_clipping_utils"):
        around(ghost.DPTensorFastGradientClipping, "backward")(backward)
    if adaptive := import_if_there("opacus.utils.adaptive_clipping"):
        around(adaptive.DPTensorFastGradientAdaptiveClipping, "backward")(backward)


def _longest_gradient(loss: Any, backward: Callable[..., Any]) -> tuple[float, str]:
    """Returns the length of the longest clipped gradient of one record, and the record in words.

    Args:
        loss: loss of Opacus, with the loss of each record.
        backward: the loss's backward pass, without the watch.
    """
    longest = 0.0
    change = ""
    for position in spread_indices(len(loss.loss_per_sample), _CHANGED_RECORDS):
        without = _clipped_sum(loss, backward, position, 0.0)
        for factor in _FACTORS:
            shift = difference(_clipped_sum(loss, backward, position, factor), without)
            length = float(np.sqrt(sum(squared_lengths(shift))))
            if length >= longest:
                longest = length
                change = f"record {position} of the batch with {factor:.0f} times its loss"
    return longest, change


def _clipped_sum(
    loss: Any,
    backward: Callable[..., Any],
    position: int,
    factor: float,
) -> Release:
    """Returns the sum of clipped gradients if one record's loss were `factor` times as large.

    Args:
        loss: loss of Opacus, with the loss of each record.
        backward: the loss's backward pass, without the watch.
        position: the record's position in the batch.
        factor: factor of the record's loss; 0 leaves the record out.
    """
    weights = torch.ones_like(loss.loss_per_sample)
    weights[position] = factor
    params = list(loss.optimizer.params)
    with preserve_generators(), _trial_backward(loss.module, params):
        weighted = loss.loss_per_sample * weights
        # Opacus' backward pass weights each record's loss by its clipping factor, so the gradients
        # that it leaves are the clipped sum already.
        backward(type(loss)(loss.module, loss.optimizer, weighted, loss.loss_reduction))
        return gradients(params)


@contextlib.contextmanager
def _trial_backward(wrapper: Any, params: list[Any]) -> Iterator[None]:
    """Undoes, at the end, what the audit's own backward passes inside have changed.

    These passes retain the graph, since the script's backward pass needs it later.

    Args:
        wrapper: Opacus' wrapper of the network, which adds the hooks of ghost clipping.
        params: the parameters that the optimizer steps.
    """
    modules = list(getattr(wrapper, "_module", wrapper).modules())
    norms = vars(wrapper).get("_per_sample_gradient_norms")
    tensor_class: Any = torch.Tensor
    original_backward = tensor_class.backward

    def backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs the backward pass, and retains its graph."""
        kwargs["retain_graph"] = True
        return original_backward(self, *args, **kwargs)

    with parameters_copied(params), preserve_attributes(modules):
        for module in modules:
            if "activations" in vars(module):  # Opacus' hooks remove entries from the list
                module.activations = list(module.activations)
        tensor_class.backward = backward
        try:
            yield
        finally:
            tensor_class.backward = original_backward
            wrapper._per_sample_gradient_norms = norms


@contextlib.contextmanager
def parameters_copied(params: Iterable[torch.Tensor]) -> Iterator[None]:
    """Puts copies in place of gradients and attributes of parameters, until the end."""
    before = [(p, p.grad) for p in params]
    with preserve_attributes(p for p, _ in before):
        for p, grad in before:
            vars(p).update({name: copy_tensors(value) for name, value in vars(p).items()})
            p.grad = None if grad is None else grad.clone()
        try:
            yield
        finally:
            for p, grad in before:
                p.grad = grad


def copy_tensors(value: Any) -> Any:
    """Returns a structure with copies of its tensors."""
    return tree_map(lambda part: part.clone() if isinstance(part, torch.Tensor) else part, value)
