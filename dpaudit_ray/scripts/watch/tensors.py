"""Turns tensors into flat vectors and digests, which are compared between runs and replays.

A release is one flat float64 vector per tensor.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_flatten

_SAMPLED = 4096  # first numbers of a tensor that its `sample_digest` is of
_CHUNK = 1024  # rows that are converted at once

Vector = npt.NDArray[np.float64]
Release = list[Vector]


def tree_leaves(tree: Any) -> list[Any]:
    """Returns the leaves of nested containers; torch 2.1 lacks this function."""
    return tree_flatten(tree)[0]


def flat_vectors(tensors: Iterable[torch.Tensor]) -> Release:
    """Returns tensors as flat float64 vectors of numpy."""
    vectors = []
    for tensor in tensors:
        values = tensor.detach().to("cpu", torch.float64)
        vectors.append(values.reshape(-1).numpy())
    return vectors


def gradients(params: Iterable[torch.Tensor]) -> Release:
    """Returns the gradients of parameters; zeros for a parameter without gradient."""
    tensors = (torch.zeros_like(p) if p.grad is None else p.grad for p in params)
    return flat_vectors(tensors)


def is_array(value: Any, least_dim: int = 1) -> bool:
    """Returns whether a value is a dense tensor with numbers, neither lazy nor meta.

    Args:
        value: any value.
        least_dim: number of dimensions that the tensor must have at least.
    """
    return (
        isinstance(value, torch.Tensor)
        and not (torch.nn.parameter.is_lazy(value) or value.is_meta)
        and value.layout is torch.strided
        and value.dim() >= least_dim
    )


def has_numbers(value: Any, least: int = 1) -> bool:
    """Returns whether a value is a dense tensor of floats with `least` or more dimensions."""
    return is_array(value, least) and bool(value.is_floating_point())


def is_numeric(value: Any) -> bool:
    """Returns whether a value is an array of numpy with numbers."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "fiub"


def owns_memory(array: Any) -> bool:
    """Returns whether an array can be changed without an effect outside of this process.

    It cannot if its memory is shared with another process, or with a file.
    """
    if isinstance(array, torch.Tensor):
        address = array.data_ptr()
        if array.is_cuda:
            return True
    else:
        address = array.ctypes.data
        if not array.flags.writeable:
            return False
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:  # not on Linux: then only memory that is certainly the array's own counts
        if isinstance(array, torch.Tensor):
            return bool(array.untyped_storage().resizable())
        return array.base is None
    for line in maps.splitlines():
        span, rights = line.split()[:2]
        first, end = (int(number, 16) for number in span.split("-"))
        if first <= address < end:
            return rights == "rw-p"  # private, and not shared
    return False


def hex_digest(data: Any) -> str:
    """Returns a digest of bytes, or of a buffer, in hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def digest(tensor: torch.Tensor) -> bytes:
    """Returns a digest of a tensor's values, which is the same on any device."""
    values = tensor.detach().cpu().contiguous()
    values = values.reshape(-1).view(torch.uint8)
    return hashlib.blake2b(values.numpy().data, digest_size=16).digest()


def row_keys(rows: Any) -> Iterator[bytes]:
    """Yields a digest of each row's numbers, the same for all types of numbers."""
    # The rows are copied, as memory that numpy has exported no longer counts as the tensor's own.
    for chunk in torch.split(torch.as_tensor(rows), _CHUNK):
        flat = chunk.detach().unsqueeze(-1).flatten(1).double().clone()
        yield from map(digest, flat)


def sample_digest(tensor: torch.Tensor) -> bytes:
    """Returns a digest of the first numbers of a tensor."""
    return digest(tensor.detach().reshape(-1)[:_SAMPLED])


def difference(first: Release, second: Release) -> Release:
    """Returns the first release minus the second."""
    return [a - b for a, b in zip(first, second, strict=True)]


def projection(release: Release, direction: Release) -> float:
    """Returns the inner product of a release and a direction."""
    return sum(float(a @ b) for a, b in zip(release, direction, strict=True))


def squared_lengths(release: Release) -> list[float]:
    """Returns the squared length of each vector of a release; inf where it is not finite."""
    squares = [float(np.dot(part, part)) for part in release]
    return [square if np.isfinite(square) else math.inf for square in squares]


def random_direction(shapes: Iterable[Sequence[int]], seed: int) -> list[torch.Tensor]:
    """Returns random float32 tensors of these shapes, with length 1 over all of them together."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    parts = [torch.randn(tuple(shape), generator=generator) for shape in shapes]
    squares = (float(part.double().square().sum()) for part in parts)
    length = math.sqrt(sum(squares))
    return [part / length for part in parts]


def spread_indices(count: int, most: int) -> list[int]:
    """Returns at most `most` of the indices below `count`, evenly spread."""
    chosen = min(most, count)
    return [index * count // chosen for index in range(chosen)]
