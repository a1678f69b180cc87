"""Whether a model can be trained on a data set at all, found out on a few examples."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...engines.packing.packed import PackedModel
from ...errors import SpecError, first_line
from ...models.base import input_dtype
from .start import given, network, seeded

if TYPE_CHECKING:
    from ...data.base import Dataset
    from ...models.base import Model

_TRIED = 64  # examples
_REMEMBERED = 64  # networks
_known: dict[Hashable, Tensor] = {}  # the audits of a sweep have few, and a trial takes a second


def check_model(model: Model, data: Dataset, batch: int) -> Tensor:
    """Builds the model, tries it, and finds how it can be packed; returns its parameters, [p].

    As many examples go through it together as in a `batch`, and some more where that is small.

    Raises:
        SpecError: layers that cannot be audited, a shape that does not fit the data, or fewer
            outputs than classes.
    """
    tried = max(_TRIED, batch)
    x, y = torch.from_numpy(data.x[:tried].copy()), torch.from_numpy(data.y[:tried].copy())
    try:
        with seeded(0):
            body = model.body(data.x.shape[1:])
        with torch.no_grad():
            x = x if body is None else body.eval()(x)
            module = network(model, tuple(x.shape[1:]), data.classes, 0)
            x = given(x, input_dtype(module, x))
            if (key := _key(module, x, y, data.classes)) in _known:
                return _known[key]
            packed = PackedModel(module)
            outputs = module(x[:2].clone())
    except SpecError:
        raise
    except Exception as error:  # a user's code may raise anything
        reason = first_line(error)
        shape = tuple(data.x.shape[1:])
        raise SpecError(
            "mechanism.model", f"{model.name} does not run on examples of shape {shape}: {reason}"
        ) from error
    if isinstance(outputs, Tensor) and outputs.dim() == 2:
        _check_outputs(outputs.shape[1], data.classes)
    packed.settle(x, y)
    _known[key] = packed.initial
    while len(_known) > _REMEMBERED:
        del _known[next(iter(_known))]
    return packed.initial


def _key(module: nn.Module, x: Tensor, y: Tensor, classes: int) -> Hashable:
    """The same for a network that was tried: of the same code, with these numbers.

    Classes are compared as objects, so that one whose code was loaded anew is another one.
    """
    code = tuple((type(part), type(part).forward, part.training) for part in module.modules())
    numbers = [*module.parameters(), *module.buffers(), x, y]
    digest = hashlib.sha256()
    for each in numbers:
        digest.update(repr((each.shape, each.dtype, each.requires_grad)).encode())
        digest.update(each.detach().flatten().view(torch.uint8).numpy().tobytes())
    return code, repr(module), digest.digest(), classes


def _check_outputs(outputs: int, classes: int) -> None:
    enough = classes if classes > 2 or outputs > 1 else 1
    if outputs < enough:
        raise SpecError(
            "mechanism.model",
            f"gives {outputs} scores per example, but the data has {classes} classes; "
            "give it one output per class (one alone for two classes)",
        )
