"""Arithmetic of releases: a release is one flat float64 vector per tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

Vector = npt.NDArray[np.float64]
Release = list[Vector]


def flat(tensors: Iterable[torch.Tensor]) -> Release:
    """As float64, detached."""
    return [one.detach().to("cpu", torch.float64).reshape(-1).numpy() for one in tensors]


def minus(first: Release, second: Release) -> Release:
    """Their difference."""
    return [a - b for a, b in zip(first, second, strict=True)]


def squares(release: Release) -> list[float]:
    """The squared length of each part; inf where it is not finite."""
    found = [float(np.dot(one, one)) for one in release]
    return [value if np.isfinite(value) else float("inf") for value in found]


def length(release: Release) -> float:
    """Of the whole."""
    return float(np.sqrt(sum(squares(release))))


def equal(first: Release, second: Release) -> bool:
    """Bit for bit, but for signs of zero; what is no number equals itself."""
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))


def direction(shapes: Sequence[torch.Size], seed: int) -> list[torch.Tensor]:
    """A random direction of length one over all tensors, float32, by a generator of its own."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    norm = torch.sqrt(sum((one.double().square().sum() for one in drawn), torch.zeros(())))
    return [one / norm.to(one.dtype) for one in drawn]
