"""The checks, a row of the table for each."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

import dpaudit_ray as da
from dpaudit_ray.engines import gpu_settings
from dpaudit_ray.engines.noise import GpuNoise
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.engines.packing.samplewise import Samplewise
from dpaudit_ray.forecast import bench
from dpaudit_ray.mechanisms.dp_sgd.network import network as drawn
from dpaudit_ray.models.base import Model
from dpaudit_ray.plugins import parse

from . import packs

_BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-3}
_CLIP = 0.5
_MOST = 1.5  # of the budget of memory
_DRAWN = 1_000_003


@dataclasses.dataclass(frozen=True)
class Row:
    """One check; `good`: what was found is what was wanted."""

    what: str
    of: str
    found: str
    wanted: str
    good: bool


def every(names: Sequence[str], gpu: bool) -> Iterator[Row]:
    """All checks of these networks, each as soon as it is done."""
    torch.set_num_threads(1)
    if gpu:
        gpu_settings.settle_in(tf32=False)
    yield noise(gpu)
    for name in names:
        yield from exact(name, gpu)
    for name in names:
        yield from repeated(name, gpu)
    for name in names if gpu else ():
        yield memory(name)
    yield from speed(names, gpu)
    for name in names:
        yield audit(name, gpu)


def noise(gpu: bool) -> Row:
    """The same bits as on a CPU."""
    near, far = torch.empty(_DRAWN), torch.empty(_DRAWN, device=gpu_settings.device(gpu))
    GpuNoise(7, near.device).fill(near)
    GpuNoise(7, far.device).fill(far)
    differ = int((near.view(torch.int32) != far.cpu().view(torch.int32)).sum())
    return Row("noise as on a CPU", f"{_DRAWN:,} draws", f"{differ} differ", "0", not differ)


def exact(name: str, gpu: bool) -> Iterator[Row]:
    """Clipped sums against one backward pass per example, on the CPU in float64."""
    module, device = _network(name).double(), gpu_settings.device(gpu)
    x, y = (torch.from_numpy(a) for a in packs.examples(name, 5))
    size = sum(p.numel() for p in module.parameters())
    start = nn.utils.parameters_to_vector(module.parameters()).detach()
    theta = start + 0.01 * torch.randn(3, size, generator=torch.Generator().manual_seed(1)).double()
    slow = Samplewise(module).clipped_sums(theta, x.double(), y, _CLIP, None)
    scale = slow.abs().amax(1, keepdim=True)
    for dtype, bound in _BOUNDS.items():
        model = PackedModel(copy.deepcopy(module).to(device, dtype))
        found = model.clipped_sums(
            theta.to(device, dtype), x.to(device, dtype), y.to(device), _CLIP
        )
        off = float(((found.cpu().double() - slow).abs() / scale).max())
        kind = str(dtype).removeprefix("torch.")
        yield Row(
            f"sums against autograd, {kind}", name, f"{off:.1e}", f"≤ {bound:g}", off <= bound
        )


def repeated(name: str, gpu: bool) -> Iterator[Row]:
    """A pack again, with less memory to spare, and in another process."""
    first = packs.digest(packs.trained(name, gpu))
    taken = torch.empty(1 << 28, device="cuda") if gpu else None
    again = packs.digest(packs.trained(name, gpu))
    del taken
    yield Row("a pack, again", name, again, first, again == first)
    asked = [sys.executable, "-m", "jobs.gpu.packs", name, "cuda" if gpu else "cpu"]
    cold = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    yield Row("a pack, in another process", name, cold, first, cold == first)


def memory(name: str) -> Row:
    """The peak of a step on a whole group of models, against the budget that it was chosen by."""
    work, device = bench.WORKLOADS[name], gpu_settings.device(gpu=True)
    x, y = (torch.from_numpy(a).to(device) for a in packs.examples(name, work.batch_size))
    model = PackedModel(_network(name).to(device))
    model.settle(x, y)
    theta = model.initial.repeat(model.together(x, y), 1)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model.clipped_sums(theta, x, y, _CLIP)
    ratio = (torch.cuda.max_memory_allocated() - before) / gpu_settings.budget()
    found = f"{ratio:.2f} of the budget"
    return Row("memory of a step", f"{len(theta)} {name}", found, f"≤ {_MOST:g}", ratio <= _MOST)


def speed(names: Sequence[str], gpu: bool) -> Iterator[Row]:
    """The fastest pack, as a share of the matrix product; nothing is wanted of it here."""
    found = bench.measure(names, 1, 5, gpu, () if gpu else (1, 16), opacus=False)
    for row in found.rows:
        share = row.flop_per_second / found.matmul_flop_per_second
        tried = ", ".join(f"{n}: {1e3 * seconds:.3g}" for n, seconds in row.packs.items())
        told = f"{1e3 * row.packed_seconds:.3g} ms in packs of {row.models}, "
        told += f"{100 * share:.1f} % ({tried})"
        yield Row("a model's step, of the matrix product", row.model, told, "", True)


def audit(name: str, gpu: bool) -> Row:
    """A whole one, by the inline executor: μ that is shown, against the claim."""
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        x, y = packs.examples(name, 64)
        np.savez(Path(folder) / "data.npz", x=x, y=y)
        result = da.run(_sweep(name, folder, gpu), storage_path=folder, executor="inline")
        row = result.overview.iloc[0]
        lower, claim = float(row["epsilon_lower"]), float(row["epsilon_upper"])
    good = result.complete and lower <= claim
    return Row("an audit's ε", name, f"{lower:.2f}", f"≤ {claim:.2f}", good)


def _sweep(name: str, folder: str, gpu: bool) -> dict[str, object]:
    return {
        "name": f"gpu-{name}",
        "mechanism": {
            "name": "dp-sgd", "data": {"name": "npz", "path": f"{folder}/data.npz"}, "model": name,
            "steps": 4, "batch_size": 16, "learning_rate": 0.1, "clip_norm": 1.0,
            "noise_multiplier": 2.0,
        },
        "adversary": {"name": "biased-dimension"},
        "audit": {"trials": 200, "delta": 1e-5},
        "resources": {"num_gpus": int(gpu), "num_cpus": 1},
    }  # fmt: skip


def _network(name: str) -> nn.Module:
    work = bench.WORKLOADS[name]
    return drawn(parse(Model, name, "model"), work.shape, work.classes, 0)
