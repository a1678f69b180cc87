"""Where training starts: networks drawn from a seed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from ..models.base import Model


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's global generator on a seed of its own, for initialisers that know no other."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed % 2**63)
        yield


def network(model: Model, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """The network for examples of `shape`, its parameters drawn by the model's scheme.

    `kaiming` is He et al. (2015), `xavier` Glorot and Bengio (2010), both with normals.
    """
    with seeded(seed):
        module = model.build(shape, classes)
        if model.scheme != "default":
            for layer in module.modules():
                if isinstance(layer, (nn.Linear, nn.Conv2d)):
                    _draw(layer, model.scheme)
    return module


def _draw(layer: nn.Linear | nn.Conv2d, scheme: str) -> None:
    if scheme == "kaiming":
        nn.init.kaiming_normal_(layer.weight)
    else:
        nn.init.xavier_normal_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
