"""How many models are computed at once: a choice of speed and memory.

Every model's numbers are computed from its own row, but a group of another size may be added up in
another order and change last bits: matrix products of odd sizes do, and how many models a grouped
convolution computes decides by which algorithm. So groups follow from the network, its batch, the
pack, the number of threads, and on a GPU a budget: never from what else is in memory. Where memory
runs short all the same they are smaller, and that is said.

On a CPU, one model's pass shows what a group leaves behind (`Groups`). On a GPU a step is walked
through without numbers (`Footprint`): tensors on torch's `meta` device have shapes only, so a walk
takes milliseconds and needs no GPU.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import logging
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...errors import first_line
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
        """Groups that are fast for this kind of network on a CPU, before its memory is known.

        `in_loops`: how many of its convolutions are pooled in loops (`conv_pool`).
        """
        convolutions = sum(isinstance(layer, nn.Conv2d) for layer in module.modules())
        if convolutions > in_loops:
            return cls(_FIRST_LAYER, 1)
        return cls(*_LOOPS) if convolutions else cls(_SMALL, _SMALL)

    def fitted(self, bytes_per_model: int) -> Groups:
        """Groups no larger than memory allows, given what one model's pass leaves behind."""
        wanted, free = max(_LEFT_BYTES, bytes_per_model), int(_FREE_SHARE * free_bytes())
        most, outer = (
            max(1, min(self.outer, allowed // max(1, 2 * bytes_per_model)))
            for allowed in (wanted, min(wanted, free))
        )
        if outer < most:
            warn_of_short_memory(outer)
        return self.at_most(outer)

    def at_most(self, models: int) -> Groups:
        """No more than so many models at a time."""
        return Groups(min(self.outer, models), min(self.inner, models))

    def halved(self) -> Groups:
        """Half as many models at a time. Raises MemoryError where one is left."""
        if self.outer == 1:
            raise one_model_too_large()
        return self.at_most(self.outer // 2)


GPU_MOST = Groups(256, 256)  # more are hardly faster
ONE_BY_ONE = Groups(1, 1)
_UNKNOWN = Groups(16, 16)  # on a GPU, of a network that does not run without numbers


def slices(n: int, size: int) -> Iterator[slice]:
    """Slices of range(n), of `size` each but for the last."""
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


# On a CPU -----------------------------------------------------------------------------------------


def free_bytes() -> int:
    """Memory that this process may still take."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


_MMAP_MAX, _TRIM_THRESHOLD, _ARENA_MAX = -4, -1, -8  # glibc's names in malloc.h


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


# On a GPU -----------------------------------------------------------------------------------------

_FEW, _MORE = 8, 32  # models of two walks; what each takes is their difference
Computed = Literal["sums", "outputs"]


class Walked(Protocol):
    """A `PackedModel` on the `meta` device."""

    initial: Tensor

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Outputs of every model on every example."""

    def clipped_sums(self, theta: Tensor, x: Tensor, y: Tensor, clip_norm: float) -> Tensor:
        """Clipped sums of every model."""


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that operations make; `peak` is the most that lived at once."""

    def __init__(self, *inputs: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held = {tensor.untyped_storage()._cdata: 0 for tensor in inputs}
        self._inputs = inputs  # kept: another storage may not take their address
        self._now = 0
        self.peak = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's compiler takes a second and more to import, and compiles nothing here."""
        return False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._held:
            self._held[key] = storage.nbytes()
            self._now += self._held[key]
            self.peak = max(self.peak, self._now)
            weakref.finalize(storage, self._drop, key).atexit = False

    def _drop(self, key: int) -> None:
        self._now -= self._held.pop(key)


class Footprint:
    """Bytes that a step of one network takes on a GPU, and the groups that follow from them.

    `make` gives the network, packed, on the `meta` device, with that many models at once.
    """

    def __init__(self, make: Callable[[Groups], Walked]) -> None:
        self._make = make
        self._lines: dict[tuple[object, ...], tuple[int, int] | None] = {}

    def bytes(self, computed: Computed, models: int, x: Tensor) -> int | None:
        """Bytes of a set of models on a batch like x [B, ...], without θ and x; None if unknown."""
        line = self._line(computed, x)
        return None if line is None else line[0] + models * line[1]

    def groups(self, computed: Computed, x: Tensor) -> Groups:
        """As many models as the budget has room for, and no more than pay."""
        line = self._line(computed, x)
        if line is None:
            return _UNKNOWN
        fixed, of_model = line
        return GPU_MOST.at_most(max(1, (budget() - fixed) // of_model))

    def _line(self, computed: Computed, x: Tensor) -> tuple[int, int] | None:
        """Bytes that do not depend on the models, and those of each."""
        key = computed, rounded_up(len(x)), x.shape[1:], x.dtype
        if key not in self._lines:
            try:
                few, more = (self._walked(computed, n, x) for n in (_FEW, _MORE))
            except Exception as error:  # noqa: BLE001 (a user's module may ask for numbers)
                self._lines[key] = None
                _LOG.warning(
                    "how much of a GPU's memory a step takes cannot be told (%.80s): %d models are "
                    "computed at once", first_line(error), _UNKNOWN.outer,
                )  # fmt: skip
            else:
                of_model = max(1, (more - few) // (_MORE - _FEW))
                self._lines[key] = max(0, few - _FEW * of_model), of_model
        return self._lines[key]

    def _walked(self, computed: Computed, models: int, x: Tensor) -> int:
        packed, rows = self._make(Groups(models, models)), rounded_up(len(x))
        like = torch.empty(rows, *x.shape[1:], dtype=x.dtype, device="meta")
        y = torch.empty(rows, dtype=torch.long, device="meta")
        theta = packed.initial.repeat(models, 1)
        with LiveBytes(theta, like, y) as live:
            if computed == "outputs":
                packed.outputs(theta, like)
            else:
                packed.clipped_sums(theta, like, y, 1.0)
        return int(live.peak)


def rounded_up(examples: int) -> int:
    """A batch's size, up to three binary digits: sizes drawn at random are close to each other."""
    unit = 1 << max(0, examples.bit_length() - 3)
    return -(-examples // unit) * unit


# Where memory runs out ----------------------------------------------------------------------------

_OUT_OF_MEMORY = (
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",  # cuBLAS takes its workspace past torch's allocator
    "CUDNN_STATUS_ALLOC_FAILED",
    "DEVICE_ALLOCATION_FAILED",  # cuDNN 9
)


def out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out: torch's own error on a GPU, a plain one on CPU, or a library's."""
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in str(error) for words in _OUT_OF_MEMORY
    )


def one_model_too_large() -> MemoryError:
    """The error where one model alone does not fit."""
    return MemoryError(
        "one model's batch does not fit into memory; lower mechanism.batch_size or use a device "
        "with more memory"
    )


@functools.cache  # once in a process for each size
def warn_of_short_memory(models: int) -> None:
    """Says that memory is short or ran out, so that a retry elsewhere may differ."""
    _LOG.warning(
        "memory is short: from here on %d model%s computed at once, which may change last bits of "
        "scores; lower resources.pack_size, run fewer trainers on a node, or give each a larger "
        "share of its GPU (resources.num_gpus)",
        models, " is" if models == 1 else "s are",
    )  # fmt: skip
