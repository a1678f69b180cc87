"""Groups on a GPU: by options alone, and of a size that fits."""

import logging
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from dpaudit_ray.engines import gpu_settings
from dpaudit_ray.engines.packing import memory
from dpaudit_ray.engines.packing.memory import GPU_MOST, Groups, LiveBytes
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.forecast.bench import WORKLOADS
from dpaudit_ray.models.base import Model
from dpaudit_ray.plugins import parse
from tests.engines.standin import GPU, distant, standing_in


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    work = WORKLOADS[name]
    return parse(Model, name, "model").build(work.shape, work.classes)


def batch(name: str) -> Tensor:
    return torch.empty(WORKLOADS[name].batch_size, *WORKLOADS[name].shape, device="meta")


@pytest.fixture(autouse=True)
def whole_gpu() -> Iterator[None]:
    gpu_settings.take_share(1)
    yield
    gpu_settings.take_share(1)


def peak(model: PackedModel, models: int, x: Tensor) -> int:
    """Of a step at the very batch size, with all models at once."""
    walked = model._on_meta(Groups(models, models))
    theta, y = walked.initial.repeat(models, 1), torch.zeros(len(x), dtype=torch.long)
    y = y.to("meta")
    with LiveBytes(theta, x, y) as live:
        walked.clipped_sums(theta, x, y, 1.0)
    return live.peak


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_estimate_is_near_the_peak(name):
    model, x = PackedModel(network(name)), batch(name)
    groups = model.footprint.groups("sums", x)
    estimate = model.footprint.bytes("sums", groups.outer, x)
    assert estimate is not None
    assert 1 / 1.5 <= peak(model, groups.outer, x) / estimate <= 1.5
    assert estimate <= gpu_settings.budget() or groups == Groups(1, 1)


def test_what_lives_is_what_torch_says_it_allocated():
    """By torch's profiler, which sees the allocator: real tensors, no walk."""
    model = PackedModel(network("mlp3"), Groups(32, 32))
    model._settled = True
    theta, x = model.initial.repeat(32, 1), torch.randn(128, 446)
    y = torch.arange(128) % 30
    with torch.profiler.profile(profile_memory=True) as profiler:
        model._sums_into(*step(model, theta, x, y))
    events = profiler.profiler.kineto_results.events()
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    estimate = PackedModel(network("mlp3")).footprint.bytes("sums", 32, x)
    assert estimate is not None
    out = theta.nbytes  # made by a whole step
    assert 1 / 1.5 <= (most + out) / estimate <= 1.5


def step(model: PackedModel, theta: Tensor, x: Tensor, y: Tensor) -> tuple[object, ...]:
    from dpaudit_ray.engines.packing.passes import Step

    return torch.zeros_like(theta), theta, Step(x, y, 1.0, {}), None


def test_groups_follow_from_options_and_not_from_what_is_free(monkeypatch):
    """Whatever was computed before: batches of other sizes, other numbers of models."""
    x, free = batch("wrn16"), memory.free_bytes
    first = PackedModel(network("wrn16")).footprint.groups("sums", x)
    monkeypatch.setattr(memory, "free_bytes", lambda: free() // 1000)
    later = PackedModel(network("wrn16"))
    later.footprint.groups("sums", x[:3])
    later.footprint.groups("outputs", x)
    assert later.footprint.groups("sums", x) == first
    assert 1 < first.outer < GPU_MOST.outer


def test_a_share_of_a_gpu_has_a_share_of_the_budget():
    model, x = PackedModel(network("wrn16")), batch("wrn16")
    whole = model.footprint.groups("sums", x)
    gpu_settings.take_share(0.25)
    quarter = model.footprint.groups("sums", x)
    assert whole.outer // 4 - 1 <= quarter.outer <= whole.outer // 4 + 1
    estimate = model.footprint.bytes("sums", quarter.outer, x)
    assert estimate is not None
    assert estimate <= gpu_settings.budget()
    gpu_settings.take_share(0)
    assert model.footprint.groups("sums", x) == whole


def test_batches_of_nearly_one_size_have_one_group():
    """Batches drawn at random differ; a walk for each size would take as long as training."""
    sizes = {memory.rounded_up(n) for n in range(200, 312)}
    assert len(sizes) <= 6
    assert all(n <= memory.rounded_up(n) <= 1.25 * n for n in range(1, 5000))


class Asks(nn.Module):
    """Reads a number from its own buffer, which has none on a walk."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x) * float(self.scale)


def test_a_network_that_cannot_be_walked_through_has_groups_all_the_same(caplog):
    model = PackedModel(Asks())
    assert model.footprint.bytes("sums", 3, torch.randn(5, 4)) is None
    assert model.footprint.groups("sums", torch.randn(5, 4)) == Groups(16, 16)
    (said,) = caplog.messages
    assert "memory a step takes cannot be told" in said
    assert said.endswith("16 models are computed at once")


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
        original = model._passes._gradients

        def tight(theta: Tensor, *rest: object) -> object:
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
