"""Measures one network: `python -m jobs.engines.measure NAME MODELS BATCH ROUNDS [audit]`."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import dpaudit_ray as da
from dpaudit_ray.engines.packing import memory
from dpaudit_ray.engines.packing.memory import ONE_BY_ONE
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.engines.packing.samplewise import MODELS, Samplewise, with_parameters
from dpaudit_ray.engines.rules.base import parameters_of
from dpaudit_ray.engines.rules.losses import classification_losses
from dpaudit_ray.errors import SpecError, first_line

from .networks import CLASSES, NETWORKS, TEXT, TOKENS

_CLIP = 0.5
_CHECKED = 2  # models, on this number of examples, in float64
_EXAMPLES = 4
_EXACT = 1e-4  # of the largest entry: less for a way that counts as right
Sums = Callable[[], Tensor]


@dataclasses.dataclass(frozen=True)
class Row:
    """What was measured; times are processor milliseconds a model and step."""

    name: str
    parameters: int = 0
    way: str = ""
    error: float = 0.0  # against one backward pass an example in float64, of the largest entry
    ours: float = 0.0
    ways: dict[str, float] = dataclasses.field(default_factory=dict)
    by_model: float | None = None
    compiled: float | None = None
    audit: str = ""
    problem: str = ""

    @property
    def ratio(self) -> float | None:
        """`vmap(grad)` model by model over ours."""
        return None if self.by_model is None else self.by_model / self.ours


def measured(name: str, models: int, batch: int, rounds: int, extras: frozenset[str]) -> Row:
    """Measures a network by every way that is right, in turn."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    memory.keep_heap()
    network = NETWORKS[name]
    module = network.make()
    x, y = examples(network.shape, batch)
    model = PackedModel(module)
    theta = model.initial + 0.02 * torch.randn(models, model.size)
    try:
        model.choose_way(x, y)
    except SpecError as error:
        return Row(name, problem=f"refused: {first_line(error)}")
    way = way_of(model)
    expected = model.clipped_sums(theta, x, y, _CLIP)
    sums: dict[str, Sums] = {way: lambda: model.clipped_sums(theta, x, y, _CLIP)}
    for other, packed in others(model).items():
        candidate = _sums_of(packed, theta, x, y)
        if other != way and _agrees(candidate, expected):
            sums[other] = candidate
    peers: dict[str, Sums] = {"by model": lambda: by_model(module, theta, x, y, _CLIP)}
    if "compiled" in extras:
        peers["compiled"] = _compiled(module, theta, x, y)
    peers = {peer: call for peer, call in peers.items() if _agrees(call, expected)}
    seconds = in_turn(sums | peers, rounds)
    times = {call: 1e3 * second / models for call, second in seconds.items()}
    return Row(
        name,
        parameters=model.size,
        way=way,
        error=error_of(model, module, theta, x, y),
        ours=times[way],
        ways={call: times[call] for call in sums},
        by_model=times.get("by model"),
        compiled=times.get("compiled"),
        audit=audited(name) if "audit" in extras else "",
    )


def examples(shape: tuple[int, ...], batch: int) -> tuple[Tensor, Tensor]:
    """Returns x [batch, *shape] and classes [batch], from torch's generator."""
    x = torch.randint(1, TOKENS, (batch, *shape)) if shape == TEXT else torch.randn(batch, *shape)
    return x, torch.arange(batch) % CLASSES


def way_of(model: PackedModel) -> str:
    """Returns the name of the way that a model was settled on."""
    if model._alone is not None:
        return f"vmap, {model._alone.mapped} models" if model._alone.mapped else "loop"
    if model._passes.mapped:
        return "rules in vmap"
    if model._loops is not None or (model._passes.by_loops and model._convolutions_in_loops):
        return "loops"
    return "rules"


def others(model: PackedModel) -> dict[str, Any]:
    """Returns every way of packing the same module, by name, whether it is right or not."""
    found: dict[str, Any] = {}
    if model._obstacle is None:
        found["rules"] = model._copy(None, loops=False, mapped=False)
        found["rules in vmap"] = model._copy(None, loops=False, mapped=True)
        found["rules, one model"] = model._copy(ONE_BY_ONE, loops=False, mapped=False)
    for models in (MODELS, 1):
        found[f"vmap, {models} models"] = Samplewise(model._source, model.loss, models)
    return found


def _sums_of(packed: Any, theta: Tensor, x: Tensor, y: Tensor) -> Sums:
    weights = theta.new_ones(len(theta), len(y))
    return lambda: packed.clipped_sums(theta, x, y, _CLIP, weights)


