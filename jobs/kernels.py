"""Compiles the GPU kernels for every layer of the papers' networks, without a GPU.

`python -m jobs.kernels` prints a table of registers, spilled bytes and shared memory, for targets
of compute capability 8.0 and 9.0. What is compiled is what the package launches: its own code runs
on tensors without data, and launches are recorded in place of being done.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import itertools
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TARGETS = (80, 90)
LIMITS = {80: 163 * 1024, 90: 227 * 1024}  # bytes of shared memory that a program may ask for
BATCH, MODELS = 128, 64
_OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "maxnreg")
# The papers' and, as chains of widths, some of the largest that one kernel takes.
NETWORKS = (
    "noise", "fcnn", "30-3-8-1", "64-16-16-2", "32-32-32-10", "64-64-64-10",
    "convnet", "cnn4", "wrn16", "resnet18",
)  # fmt: skip
_SHAPES = {"cnn4": (1, 28, 28), "fcnn": (8,)}


@dataclasses.dataclass(frozen=True)
class Launch:
    """What Triton would compile for one launch; plain data, so that processes share the work."""

    network: str
    numbers: str  # dtype of activations, and how float32 is multiplied
    where: str
    module: str
    kernel: str
    signature: dict[str, str]
    constants: dict[Any, Any]
    attributes: dict[Any, Any]
    options: dict[str, Any]

    @property
    def code(self) -> str:
        """What decides the code; launches that share it are compiled once."""
        given = (self.kernel, self.signature, self.constants, self.attributes, self.options)
        return repr(given)


class _NoGpu:
    """Stands for a driver: all that a launch asks of it before there is something to run."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


@contextlib.contextmanager
def _recorded(found: list[Launch], label: list[str]) -> Iterator[None]:
    """Keeps what is launched, as Triton has bound its arguments, in place of compiling it."""
    import triton
    from triton.runtime.driver import driver

    def keep(**seen: Any) -> bool:
        made, fn = seen["compile"], seen["fn"]
        options = json.loads(made["specialization_data"])["options"]
        kept = {key: options[key] for key in _OPTIONS}
        parts = (made["signature"], made["constants"], made["configs"][0], kept)
        found.append(Launch(*label, fn.module, fn.name, *map(dict, parts)))
        return True  # nothing is to be compiled

    driver.set_active(_NoGpu())
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_cache_hook = keep
        yield


def launches(networks: tuple[str, ...]) -> list[Launch]:
    """Of one step of each network, in float32, TF32 and bfloat16."""
    import torch

    found: list[Launch] = []
    for numbers in ("float32", "tf32", "bfloat16"):
        precision = "tf32" if numbers == "tf32" else "ieee"
        torch.backends.cuda.matmul.fp32_precision = precision
        kind = torch.bfloat16 if numbers == "bfloat16" else torch.float32
        for name in networks:
            label = [name, numbers, ""]
            with _recorded(found, label):
                _noise(label) if name == "noise" else _network(name, kind, label)
    return found


def _noise(label: list[str]) -> None:
    import torch

    from dpaudit_ray.engines.gpu.kernels import noise
    from dpaudit_ray.engines.gpu.normals import coefficients

    label[2] = "the noise of a step"
    if label[1] == "float32":
        noise.fill(torch.empty(1 << 20), coefficients(torch.device("cpu")), 3, 4, 5)


def _network(name: str, kind: Any, label: list[str]) -> None:
    import torch
    from torch import nn

    from dpaudit_ray.engines.packing.fused import fused
    from dpaudit_ray.engines.rules.layers import slots_of

    module, shape = network(name)
    slots = slots_of(module)
    size = sum(parameter.numel() for parameter in module.parameters())
    theta = torch.empty(MODELS, size, device="meta")
    if (chain := fused(module, slots)) is not None:
        from dpaudit_ray.engines.gpu.kernels import mlp

        label[2] = "all"
        batch = torch.empty(BATCH, *shape, device="meta", dtype=kind)
        classes = torch.empty(BATCH, device="meta", dtype=torch.long)
        if mlp.takes_chain(chain, theta, batch):
            mlp.clipped_sums(chain, torch.empty_like(theta), theta, (batch, classes), 1.0, None)
        return
    seen: list[tuple[str, nn.Conv2d, tuple[int, ...]]] = []
    for path, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_pre_hook(
                lambda own, args, path=path: seen.append((path, own, args[0].shape[1:]))
            )
    module(torch.zeros(1, *shape))
    for number, (path, layer, images) in enumerate(seen):
        label[2] = f"{path}: {_in_words(layer, images)}"
        own = {key: slots[f"{path}.{key}"] for key, _ in layer.named_parameters()}
        _layer(layer, own, theta, images, kind, number == 0)


