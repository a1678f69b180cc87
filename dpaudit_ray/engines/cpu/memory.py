"""How many models are computed at once: a choice of speed and memory, never of scores.

Every model's numbers are computed from its own row, so the groups change at most the last bit of
a float (a matrix product may sum in another order).
"""

from __future__ import annotations

import ctypes
import dataclasses
import os

import torch
from torch import nn

# Small networks on vectors: 64 of them on a batch of 400 stay in a core's cache; 22 us a
# model-step (one core) against 34 with 16 and 28 with 256.
_SMALL = 64
# Convolutions on CPU: one model at a time stays in cache (unfolding: 0.7 ms against 3.5 with 8);
# the first layer alone is computed for so many together.
_FIRST_LAYER = 8
# Where loops compute all convolutions, sample by sample, nothing is lost from cache between models:
# 3.5 ms a ConvNet's gradients with 16 together, 3.8 with 8 and 5.0 with one (on a busy machine).
_LOOPS = 16
_TAPE_BYTES = 1 << 28  # what the tapes of a set may hold on CPU
_FREE_SHARE = 0.4  # of the memory that is free, for the tapes and what their use needs
_MMAP_MAX, _TRIM_THRESHOLD = -4, -1  # glibc's names in malloc.h


@dataclasses.dataclass(frozen=True)
class Groups:
    """`outer` models share the work of the first layer; `inner` go through the rest together."""

    outer: int
    inner: int

    @classmethod
    def of(cls, module: nn.Module, device: torch.device, by_loops: int = 0) -> Groups:
        """What is fast for this kind of network, before its memory is known.

        `by_loops`: how many of its convolutions are pooled in loops (`convpool`).
        """
        if device.type != "cpu":
            return cls(256, 256)
        convolutions = sum(isinstance(layer, nn.Conv2d) for layer in module.modules())
        if convolutions > by_loops:
            return cls(_FIRST_LAYER, 1)
        return cls(_LOOPS, _LOOPS) if convolutions else cls(_SMALL, _SMALL)

    def fitted(self, bytes_per_model: int, device: torch.device) -> Groups:
        """No larger than memory allows, given what one model's tape holds."""
        budget = int(_FREE_SHARE * free_bytes(device))
        if device.type == "cpu":
            budget = min(budget, max(_TAPE_BYTES, bytes_per_model))
        outer = max(1, min(self.outer, budget // max(1, 2 * bytes_per_model)))
        return Groups(outer, min(self.inner, outer))

    def halved(self) -> Groups:
        """Half as many at a time.

        Raises:
            MemoryError: there is but one model left.
        """
        if self.outer == 1:
            raise MemoryError(
                "one model's batch does not fit into memory; lower mechanism.batch_size or use a "
                "device with more memory"
            )
        outer = self.outer // 2
        return Groups(outer, min(self.inner, outer))


def free_bytes(device: torch.device) -> int:
    """Memory that this process may still take on the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def out_of_memory(error: RuntimeError) -> bool:
    """Whether torch ran out of memory: its own error on a GPU, a plain one on CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def keep_heap() -> None:
    """Lets this process keep freed memory for its next step instead of handing it back.

    glibc maps every large tensor afresh and the kernel zeroes its pages again; unfolding patches
    took five times as long for that. Elsewhere than on glibc this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
