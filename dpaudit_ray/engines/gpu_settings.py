"""What a process that trains on a GPU asks of torch: the same numbers twice, and its precision.

`torch.backends.*.fp32_precision` is used throughout: of the older `allow_tf32` flags, those that
are left alone would go on to mean what other code of the process has set.
"""

from __future__ import annotations

import os
from typing import Any

import torch

# What a step may hold beside its pack's parameters: half of a GPU of 16 GB. Larger ones are asked
# for no more, since more models at once would be other bits, and hardly faster.
_BUDGET = 8 << 30
_share = 1.0  # of a GPU that this process has


def device(gpu: bool) -> torch.device:
    """Where this process trains."""
    return torch.device("cuda" if gpu else "cpu")


def take_share(gpus: float) -> None:
    """Tells torch what it has of a GPU by `resources.num_gpus`, 0 for none: Ray only counts."""
    global _share
    _share = min(gpus, 1.0) or 1.0
    if 0 < gpus < 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(gpus)


def budget() -> int:
    """Bytes for a step's activations and gradients: by the sweep's options, not by what is free."""
    return int(_share * _BUDGET)


def settle_in(tf32: bool) -> None:
    """Asks for determinism, before the first operation on a GPU: cuBLAS reads its variable once."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False  # every entry is written by us
    backends: Any = torch.backends
    backends.cudnn.benchmark = False  # which algorithm is fastest differs from run to run
    for backend in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        backend.fp32_precision = "tf32" if tf32 else "ieee"
