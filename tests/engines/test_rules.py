"""Every layer rule against one gradient per sample and model, by plain autograd."""

import logging
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from dpaudit_ray.engines import gpu_settings
from dpaudit_ray.engines.packing import memory
from dpaudit_ray.engines.packing.conversion import warn_of_slow_way
from dpaudit_ray.engines.packing.memory import Groups
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.engines.rules import ghost_norm
from dpaudit_ray.mechanisms.dp_sgd.network import network
from dpaudit_ray.models.base import Model
from dpaudit_ray.plugins import parse
from tests.engines.networks import images, loss_of, slow_clipped_sum
from tests.long import paired

GROUPS = (Groups(64, 64), Groups(3, 1), Groups(4, 2))


class Tokens(nn.Module):
    """Eight numbers as tokens, embedded, mixed position by position, averaged."""

    def __init__(self, width: int, padding: int | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, width, padding_idx=padding)
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 7)
        self.out = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(1).abs().long() % 6
        return self.out(torch.tanh(self.mix(self.norm(self.embed(tokens)))).mean(1))


def vectors(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers, nn.LazyLinear(3))


conv = nn.Conv2d
MODULES = {
    "conv": lambda: images(conv(2, 3, 3), nn.ReLU(), conv(3, 4, 3)),
    "conv-no-bias": lambda: images(conv(2, 3, 3, bias=False), nn.Tanh(), conv(3, 2, 2, bias=False)),
    "conv-same-even": lambda: images(conv(2, 3, 4, padding="same"), conv(3, 2, 2, padding="same")),
    "conv-pad": lambda: images(conv(2, 3, 3, padding=(2, 1)), nn.ReLU(), conv(3, 3, 3, padding=1)),
    "conv-circular": lambda: images(
        conv(2, 3, 3, padding=1, padding_mode="circular"), nn.Tanh(),
        conv(3, 2, 3, padding=2, padding_mode="reflect"),
    ),
    "conv-stride": lambda: images(
        conv(2, 4, 3, stride=2, padding=1), nn.ReLU(), conv(4, 3, (2, 3), stride=(1, 2))
    ),
    "conv-dilated": lambda: images(
        conv(2, 3, 3, dilation=2), conv(3, 3, 2, dilation=(2, 1), padding=1)
    ),
    "conv-groups": lambda: images(
        conv(2, 6, 3, groups=2, stride=2, padding=1), nn.ReLU(),
        conv(6, 3, 2, groups=3, dilation=2, bias=False),
    ),
    "conv-ghost": lambda: images(conv(2, 20, 3, stride=3), nn.ReLU(), conv(20, 24, 2)),
    "conv-ghost-no-bias": lambda: images(
        conv(2, 20, 3, stride=3, bias=False), conv(20, 24, 2, bias=False)
    ),
    "pools": lambda: images(
        conv(2, 3, 3), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1)
    ),
    "conv-pool-twice": lambda: images(
        conv(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(), conv(3, 4, 2), nn.MaxPool2d(2)
    ),
    "group-norm": lambda: images(conv(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), conv(4, 2, 3)),
    "group-norm-first": lambda: images(nn.GroupNorm(1, 2), conv(2, 4, 3)),
    "layer-norm": lambda: vectors(nn.Linear(128, 6), nn.LayerNorm(6), nn.ReLU()),
    "layer-norm-no-bias": lambda: images(conv(2, 3, 3), nn.LayerNorm([3, 6, 6], bias=False)),
    "tokens": lambda: Tokens(5),
    "tokens-ghost": lambda: Tokens(60),
    "tokens-padding": lambda: Tokens(5, padding=0),
    "without-rule": lambda: vectors(weight_norm(nn.Linear(128, 5)), nn.PReLU()),
    "conv-depthwise": lambda: images(
        conv(2, 2, (3, 2), groups=2, stride=(2, 1), padding=1), nn.GELU(),
        conv(2, 2, 2, groups=2, dilation=(1, 2), bias=False),
    ),
}  # fmt: skip


def case(name: str) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    torch.manual_seed(len(name))
    module = MODULES[name]().double()
    x, y = torch.randn(6, 2, 8, 8).double() * 2, torch.randint(0, 3, (6,))
    module(x)
    size = sum(p.numel() for p in module.parameters())
    return module, torch.randn(5, size, dtype=torch.float64), x, y


@pytest.mark.parametrize(("name", "groups"), paired(MODULES, GROUPS, "every rule in all groups"))
def test_clipped_sums_equal_per_sample_autograd(name, groups, caplog):
    """By the rules of the layers: a rule that raises would be hidden by the slow way."""
    warn_of_slow_way.cache_clear()
    module, theta, x, y = case(name)
    model = PackedModel(module, groups)
    norms = model.clipped_sums(theta, x, y, math.inf).norm(dim=1)
    for clip in (float(norms.median()) / 10, math.inf):
        fast = model.clipped_sums(theta, x, y, clip)
        slow = torch.stack([slow_clipped_sum(module, row, x, y, clip) for row in theta])
        torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
    assert ("slowly" in caplog.text) == (name == "without-rule"), caplog.text


