"""The packed engine against the obvious way: one gradient per sample and model, clipped, summed."""

import itertools
import math
import platform
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from numba.core import caching
from torch import Tensor, nn

from dpaudit_ray.engines.cpu import vector_code
from dpaudit_ray.engines.noise import CpuNoise
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.engines.packing.samplewise import Samplewise
from dpaudit_ray.errors import SpecError
from dpaudit_ray.mechanisms.dp_sgd.network import generator, seeded
from tests.engines.networks import CASES, Made, slow_clipped_sum
from tests.long import long, paired


def random_case(seed: int) -> tuple[nn.Module, Tensor, Tensor, Tensor, float]:
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    widths = [int(w) for w in rng.integers(1, 9, size=rng.integers(2, 6))]
    classes = int(rng.integers(2, 5))
    layers: list[nn.Module] = [nn.Flatten()] if rng.random() < 0.5 else []
    for a, b in itertools.pairwise(widths):
        layers.append(nn.Linear(a, b, bias=bool(rng.random() < 0.7)))
        layers.append(nn.ReLU() if rng.random() < 0.5 else nn.Tanh())
    layers.append(nn.Linear(widths[-1], 1 if classes == 2 else classes))
    module = nn.Sequential(*layers).double()
    batch, models = int(rng.integers(1, 12)), int(rng.integers(1, 7))
    x = torch.randn(batch, widths[0], dtype=torch.float64) * 3
    y = torch.randint(0, classes, (batch,))
    size = sum(p.numel() for p in module.parameters())
    theta = torch.randn(models, size, dtype=torch.float64)
    clip = float(rng.choice([1e-3, 0.1, 1.0, 10.0, math.inf]))
    return module, theta, x, y, clip


@pytest.mark.parametrize("seed", range(20))
def test_clipped_sums_equal_per_sample_autograd(seed):
    module, theta, x, y, clip = random_case(seed)
    fast = PackedModel(module).clipped_sums(theta, x, y, clip)
    slow = torch.stack([slow_clipped_sum(module, row, x, y, clip) for row in theta])
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("seed", range(10))
def test_compiled_loops_equal_the_layer_rules(seed):
    """Small chains of Linear and ReLU are fused; the rules are their slow twin."""
    module, theta, x, y, clip = random_case(seed)
    layers = [nn.ReLU() if isinstance(layer, nn.Tanh) else layer for layer in module]
    module = nn.Sequential(*layers)
    weights = torch.rand(len(theta), len(y), dtype=torch.float64)
    fast, slow = PackedModel(module), PackedModel(module)
    assert fast._loops is not None
    slow._loops = None
    for dtype, bound in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        values = (theta.to(dtype), x.to(dtype), y, clip, weights.to(dtype))
        torch.testing.assert_close(
            fast.clipped_sums(*values), slow.clipped_sums(*values), rtol=bound, atol=bound
        )


