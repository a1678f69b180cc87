"""How much memory a set of models takes on a GPU: its step is walked through without numbers.

Tensors on torch's `meta` device have shapes only, so a walk takes milliseconds, needs no GPU, and
is a function of the network and its batch alone. Groups that follow from it are the same in every
try of a pack, whatever else is in the device's memory; and so are its scores, bit by bit: how many
models a grouped convolution computes decides by which algorithm.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...errors import first_line
from ..cpu.memory import GPU_MOST, Groups
from ..gpu.settings import budget

_LOG = logging.getLogger(__name__)
_FEW, _MORE = 8, 32  # models of two walks; what each takes is their difference
_UNKNOWN = Groups(16, 16)  # of a network that does not run without numbers

What = Literal["sums", "outputs"]


class Walked(Protocol):
    """A packed model on the `meta` device; see `PackedModel`."""

    initial: Tensor

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Of every model on every example."""

    def clipped_sums(self, theta: Tensor, x: Tensor, y: Tensor, clip_norm: float) -> Tensor:
        """Of every model."""


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that operations make; `peak` is the most that lived at once."""

    def __init__(self, *inputs: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held = {tensor.untyped_storage()._cdata: 0 for tensor in inputs}
        self._inputs = inputs  # kept: another storage may not take their address
        self._now = 0
        self.peak = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """See `watch`."""
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
    """Bytes, and with them groups, of one network on batches of all sizes.

    `make` gives the network, packed, on the `meta` device, with that many models at once.
    """

    def __init__(self, make: Callable[[Groups], Walked]) -> None:
        self._make = make
        self._lines: dict[tuple[object, ...], tuple[int, int] | None] = {}
        self._halved: dict[tuple[object, ...], int] = {}

    def bytes(self, what: What, models: int, x: Tensor) -> int | None:
        """Of a set of models on a batch like x [B, ...], without θ and x; None where not known."""
        line = self._line(what, x)
        return None if line is None else line[0] + models * line[1]

    def groups(self, what: What, x: Tensor) -> Groups:
        """As many models as the budget has room for, and no more than pay."""
        line, groups = self._line(what, x), _UNKNOWN
        if line is not None:
            fixed, each = line
            room = max(1, (budget() - fixed) // max(1, each))
            groups = Groups(min(room, GPU_MOST.outer), min(room, GPU_MOST.inner))
        for _ in range(self._halved.get(_key(what, x), 0)):
            groups = groups.halved()
        return groups

    def halve(self, what: What, x: Tensor) -> None:
        """After memory ran out all the same. Raises MemoryError where one model is left."""
        groups = self.groups(what, x).halved()
        self._halved[_key(what, x)] = self._halved.get(_key(what, x), 0) + 1
        warn(groups.outer)

    def _line(self, what: What, x: Tensor) -> tuple[int, int] | None:
        """Bytes that do not depend on the models, and those of each."""
        key = _key(what, x)
        if key not in self._lines:
            try:
                few, more = (self._walked(what, n, x) for n in (_FEW, _MORE))
            except Exception as error:  # noqa: BLE001 (of a user's module, which may ask for numbers)
                self._lines[key] = None
                _LOG.warning(
                    "how much of a GPU's memory a step takes cannot be told (%.80s): %d models are "
                    "computed at once", first_line(error), _UNKNOWN.outer,
                )  # fmt: skip
            else:
                each = max(1, (more - few) // (_MORE - _FEW))
                self._lines[key] = max(0, few - _FEW * each), each
        return self._lines[key]

    def _walked(self, what: What, models: int, x: Tensor) -> int:
        packed, rows = self._make(Groups(models, models)), _rounded(len(x))
        like = torch.empty(rows, *x.shape[1:], dtype=x.dtype, device="meta")
        y = torch.empty(rows, dtype=torch.long, device="meta")
        theta = packed.initial.repeat(models, 1)
        with Live(theta, like, y) as live:
            if what == "outputs":
                packed.outputs(theta, like)
            else:
                packed.clipped_sums(theta, like, y, 1.0)
        return int(live.peak)


def _key(what: What, x: Tensor) -> tuple[object, ...]:
    return what, _rounded(len(x)), x.shape[1:], x.dtype


def _rounded(examples: int) -> int:
    """Up to three binary digits: batches drawn at random have many sizes, close to each other."""
    unit = 1 << max(0, examples.bit_length() - 3)
    return -(-examples // unit) * unit


@functools.cache  # once in a process for each size
def warn(models: int) -> None:
    """Says that memory ran out."""
    _LOG.warning(
        "the GPU's memory ran out: from here on %d model%s computed at once, which may change "
        "last bits of scores; lower resources.pack_size, or give trainers a larger num_gpus",
        models, " is" if models == 1 else "s are",
    )  # fmt: skip
