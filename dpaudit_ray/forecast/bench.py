"""Speed of both engines on this machine, beside each other and beside its matrix product.

The same process and threads, medians. Both keep their heap (`engines.memory`): glibc's default
allocator would cost Opacus up to half of its time on a CPU.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..data.base import Data, Dataset
from ..errors import SpecError
from ..mechanisms.dp_sgd.recipe import Recipe
from ..models.base import Model
from ..plan import provenance
from ..plugins import parse

if TYPE_CHECKING:
    import torch

    from ..mechanisms.dp_sgd.steps import Steps
    from ..mechanisms.dp_sgd.training import DpSgdTraining

_SIDE, _SIDE_ON_GPU = 2048, 8192  # of the matrix whose product is the roofline
PACKS = (1, 16, 64, 256, 1024, 8192)  # models together that are tried on a GPU
_COPIES = 4  # of θ that a step holds: itself, its update, sums, and what is made in between
_STEPS = 250  # of a trial, as in Cebere et al.


@dataclasses.dataclass(frozen=True)
class Workload:
    """Input on which one model is measured: synthetic data in the shape of the papers'."""

    model: str
    shape: tuple[int, ...]
    classes: int
    batch_size: int
    models: int  # in a pack


WORKLOADS = {
    w.model: w
    for w in (
        Workload("fcnn", (8,), 2, 400, 256),
        Workload("mlp3", (446,), 30, 128, 32),
        Workload("cnn4", (1, 28, 28), 10, 128, 16),
        Workload("convnet", (3, 32, 32), 10, 128, 16),
        Workload("resnet18", (3, 32, 32), 10, 32, 1),
        Workload("wrn16", (3, 32, 32), 10, 32, 1),
    )
}


@dataclasses.dataclass
class Row:
    """One model on this machine; times are seconds per model and step."""

    model: str
    parameters: int
    batch_size: int
    flop: float  # per model-step: forward, backward, per-sample gradients not counted
    models: int  # in the pack that is fastest
    packed_seconds: float
    packs: dict[int, float]  # the same of every pack that was tried, by its models
    opacus_seconds: float
    ratio: float = dataclasses.field(init=False)  # Opacus against the packed engine
    trials_per_second: float = dataclasses.field(init=False)  # of 250 steps, packed
    flop_per_second: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.ratio = self.opacus_seconds / self.packed_seconds
        self.trials_per_second = 1 / (_STEPS * self.packed_seconds)
        self.flop_per_second = self.flop / self.packed_seconds


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """All rows, with the machine they hold for."""

    device: str
    threads: int
    gpu: bool
    matmul_flop_per_second: float
    rows: tuple[Row, ...]


def measure(
    models: Sequence[str],
    threads: int,
    repeats: int,
    gpu: bool,
    packs: Sequence[int] = (),
    beside: bool = True,
) -> Benchmark:
    """Measures `models`; every figure is the median of `repeats` runs.

    In packs of so many models, of which the fastest counts; by default the workloads' on a CPU,
    PACKS on a GPU. Opacus is measured `beside`, or NaN. SpecError: unknown model, or no GPU here.
    """
    import torch

    from ..mechanisms.dp_sgd.steps import OpacusSteps, PackedSteps
    from ..mechanisms.dp_sgd.training import DpSgdTraining

    for name in models:
        if name not in WORKLOADS:
            raise SpecError("--models", f"no workload for {name!r}; known: {', '.join(WORKLOADS)}")
    if gpu and not torch.cuda.is_available():
        raise SpecError("--gpu", "torch finds no GPU here; leave it out to measure the CPU")
    torch.set_num_threads(threads)
    trainings = {
        name: DpSgdTraining.prepare(_recipe(WORKLOADS[name]), seed=0, gpu=gpu) for name in models
    }
    rows = []
    for name, training in trainings.items():
        usual = _fitting_packs(training.initial.nbytes) if gpu else (WORKLOADS[name].models,)
        recipe, device = training.recipe, training.initial.device
        tried = {
            n: _step_seconds(PackedSteps(recipe, training.model, 0, device), training, n, repeats)
            for n in packs or usual
        }
        fastest, of_opacus = min(tried, key=tried.__getitem__), math.nan
        if beside:
            steps = OpacusSteps(recipe, training.module, 0, device)
            of_opacus = _step_seconds(steps, training, 1, repeats)
        size, batch = training.model.size, recipe.batch_size
        row = Row(name, size, batch, _flop(training), fastest, tried[fastest], tried, of_opacus)
        rows.append(row)
    side = _SIDE if device.type == "cpu" else _SIDE_ON_GPU
    a = torch.randn(side, side, device=device)
    product = 2 * side**3 / _median_seconds(lambda: a @ a, device, repeats)
    return Benchmark(provenance.device(gpu), threads, gpu, product, tuple(rows))


def _recipe(work: Workload) -> Recipe:
    return Recipe(
        data=_Synthetic(shape=work.shape, classes=work.classes, examples=2 * work.batch_size),
        model=parse(Model, work.model, "model"),
        steps=2,
        batch_size=work.batch_size,
        learning_rate=0.01,
        clip_norm=1.0,
        noise_multiplier=4.0,
    )


class _Synthetic(Data):
    """Noise in the shape of a workload, with its classes in turn."""

    name: str = "synthetic"
    shape: tuple[int, ...]
    classes: int
    examples: int

    def read(self) -> Dataset:
        """Standard normals; the same on every call."""
        x = np.random.default_rng(0).normal(size=(self.examples, *self.shape)).astype(np.float32)
        return Dataset(x, np.arange(self.examples, dtype=np.int64) % self.classes)


def _fitting_packs(model_bytes: int) -> tuple[int, ...]:
    """Packs whose parameters take no more memory than a step's activations may."""
    from ..engines import gpu_settings

    needed = _COPIES * model_bytes
    return tuple(n for n in PACKS if n == 1 or n * needed <= gpu_settings.budget())


def _step_seconds(steps: Steps, training: DpSgdTraining, models: int, repeats: int) -> float:
    """A step of one model, on the first half of the workload's records, which are a batch."""
    theta = training.initial.repeat(models, 1)
    x, y = (values[: len(values) // 2] for values in (training.x, training.y))
    return _median_seconds(lambda: steps.step(theta, x, y, None), theta.device, repeats) / models


def _median_seconds(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median of `repeats` calls, after two to warm up."""
    import torch

    times = []
    for _ in range(2 + repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def _flop(training: DpSgdTraining) -> float:
    """Operations of one plain forward and backward pass, which any engine must do at least."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from ..engines.rules.losses import losses

    batch = training.batches[0]
    with FlopCounterMode(display=False) as counter:
        outputs = training.module(training.x[batch])
        torch.autograd.backward(losses(outputs, training.y[batch]).sum())
    return float(counter.get_total_flops())
