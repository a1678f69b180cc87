"""Measures the speed of both engines, and of a matrix product, on this machine.

Both engines run in the same process with the same threads, and figures are medians. Both keep
their heap (`engines.packing.memory`): with glibc's default allocator, Opacus would spend up to half
of its time on a CPU in it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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

# Rows, and columns, of the matrix whose product shows how fast the machine can compute at best.
_SIDE = 2048
_SIDE_ON_GPU = 8192
PACKS = (1, 16, 64, 256, 1024, 8192)  # numbers of models in packs that are measured on a GPU
_COPIES = 4  # a step has this many arrays like θ: parameters, update, sums, intermediate results
_STEPS_PER_TRIAL = 250  # as in Cebere et al.
_WARM_UPS = 2  # calls before those that are timed


@dataclass(frozen=True)
class Workload:
    """A model, and the shape of the synthetic data on which it is measured: as in papers."""

    model: str
    shape: tuple[int, ...]  # of an example
    classes: int
    batch_size: int
    models: int  # number of models in a pack


_WORKLOADS = (
    Workload("fcnn", (8,), 2, 400, 256),
    Workload("mlp3", (446,), 30, 128, 32),
    Workload("cnn4", (1, 28, 28), 10, 128, 16),
    Workload("convnet", (3, 32, 32), 10, 128, 16),
    Workload("resnet18", (3, 32, 32), 10, 32, 1),
    Workload("wrn16", (3, 32, 32), 10, 32, 1),
)
WORKLOADS = {workload.model: workload for workload in _WORKLOADS}


@dataclass
class Row:
    """Speed of a model on this machine; all times are seconds per model and step.

    Attributes:
        model: name of the model.
        parameters: number of its parameters.
        batch_size: size of a batch.
        flop: operations of one model's step: forward and backward, without per-sample gradients.
        models: number of models in the fastest pack.
        packed_seconds: time in that pack.
        packs: time in every pack that was measured, by its number of models.
        opacus_seconds: time of Opacus.
        ratio: time of Opacus, relative to the packed engine.
        trials_per_second: trials of 250 steps with the packed engine.
        flop_per_second: operations with the packed engine.
    """

    model: str
    parameters: int
    batch_size: int
    flop: float
    models: int
    packed_seconds: float
    packs: dict[int, float]
    opacus_seconds: float
    ratio: float = field(init=False)
    trials_per_second: float = field(init=False)
    flop_per_second: float = field(init=False)

    def __post_init__(self) -> None:
        self.ratio = self.opacus_seconds / self.packed_seconds
        self.trials_per_second = 1 / (_STEPS_PER_TRIAL * self.packed_seconds)
        self.flop_per_second = self.flop / self.packed_seconds


@dataclass(frozen=True)
class Benchmark:
    """All rows, and the machine on which they were measured."""

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
    opacus: bool = True,
) -> Benchmark:
    """Measures models; every figure is a median.

    Args:
        models: names in WORKLOADS.
        threads: number of threads.
        repeats: number of runs for each median.
        gpu: whether to measure a GPU, not the CPU.
        packs: numbers of models in packs, of which the fastest counts. If empty, it is the
            workload's on a CPU, and those of PACKS that fit on a GPU.
        opacus: whether Opacus is measured, too; otherwise its time is NaN.

    Raises:
        SpecError: a model has no workload, or there is no GPU.
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
        recipe = training.recipe
        device = training.initial.device
        # Without `packs`, a GPU is measured with all sizes that fit, a CPU with the workload's.
        defaults = _fitting_packs(training.initial.nbytes) if gpu else (WORKLOADS[name].models,)
        seconds = {}  # time of one model's step, by the number of models in a pack
        for pack_size in packs or defaults:
            packed = PackedSteps(recipe, training.model, 0, device)
            seconds[pack_size] = _step_seconds(packed, training, pack_size, repeats)
        fastest = min(seconds, key=seconds.__getitem__)
        opacus_seconds = math.nan
        if opacus:
            steps = OpacusSteps(recipe, training.module, 0, device)
            opacus_seconds = _step_seconds(steps, training, 1, repeats)
        row = Row(
            name,
            training.model.size,
            recipe.batch_size,
            _flop(training),
            fastest,
            seconds[fastest],
            seconds,
            opacus_seconds,
        )
        rows.append(row)
    side = _SIDE if device.type == "cpu" else _SIDE_ON_GPU
    matrix = torch.randn(side, side, device=device)
    # A product of n x n matrices takes 2 n³ operations.
    flop_per_second = 2 * side**3 / _median_seconds(lambda: matrix @ matrix, device, repeats)
    return Benchmark(provenance.device(gpu), threads, gpu, flop_per_second, tuple(rows))


def _recipe(work: Workload) -> Recipe:
    """Returns the options of a training of two steps on the data of a workload."""
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
    """Random examples in the shape of a workload; their classes alternate."""

    name: str = "synthetic"
    shape: tuple[int, ...]
    classes: int
    examples: int

    def read(self) -> Dataset:
        """Returns standard normals, the same on every call."""
        x = np.random.default_rng(0).normal(size=(self.examples, *self.shape)).astype(np.float32)
        return Dataset(x, np.arange(self.examples, dtype=np.int64) % self.classes)


def _fitting_packs(model_bytes: int) -> tuple[int, ...]:
    """Returns the PACKS whose arrays like θ fit into the memory that a step may take."""
    from ..engines import gpu_settings

    most_models = max(gpu_settings.budget() // (_COPIES * model_bytes), 1)
    return tuple(models for models in PACKS if models <= most_models)


def _step_seconds(
    steps: Steps,
    training: DpSgdTraining,
    models: int,
    repeats: int,
) -> float:
    """Times a step of a pack; returns the seconds per model.

    Args:
        steps: the engine.
        training: has the records, half of which are one batch.
        models: number of models in the pack.
        repeats: number of timed steps.
    """
    theta = training.initial.repeat(models, 1)
    batch_size = len(training.x) // 2
    x, y = training.x[:batch_size], training.y[:batch_size]
    return _median_seconds(lambda: steps.step(theta, x, y, None), theta.device, repeats) / models


def _median_seconds(
    call: Callable[[], object],
    device: torch.device,
    repeats: int,
) -> float:
    """Returns the median time of `repeats` calls, after some calls to warm up.

    Args:
        call: the function that is timed.
        device: the device that computes; each call is timed until its queue is empty.
        repeats: number of timed calls.
    """
    import torch

    times = []
    for _ in range(_WARM_UPS + repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[_WARM_UPS:])


def _flop(training: DpSgdTraining) -> float:
    """Counts the operations of a forward and backward pass, which every engine has to do."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from ..engines.rules.losses import classification_losses

    batch = training.batches[0]
    with FlopCounterMode(display=False) as counter:
        outputs = training.module(training.x[batch])
        torch.autograd.backward(classification_losses(outputs, training.y[batch]).sum())
    return float(counter.get_total_flops())
