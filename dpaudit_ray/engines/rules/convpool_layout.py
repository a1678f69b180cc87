"""How a convolution under pooling is cut up for the loops, and what they read and leave."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor

from ..cpu import forward, vectors
from .pooling import Pair

SPARE = 2  # registers for what is added to the sums
_BEHIND = 16  # numbers: a vector may be read behind the last row of an image


@dataclasses.dataclass(frozen=True, eq=False)
class Pooled:
    """What the way back needs: the images, and what won.

    images [m, B, H, row], one set for all models or one for each; marks [n, B, h, w, o].
    """

    images: Tensor
    marks: Tensor
    size: torch.Size  # of an image, without zeros around it

    @property
    def nbytes(self) -> int:
        """Of both."""
        return int(self.images.nbytes + self.marks.nbytes)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How the loops cut a layer's patches up, for one dtype: see `backward`."""

    lanes: int
    parts: int  # vectors of a row of a patch
    rows: int  # of a patch, computed together: a divisor of its height

    @classmethod
    def of(cls, weight: tuple[int, ...], dtype: torch.dtype) -> Sizes | None:
        """None where a row of a patch does not fit into the registers."""
        channels, height, width = weight[1:]
        lanes = vectors.lanes(numpy_dtype(dtype), width * channels)
        parts = math.ceil(width * channels / lanes)
        room = vectors.REGISTERS - SPARE
        if parts > room:
            return None
        rows = max(r for r in range(1, height + 1) if height % r == 0 and r * parts <= room)
        return cls(lanes, parts, rows)


@functools.cache
def tile(positions: Pair, room: int) -> Pair:
    """Rows and columns convolved together, in so many registers: as few as can be twice."""
    tiles = [
        (rows, columns)
        for rows, columns in itertools.product(*(range(1, min(room, p) + 1) for p in positions))
        if rows * columns <= room
    ]

    def cost(tile: Pair) -> tuple[int, int]:
        turns = math.prod(math.ceil(p / t) for p, t in zip(positions, tile, strict=True))
        return turns * math.prod(tile), turns

    return min(tiles, key=cost)


def images_of(x: Tensor, zero_pad: tuple[int, int, int, int]) -> Tensor:
    """x [N, c, h, w] with zeros around it as [N, h, w, c], with room for a vector behind it."""
    if any(zero_pad):
        x = F.pad(x, zero_pad)
    images = x.permute(0, 2, 3, 1)
    end = (images.storage_offset() + images.numel() + _BEHIND) * images.itemsize
    if images.is_contiguous() and end <= images.untyped_storage().nbytes():
        return images
    return with_room(images.shape, x).copy_(images)


def with_room(shape: Sequence[int], like: Tensor) -> Tensor:
    """An empty tensor behind which a vector may be read."""
    size = math.prod(shape)
    return like.new_empty(size + _BEHIND)[:size].view(*shape)


def ones(count: int) -> tuple[int, ...]:
    """A tuple of this length: how `static` says a number."""
    return (1,) * count


def above(g: Tensor, marks: Tensor) -> forward.Above:
    """Gradients [..., o, h, w], as laid out, and marks [n, B, h, w, o] for the loops."""
    return g.movedim(-3, -1).reshape(marks.shape).numpy(), marks.numpy()


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The same as numpy has it."""
    return np.dtype(str(dtype).removeprefix("torch."))
