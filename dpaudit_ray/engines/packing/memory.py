"""The number of models that are computed at once: a choice of speed and memory.

A group of another size may be summed in another order, which changes last bits. So groups follow
from the network, its first batch, the pack, the number of threads, and on a GPU a budget: never
from other data in memory. If memory runs short all the same, they are smaller, with a warning.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from ..gpu_settings import budget

_LOG = logging.getLogger(__name__)
# Below, pairs are `outer` and `inner` of `Groups`.
# Small networks on vectors: 64 of them on a batch of 400 stay in a core's cache; a model-step takes
# 22 us on one core, against 34 with groups of 16 and 28 with groups of 256.
_SMALL = 64
# Convolutions on CPU: fewer calls of torch, as long as `_KEPT_BYTES` hold the passes of a group.
# Processor ms a model-step with eight at a time and one by one, 8 examples of 32 by 32: RegNet 73
# and 107, an MLP-Mixer 12.6 and 17.7, three convolutions of 8 channels 1.7 and 3.5.
_CONVOLUTIONS = 16, 16
# Networks of this package keep the groups that stored scores were computed in: eight models share
# a first layer, and go one by one through the rest.
_OF_THIS_PACKAGE = 8, 1
# Where loops compute all convolutions, little is lost from cache between models, and threads wait
# for each other's calls: on two, `cnn4` takes 2.5 ms with eight at a time, 2.7 with four and 3.5
# one by one, `convnet` 3.1, 3.4 and 4.7. More share a first layer where the rest is no such loop.
_LOOPS = 16, 8
_KEPT_BYTES = 1 << 28  # memory that the passes of a group may keep on a CPU
_FREE_SHARE = 0.4  # share of the free memory that a group's passes and gradients may take


@dataclass(frozen=True)
class Groups:
    """Numbers of models that are computed together, in a first layer and in all others."""

    outer: int  # models that share the work of the first layer
    inner: int  # models that go through all other layers together

    @classmethod
    def for_cpu(cls, module: nn.Module, in_loops: int) -> Groups:
        """Returns groups that are fast on a CPU.

        Args:
            module: the user's module.
            in_loops: number of its convolutions that compiled loops compute, with their pooling.
        """
        convolutions = sum(isinstance(layer, nn.Conv2d) for layer in module.modules())
        if convolutions > in_loops:
            return cls(*_OF_THIS_PACKAGE) if _is_of_this_package(module) else cls(*_CONVOLUTIONS)
        return cls(*_LOOPS) if convolutions else cls(_SMALL, _SMALL)

    @classmethod
    def for_gpu(cls, bytes_per_model: int) -> Groups:
        """Returns the largest groups that fit into the budget, up to `GPU_MOST`.

        Gradients take as much memory again as what a pass keeps, so its bytes count twice.
        """
        return GPU_MOST.at_most(budget() // max(1, 2 * bytes_per_model))

    def that_fit(self, bytes_per_model: int) -> Groups:
        """Returns groups that fit into a CPU's memory, by the bytes that one model's pass keeps."""
        bytes_needed = max(1, 2 * bytes_per_model)  # gradients take as much again
        # By sizes alone, so that sums are the same in every attempt; fewer if memory is short.
        preferred = self.at_most(max(_KEPT_BYTES, bytes_per_model) // bytes_needed)
        groups = preferred.at_most(int(_FREE_SHARE * free_bytes()) // bytes_needed)
        if groups.outer < preferred.outer:
            warn_of_short_memory(groups.outer)
        return groups

    def at_most(self, models: int) -> Groups:
        """Returns groups of at most this number of models, and at least one."""
        models = max(1, models)
        return Groups(min(self.outer, models), min(self.inner, models))

    def halved(self) -> Groups:
        """Returns groups of half as many models. Raises MemoryError for a single model."""
        if self.outer == 1:
            raise one_model_too_large()
        return self.at_most(self.outer // 2)


def _is_of_this_package(module: nn.Module) -> bool:
    """Returns whether a layer is of a class that this package defines for its own networks."""
    package = __name__.partition(".")[0]
    classes = (type(layer).__module__ for layer in module.modules())
    return any(name.startswith(f"{package}.models.") for name in classes)


GPU_MOST = Groups(4096, 4096)  # small networks then have some 70 launches for all models
ONE_BY_ONE = Groups(1, 1)


def slices(n: int, size: int) -> Iterator[slice]:
    """Yields slices of range(n), each of length `size` but the last, which may be shorter."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def free_bytes() -> int:
    """Returns the bytes of memory that are free."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# Numbers that glibc's malloc.h gives these options.
_MMAP_MAX = -4
_TRIM_THRESHOLD = -1
_ARENA_MAX = -8


def keep_heap() -> None:
    """Lets this process keep freed memory for its next step; has no effect without glibc.

    By default, glibc maps every large tensor afresh: unfolding patches took five times as long.
    All threads share one heap, since glibc returns the heaps of others when they are empty.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_ARENA_MAX, 1)


def one_model_too_large() -> MemoryError:
    """Returns the error for a single model that does not fit."""
    return MemoryError(
        "one model's batch does not fit into memory; lower mechanism.batch_size or use a device "
        "with more memory"
    )


@functools.cache  # once in a process for each size
def warn_of_short_memory(models: int) -> None:
    """Warns that only `models` are computed at once from now on, which may round differently."""
    _LOG.warning(
        "memory is short: from here on %d model%s computed at once, which may change last bits of "
        "scores; lower resources.pack_size, run fewer trainers on a node, or give each a larger "
        "share of its GPU (resources.num_gpus)",
        models, " is" if models == 1 else "s are",
    )  # fmt: skip
