"""The kernel for small networks against one example after the other."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from dpaudit_ray.engines.packing.fused import FusedMlp, fused
from dpaudit_ray.engines.rules.layers import slots_of
from tests.engines.on_kernels import DEVICE, EXACT, ROUNDED, drawn, far

pytest.importorskip("triton")
from dpaudit_ray.engines.gpu.kernels import mlp

# A sum in bfloat16 that lands on the other side of a rounding moves an activation by 2^-8.
BOUNDS = {EXACT: 2e-6, ROUNDED: 1e-2}


def network(*widths: int, bias: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def chain_of(module: nn.Sequential) -> tuple[FusedMlp, int]:
    slots = slots_of(module)
    chain = fused(module, slots)
    assert chain is not None
    return chain, max(slot.stop for slot in slots.values())


def slow_sums(
    module: nn.Sequential, theta: Tensor, x: Tensor, y: Tensor, clip: float, weights: Tensor
) -> Tensor:
    """One model, in float64, with activations and their gradients rounded as x is."""
    torch.nn.utils.vector_to_parameters(theta.to(x.dtype).float(), module.parameters())
    layers = [layer for layer in module if isinstance(layer, nn.Linear)]
    total = torch.zeros_like(theta, dtype=torch.float64)

    def near(value: Tensor) -> Tensor:
        return value.float().to(x.dtype).double()

    for example, label, weight in zip(x, y, weights, strict=True):
        acts = [example.double()]
        for layer in layers:
            z = layer.weight.double() @ acts[-1]
            z = z if layer.bias is None else z + layer.bias.double()
            acts.append(near(z.clamp(min=0)) if layer is not layers[-1] else z)
        g, grads = top(acts[-1], int(label), near), []
        for layer, below in zip(layers[::-1], acts[-2::-1], strict=True):
            grads = [torch.outer(g, below).flatten(), *([] if layer.bias is None else [g]), *grads]
            g = near((layer.weight.double().T @ g) * (below > 0))
        own = torch.cat(grads)
        total += float(weight) * min(1.0, clip / float(own.norm())) * own
    return total


def top(scores: Tensor, label: int, near: object) -> Tensor:
    if len(scores) == 1:
        return near(torch.sigmoid(scores) - label)
    return near(torch.softmax(scores, 0) - nn.functional.one_hot(torch.tensor(label), len(scores)))


@pytest.mark.parametrize("dtype", [EXACT, ROUNDED], ids=str)
@pytest.mark.parametrize(
    ("widths", "bias", "clip"),
    [((8, 3, 8, 1), True, 0.5), ((5, 19, 4), False, 0.2), ((3, 2), True, math.inf)],
)
@torch.no_grad()
def test_sums_are_those_of_a_slow_twin(
    widths: tuple[int, ...], bias: bool, clip: float, dtype: torch.dtype
) -> None:
    """Logistic and cross-entropy, an odd batch of more than a block, weights, no bias."""
    module = network(*widths, bias=bias)
    chain, size = chain_of(module)
    batch = mlp.EXAMPLES + 5
    theta, x = drawn(2, size), drawn(batch, widths[0]).to(dtype)
    y = torch.arange(batch) % max(2, widths[-1])
    weights = drawn(2, batch).abs()
    expected = torch.stack(
        [slow_sums(module, *row, clip, own) for *row, own in zip(theta, (x, x), (y, y), weights)]  # noqa: B905
    )
    found = torch.full_like(theta, 7.0).to(DEVICE)
    on_device = (x.to(DEVICE), y.to(DEVICE))
    mlp.clipped_sums(chain, found, theta.to(DEVICE), on_device, clip, weights.to(DEVICE))
    assert far(found, expected) < BOUNDS[dtype]


def test_nan_in_one_model_stays_in_it() -> None:
    chain, size = chain_of(network(6, 5, 3))
    theta, batch = drawn(3, size).to(DEVICE), (drawn(9, 6).to(DEVICE), torch.arange(9) % 3)
    batch = (batch[0], batch[1].to(DEVICE))
    before, after = torch.zeros_like(theta), torch.zeros_like(theta)
    mlp.clipped_sums(chain, before, theta, batch, 1.0, None)
    theta[1, 2] = math.nan
    mlp.clipped_sums(chain, after, theta, batch, 1.0, None)
    assert torch.equal(before[::2], after[::2])
    assert bool(after[1].isnan().any())


@pytest.mark.parametrize(
    ("widths", "dtype", "taken"),
    [
        ((8, 3, 8, 1), EXACT, True),
        ((64, 16, 16, 2), EXACT, True),
        ((64, 64, 2), EXACT, False),  # by tensor cores only
        ((64, 64, 2), ROUNDED, True),
        ((64, 64, 64, 64), ROUNDED, False),
        ((8, 3, 8, 1), torch.float64, False),
    ],
)
def test_what_does_not_stay_on_chip_is_not_taken(
    widths: tuple[int, ...], dtype: torch.dtype, taken: bool
) -> None:
    chain, size = chain_of(network(*widths))
    theta = torch.zeros(1, size, dtype=torch.float64 if dtype == torch.float64 else EXACT)
    assert mlp.takes_chain(chain, theta, torch.zeros(1, widths[0], dtype=dtype)) == taken
