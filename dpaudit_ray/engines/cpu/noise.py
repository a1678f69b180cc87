"""Gaussian noise on a CPU, from one generator per pack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor


class CpuNoise:
    """NumPy's SFC64, keyed by all 128 bits of the seed.

    Torch's CPU generator keeps only 32 bits of a seed; among 10,000 packs two would share their
    noise with probability 1 %.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.SFC64(seed))

    def fill(self, out: Tensor) -> None:
        """Fills a contiguous float32 or float64 tensor in memory order."""
        array = out.numpy()
        self._generator.standard_normal(dtype=array.dtype, out=array)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Four words of SFC64, and the half word that float32 may have left over."""
        known = self._generator.bit_generator.state
        rest = [known["has_uint32"], known["uinteger"]]
        return {"sfc64": np.array([*known["state"]["state"], *rest], dtype=np.uint64)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Goes on from there. Raises KeyError for the state of another generator."""
        *words, has, rest = state["sfc64"]
        self._generator.bit_generator.state = {
            "bit_generator": "SFC64",
            "state": {"state": np.array(words, dtype=np.uint64)},
            "has_uint32": int(has),
            "uinteger": int(rest),
        }
