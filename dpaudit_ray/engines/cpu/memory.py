"""How many models are computed at once: a choice of speed and memory.

Every model's numbers are computed from its own row, but a group of another size may be added up in
another order and change last bits: matrix products of odd sizes do. So groups follow from the
network, its batch, the pack and the number of threads. Where memory is short they are smaller, and
that is said. On a GPU see `packing.footprint`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import logging
import os
from collections.abc import Iterator

import torch
from torch import nn

_LOG = logging.getLogger(__name__)
# Small networks on vectors: 64 of them on a batch of 400 stay in a core's cache; 22 us a
# model-step (one core) against 34 with 16 and 28 with 256.
_SMALL = 64
# Convolutions on CPU: one model at a time stays in cache (unfolding: 0.7 ms against 3.5 with 8);
# the first layer alone is computed for so many together.
_FIRST_LAYER = 8
# Where loops compute all convolutions, little is lost from cache between models, and threads wait
# for each other's calls: on two, `cnn4` takes 2.5 ms with eight at a time, 2.7 with four and 3.5
# one by one, `convnet` 3.1, 3.4 and 4.7. More share a first layer where the rest is no such loop.
_LOOPS = 16, 8
_LEFT_BYTES = 1 << 28  # what the passes of a set may leave behind on a CPU
_FREE_SHARE = 0.4  # of the memory that is free, for that and what its use needs
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",  # cuBLAS takes its workspace past torch's allocator
    "CUDNN_STATUS_ALLOC_FAILED",
    "DEVICE_ALLOCATION_FAILED",  # cuDNN 9
)
_MMAP_MAX, _TRIM_THRESHOLD, _ARENA_MAX = -4, -1, -8  # glibc's names in malloc.h


@dataclasses.dataclass(frozen=True)
class Groups:
    """`outer` models share the work of the first layer; `inner` go through the rest together."""

    outer: int
    inner: int

    @classmethod
    def of(cls, module: nn.Module, by_loops: int = 0) -> Groups:
        """What is fast for this kind of network on a CPU, before its memory is known.

        `by_loops`: how many of its convolutions are pooled in loops (`convpool`).
        """
        convolutions = sum(isinstance(layer, nn.Conv2d) for layer in module.modules())
        if convolutions > by_loops:
            return cls(_FIRST_LAYER, 1)
        return cls(*_LOOPS) if convolutions else cls(_SMALL, _SMALL)

    def fitted(self, bytes_per_model: int) -> Groups:
        """No larger than memory allows, given what one model's pass leaves behind."""
        wanted, free = max(_LEFT_BYTES, bytes_per_model), int(_FREE_SHARE * free_bytes())
        most, outer = (
            max(1, min(self.outer, budget // max(1, 2 * bytes_per_model)))
            for budget in (wanted, min(wanted, free))
        )
        if outer < most:
            warn_of_groups(outer)
        return Groups(outer, min(self.inner, outer))

    def halved(self) -> Groups:
        """Half as many at a time.

        Raises:
            MemoryError: there is but one model left.
        """
        if self.outer == 1:
            raise no_room()
        outer = self.outer // 2
        return Groups(outer, min(self.inner, outer))


GPU_MOST = Groups(256, 256)  # more are hardly faster


@functools.cache  # once in a process for each size
def warn_of_groups(models: int) -> None:
    """Says that memory is short, so that a retry elsewhere may differ."""
    _LOG.warning(
        "memory is short: from here on %d model%s computed at once, which may change last bits of "
        "scores; lower resources.pack_size, or run fewer trainers on a node",
        models, " is" if models == 1 else "s are",
    )  # fmt: skip


def slices(n: int, size: int) -> Iterator[slice]:
    """All of n models, so many at a time."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def free_bytes() -> int:
    """Memory that this process may still take."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def no_room() -> MemoryError:
    """What is said where nothing is left to be halved."""
    return MemoryError(
        "one model's batch does not fit into memory; lower mechanism.batch_size or use a device "
        "with more memory"
    )


def out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out: torch's own error on a GPU, a plain one on CPU, or a library's."""
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in str(error) for words in _OUT_OF_MEMORY
    )


def keep_heap() -> None:
    """Lets this process keep freed memory for its next step instead of handing it back.

    glibc maps every large tensor afresh and the kernel zeroes its pages again; unfolding patches
    took five times as long for that. All threads share one heap: others are cut into pieces of
    64 MiB, which go back when they are empty (8000 fresh pages a step of `cnn4` on two threads).
    Elsewhere than on glibc this does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_ARENA_MAX, 1)
