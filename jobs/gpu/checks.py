"""The checks, a row of the table for each."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import nn

import dpaudit_ray as da
from dpaudit_ray.engines import gpu_settings
from dpaudit_ray.engines.noise import GpuNoise, coefficients, compiled_writer, write_normals
from dpaudit_ray.engines.packing.memory import Groups
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.engines.packing.samplewise import Samplewise, cast
from dpaudit_ray.errors import first_line
from dpaudit_ray.forecast import bench
from dpaudit_ray.mechanisms.dp_sgd.network import network as drawn
from dpaudit_ray.models.base import Model
from dpaudit_ray.plugins import parse

from . import kinds, packs

_BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-3}
_CLIP = 0.5
_MOST = 1.5  # of the budget of memory
_DRAWN = 1_000_003
_TIMED = 1 << 26  # numbers of noise on a GPU
_GROUPS = (256, 1024, 4096)  # models
_PACKS = (64, 256, 1024)  # models of a pack, unless it may take long
GROUPED = ("fcnn", "mlp3", "convnet")
# Batch, inputs, outputs and size of layers: the second of convnet, and those of wrn16.
_LAYERS = {
    "convnet, 32 to 64": (128, 32, 64, 16),
    "wrn16, 64 to 64": (32, 64, 64, 32),
    "wrn16, 256 to 256": (32, 256, 256, 8),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One check; `good`: what was found is what was wanted."""

    what: str
    of: str
    found: str
    wanted: str
    good: bool


@dataclasses.dataclass(frozen=True)
class Check:
    """A part of the table that is done or fails as a whole; `rows` gives its rows."""

    what: str
    of: str
    rows: Callable[[], Iterable[Row]]


def planned(names: Sequence[str], gpu: bool, long: bool) -> Iterator[Check]:
    """All checks of these networks, the most useful first."""
    first, *others = names
    yield Check("sums against autograd", first, partial(exact, first, gpu))
    yield Check("an audit's ε", first, lambda: [audit(first, gpu)])
    yield Check("noise as on a CPU", "draws", lambda: [noise(gpu)])
    yield Check("noise, a number", "draws", lambda: [noise_speed(gpu)])
    for name in (name for name in names if name in GROUPED):
        yield Check("models in a group", name, partial(grouped, name, gpu))
    yield Check("convolutions", "layers", lambda: convolutions(gpu))
    for name in names:
        yield Check("a step in profile", name, partial(profiled, name, gpu))
    for name in names:
        yield Check("a pack, again", name, partial(repeated, name, gpu, cold=long))
    for kind in kinds.KINDS:
        yield Check("sums against autograd", kind, partial(exact_kind, kind, gpu))
    for name in others:
        yield Check("sums against autograd", name, partial(exact, name, gpu))
    for name in names if gpu else ():
        yield Check("memory of a step", name, lambda name=name: [memory(name)])
    yield Check("a model's step", "networks", lambda: speed(names, gpu, long))
    for name in others:
        yield Check("an audit's ε", name, lambda name=name: [audit(name, gpu)])


def every(names: Sequence[str], gpu: bool, long: bool = False, limit: int = 90) -> Iterator[Row]:
    """Rows of all checks, each as soon as it is done; one that fails or takes too long is a row."""
    torch.set_num_threads(1)
    if gpu:
        gpu_settings.fix_numerics(tf32=False)
    for check in planned(names, gpu, long):
        try:
            with limited(limit):
                yield from check.rows()
        except (Exception, OutOfTimeError) as error:  # noqa: BLE001 (a GPU may raise anything)
            problem = f"failed: {type(error).__name__}: {first_line(error)}"
            yield Row(check.what, check.of, problem.replace("|", "/"), "", good=False)


