"""How many models are computed at once: a choice of speed and memory.

A group of another size may be added up in another order and change last bits. So groups follow
from the network, its first batch, the pack, the number of threads, and on a GPU a budget: never
from what else is in memory. Where it runs short all the same they are smaller, with a warning.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import logging
import os
from collections.abc import Iterator

from torch import nn

from ..gpu_settings import budget

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


@dataclasses.dataclass(frozen=True)
class Groups:
    """`outer` models share the work of the first layer; `inner` go through the rest together."""

    outer: int
    inner: int

    @classmethod
    def for_cpu(cls, module: nn.Module, in_loops: int = 0) -> Groups:
        """Groups that are fast on a CPU, where so many convolutions are pooled `in_loops`."""
        convolutions = sum(isinstance(layer, nn.Conv2d) for layer in module.modules())
        if convolutions > in_loops:
            return cls(_FIRST_LAYER, 1)
        return cls(*_LOOPS) if convolutions else cls(_SMALL, _SMALL)

    @classmethod
    def for_gpu(cls, bytes_per_model: int) -> Groups:
        """As many models as the budget has room for, and no more than pay."""
        return GPU_MOST.at_most(budget() // max(1, 2 * bytes_per_model))

    def fitted(self, bytes_per_model: int) -> Groups:
        """No more models than a CPU's memory allows, given what one model's pass leaves behind."""
        wanted, free = max(_LEFT_BYTES, bytes_per_model), int(_FREE_SHARE * free_bytes())
        usual = self.at_most(wanted // max(1, 2 * bytes_per_model))
        groups = usual.at_most(free // max(1, 2 * bytes_per_model))
        if groups.outer < usual.outer:
            warn_of_short_memory(groups.outer)
        return groups

    def at_most(self, models: int) -> Groups:
        """No more than so many models at a time, and at least one."""
        return Groups(*(max(1, min(size, models)) for size in dataclasses.astuple(self)))

    def halved(self) -> Groups:
        """Half as many models at a time. Raises MemoryError where one is left."""
        if self.outer == 1:
            raise one_model_too_large()
        return self.at_most(self.outer // 2)


GPU_MOST = Groups(256, 256)  # more are hardly faster
ONE_BY_ONE = Groups(1, 1)


def slices(n: int, size: int) -> Iterator[slice]:
    """Slices of range(n), of `size` each but for the last."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def free_bytes() -> int:
    """Memory that this process may still take."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


_MMAP_MAX, _TRIM_THRESHOLD, _ARENA_MAX = -4, -1, -8  # glibc's names in malloc.h


def keep_heap() -> None:
    """Lets this process keep freed memory for its next step; does nothing but on glibc.

    That maps every large tensor afresh: unfolding patches took five times as long. All threads
    share one heap: others go back when they are empty.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_ARENA_MAX, 1)


def one_model_too_large() -> MemoryError:
    """The error where one model alone does not fit."""
    return MemoryError(
        "one model's batch does not fit into memory; lower mechanism.batch_size or use a device "
        "with more memory"
    )


@functools.cache  # once in a process for each size
def warn_of_short_memory(models: int) -> None:
    """Says that a retry elsewhere may differ."""
    _LOG.warning(
        "memory is short: from here on %d model%s computed at once, which may change last bits of "
        "scores; lower resources.pack_size, run fewer trainers on a node, or give each a larger "
        "share of its GPU (resources.num_gpus)",
        models, " is" if models == 1 else "s are",
    )  # fmt: skip