@pytest.mark.parametrize("seed", range(5))
def test_weights_multiply_clipped_gradients(seed):
    module, theta, x, y, clip = random_case(seed)
    weights = torch.rand(len(theta), len(y), dtype=torch.float64)
    fast = PackedModel(module).clipped_sums(theta, x, y, clip, weights)
    for model, row in enumerate(theta):
        samples = zip(x.split(1), y.split(1), strict=True)
        each = [slow_clipped_sum(module, row, *sample, clip) for sample in samples]
        slow = sum(w * g for w, g in zip(weights[model], each, strict=True))
        torch.testing.assert_close(fast[model], slow, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("mapped", [0, 1])
def test_a_long_gradient_is_clipped_to_the_clip_norm(mapped):
    """Torch adds squares one by one on a CPU: the norm of four million is 7e-5 too short."""
    torch.manual_seed(0)
    x, y = torch.randn(1, 1 << 21), torch.tensor([0])
    alone = Samplewise(nn.Linear(x.shape[1], 2, bias=False), mapped=mapped)
    theta = torch.zeros(1, 2 * x.shape[1])
    (clipped,) = alone.clipped_sums(theta, x, y, 1.0, None)
    assert abs(float(clipped.double().norm()) - 1) < 2e-6


def test_a_diverged_model_does_not_touch_its_neighbours():
    module, theta, x, y, clip = random_case(3)
    model = PackedModel(module)
    alone = model.clipped_sums(theta, x, y, clip)
    broken = theta.clone()
    broken[0] = math.nan
    together = model.clipped_sums(broken, x, y, clip)
    assert torch.isnan(together[0]).all()
    torch.testing.assert_close(together[1:], alone[1:])


def test_noise_is_standard_normal_and_keyed_by_the_whole_seed():
    """Fixed seed; both tests reject a right generator with probability below 1e-4 each."""
    first, second, again = (torch.empty(100_000) for _ in range(3))
    for seed, out in ((5, first), (5 + 2**32, second), (5, again)):
        CpuNoise(seed).fill(out)
    assert abs(float(first.mean())) < 4 / math.sqrt(1e5)
    assert abs(float(first.std()) - 1) < 4 / math.sqrt(2e5)
    assert abs(float((first * second).mean())) < 4 / math.sqrt(1e5)
    assert torch.equal(first, again)


HEAP = """
import ctypes, sys, tempfile, torch
from xml.etree import ElementTree
from torch import nn
from dpaudit_ray.engines.packing.memory import keep_heap
from dpaudit_ray.engines.packing.packed import PackedModel

if sys.argv[1] == "keep":
    keep_heap()
torch.set_num_threads(2)
layers = nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2)
model = PackedModel(nn.Sequential(*layers))
model._way_chosen = True
theta, x = model.initial.repeat(32, 1), torch.randn(512, 64)
y = torch.arange(512) % 2
for _ in range(8):
    model.clipped_sums(theta, x, y, 1.0)

libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    info = ElementTree.parse(file.name)
heaps = len(info.findall("heap"))
(current,) = (int(part.get("size")) for part in info.findall("./system[@type='current']"))
(largest,) = (int(part.get("size")) for part in info.findall("./system[@type='max']"))
print(heaps, largest - current)
"""


def heaps_and_returned_bytes(way: str) -> tuple[int, int]:
    """Returns the heaps of glibc after eight steps, and the bytes that went back to the kernel."""
    command = [sys.executable, "-c", HEAP, way]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    heaps, returned = map(int, done.stdout.split())
    return heaps, returned


@long("14 s of steps for a guard of memory")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc's malloc_info")
def test_steps_on_two_threads_share_one_heap_that_keeps_its_memory():
    """By glibc's own count: how many pages a step touches anew depends on other processes."""
    assert heaps_and_returned_bytes("keep") == (1, 0)
    heaps, returned = heaps_and_returned_bytes("as it is")
    assert heaps > 1
    assert returned > 0


def crowded(size: int, width: int) -> nn.Module:
    """Statistics of the batch from so many rows on."""

    def call(self: Any, x: Tensor) -> Tensor:
        h = torch.tanh(self.fc(x))
        return self.out(h - h.mean(0) if len(h) >= size else h)

    return Made(call, fc=nn.Linear(8, width), out=nn.Linear(width, 3))


@pytest.mark.parametrize(
    ("size", "width"), paired([3, 16, 100], [90_000, 10_000, 5], "every size at every width")
)
def test_statistics_of_a_batch_are_found_wherever_they_begin(size, width):
    x, y = torch.randn(128, 8), torch.arange(128) % 3
    with pytest.raises(SpecError, match="others in its batch"):
        PackedModel(crowded(size, width)).choose_way(x, y)
    PackedModel(crowded(200, width)).choose_way(x, y)


def test_where_rows_count_no_more_go_together_than_were_tried():
    """Two models' rows are too many for the expert; so are more rows of one than a batch has."""
    module = CASES["expert-full-with-many-models"].make().double()
    x, y = torch.randn(30, 8, dtype=torch.float64), torch.arange(30) % 3
    model = PackedModel(module)
    model.choose_way(x[:12], y[:12])
    theta = model.initial + 0.1 * torch.randn(4, model.size).double()
    weights = torch.rand(4, 30, dtype=torch.float64)
    each = [
        model.clipped_sums(theta, *one, 0.3) for one in zip(x.split(1), y.split(1), strict=True)
    ]
    expected = torch.einsum("jnp,nj->np", torch.stack(each), weights)
    found = model.clipped_sums(theta, x, y, 0.3, weights)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    alone = torch.cat([model.outputs(theta, row) for row in x.split(1)], 1)
    torch.testing.assert_close(model.outputs(theta, x), alone, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("at-the-first-call")])
def test_numbers_kept_at_the_first_call_are_those_of_the_training(name):
    """The check is in float64, the training in float32."""
    module, x, y = CASES[name].make(), torch.randn(6, 8), torch.arange(6) % 3
    model = PackedModel(module)
    theta = model.initial.repeat(2, 1)
    found = model.clipped_sums(theta, x, y, 0.3)
    assert module(x).dtype == torch.float32
    expected = slow_clipped_sum(module, theta[0], x, y, 0.3)
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5)


def drawn_of(seed: int, count: int) -> Tensor:
    return torch.randn(count, generator=generator(seed, torch.device("cpu")))


@pytest.mark.parametrize("bit", [32, 63, 64, 127])
def test_every_bit_of_a_seed_counts(bit):
    """`manual_seed` keeps 32 of them on a CPU."""
    with seeded(5 + 2**bit):
        assert torch.equal(torch.randn(8), drawn_of(5 + 2**bit, 8))
    assert not torch.equal(drawn_of(5, 8), drawn_of(5 + 2**bit, 8))


def test_seeds_draw_standard_normals():
    """The first of 4000 seeds each, and 40,000 of one; right ones are rejected in 1 of 1e4."""
    firsts, many = torch.cat([drawn_of(seed, 1) for seed in range(4000)]), drawn_of(2**100, 40_000)
    for drawn in (firsts, many):
        assert abs(float(drawn.mean())) < 4 / math.sqrt(len(drawn))
        assert abs(float(drawn.std()) - 1) < 4 / math.sqrt(2 * len(drawn))


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch):
    def total(values: np.ndarray) -> float:
        result = 0.0
        for value in values:
            result += value
        return result

    for kind in (caching.CacheImpl, *caching.CacheImpl.__subclasses__()):
        monkeypatch.setattr(kind, "_locator_classes", [])
    loop: Any = vector_code.compiled(total)
    assert loop(np.ones(3)) == 3
    assert loop.stats.cache_path is None
