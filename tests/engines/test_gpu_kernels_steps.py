"""Whole steps by kernels against the plain rules, and what becomes of kernels that are wrong."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from torch import Tensor, nn

from dpaudit_ray.engines.cpu.memory import Groups
from dpaudit_ray.engines.gpu import kernels
from dpaudit_ray.engines.packing.fallback import warn_of_kernels
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.engines.rules import implicit, outer
from tests.engines.on_kernels import DEVICE, EXACT, ROUNDED, broken, drawn, far, forced

pytest.importorskip("triton")
from dpaudit_ray.engines.gpu.kernels import mlp, products, samples

BOUNDS = {EXACT: 1e-5, ROUNDED: 1e-2}
IMAGES, VECTORS = (2, 8, 8), (6,)


def convolutions() -> nn.Module:
    """Stride, padding, normalisation and pooling; the last but few of its gradients are kept."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(),
        nn.Conv2d(4, 6, 2, bias=False), nn.MaxPool2d(2, stride=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(24, 3),
    )  # fmt: skip


def vectors() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1))


NETWORKS = {"convolutions": (convolutions, IMAGES), "vectors": (vectors, VECTORS)}


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch)
    warn_of_kernels.cache_clear()


def inputs_of(name: str) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    make, shape = NETWORKS[name]
    torch.manual_seed(2)
    module = make().to(DEVICE)
    size = sum(parameter.numel() for parameter in module.parameters())
    initial = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    theta = initial + 0.1 * drawn(3, size).to(DEVICE)
    return module, theta, drawn(2, *shape).to(DEVICE), torch.tensor([0, 1], device=DEVICE)


@pytest.mark.parametrize("compute", [None, ROUNDED], ids=str)
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "passing"])
@pytest.mark.parametrize("name", NETWORKS)
def test_steps_are_those_of_the_plain_rules(
    name: str, kept: bool, compute: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups of models; with weights, and without a clip.

    In bfloat16 both round, in turn of their own: none may be farther from float32 than twice the
    other, or than a bound.
    """
    if not kept:
        monkeypatch.setattr(outer, "_KEPT", 0)
    module, theta, x, y = inputs_of(name)
    fast = PackedModel(module, Groups(2, 2), compute)
    plain = PackedModel(module, Groups(2, 2), compute, by_kernels=False)
    exact = PackedModel(module, Groups(2, 2), by_kernels=False)
    bound = BOUNDS[compute or EXACT]
    weights = drawn(3, 2).abs().to(DEVICE)
    for clip_norm, own in ((0.3, weights), (math.inf, None)):
        found = fast.clipped_sums(theta, x, y, clip_norm, own)
        rounded = plain.clipped_sums(theta, x, y, clip_norm, own)
        expected = exact.clipped_sums(theta, x, y, clip_norm, own)
        assert far(found, expected) < max(bound, 2 * far(rounded, expected))
    assert fast._kernels
    assert not plain._kernels
    assert far(fast.outputs(theta, x), exact.outputs(theta, x)) < bound


@pytest.mark.parametrize("name", NETWORKS)
def test_steps_take_the_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, theta, x, y = inputs_of(name)
    model = PackedModel(module)
    model.settle(x, y)
    used = mlp if name == "vectors" else products
    function = "clipped_sums" if name == "vectors" else "input_gradients"
    monkeypatch.setattr(used, function, broken("it is asked"))
    with pytest.raises(RuntimeError, match="it is asked"):
        model.clipped_sums(theta, x, y, 1.0)


def test_no_gradient_is_longer_than_the_clip_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone: by as much as float32 rounds."""
    monkeypatch.setattr(outer, "_KEPT", 0)
    for name in NETWORKS:
        module, theta, x, y = inputs_of(name)
        model = PackedModel(module, compute=ROUNDED)
        model._settled = True  # whether they agree is another test's
        sums = model.clipped_sums(theta, x[:1], y[:1], 1e-3)
        assert bool((sums.double().norm(dim=1) <= 1e-3 * (1 + 1e-5)).all()), name


@pytest.mark.parametrize("name", NETWORKS)
def test_float64_goes_by_the_plain_rules(name: str) -> None:
    module, theta, x, y = inputs_of(name)
    module, wide = module.double(), (theta.double(), x.double(), y)
    found = PackedModel(module).clipped_sums(*wide, 0.3)
    expected = PackedModel(module, by_kernels=False).clipped_sums(*wide, 0.3)
    assert far(found, expected) < 1e-12


@pytest.mark.parametrize("said", ["cannot be run (no compiler)", "give other sums than autograd"])
@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_that_are_wrong_are_left_out(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def doubled(*args: object, **kwargs: object) -> object:
        found = true(*args, **kwargs)
        if found is None:  # what it has written
            args[1].mul_(1.01)
            return None
        return found * 1.01

    module, theta, x, y = inputs_of(name)
    expected = PackedModel(module, by_kernels=False).clipped_sums(theta, x, y, 0.3)
    used = (mlp, "clipped_sums") if name == "vectors" else (samples, "formed")
    true = getattr(*used)
    monkeypatch.setattr(*used, broken("no compiler") if "compiler" in said else doubled)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            model = PackedModel(module)
            assert torch.equal(model.clipped_sums(theta, x, y, 0.3), expected)
    assert not model._kernels
    assert caplog.text.count(f"GPU kernels {said}: the plain rules are used, slowly") == 1


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    for asked, found in (("always", (True, True)), ("auto", (True, False)), ("off", (False,) * 2)):
        monkeypatch.setenv(kernels.SWITCH, asked)
        assert (kernels.at_hand(cuda), kernels.at_hand(cpu)) == found
    monkeypatch.setenv(kernels.SWITCH, "auto")
    monkeypatch.setattr(torch.version, "cuda", None)  # torch for AMD says "cuda" too
    assert not kernels.at_hand(cuda)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert not kernels.at_hand(cuda)


def test_what_is_counted_in_32_bits_is_not_taken_beyond() -> None:
    module = nn.Conv2d(1, 2, 3)
    from dpaudit_ray.engines.rules.layers import slots_of

    rule = implicit.ImplicitConvRule(module, slots_of(module))
    theta = torch.empty(2, 20, device="meta")
    few = torch.empty(2 * 100, 1, 256, 256, device="meta")
    many = torch.empty(2 * 40_000, 1, 256, 256, device="meta")
    assert rule._takes(theta, few, 2)
    assert not rule._takes(theta, many, 2)
    assert not rule._takes(theta.double(), few, 2)
