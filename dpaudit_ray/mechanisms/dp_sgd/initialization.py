"""Initialization: networks, and generators of torch, drawn from a seed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from ...models.base import Model

# The Mersenne Twister's state: words of 32 bits, which torch keeps in 64 each, from this byte on.
_WORDS, _FIRST_BYTE = 624, 24

_DRAW: dict[str, Callable[[Tensor], Any]] = {
    "kaiming": nn.init.kaiming_normal_,
    "xavier": nn.init.xavier_normal_,
}


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's global generator on a seed of its own, for initialisers that know no other."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator(seed, torch.device("cpu")).get_state())
        yield


def generator(seed: int, device: torch.device) -> torch.Generator:
    """A generator keyed by 128 bits of `seed` on a CPU, 63 on a GPU.

    `manual_seed` keeps 32 on a CPU: among 10,000 models two would start alike with probability 1 %.
    So the Mersenne Twister's own 624 words are drawn from the seed, as NumPy does.
    """
    made = torch.Generator(device).manual_seed(seed % 2**63)
    if device.type != "cpu":
        return made
    state = made.get_state()
    words = np.random.SeedSequence(seed).generate_state(_WORDS).astype(np.int64)
    words[0] |= 1 << 31  # never all zeros
    state[_FIRST_BYTE : _FIRST_BYTE + 8 * _WORDS] = torch.from_numpy(words.view(np.uint8))
    made.set_state(state)
    return made


def network(model: Model, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """The network for examples of `shape`, its parameters drawn by the model's scheme.

    `kaiming` is He et al. (2015), `xavier` Glorot and Bengio (2010), both with normals.
    """
    with seeded(seed):
        module = model.build(shape, classes)
        for layer in module.modules() if model.scheme in _DRAW else ():
            if isinstance(layer, (nn.Linear, nn.Conv2d)) and layer.weight.requires_grad:
                _DRAW[model.scheme](layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
    return module
