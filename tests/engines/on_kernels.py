"""Where the tests of GPU kernels run: on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXACT, ROUNDED = torch.float32, torch.bfloat16

GENERATOR = torch.Generator()  # begins anew with every test: see conftest.py
drawn = functools.partial(torch.randn, generator=GENERATOR)


def far(found: Tensor, expected: Tensor) -> float:
    """The largest difference, in units of the largest entry; infinite where one of them is NaN."""
    if not torch.equal(found.isnan(), expected.isnan()):
        return float("inf")
    found, expected = found.double().cpu().nan_to_num(), expected.double().cpu().nan_to_num()
    return float((found - expected).abs().max() / expected.abs().max())


def broken(error: str) -> Callable[..., None]:
    """Stands for what a compiler cannot compile."""

    def call(*_: object, **__: object) -> None:
        raise RuntimeError(error)

    return call


def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels wherever there is Triton, as on a GPU; one thread, as the interpreter has."""
    monkeypatch.setenv("DPAUDIT_KERNELS", "always")