@pytest.mark.parametrize("name", [n for n in MODULES if "conv" in n or "tokens" in n])
def test_gradients_that_are_not_kept(name, monkeypatch):
    """The same sums when memory allows no per-sample gradient, and few patches at a time."""
    from dpaudit_ray.engines.rules import convolution as convolutions

    module, theta, x, y = case(name)
    clip = 0.3
    expected = PackedModel(module).clipped_sums(theta, x, y, clip)
    monkeypatch.setattr(ghost_norm, "_MOST_KEPT", 0)
    monkeypatch.setattr(convolutions, "_MOST_NUMBERS", 1000)
    found = PackedModel(module, Groups(3, 1)).clipped_sums(theta, x, y, clip)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["conv", "pools", "group-norm", "tokens", "without-rule"])
def test_losses_do_not_depend_on_the_groups(name):
    module, theta, x, y = case(name)
    expected = PackedModel(module, GROUPS[0]).losses(theta, x, y)
    for groups in GROUPS[1:]:
        found = PackedModel(module, groups).losses(theta, x, y)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    nn.utils.vector_to_parameters(theta[2], module.parameters())
    each = [loss_of(module(x[j : j + 1]), y[j : j + 1]) for j in range(len(y))]
    torch.testing.assert_close(expected[2], torch.stack(each), rtol=1e-10, atol=1e-10)


def test_the_slow_way_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    warn_of_slow_way.cache_clear()
    module, theta, x, y = case("without-rule")
    with caplog.at_level(logging.WARNING):
        model = PackedModel(module)
        model.clipped_sums(theta, x, y, 1.0)
        model.clipped_sums(theta, x, y, 1.0)
    assert [record.message.split(" has")[0] for record in caplog.records] == [
        "1 (ParametrizedLinear)"
    ]


def test_groups_that_free_memory_makes_smaller_are_told(monkeypatch, caplog):
    """Those of a network and its batch alone are not: every try has them."""
    memory.warn_of_short_memory.cache_clear()
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 40)
    assert Groups(64, 64).that_fit(1 << 24) == Groups(8, 8)
    assert caplog.messages == []
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 27)
    assert Groups(64, 64).that_fit(1 << 24) == Groups(1, 1)
    (said,) = caplog.messages
    assert "which may change last bits of scores" in said


def test_convolutions_go_in_groups_on_a_cpu_as_far_as_memory_is_fast(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    module, _, x, y = case("conv")
    model = PackedModel(module)
    model.choose_way(x, y)
    assert model._copy(None, loops=False, mapped=False).models_together(x, y) == 16
    assert Groups.for_cpu(module, in_loops=0).that_fit(1 << 25) == Groups(4, 4)


@pytest.mark.parametrize("name", ["resnet18", "wrn16"])
def test_networks_of_this_package_keep_the_groups_of_stored_scores(name):
    module = network(parse(Model, name, "model"), (3, 8, 8), 10, 0)
    assert Groups.for_cpu(module, in_loops=0) == Groups(8, 1)


def test_groups_on_a_gpu_follow_from_its_budget_and_not_from_what_is_free(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 1)
    for share, groups in ((1, 16), (0.25, 4), (0, 16)):
        gpu_settings.take_share(share)
        assert Groups.for_gpu(1 << 16) == memory.GPU_MOST
        assert Groups.for_gpu(1 << 24) == Groups(16 * groups, 16 * groups)
        assert Groups.for_gpu(1 << 28) == Groups(groups, groups)
        assert Groups.for_gpu(1 << 40) == Groups(1, 1)


def tight(
    monkeypatch: pytest.MonkeyPatch, model: PackedModel, name: str, most: int, error: Exception
) -> list[int]:
    """Makes passes of more than so many models fail; returns the sizes that are tried."""
    original, sizes = getattr(model._passes, name), []

    def passes(theta: Tensor, *rest: Any) -> object:
        sizes.append(len(theta))
        if len(theta) > most:
            raise error
        return original(theta, *rest)

    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # each thread halves its own
    monkeypatch.setattr(model._passes, name, passes)
    return sizes


def test_running_out_of_memory_halves_the_models(monkeypatch, caplog):
    module, theta, x, y = case("conv")
    expected = PackedModel(module).clipped_sums(theta, x, y, 1.0)
    model = PackedModel(module, Groups(4, 4))
    memory.warn_of_short_memory.cache_clear()
    full = torch.OutOfMemoryError("CUDA out of memory")
    sizes = tight(monkeypatch, model, "_gradients", 1, full)
    found = model.clipped_sums(theta, x, y, 1.0)
    assert sizes == [4, 2, 1, 1, 1, 1, 1]
    assert [line.partition(",")[0] for line in caplog.messages] == [
        "memory is short: from here on 2 models are computed at once",
        "memory is short: from here on 1 model is computed at once",
    ]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(MemoryError, match="batch_size"):
        Groups(1, 1).halved()


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_outputs_run_out_of_memory_in_halves_too(message, monkeypatch):
    """Libraries of a GPU take memory past torch's allocator, and say so in words of their own."""
    module, theta, x, y = case("conv")
    expected = PackedModel(module).outputs(theta, x)
    model = PackedModel(module, Groups(4, 4))
    model.choose_way(x, y)
    sizes = tight(monkeypatch, model, "outputs", 2, RuntimeError(message))
    torch.testing.assert_close(model.outputs(theta, x), expected, rtol=1e-12, atol=1e-12)
    assert sizes == [4, 2, 2, 1]


def test_one_model_that_does_not_fit_is_told(monkeypatch):
    module, theta, x, y = case("conv")
    model = PackedModel(module)
    model.choose_way(x, y)
    tight(monkeypatch, model, "bytes_of_one", 0, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(MemoryError, match="batch_size"):
        model.clipped_sums(theta, x, y, 1.0)
