"""Kernels of our own for CUDA, and when they are used. Triton is imported by none but this folder.

`DPAUDIT_KERNELS` is the one switch: `auto` (where the device is CUDA and Triton is installed),
`off`, or `always` (on a CPU too, in Triton's interpreter, which `TRITON_INTERPRET=1` turns on).
None of them has run on a GPU yet: `README.md` beside this folder says what was checked instead.
"""

from __future__ import annotations

import importlib.util
import os

import torch

SWITCH = "DPAUDIT_KERNELS"
# Of every launch. Products and sums are fused, whatever Triton's default is by then; without a
# limit the assembler spills registers to let more programs run beside each other.
OPTIONS = {"enable_fp_fusion": True, "maxnreg": 255}
_DTYPES = (torch.float32, torch.bfloat16)


def at_hand(device: torch.device) -> bool:
    """Whether kernels are to be used on this device."""
    asked = os.environ.get(SWITCH, "auto")
    cuda = device.type == "cuda" and torch.version.cuda is not None
    if asked == "off" or not (cuda or asked == "always"):
        return False
    return importlib.util.find_spec("triton") is not None


def takes(*dtypes: torch.dtype) -> bool:
    """Whether there are kernels for numbers of these kinds."""
    return all(dtype in _DTYPES for dtype in dtypes)


def precision() -> str:
    """Of float32 products inside kernels, as `settings.settle_in` has set it for all others."""
    allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return "tf32" if allowed else "ieee"
