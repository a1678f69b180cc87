"""Settings of torch for training on a GPU: determinism, precision, and a share of the memory.

Precision is set by `torch.backends.*.fp32_precision` only: each of the older `allow_tf32` flags
that is not set would keep the value that other code of the process has given it.
"""

import os
from typing import Any

import torch

# Bytes of a step, in addition to its pack's parameters: half of a GPU of 16 GB. It is no more on
# larger ones, since more models at once would change bits, and would hardly be faster.
_BUDGET_BYTES = 8 << 30
_share = 1.0  # share of a GPU that this process may use


def device(gpu: bool) -> torch.device:
    """Returns the device that this process trains on."""
    return torch.device("cuda" if gpu else "cpu")


def copied_to(values: torch.Tensor, to: torch.device) -> torch.Tensor:
    """Returns values on a device, by a copy that the host does not wait for."""
    if to.type == "cuda":
        values = values.pin_memory()  # the host would wait for a copy from other memory
    return values.to(to, non_blocking=True)


def take_share(gpus: float) -> None:
    """Limits torch's memory to a share of a GPU, which Ray counts but does not enforce.

    Args:
        gpus: the option `resources.num_gpus`; 0 for no GPU, and torch then is not limited.
    """
    global _share
    _share = min(gpus, 1.0) or 1.0
    if 0 < gpus < 1 and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(gpus)


def budget() -> int:
    """Returns the bytes that a step's activations and gradients may take on a GPU.

    They follow from the sweep's options alone, so that groups are the same in every attempt.
    """
    return int(_share * _BUDGET_BYTES)


def fix_numerics(tf32: bool) -> None:
    """Makes torch deterministic and sets its precision, before the first operation on a GPU.

    It must come first since cuBLAS reads its environment variable only once.

    Args:
        tf32: whether products and convolutions may round float32 to TF32.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic: Any = torch.utils.deterministic
    deterministic.fill_uninitialized_memory = False  # every entry is written by us
    backends: Any = torch.backends
    backends.cudnn.benchmark = False  # which algorithm is fastest differs from run to run
    for backend in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        backend.fp32_precision = "tf32" if tf32 else "ieee"
