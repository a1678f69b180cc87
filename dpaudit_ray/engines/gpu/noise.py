"""Gaussian noise on a GPU: the same numbers on every kind of GPU, and on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .normals import UNIT, normals
from .philox import blocks

_AT_ONCE = 1 << 22  # blocks: what they need in between are some 600 MiB


class GpuNoise:
    """Philox by its counter: all 128 bits of the seed are in the key and the counter's upper half.

    Torch's own generator lays its numbers out by multiprocessors, so a retry of a pack on another
    kind of GPU would draw another noise.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._key, self._upper = seed % 2**64, seed >> 64
        self._device = device
        self._block = 0  # the next one; each gives two numbers

    def fill(self, out: Tensor) -> None:
        """Fills a contiguous tensor of floats in memory order."""
        flat = out.view(-1)
        for first in range(0, len(flat), 2 * _AT_ONCE):
            part = flat[first : first + 2 * _AT_ONCE]
            count = (len(part) + 1) // 2
            bits = blocks(self._key, self._upper, self._block + first // 2, count, self._device)
            drawn = normals(bits[:, 0::2], bits[:, 1::2]).view(-1)[: len(part)]
            part.copy_(drawn).mul_(UNIT)  # one rounding: a power of two keeps all bits
        self._block += (len(flat) + 1) // 2

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The number of the next block."""
        return {"philox4x32": np.array([self._block], dtype=np.uint64)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Goes on from there. Raises KeyError for the state of another generator."""
        self._block = int(state["philox4x32"][0])
