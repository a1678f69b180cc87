"""Parts of Flower that clip and add noise to what a client sends, n outputs each."""

from typing import Any

import numpy as np
from flwr.supercore import differential_privacy as privacy
from numpy.random import Generator


def local_update(data: Any, rng: Generator, n: int, clip: float, sigma: float) -> Any:
    """Clips a client's update and adds noise of standard deviation `sigma`."""
    np.random.seed(int(rng.integers(2**32)))
    outputs = []
    for _ in range(n):
        arrays = [np.array(data, dtype=np.float64)]
        privacy.clip_inputs_inplace(arrays, clip)
        privacy.add_gaussian_noise_inplace(arrays, sigma)
        outputs.append(arrays[0])
    return outputs
