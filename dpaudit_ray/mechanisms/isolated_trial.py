"""The child process of one isolated trial of the `function` mechanism.

The process is forked from one that has done the slow imports. It imports the user's module itself,
so trials share none of the module's threads and state.
"""

import importlib
import operator
import os
import sys
from typing import Any

import numpy as np
import numpy.random  # NumPy loads it at its first use, so in every child


def run(request: dict[str, Any]) -> float:
    """Calls the user's function once, by a `request` of `IsolatedTrials`; returns the score."""
    module, _, name = request["path"].partition(":")
    train = operator.attrgetter(name)(importlib.import_module(module))
    _limit_torch(request["threads"], request["gpu_share"])
    options = request["options"]
    if request["prepared"] is not None:
        with np.load(request["prepared"], allow_pickle=False) as file:
            count = int(file["parts"])
            parts: list[dict[str, Any]] = [{} for _ in range(count)]
            for key in file.files[1:]:  # "PART NAME"; the first entry is the number of parts
                part, _, array = key.partition(" ")
                parts[int(part)][array] = file[key]
        options = options | {"prepared": tuple(parts)}
    result = train(request["member"], request["seed"], **options)
    return number(result, request["path"])


def number(returned: Any, path: str) -> float:
    """Converts a training's result to a score. Raises TypeError if it is not a number."""
    try:
        return float(returned)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{path} returned {returned!r:.60}, no number") from error


def _limit_torch(threads: int | None, gpu_share: float | None) -> None:
    """Limits torch as the trainer does: more threads may change last bits."""
    if threads is None:
        return
    if "torch" not in sys.modules:  # if anything imports torch later, torch reads this
        os.environ["OMP_NUM_THREADS"] = str(threads)
        return
    torch = sys.modules["torch"]
    torch.set_num_threads(threads)
    if gpu_share is not None:
        torch.cuda.set_per_process_memory_fraction(gpu_share)
