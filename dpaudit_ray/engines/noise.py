"""Gaussian noise for a whole pack, from one generator per pack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from .cpu.noise import CpuNoise
from .gpu.noise import GpuNoise


class NoiseSource(Protocol):
    """A stream of standard normals."""

    def fill(self, out: Tensor) -> None:
        """Overwrites `out` with independent standard normals."""

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Where the stream is, as one array named after its generator."""

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Goes on from there. Raises KeyError for the state of another generator."""


def noise_source(seed: int, device: torch.device) -> NoiseSource:
    """The generator that belongs to `device`; `seed` has 128 bits."""
    return CpuNoise(seed) if device.type == "cpu" else GpuNoise(seed, device)
