"""Groups on a GPU: by options alone, and of a size that fits."""

import logging
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from dpaudit_ray.engines import gpu_settings
from dpaudit_ray.engines.packing import memory
from dpaudit_ray.engines.packing.memory import GPU_MOST, Groups
from dpaudit_ray.engines.packing.packed import PackedModel
from tests.engines.standin import GPU, distant, standing_in


@pytest.fixture(autouse=True)
def whole_gpu() -> Iterator[None]:
    gpu_settings.take_share(1)
    yield
    gpu_settings.take_share(1)


def test_groups_follow_from_a_share_of_the_budget_and_not_from_what_is_free(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 1)
    assert Groups.for_gpu(1 << 20) == GPU_MOST
    assert Groups.for_gpu(1 << 28) == Groups(16, 16)
    assert Groups.for_gpu(1 << 40) == Groups(1, 1)
    gpu_settings.take_share(0.25)
    assert Groups.for_gpu(1 << 28) == Groups(4, 4)


def test_running_out_halves_and_says_so_once(caplog, monkeypatch):
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    theta = torch.randn(20, PackedModel(module).size)
    expected = PackedModel(module).clipped_sums(theta, x, y, 1.0)
    memory.warn_of_short_memory.cache_clear()
    sizes: list[int] = []
    with standing_in():
        model = PackedModel(module.to(GPU))
        far = distant((theta, x, y))
        model.settle(*far[1:])
        assert model._groups == GPU_MOST
        original = model._passes._gradients

        def tight(theta: torch.Tensor, *rest: object) -> object:
            sizes.append(len(theta))
            if len(theta) > 8:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return original(theta, *rest)

        monkeypatch.setattr(model._passes, "_gradients", tight)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                found = model.clipped_sums(*far, 1.0)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert max(sizes[-3:]) == 8
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(set(said))
    assert "8 models are" in said[-1]
    assert "num_gpus" in said[-1]
