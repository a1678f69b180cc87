"""Measures the papers' networks beside other ways to clip: `python -m jobs.engines.peers`.

All peers take turns in one process, on one thread, by processor time. `--alone` gives each a
process of its own instead. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import vmap

from dpaudit_ray.engines.packing import memory
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.engines.rules.base import parameters_of
from dpaudit_ray.engines.rules.losses import classification_losses
from dpaudit_ray.forecast.bench import WORKLOADS
from dpaudit_ray.models.base import Model
from dpaudit_ray.plugins import parse

from .measure import Sums, by_model, clipped, gradients_by_example, in_turn

_NAMES = ("fcnn", "mlp3", "cnn4", "convnet", "wrn16")
_CLIP = 1.0
_AGREES = 1e-3  # of the largest entry; Opacus divides by the norm plus 1e-6
OURS = "ours"
PEERS = ("hooks", "ghost", "vmap, one model", "vmap, all models", "compiled")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures networks by arguments of a command line; None for those of this process."""
    parser = argparse.ArgumentParser(prog="python -m jobs.engines.peers", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=_NAMES, default=_NAMES, help="networks")
    parser.add_argument("--ways", nargs="+", choices=(OURS, *PEERS), default=(OURS, *PEERS))
    parser.add_argument("--rounds", type=int, default=5, help="of all ways in turn")
    parser.add_argument("--alone", action="store_true", help="a process for each way")
    parser.add_argument("--json", action="store_true", help="print times of one network as JSON")
    options = parser.parse_args(arguments)
    if options.json:
        sys.stdout.write(json.dumps(measured(options.only[0], options.ways, options.rounds)))
        return
    sys.stdout.write("| network | " + " | ".join((OURS, *PEERS)) + " | best peer over ours |\n")
    sys.stdout.write("| --- |" + " --: |" * (len(PEERS) + 2) + "\n")
    for name in options.only:
        if options.alone:
            times = {way: ms for one in options.ways for way, ms in _alone(name, one, options)}
        else:
            times = measured(name, options.ways, options.rounds)
        sys.stdout.write(_line(name, times) + "\n")
        sys.stdout.flush()


def _alone(name: str, way: str, options: argparse.Namespace) -> list[tuple[str, float]]:
    """Measures one way in a process of its own."""
    numbers = ["--only", name, "--ways", way, "--rounds", str(options.rounds)]
    command = [sys.executable, "-W", "ignore", "-m", "jobs.engines.peers", "--json", *numbers]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(json.loads(answer.stdout).items())


def measured(
    name: str, ways: Sequence[str], rounds: int, models: int | None = None
) -> dict[str, float]:
    """Returns processor milliseconds for the clipped sum of one model, of each way that is right.

    Args:
        name: of a network of the papers, with the batch and pack of `dpaudit bench`.
        ways: OURS and names of PEERS.
        rounds: calls of each way; the median counts.
        models: their number; None for that of `dpaudit bench`.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    memory.keep_heap()
    work = WORKLOADS[name]
    module = parse(Model, name, "model").build(work.shape, work.classes)
    x = torch.randn(work.batch_size, *work.shape)
    y = torch.arange(work.batch_size) % work.classes
    model = PackedModel(module)
    model.choose_way(x, y)
    models = models or work.models
    theta = model.initial + 0.02 * torch.randn(models, model.size)
    expected = model.clipped_sums(theta, x, y, _CLIP)
    calls: dict[str, Sums] = {}
    for way in ways:
        call = _call(way, model, module, theta, x, y)
        if _agrees(call, expected):
            calls[way] = call
    seconds = in_turn(calls, rounds)
    return {way: 1e3 * second / models for way, second in seconds.items()}


def _call(
    way: str, model: PackedModel, module: nn.Module, theta: Tensor, x: Tensor, y: Tensor
) -> Sums:
    """Returns what computes the clipped sums [models, p] by that way."""
    if way == OURS:
        return lambda: model.clipped_sums(theta, x, y, _CLIP)
    if way == "hooks":
        wrapped = copy.deepcopy(module)  # Opacus leaves hooks in it
        return _by_opacus(_hooks(wrapped), wrapped, theta, x, y)
    if way == "ghost":
        wrapped = copy.deepcopy(module)
        return _by_opacus(_ghost(wrapped), wrapped, theta, x, y)
    if way == "vmap, one model":
        return lambda: by_model(module, theta, x, y, _CLIP)
    gradients = gradients_by_example(module)

    def sums(theta: Tensor) -> Tensor:
        mapped = vmap(lambda row: gradients(parameters_of(module, row), x, y))
        return clipped(mapped(theta), _CLIP)

    if way == "compiled":
        sums = torch.compile(sums)
    return lambda: sums(theta)


Clipped = Callable[[Tensor, Tensor], list[Tensor]]


def _hooks(module: nn.Module) -> Clipped:
    """Returns clipped sums of a batch by Opacus' gradients of each example."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(module, strict=False)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=_CLIP,
        expected_batch_size=1,
    )

    def sums(x: Tensor, y: Tensor) -> list[Tensor]:
        optimizer.zero_grad()
        classification_losses(wrapped(x), y).mean().backward()
        optimizer.clip_and_accumulate()
        return [p.summed_grad for p in optimizer.params]

    return sums


class _Losses(nn.Module):
    """The loss of each example, or their mean, as Opacus asks for it."""

    reduction = "mean"

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        each = classification_losses(outputs, y)
        return each if self.reduction == "none" else each.mean()


def _ghost(module: nn.Module) -> Clipped:
    """Returns clipped sums of a batch by Opacus' norms without gradients of each example."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(module, max_grad_norm=_CLIP, strict=False)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=_CLIP,
        expected_batch_size=1,
    )
    criterion = DPLossFastGradientClipping(wrapped, optimizer, _Losses())

    def sums(x: Tensor, y: Tensor) -> list[Tensor]:
        optimizer.zero_grad()
        criterion(wrapped(x), y).backward()
        return [p.grad for p in optimizer.params]

    return sums


def _by_opacus(sums: Clipped, module: nn.Module, theta: Tensor, x: Tensor, y: Tensor) -> Sums:
    """Returns the clipped sums of one model after another, by a module that Opacus wraps."""
    parameters = list(module.parameters())

    def one_model(row: Tensor) -> Tensor:
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(row, parameters)
        return torch.cat([part.flatten() for part in sums(x, y)])

    return lambda: torch.stack([one_model(row) for row in theta])


def _agrees(call: Sums, expected: Tensor) -> bool:
    """Returns whether a call gives these sums; an exception counts as no."""
    try:
        found = call()
    except Exception as error:  # noqa: BLE001 (code of others may raise anything)
        sys.stderr.write(f"not measured: {type(error).__name__}: {str(error)[:200]}\n")
        return False
    errors = (found - expected).abs().amax(1) / expected.abs().amax(1)
    worst = float(errors.median())  # of single models a ReLU at 0 may round to either side
    if worst >= _AGREES:
        sys.stderr.write(f"not measured: differs by {worst:.1e}\n")
    return worst < _AGREES


def _line(name: str, times: dict[str, float]) -> str:
    """Returns a row of the table; an empty cell is a way that does not run."""
    cells = [f"{times[way]:.3g}" if way in times else "" for way in (OURS, *PEERS)]
    peers = [times[way] for way in PEERS if way in times]
    ratio = f"{min(peers) / times[OURS]:.1f}" if peers and OURS in times else ""
    return f"| `{name}` | {' | '.join(cells)} | {ratio} |"


if __name__ == "__main__":
    main()
