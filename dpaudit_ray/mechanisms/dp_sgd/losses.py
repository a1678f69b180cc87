"""The loss of a training by its name in a sweep file: of classes, of numbers, or the user's own.

A loss of the user's is tried before anything is trained. It must give each example a number that no
other example changes: what clipping bounds is the gradient of one example.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from ... import imports
from ...engines.rules.losses import Loss, losses, squared_errors
from ...errors import SpecError, first_line

_KEY = "mechanism.loss"


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
    """Raises SpecError unless each of N examples, of outputs [N, c], has a loss of its own."""
    loss, leaf, count = loss_of(name), outputs.detach().requires_grad_(), len(y)
    called = f"{name}, called with outputs {list(outputs.shape)} and targets [{count}],"
    if name == "mse" and outputs.shape[1] != 1:
        raise SpecError(_KEY, f"is mse, of one output, but the model has {outputs.shape[1]}")
    try:
        with torch.enable_grad():
            values = loss(leaf, y)
            alone = torch.stack([loss(leaf[i : i + 1], y[i : i + 1]).sum() for i in range(count)])
        shape = list(values.shape)
    except Exception as error:  # a user's code may raise anything
        raise SpecError(_KEY, f"{called} fails: {first_line(error)}") from error
    problems = {
        f"gives {shape}; it must give one loss for each example, [{count}]: take no mean or sum "
        "over examples, and outputs[:, 0] of a single output": shape != [count],
        "has no gradient; compute it from the outputs, by torch": not values.requires_grad,
        "is not finite before training; keep logarithms and quotients finite": not bool(
            values.isfinite().all()
        ),
        "gives an example another loss when others are beside it; use each row alone": (
            shape == [count] and not torch.allclose(values, alone, rtol=1e-3, atol=1e-5)
        ),
    }
    for problem, is_so in problems.items():
        if is_so:
            raise SpecError(_KEY, f"{called} {problem}")