def _agrees(call: Sums, expected: Tensor) -> bool:
    """Returns whether a call gives these sums; an exception counts as no."""
    try:
        found = call()
    except Exception:  # noqa: BLE001 (code of others may raise anything)
        return False
    return float((found - expected).abs().max() / expected.abs().max()) < _EXACT


def in_turn(calls: dict[str, Sums], rounds: int) -> dict[str, float]:
    """Returns medians of processor seconds, of calls in turn; each was called before."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def gradients_by_example(
    module: nn.Module,
) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    """Returns what has the gradient of every example, float [B, p], as `torch.func` shows it."""

    def loss(parameters: dict[str, Tensor], example: Tensor, label: Tensor) -> Tensor:
        outputs = functional_call(module, parameters, (example.unsqueeze(0),))
        return classification_losses(outputs, label.unsqueeze(0)).sum()

    def gradients(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        by_name = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
        return torch.cat([part.flatten(1) for part in by_name.values()], 1)

    return gradients


def clipped(gradients: Tensor, clip: float) -> Tensor:
    """Returns the sum of gradients [..., B, p], each clipped to this norm."""
    norms = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True)
    return (gradients * (clip / norms.clamp(min=clip))).sum(-2)


def by_model(module: nn.Module, theta: Tensor, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """Returns clipped sums as a user of `torch.func` computes them, one model after another."""
    gradients = gradients_by_example(module)
    return torch.stack(
        [clipped(gradients(parameters_of(module, row), x, y), clip) for row in theta]
    )


def _compiled(module: nn.Module, theta: Tensor, x: Tensor, y: Tensor) -> Sums:
    """Returns a compiled `vmap` over all models of the same."""
    gradients = gradients_by_example(module)

    def sums(theta: Tensor) -> Tensor:
        mapped = vmap(lambda row: gradients(parameters_of(module, row), x, y))
        return clipped(mapped(theta), _CLIP)

    compiled = torch.compile(sums)
    return lambda: compiled(theta)


def error_of(model: PackedModel, module: nn.Module, theta: Tensor, x: Tensor, y: Tensor) -> float:
    """Returns the largest difference from autograd in float64, one example and model at a time."""
    theta, x, y = theta[:_CHECKED], x[:_EXAMPLES], y[:_EXAMPLES]
    found = model.clipped_sums(theta, x, y, _CLIP)
    module = module.double()
    x = x.double() if x.is_floating_point() else x
    worst = 0.0
    for row, row_sums in zip(theta.double(), found, strict=True):
        total = torch.zeros_like(row)
        with with_parameters(module, row) as parameters:
            for j in range(len(y)):
                loss = F.cross_entropy(module(x[j : j + 1]), y[j : j + 1])
                parts = torch.autograd.grad(loss, parameters, allow_unused=True)
                pairs = zip(parts, parameters, strict=True)
                whole = torch.cat(
                    [(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs]
                )
                total += clipped(whole[None], _CLIP)
        worst = max(worst, float((row_sums - total).abs().max() / total.abs().max()))
    module.float()
    return worst


def audited(name: str) -> str:
    """Runs a whole audit of a few trials; returns its ε, or the problem."""
    network = NETWORKS[name]
    torch.manual_seed(0)
    x, y = examples(network.shape, 64)
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        np.savez(Path(folder) / "data.npz", x=x.numpy(), y=y.numpy())
        sweep = {
            "name": "engines",
            "mechanism": {
                "name": "dp-sgd", "data": {"name": "npz", "path": f"{folder}/data.npz"},
                "model": {
                    "name": "module", "path": "jobs.engines.networks:made",
                    "options": {"name": name},
                },
                "steps": 2, "batch_size": 16, "learning_rate": 0.1, "clip_norm": 1.0,
                "noise_multiplier": 1.0,
            },
            "adversary": {"name": "biased-dimension"},
            "audit": {"trials": 64, "delta": 1e-5},
            "resources": {"pack_size": 32},
        }  # fmt: skip
        try:
            result = da.run(sweep, storage_path=folder, executor="inline")
        except Exception as error:  # noqa: BLE001 (code of others may raise anything)
            return first_line(error)
        return "complete" if result.complete else "incomplete"


if __name__ == "__main__":
    name, models, batch, rounds, *extras = sys.argv[1:]
    row = measured(name, int(models), int(batch), int(rounds), frozenset(extras))
    sys.stdout.write(json.dumps(dataclasses.asdict(row)) + "\n")
