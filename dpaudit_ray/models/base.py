"""The interface of models: recipes for a `torch.nn.Module` from the data's shape."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from typing import TYPE_CHECKING, Literal

from ..errors import SpecError
from ..plugins import Plugin

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

# From here on, whole numbers may not be exact in float32, the dtype in which data are loaded.
_INEXACT_FROM = 1 << 24

Shape = tuple[int, ...]  # shape of one example

PACK = 256  # most models of a pack for `pack_size: auto`
_PACK_NUMBERS = 1 << 27  # float32 parameters of all models of such a pack: 512 MiB


class Model(Plugin):
    """Base of all models.

    `initialization: fixed` gives all trials one θ_0, which is public; `random` draws one for each
    trial, which no one knows. `scheme` states how it is drawn: `default` as the network
    does it, `kaiming` and `xavier` from those normal distributions, with biases 0.
    """

    kind = "model"
    home = "dpaudit_ray.models"

    initialization: Literal["fixed", "random"] = "fixed"  # `random`: θ_0 anew in each trial
    scheme: Literal["default", "kaiming", "xavier"] = "default"  # how θ_0 is drawn

    @property
    def parameters(self) -> int:
        """Approximate number of parameters, from the options alone; 0 if it is unknown or small."""
        return 0

    @property
    def pack_size(self) -> int:
        """Models of a pack for `pack_size: auto`: their parameters take at most 512 MiB."""
        models = _PACK_NUMBERS // max(1, self.parameters)
        return max(1, min(PACK, models))

    @abstractmethod
    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Builds the network, with parameters from torch's global generator.

        One output means a logistic loss on classes 0 and 1, more outputs a cross-entropy.

        Args:
            shape: shape of an example.
            classes: number of classes; 0 for regression, which has one output.
        """

    def body(self, shape: Shape) -> nn.Module | None:
        """Returns a frozen part of the network, applied once to all data; None without such a part.

        `build` then gets the shape of its output. A random one is sampled before `build`.

        Args:
            shape: shape of an example.
        """
        return None


def input_dtype(network: nn.Module, x: Tensor) -> torch.dtype:
    """Finds the dtype of the examples that a network runs on: that of `x`, or int64 for tokens.

    If it runs on neither, the result is that of `x`, and the next call of the network raises the
    error.

    Args:
        network: the network, which stays as it is.
        x: examples [N, ...].
    """
    import torch

    # Parameters and buffers are restored, so that a later check finds a network not yet called.
    state = [(tensor, tensor.detach().clone()) for tensor in network.state_dict().values()]
    dtype = x.dtype
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for examples in (x[:2].clone(), x[:2].long()):
            with contextlib.suppress(Exception):  # a user's code may raise anything
                network(examples)
                dtype = examples.dtype
                break
        for tensor, values in state:
            tensor.copy_(values)
    return dtype


def as_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts examples [N, ...] to a network's `input_dtype`.

    Raises SpecError for numbers that are not whole, or too large to be exact in float32.
    """
    if x.dtype == dtype:
        return x
    inexact = (x != x.trunc()) | (x.abs() >= _INEXACT_FROM)
    if inexact.any():
        raise SpecError(
            "mechanism.model",
            f"runs on whole numbers only, as nn.Embedding does, not on {x[inexact][0]:g}; give "
            "whole numbers below 2^24, or take floats in forward",
        )
    return x.to(dtype)


def outputs(classes: int) -> int:
    """Returns 1 for two classes (logistic loss) or none (regression), else one for each class."""
    return 1 if classes in (0, 2) else classes


def image(shape: Shape, name: str, least: int) -> tuple[int, int, int]:
    """Returns channels, height and width of an image.

    Args:
        shape: shape of an example of the data.
        name: name of the network, for the error.
        least: pixels that each side must have.

    Raises:
        SpecError: these are no images, or they are too small.
    """
    if len(shape) != 3 or min(shape[1:]) < least:
        raise SpecError(
            "mechanism.model",
            f"{name} needs images [channels, height, width] of at least {least} x {least} pixels, "
            f"but mechanism.data gives {list(shape)}; use another of the two",
        )
    return shape