def _layer(
    layer: Any, own: Any, theta: Any, images: tuple[int, ...], kind: Any, first: bool
) -> None:
    import torch

    from dpaudit_ray.engines.rules.implicit import ImplicitConvRule

    rule = ImplicitConvRule(layer, own)
    cast, count = theta.to(kind), BATCH if first else MODELS * BATCH
    x = torch.empty(count, *images, device="meta", dtype=kind)
    y, _ = rule.forward_shared(cast, x) if first else rule.forward(cast, x)
    g = torch.empty_like(y)
    if first:
        gradients = rule.samples_shared(theta, x, [g], {})
    else:
        rule.input_gradient(cast, x, g)
        gradients = rule.samples(theta, x, g)
    gradients.squared_norms()
    gradients.weighted_sums(torch.empty_like(theta), theta.new_empty(len(theta), BATCH))


def network(name: str) -> tuple[Any, tuple[int, ...]]:
    """One of the papers', or a chain of widths, and the shape of its examples."""
    from dpaudit_ray.models.base import Model
    from dpaudit_ray.plugins import parse

    widths = [int(width) for width in name.split("-") if width.isdigit()]
    if widths:
        return _chain(widths), tuple(widths[:1])
    shape = _SHAPES.get(name, (3, 32, 32))
    model = parse(Model, {"name": name}, "model")
    return model.build(shape, 2 if name == "fcnn" else 10), shape


def _chain(widths: list[int]) -> Any:
    from torch import nn

    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _in_words(layer: Any, images: tuple[int, ...]) -> str:
    side = "x".join(map(str, layer.kernel_size))
    stride = f" / {layer.stride[0]}" if layer.stride[0] > 1 else ""
    size = "x".join(map(str, images[1:]))
    return f"{layer.in_channels} to {layer.out_channels}, {side}{stride} on {size}"


def compiled(task: tuple[Launch, int]) -> dict[str, Any]:
    """Registers, spilled bytes and shared memory of a launch on a target."""
    import importlib

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    launch, target = task
    kernel = getattr(importlib.import_module(launch.module), launch.kernel)
    source = ASTSource(
        fn=kernel, signature=launch.signature, constexprs=launch.constants, attrs=launch.attributes
    )
    said = io.StringIO()
    with triton.knobs.compilation.scope(), triton.knobs.nvidia.scope():
        triton.knobs.compilation.always_compile = True
        triton.knobs.nvidia.dump_ptxas_log = True
        with contextlib.redirect_stdout(said):
            made = triton.compile(
                source, target=GPUTarget("cuda", target, 32), options=launch.options
            )
    log = said.getvalue()
    stored, loaded = _numbers(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    (registers,) = _numbers(r"Used (\d+) registers", log)
    return {
        "network": launch.network, "numbers": launch.numbers, "where": launch.where,
        "kernel": launch.kernel, "target": target,
        "registers": registers, "spilled": stored + loaded, "shared": made.metadata.shared,
    }  # fmt: skip


def _numbers(pattern: str, text: str) -> list[int]:
    match = re.search(pattern, text)
    assert match is not None, text
    return [int(number) for number in match.groups()]


def distinct(found: list[Launch]) -> list[Launch]:
    """The first launch of each code."""
    return list({launch.code: launch for launch in reversed(found)}.values())[::-1]


def main() -> None:
    """Writes the table, as Markdown or JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--kernels", help="only those whose name, numbers and layer match this")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write one line for each launch and target")
    asked = parser.parse_args()
    found = distinct(launches(tuple(asked.networks)))
    if asked.kernels:
        wanted = re.compile(asked.kernels)
        found = [one for one in found if wanted.search(f"{one.kernel} {one.numbers} {one.where}")]
    tasks = [(launch, target) for launch in found for target in TARGETS]
    rows = []
    with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
        for row in pool.imap(compiled, tasks):
            rows.append(row)
            if asked.json:
                with asked.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    columns = list(rows[0])
    sys.stdout.write(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}\n")
    for row in rows:
        sys.stdout.write(f"| {' | '.join(map(str, row.values()))} |\n")


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)  # which would leave nothing to compile
    main()
