"""The noise kernel against torch's operations, bit for bit."""

from __future__ import annotations

import logging

import pytest
import torch

from dpaudit_ray.engines.gpu import noise
from dpaudit_ray.engines.gpu.noise import GpuNoise
from dpaudit_ray.engines.gpu.normals import coefficients
from tests.engines.on_kernels import DEVICE, broken, forced

pytest.importorskip("triton")
from dpaudit_ray.engines.gpu.kernels import noise as kernels

SEED = 0xF123456789ABCDEF_FEDCBA9876543210
STARTS = (0, 7, 2**32 - 300, 2**40 + 1)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """What was found out about the kernel belongs to a process."""
    noise._agrees.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start", STARTS)
def test_numbers_are_those_of_torch(start: int, dtype: torch.dtype) -> None:
    """Also across the carry between the counter's words, and with the highest bits of a seed."""
    for seed in (SEED, 3):
        state = seed % 2**64, seed >> 64, start
        found, expected = (torch.empty(1501, dtype=dtype, device=DEVICE) for _ in range(2))
        noise._by_torch(expected, *state)
        kernels.fill(found, coefficients(DEVICE), *state)
        assert torch.equal(found, expected)


def test_the_tails_are_those_of_torch() -> None:
    """Octaves that no stream of a test reaches: the table is read where words are small."""
    import triton
    import triton.language as tl

    @triton.jit
    def given(out, high, low, table, SIZE: tl.constexpr):  # noqa: N803 (as Triton has it)
        at = tl.arange(0, SIZE)
        found = kernels.normals(tl.load(high + at), tl.load(low + at), table)
        tl.store(out + at, found)

    words = [(0, 0), (0, 1), (1 << 31, 2), (1, 2**32 - 1), (2**32 - 1, 2**32 - 1), (3, 0)]
    words += [(0, 2**k + j) for k in range(5, 32, 3) for j in (-1, 1)]
    words += [((1 << 31) + 2**k - 1, 2**k) for k in range(1, 31, 4)]
    high, low = torch.tensor((words * 2)[:32], dtype=torch.int64, device=DEVICE).T.contiguous()
    found = torch.empty_like(high)
    given[(1,)](found, high, low, coefficients(DEVICE), 32)
    assert torch.equal(found, noise.normals(high, low))


def test_a_stream_takes_the_kernel_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPAUDIT_KERNELS", "off")
    plain, expected = GpuNoise(SEED, DEVICE), torch.empty(700, device=DEVICE)
    sizes = (5, 600, 95)
    for part in torch.split(expected, sizes):
        plain.fill(part)
    forced(monkeypatch)
    monkeypatch.setattr(noise, "_TRIED", 100)
    used, found = GpuNoise(SEED, DEVICE), torch.empty(700, device=DEVICE)
    used.fill(found[: sizes[0]])
    monkeypatch.setattr(noise, "_by_torch", broken("the kernel is used"))
    for part in torch.split(found, sizes)[1:]:
        used.fill(part)
    assert torch.equal(found, expected)
    assert used.state() == plain.state()


@pytest.mark.parametrize("said", ["cannot be run (no compiler)", "gives other numbers"])
def test_a_kernel_that_is_wrong_is_left_out(
    said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected, found = torch.empty(100, device=DEVICE), torch.empty(100, device=DEVICE)
    noise._by_torch(expected, SEED % 2**64, SEED >> 64, 0)
    forced(monkeypatch)
    wrong = broken("no compiler") if "compiler" in said else lambda flat, *_: flat.zero_()
    monkeypatch.setattr(noise, "_by_kernel", wrong)
    with caplog.at_level(logging.WARNING):
        GpuNoise(SEED, DEVICE).fill(found)
        GpuNoise(SEED, DEVICE).fill(found)
    assert torch.equal(found, expected)
    assert caplog.text.count(f"the noise kernel {said}") == 1
