"""The loss of a training by its name in a sweep file: of classes, of numbers, or the user's own.

A loss of the user's is tried before anything is trained. It must give each example a number that no
other example changes: what clipping bounds is the gradient of one example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import imports
from ...engines.rules.losses import Loss, losses, squared_errors
from ...errors import SpecError, first_line

_KEY = "mechanism.loss"
_ALONE = 8  # examples whose loss is computed alone too


@dataclasses.dataclass(frozen=True)
class UsersLoss:
    """A function of the user's as a `Loss`. Numbers to learn come in the dtype of the outputs."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.function(outputs, y.to(outputs.dtype) if y.is_floating_point() else y)


def loss_of(name: str) -> Loss:
    """The loss that an option names. Raises SpecError for no function of (outputs, targets)."""
    if ":" in name:
        return UsersLoss(imports.function(name, _KEY, "outputs", "targets"))
    return squared_errors if name == "mse" else losses


def check_loss(name: str, outputs: Tensor, y: Tensor) -> None:
    """Tries a loss on outputs [N, c] and labels [N].

    Raises:
        SpecError: it does not give every example a finite number of its own.
    """
    shape, loss = list(outputs.shape), loss_of(name)
    if name == "mse" and shape[1] != 1:
        raise SpecError(_KEY, f"is mse, which takes one output, but the model has {shape[1]}")
    leaf, alone = outputs.detach().requires_grad_(), torch.empty(0)
    values: Any = None
    try:
        with torch.enable_grad():
            values = loss(leaf, y)
        if isinstance(values, Tensor) and list(values.shape) == shape[:1]:
            pairs = zip(*(torch.split(rows[:_ALONE], 1) for rows in (leaf, y)), strict=True)
            alone = torch.cat([loss(*pair) for pair in pairs]).detach()
    except Exception as error:  # a user's code may raise anything
        raise SpecError(
            _KEY, f"{name} fails on outputs {shape} and targets {shape[:1]}: {first_line(error)}"
        ) from error
    problem = ""
    if not isinstance(values, Tensor) or list(values.shape) != shape[:1]:
        given = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        problem = (
            f"gives {given}; it must give one loss for each example, {shape[:1]}: take no mean or "
            "sum over examples, and outputs[:, 0] of a single output"
        )
    elif not values.requires_grad:
        problem = "has no gradient; compute it from the outputs, by torch"
    elif not values.isfinite().all():
        first = float(values.detach()[~values.isfinite()][0])
        problem = f"gives {first} before training; it must be finite"
    elif not torch.allclose(values[:_ALONE].detach(), alone, rtol=1e-3, atol=1e-5):
        problem = "gives an example another loss when others are beside it; use each row alone"
    if problem:
        raise SpecError(_KEY, f"{name}, called with outputs {shape}, {problem}")
