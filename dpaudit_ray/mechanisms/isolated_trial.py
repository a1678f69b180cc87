"""One isolated trial: what runs in the process of its own that `function` starts for it.

It is forked from one that imported what takes long. The user's module is imported here, so nothing
of it, no thread and no state, is shared between trials.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import numpy as np
import numpy.random  # what draws anything needs it, and NumPy loads it no sooner


def run(request: dict[str, Any]) -> float:
    """Trains once; returns the score. `request` is plain JSON."""
    module, _, name = request["path"].partition(":")
    train: Any = importlib.import_module(module)
    for part in name.split("."):
        train = getattr(train, part)
    _limit_torch(request["threads"], request["gpu_share"])
    options = request["options"]
    if request["prepared"] is not None:  # arrays by part and name, saved in order as "part name"
        with np.load(request["prepared"], allow_pickle=False) as saved:
            parts: tuple[dict[str, Any], ...] = tuple({} for _ in range(int(saved["parts"])))
            for key in saved.files[1:]:
                part, _, array = key.partition(" ")
                parts[int(part)][array] = saved[key]
        options = options | {"prepared": parts}
    return number(train(request["member"], request["seed"], **options), request["path"])


def number(returned: Any, path: str) -> float:
    """Reads what a training returned as a score. Raises TypeError for another thing."""
    try:
        return float(returned)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{path} returned {returned!r:.60}, no number") from error


def _limit_torch(threads: int | None, gpu_share: float | None) -> None:
    """Limits torch as the trainer does: more threads may change last bits."""
    if threads is None:
        return
    if "torch" not in sys.modules:  # then the training imports it, if any
        os.environ["OMP_NUM_THREADS"] = str(threads)
        return
    torch: Any = sys.modules["torch"]
    torch.set_num_threads(threads)
    if gpu_share is not None:
        torch.cuda.set_per_process_memory_fraction(gpu_share)
