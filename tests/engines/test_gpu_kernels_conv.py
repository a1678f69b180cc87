"""The convolutions' kernels against torch, model by model and example by example."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor

from tests.engines.on_kernels import DEVICE, EXACT, ROUNDED, drawn, far

pytest.importorskip("triton")
from dpaudit_ray.engines.gpu.kernels import products, samples

MODELS, BATCH = 2, 3
SUMMED = 2e-6  # of the largest entry: float32 sums in another order
# What is written in bfloat16 may be a neighbour of the twin's.
WRITTEN = {EXACT: SUMMED, ROUNDED: 2.0**-7}


@dataclasses.dataclass(frozen=True)
class Layer:
    """A convolution on images; odd sizes, so that every tile has an edge."""

    channels: tuple[int, int]
    size: tuple[int, int]
    kernel: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)

    @property
    def geometry(self) -> object:
        empty = torch.empty(1, self.channels[0], *self.size, device="meta")
        weight = torch.empty(1, self.channels[0], *self.kernel, device="meta")
        found = F.conv2d(empty, weight, None, *self.steps).shape[2:]
        return products.Geometry(*self.channels, self.size, tuple(found), self.kernel, *self.steps)

    @property
    def steps(self) -> tuple[tuple[int, int], ...]:
        return self.stride, self.padding, self.dilation


LAYERS = {
    "plain": Layer((3, 5), (7, 9)),
    "strided": Layer((4, 18), (9, 8), (3, 2), (2, 2), (1, 0), (1, 2)),
    "pointwise": Layer((2, 3), (8, 8), (1, 1), (2, 2), (0, 0)),
    "deep": Layer((20, 24), (4, 4)),
    "uneven": Layer((1, 35), (6, 7), (5, 4), (1, 3), (2, 3), (1, 1)),
}
every = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
in_both = pytest.mark.parametrize("dtype", [EXACT, ROUNDED], ids=str)
shared_or_not = pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])


@every
@in_both
@shared_or_not
def test_outputs_are_those_of_torch(layer: Layer, dtype: torch.dtype, shared: bool) -> None:
    inputs, outputs = layer.channels
    x = drawn(BATCH * (1 if shared else MODELS), inputs, *layer.size).to(dtype)
    weight = drawn(MODELS, outputs, inputs, *layer.kernel).to(dtype)
    bias = drawn(MODELS, outputs + 3).to(dtype)[:, 3:]  # as a part of all parameters
    parts = [x] * MODELS if shared else x.split(BATCH)
    expected = [
        F.conv2d(own.double(), w.double(), b.double(), *layer.steps)
        for own, w, b in zip(parts, weight, bias, strict=True)
    ]
    on_device = (x.to(DEVICE), weight.to(DEVICE), bias.to(DEVICE))
    found = products.outputs(layer.geometry, *on_device, shared)
    assert found.dtype == dtype
    assert far(found, torch.stack(expected)) < WRITTEN[dtype]


@every
@in_both
def test_input_gradients_are_those_of_torch(layer: Layer, dtype: torch.dtype) -> None:
    inputs, outputs = layer.channels
    geometry = layer.geometry
    g = drawn(MODELS * BATCH, outputs, *geometry.positions).to(dtype)
    weight = drawn(MODELS, outputs, inputs, *layer.kernel).to(dtype)
    expected = [
        torch.nn.grad.conv2d_input(
            (BATCH, inputs, *layer.size), w.double(), own.double(), *layer.steps
        )
        for own, w in zip(g.split(BATCH), weight, strict=True)
    ]
    found = products.input_gradients(geometry, g.to(DEVICE), weight.to(DEVICE))
    assert far(found, torch.cat(expected)) < WRITTEN[dtype]


def each_gradient(layer: Layer, x: Tensor, g: Tensor, shared: bool, biased: bool) -> Tensor:
    """float64 [n, B, o, columns], by torch's own gradient of every example."""
    inputs, outputs = layer.channels
    rows = x.repeat(MODELS, 1, 1, 1) if shared else x
    found = []
    for image, own in zip(rows.double().split(1), g.double().split(1), strict=True):
        of_weight = torch.nn.grad.conv2d_weight(
            image, (outputs, inputs, *layer.kernel), own, *layer.steps
        )
        columns = of_weight.permute(0, 2, 3, 1).flatten(1)
        found.append(torch.cat([columns, own.sum((2, 3)).T], 1) if biased else columns)
    return torch.stack(found).view(MODELS, BATCH, outputs, -1)


@every
@in_both
@shared_or_not
def test_gradients_norms_and_sums_are_those_of_every_example(
    layer: Layer, dtype: torch.dtype, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of bfloat16 in float32: products of two are exact, and weights are not rounded."""
    geometry, biased = layer.geometry, layer.channels[1] % 2 == 0
    x = drawn(BATCH * (1 if shared else MODELS), layer.channels[0], *layer.size).to(dtype)
    g = drawn(MODELS * BATCH, layer.channels[1], *geometry.positions).to(dtype)
    weights = drawn(MODELS, BATCH)
    each = each_gradient(layer, x, g, shared, biased)
    squares = (each**2).sum((2, 3))
    summed = (each * weights[:, :, None, None]).sum(1)
    of_x, of_g = (products.last(value.to(DEVICE)) for value in (x, g))
    read = samples.Samples(geometry, of_x, of_g, MODELS, shared, biased)
    assert far(samples.formed(read), each) < SUMMED
    assert far(samples.squared_norms(read), squares) < SUMMED
    if read.positions <= samples.GHOST:
        assert far(samples._ghost_norms(read), squares) < SUMMED
    assert far(samples.weighted_sums(read, weights.to(DEVICE)), summed) < SUMMED
    monkeypatch.setattr(samples, "_TOGETHER", 2 * read.positions)  # two parts, the last one short
    assert far(samples.weighted_sums(read, weights.to(DEVICE)), summed) < SUMMED


def test_nan_in_one_model_stays_in_it() -> None:
    layer = LAYERS["deep"]
    geometry, (inputs, outputs) = layer.geometry, layer.channels
    x = drawn(MODELS * BATCH, inputs, *layer.size).to(DEVICE)
    weight = drawn(MODELS, outputs, inputs, *layer.kernel).to(DEVICE)
    weights = torch.ones(MODELS, BATCH, device=DEVICE)

    def all_of_it() -> list[Tensor]:
        y = products.outputs(geometry, x, weight, None, False).flatten(0, 1)
        read = samples.Samples(geometry, products.last(x), products.last(y), MODELS, False, True)
        return [
            y.unflatten(0, (MODELS, -1)),
            products.input_gradients(geometry, y, weight).unflatten(0, (MODELS, -1)),
            samples.formed(read), samples.squared_norms(read), samples._ghost_norms(read),
            samples.weighted_sums(read, weights),
        ]  # fmt: skip

    before = all_of_it()
    weight[1, 0, 0, 1, 1] = math.nan
    for one, other in zip(before, all_of_it(), strict=True):
        assert torch.equal(one[0], other[0])
        assert bool(other[1].isnan().any())