class OutOfTimeError(BaseException):
    """The limit of a check has passed; no `except Exception` of the package catches it."""


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises OutOfTimeError in the main thread after so many seconds."""

    def stop(*_: object) -> None:
        raise OutOfTimeError(f"not done in {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def seconds_of(call: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """The median of wall times, after a call to warm up."""
    times = []
    for _ in range(1 + repeats):
        _finish(device)
        start = time.perf_counter()
        call()
        _finish(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def noise(gpu: bool) -> Row:
    """The same bits as on a CPU."""
    near, far = torch.empty(_DRAWN), torch.empty(_DRAWN, device=gpu_settings.device(gpu))
    GpuNoise(7, near.device).fill(near)
    GpuNoise(7, far.device).fill(far)
    differ = int((near.view(torch.int32) != far.cpu().view(torch.int32)).sum())
    return Row("noise as on a CPU", f"{_DRAWN:,} draws", f"{differ} differ", "0", not differ)


def noise_speed(gpu: bool) -> Row:
    """Nanoseconds a number by single operations and, on a GPU, by the compiled kernel."""
    device = gpu_settings.device(gpu)
    out = torch.empty(_TIMED if gpu else _DRAWN, device=device)
    table = coefficients(device)
    writers = {"single operations": write_normals}
    if device.type == "cuda":
        writers["compiled"] = compiled_writer(device)
    found = []
    for name, write in writers.items():
        seconds = seconds_of(partial(write, out, table, 0, 3, 5), device)
        found.append(f"{name} {1e9 * seconds / len(out):.3g} ns")
    return Row("noise, a number", f"{len(out):,} draws", ", ".join(found), "", good=True)


def grouped(name: str, gpu: bool) -> Iterator[Row]:
    """A step by groups of several sizes, and by as many as the budget allows."""
    work, device = bench.WORKLOADS[name], gpu_settings.device(gpu)
    x, y = (torch.from_numpy(a).to(device) for a in packs.examples(name, work.batch_size))
    module = _network(name).to(device)
    for size in (*_GROUPS, None) if gpu else (16, 64):
        model = PackedModel(module, None if size is None else Groups(size, size))
        model.choose_way(x, y)
        models = size or model.models_together(x, y)
        theta = model.initial.repeat(models, 1)
        seconds = seconds_of(lambda m=model, t=theta: m.clipped_sums(t, x, y, _CLIP), device)
        label = f"{models} {name}{'' if size else ', by the budget'}"
        yield Row("models in a group", label, f"{1e6 * seconds / models:.3g} µs a model", "", True)


def convolutions(gpu: bool) -> Iterator[Row]:
    """Layers of many models by a grouped convolution, and by products of unfolded patches."""
    device = gpu_settings.device(gpu)
    models = 64 if gpu else 2
    for tf32 in (False, True) if device.type == "cuda" else (False,):
        if device.type == "cuda":
            gpu_settings.fix_numerics(tf32=tf32)
        for label, (batch, inputs, outputs, size) in _LAYERS.items():
            x = torch.randn(batch, models * inputs, size, size, device=device)
            weight = torch.randn(models * outputs, inputs, 3, 3, device=device)
            whole = partial(F.conv2d, x, weight, None, 1, 1, 1, models)
            patches = partial(_by_patches, x, weight, models)
            found = f"grouped {1e3 * seconds_of(whole, device) / models:.3g} ms, "
            found += f"patches {1e3 * seconds_of(patches, device) / models:.3g} ms a model"
            yield Row("convolution" + ", TF32" * tf32, label, found, "", good=True)
    if device.type == "cuda":
        gpu_settings.fix_numerics(tf32=False)


def _by_patches(x: torch.Tensor, weight: torch.Tensor, models: int) -> torch.Tensor:
    """A convolution of all models by one batched product, float [n, o, B * positions]."""
    batch = len(x)
    patches = F.unfold(x.view(batch * models, -1, *x.shape[2:]), 3, padding=1)
    by_model = patches.view(batch, models, *patches.shape[1:]).permute(1, 2, 0, 3).flatten(2)
    return torch.bmm(weight.view(models, -1, by_model.shape[1]), by_model)


def profiled(name: str, gpu: bool) -> Iterator[Row]:
    """The number of kernels, or operations of a CPU, in a step, and those that take longest."""
    work, device = bench.WORKLOADS[name], gpu_settings.device(gpu)
    count = work.batch_size if gpu else 4
    x, y = (torch.from_numpy(a).to(device) for a in packs.examples(name, count))
    model = PackedModel(_network(name).to(device))
    theta = model.initial.repeat(64 if gpu else 2, 1)
    kind = "cuda" if device.type == "cuda" else "cpu"
    activity = getattr(torch.profiler.ProfilerActivity, kind.upper())
    wall = seconds_of(lambda: model.clipped_sums(theta, x, y, _CLIP), device)
    with torch.profiler.profile(activities=[activity]) as profile:
        model.clipped_sums(theta, x, y, _CLIP)
        _finish(device)
    attribute = f"self_{'device' if kind == 'cuda' else kind}_time_total"
    times = {event.key: getattr(event, attribute) / 1e6 for event in profile.key_averages()}
    calls = sum(event.count for event in profile.key_averages())
    total = sum(times.values())
    longest = sorted(times, key=times.__getitem__, reverse=True)[:3]
    parts = ", ".join(f"{key[:40]} {100 * times[key] / total:.0f} %" for key in longest)
    found = f"{calls} kernels, busy {100 * total / wall:.0f} % of {1e3 * wall:.3g} ms: {parts}"
    yield Row("a step in profile", f"{len(theta)} {name}", found.replace("|", "/"), "", good=True)


def exact_kind(kind: str, gpu: bool) -> Iterator[Row]:
    """Clipped sums of a network of another kind."""
    module, x, y = kinds.KINDS[kind]()
    yield from _exact(kind, module.double(), x, y, gpu)


def exact(name: str, gpu: bool) -> Iterator[Row]:
    """Clipped sums against one backward pass per example, on the CPU in float64."""
    x, y = (torch.from_numpy(a) for a in packs.examples(name, 5))
    yield from _exact(name, _network(name).double(), x, y, gpu)


def _exact(
    name: str, module: nn.Module, x: torch.Tensor, y: torch.Tensor, gpu: bool
) -> Iterator[Row]:
    device = gpu_settings.device(gpu)
    size = sum(p.numel() for p in module.parameters())
    start = nn.utils.parameters_to_vector(module.parameters()).detach()
    theta = start + 0.01 * torch.randn(3, size, generator=torch.Generator().manual_seed(1)).double()
    slow = Samplewise(module).clipped_sums(theta, cast(x, torch.float64), y, _CLIP, None)
    scale = slow.abs().amax(1, keepdim=True)
    for dtype, bound in _BOUNDS.items():
        model = PackedModel(copy.deepcopy(module).to(device, dtype))
        found = model.clipped_sums(
            theta.to(device, dtype), cast(x, dtype).to(device), y.to(device), _CLIP
        )
        off = float(((found.cpu().double() - slow).abs() / scale).max())
        kind = str(dtype).removeprefix("torch.")
        yield Row(
            f"sums against autograd, {kind}", name, f"{off:.1e}", f"≤ {bound:g}", off <= bound
        )


def repeated(name: str, gpu: bool, cold: bool) -> Iterator[Row]:
    """A pack again, with less memory to spare, and in another process if `cold`."""
    first = packs.digest(packs.trained(name, gpu))
    taken = torch.empty(1 << 28, device=gpu_settings.device(gpu)) if gpu else None
    again = packs.digest(packs.trained(name, gpu))
    del taken
    yield Row("a pack, again", name, again, first, again == first)
    if not cold:
        return
    asked = [sys.executable, "-m", "jobs.gpu.packs", name, "cuda" if gpu else "cpu"]
    cold = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    yield Row("a pack, in another process", name, cold, first, cold == first)


def memory(name: str) -> Row:
    """The peak of a step on a whole group of models, against the budget that it was chosen by."""
    work, device = bench.WORKLOADS[name], gpu_settings.device(gpu=True)
    x, y = (torch.from_numpy(a).to(device) for a in packs.examples(name, work.batch_size))
    model = PackedModel(_network(name).to(device))
    model.choose_way(x, y)
    theta = model.initial.repeat(model.models_together(x, y), 1)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    model.clipped_sums(theta, x, y, _CLIP)
    ratio = (torch.cuda.max_memory_allocated() - before) / gpu_settings.budget()
    found = f"{ratio:.2f} of the budget"
    return Row("memory of a step", f"{len(theta)} {name}", found, f"≤ {_MOST:g}", ratio <= _MOST)


def speed(names: Sequence[str], gpu: bool, long: bool) -> Iterator[Row]:
    """The fastest pack, as a share of the matrix product; nothing is wanted of it here."""
    sizes = (1, 16) if long or not gpu else _PACKS
    if long and gpu:
        sizes = bench.PACKS
    found = bench.measure(names, 1, 5, gpu, sizes, opacus=False)
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
