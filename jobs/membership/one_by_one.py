"""Reference models in packs, and the same ones trained one by one: in plain torch, or by Opacus.

`python -m jobs.membership.one_by_one FILE [KEY=VALUE ...]` takes a sweep file and changes to it. It
prints, for each audit and size of a pack, processor time of a model's step in the pack, alone, and
their ratio: medians of rounds in which both take turns, on one thread, so that what else runs on
the machine hits both. Alone, a model sees the same batches without the records that it lacks; of
trainings without noise, it is told how far both ways end apart, by how far parameters have moved.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
import yaml
from torch import Tensor, nn

from dpaudit_ray.adversaries.base import RecordCanary
from dpaudit_ray.adversaries.reference_models import ReferenceModels
from dpaudit_ray.engines.rules.base import trained
from dpaudit_ray.mechanisms.dp_sgd import DpSgd, session
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
from dpaudit_ray.sweep import spec

PACKS, ROUNDS, STEPS = (4, 16, 64), 5, 10
ALONE = 4  # models that are trained one by one in a round
HEAD = "| audit | models in a pack | ms in it | ms alone | times | apart |"


def plainly(training: DpSgdTraining, inside: Tensor) -> Iterator[Sequence[Tensor]]:
    """Yields the parameters of a training without noise after each step; `inside` bool [N]."""
    recipe, module = training.recipe, training.module
    parameters = list(trained(module).values())
    nn.utils.vector_to_parameters(training.initial.clone(), parameters)
    optimizer = recipe.optimizer.torch(parameters, recipe.learning_rate)
    yield parameters
    for batch in training.batches:
        rows = batch[inside[batch]]
        optimizer.zero_grad()
        loss = F.cross_entropy(module(training.x[rows]), training.y[rows], reduction="sum")
        torch.autograd.backward(loss / recipe.batch_size)
        optimizer.step()
        yield parameters


def taken(path: Iterator[Sequence[Tensor]]) -> tuple[float, Tensor]:
    """Processor seconds of a step, after one to warm up, and the models after all of them."""
    for _ in range(2):
        next(path)
    started = time.process_time()
    for _ in range(STEPS):
        models = next(path)
    seconds = (time.process_time() - started) / STEPS
    return seconds, torch.cat([part.detach().flatten() for part in models])


def line(label: str, training: DpSgdTraining, canary: RecordCanary, models: int) -> str:
    """A row of the table."""
    noisy, rng = training.recipe.multiplier > 0, np.random.default_rng(models)
    opacus = training.recipe.model_copy(update={"engine": "opacus"})
    one_by_one = dataclasses.replace(training, recipe=opacus)
    packed, alone, apart = list[float](), list[float](), math.nan
    for _ in range(ROUNDS):
        bits = torch.from_numpy(rng.random((models, len(canary.indices))) < 0.5).float()
        seconds, together = taken(training.run(bits, 1, canary, 1))
        packed.append(1000 * seconds / models)
        for row in range(ALONE):
            inside = torch.ones(training.examples, dtype=torch.bool)
            inside[canary.indices] = bits[row] > 0
            path = one_by_one.run(bits[row : row + 1], 1, canary, 1)
            seconds, model = taken(path if noisy else plainly(training, inside))
            alone.append(1000 * seconds)
    if not noisy:
        ended = together.view(models, -1)[row]
        apart = float((ended - model).norm() / (ended - training.initial).norm())
    ms, ms_alone = statistics.median(packed), statistics.median(alone)
    numbers = f"{ms:.2f} | {ms_alone:.2f} | {ms_alone / ms:.1f} | {apart:.0e}"
    return f"| {label} | {models} | {numbers} |"


def main(file: str, *changes: str) -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    overrides = dict(change.partition("=")[::2] for change in changes)
    sweep = spec.load(file, {key: yaml.safe_load(value) for key, value in overrides.items()})
    sys.stdout.write(f"{HEAD}\n|{' --- |' * 6}\n")
    for cell in sweep.cells:
        assert isinstance(cell.mechanism, DpSgd)
        assert isinstance(cell.adversary, ReferenceModels)
        training = cell.mechanism.training(sweep.seed, gpu=False)
        view = session.PublicView(training)
        canary = cell.adversary.craft(view, np.random.default_rng(0))
        for models in PACKS:
            sys.stdout.write(f"{line(cell.label, training, canary, models)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
