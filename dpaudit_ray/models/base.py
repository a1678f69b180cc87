"""The interface of models: recipes for a `torch.nn.Module` from the data's shape."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from ..errors import SpecError
from ..plugins import Plugin

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_EXACT = 1 << 24  # whole numbers below it stay exact in float32, as which data are loaded

PACK = 256  # models at most, where the sweep does not say
_NUMBERS = 1 << 27  # float32 parameters of a pack: 512 MiB


class Model(Plugin):
    """Base of all models.

    `initialization: fixed` gives all trials one θ_0, known to everybody; `random` one per trial,
    known to nobody. `scheme` draws it: `default` is the network's own way, `kaiming` and `xavier`
    draw all weights from those normal distributions, with biases 0.
    """

    kind: ClassVar[str] = "model"
    home: ClassVar[str] = "dpaudit_ray.models"

    initialization: Literal["fixed", "random"] = "fixed"  # `random`: θ_0 anew in each trial
    scheme: Literal["default", "kaiming", "xavier"] = "default"  # how θ_0 is drawn

    @property
    def parameters(self) -> int:
        """About how many parameters, by the options alone; 0 where unknown, or few."""
        return 0

    @property
    def pack_size(self) -> int:
        """Models of a pack for `pack_size: auto`: θ of all of them takes 512 MiB at most."""
        return max(1, min(PACK, _NUMBERS // max(1, self.parameters)))

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for examples of `shape`, initialised from torch's global generator.

        One output means a logistic loss on classes 0 and 1, more outputs a cross-entropy. For
        regression there are 0 classes, and one output.
        """

    def body(self, shape: tuple[int, ...]) -> nn.Module | None:
        """A frozen part for examples of `shape`, applied once to the data; None for none.

        `build` then gets the shape of its output. Drawn, where it is random, before `build`.
        """
        return None


def input_dtype(network: nn.Module, x: Tensor) -> torch.dtype:
    """The dtype of examples [N, ...] that a network runs on: theirs, or else int64 for tokens."""
    import torch

    # Parameters and buffers are put back, so that a later check sees a first call.
    before = [(tensor, tensor.detach().clone()) for tensor in network.state_dict().values()]
    dtype = x.dtype  # if neither runs, who runs the network next says what is wrong
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for few in (x[:2].clone(), x[:2].long()):
            with contextlib.suppress(Exception):  # a user's code may raise anything
                network(few)
                dtype = few.dtype
                break
        for tensor, values in before:
            tensor.copy_(values)
    return dtype


def as_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Examples [N, ...] in a network's `input_dtype`. Raises SpecError for fractions lost."""
    if x.dtype == dtype:
        return x
    if bool((wrong := (x != x.trunc()) | (x.abs() >= _EXACT)).any()):
        problem = f"runs on whole numbers only, as nn.Embedding does, not on {x[wrong][0]:g}"
        remedy = "give whole numbers below 2^24, or take floats in forward"
        raise SpecError("mechanism.model", f"{problem}; {remedy}")
    return x.to(dtype)


def outputs(classes: int) -> int:
    """One output for two classes (logistic loss), or none (regression); else one for each."""
    return 1 if classes in (0, 2) else classes


def image(shape: tuple[int, ...], name: str, least: int) -> tuple[int, int, int]:
    """(channels, height, width) of an example. Raises SpecError under `least` pixels a side."""
    if len(shape) != 3 or min(shape[1:]) < least:
        wanted = f"images [channels, height, width] of at least {least} x {least} pixels"
        given = f"mechanism.data gives {list(shape)}; use another of the two"
        raise SpecError("mechanism.model", f"{name} needs {wanted}, but {given}")
    return shape[0], shape[1], shape[2]
