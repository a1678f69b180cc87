"""Gaussian noise on a GPU: the same numbers on every kind of GPU, and on a CPU.

On CUDA a kernel computes them where it gives what torch's operations give, which is tried first.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...errors import first_line
from . import kernels
from .normals import UNIT, coefficients, normals
from .philox import blocks

_LOG = logging.getLogger(__name__)
_AT_ONCE = 1 << 22  # blocks: what they need in between are some 600 MiB
_TRIED = 4099  # numbers that a kernel is held against
_DTYPES = (torch.float32, torch.float64)


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
        if out.dtype in _DTYPES and _kernel_is_right(self._device, out.dtype):
            _by_kernel(flat, self._key, self._upper, self._block)
        else:
            _by_torch(flat, self._key, self._upper, self._block)
        self._block += (len(flat) + 1) // 2

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The number of the next block."""
        return {"philox4x32": np.array([self._block], dtype=np.uint64)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Goes on from there. Raises KeyError for the state of another generator."""
        self._block = int(state["philox4x32"][0])


def _by_torch(flat: Tensor, key: int, upper: int, start: int) -> None:
    for first in range(0, len(flat), 2 * _AT_ONCE):
        part = flat[first : first + 2 * _AT_ONCE]
        count = (len(part) + 1) // 2
        bits = blocks(key, upper, start + first // 2, count, flat.device)
        found = normals(bits[:, 0::2], bits[:, 1::2]).view(-1)[: len(part)]
        part.copy_(found).mul_(UNIT)  # one rounding: a power of two keeps all bits


def _by_kernel(flat: Tensor, key: int, upper: int, start: int) -> None:
    from .kernels import noise  # Triton takes a second to import

    noise.fill(flat, coefficients(flat.device), key, upper, start)


def _kernel_is_right(device: torch.device, dtype: torch.dtype) -> bool:
    return kernels.at_hand(device) and _agrees(device, dtype)


@functools.cache
def _agrees(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel gives the same bits; said once in a process where it does not."""
    found, expected = (torch.empty(_TRIED, dtype=dtype, device=device) for _ in range(2))
    state = (0x9E3779B97F4A7C15, 0xF39CC0605CEDC834, 2**32 - _TRIED // 4)  # a counter that carries
    _by_torch(expected, *state)
    try:
        _by_kernel(found, *state)
    except Exception as error:  # noqa: BLE001 (compilers and drivers raise what they like)
        why = f"cannot be run ({first_line(error):.80})"
    else:
        if torch.equal(found, expected):
            return True
        why = "gives other numbers"
    _LOG.warning("the noise kernel %s: noise goes through torch's operations, slowly", why)
    return False
