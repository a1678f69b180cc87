"""Whether a model can be trained on a data set at all, found out on two examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..errors import SpecError
from .packed import PackedModel
from .start import network, seeded

if TYPE_CHECKING:
    from ..data.base import Dataset
    from ..models.base import Model


def check_model(model: Model, data: Dataset) -> None:
    """Builds the model and takes one step with it.

    Raises:
        SpecError: layers that cannot be audited, a shape that does not fit the data, or fewer
            outputs than classes.
    """
    x, y = torch.from_numpy(data.x[:2].copy()), torch.from_numpy(data.y[:2].copy())
    try:
        with seeded(0):
            body = model.body(data.x.shape[1:])
        if body is not None:
            with torch.no_grad():
                x = body.eval()(x)
        module = network(model, tuple(x.shape[1:]), data.classes, 0)
        packed = PackedModel(module)
        outputs = packed.outputs(packed.initial[None], x).shape[2]
        _check_outputs(outputs, data.classes)
        packed.clipped_sums(packed.initial[None], x, y, 1.0)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:  # torch on shapes, mostly
        reason = str(error).splitlines()[0]
        shape = tuple(data.x.shape[1:])
        raise SpecError(
            "mechanism.model", f"{model.name} does not run on examples of shape {shape}: {reason}"
        ) from error


def _check_outputs(outputs: int, classes: int) -> None:
    enough = classes if classes > 2 or outputs > 1 else 1
    if outputs < enough:
        raise SpecError(
            "mechanism.model",
            f"gives {outputs} scores per example, but the data has {classes} classes; "
            "give it one output per class (one alone for two classes)",
        )
