"""Whether a model can be trained on a data set at all, found out on a few examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...engines.packing.packed import PackedModel
from ...errors import SpecError
from .start import network, seeded

if TYPE_CHECKING:
    from ...data.base import Dataset
    from ...models.base import Model

_TRIED = 64  # examples


def check_model(model: Model, data: Dataset) -> Tensor:
    """Builds the model, tries it, and finds how it can be packed; returns its parameters, [p].

    Raises:
        SpecError: layers that cannot be audited, a shape that does not fit the data, or fewer
            outputs than classes.
    """
    x, y = torch.from_numpy(data.x[:_TRIED].copy()), torch.from_numpy(data.y[:_TRIED].copy())
    try:
        with seeded(0):
            body = model.body(data.x.shape[1:])
        with torch.no_grad():
            x = x if body is None else body.eval()(x)
            module = network(model, tuple(x.shape[1:]), data.classes, 0)
            packed = PackedModel(module)
            outputs = module(x[:2].clone())
    except SpecError:
        raise
    except Exception as error:  # a user's code may raise anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        shape = tuple(data.x.shape[1:])
        raise SpecError(
            "mechanism.model", f"{model.name} does not run on examples of shape {shape}: {reason}"
        ) from error
    if isinstance(outputs, Tensor) and outputs.dim() == 2:
        _check_outputs(outputs.shape[1], data.classes)
    packed.settle(x, y)
    return packed.initial


def _check_outputs(outputs: int, classes: int) -> None:
    enough = classes if classes > 2 or outputs > 1 else 1
    if outputs < enough:
        raise SpecError(
            "mechanism.model",
            f"gives {outputs} scores per example, but the data has {classes} classes; "
            "give it one output per class (one alone for two classes)",
        )
