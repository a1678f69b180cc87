"""Gaussian noise for a whole pack of models, from one generator per pack.

On a CPU the numbers are NumPy's, on a GPU those of torch. Torch lays its numbers out by
multiprocessors, so another kind of GPU draws other noise of the same distribution, as it adds in
another order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
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
        """Returns four words of SFC64, and the half word that float32 may have left over."""
        current = self._generator.bit_generator.state
        half_word = [current["has_uint32"], current["uinteger"]]
        return {"sfc64": np.array([*current["state"]["state"], *half_word], dtype=np.uint64)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continues from `state`. Raises KeyError for the state of another generator."""
        *words, has_half_word, half_word = state["sfc64"]
        self._generator.bit_generator.state = {
            "bit_generator": "SFC64",
            "state": {"state": np.array(words, dtype=np.uint64)},
            "has_uint32": int(has_half_word),
            "uinteger": int(half_word),
        }


class GpuNoise:
    """Torch's generator of a device, keyed by 63 bits of the seed."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator(device).manual_seed(seed % 2**63)

    def fill(self, out: Tensor) -> None:
        """Fills a tensor of floats; the same one as in every other try of the pack."""
        out.normal_(generator=self._generator)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the generator's state, uint8."""
        return {"torch": self._generator.get_state().numpy().copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Continues from `state`. Raises KeyError for the state of another generator."""
        self._generator.set_state(torch.from_numpy(state["torch"].copy()))


def noise_source(seed: int, device: torch.device) -> CpuNoise | GpuNoise:
    """Returns the generator that belongs to `device`; `seed` has 128 bits."""
    return CpuNoise(seed) if device.type == "cpu" else GpuNoise(seed, device)
