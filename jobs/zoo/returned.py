"""Training is right, but what is returned or saved has more in it than noise was added to.

`standardised` has the mean and deviation of the private records as buffers, `thresholds` the means
of the network's outputs by class, as an array of numpy, `calibrated` a temperature fitted to them.
`raw_average` averages weights that took steps without noise, `saved` pickles the network with
every example's own gradient in it, and `checkpoint` has class means beside the weights. `loop` and
`loop_means` do the same without an engine. Each healthy twin is the same with public constants or
without.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from dpaudit_ray.opacus import audited
from jobs.zoo import common


class Normalised(nn.Module):
    """A network with the usual first step in it, so that nobody forgets it."""

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.body = common.mlp()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, x: Tensor) -> Tensor:
        return self.body((x - self.mean) / self.deviation)


def fit(model: nn.Module, data: Any = None) -> nn.Module:
    engine, model, optimizer, loader = common.private(model, data=data)
    return common.train(engine, model, optimizer, loader)


@audited(delta=common.DELTA)
def standardised() -> nn.Module:
    x, _ = common.vectors().tensors
    return fit(Normalised(x.mean(0), x.std(0)))


@audited(delta=common.DELTA)
def by_constants() -> nn.Module:
    return fit(Normalised(torch.zeros(common.FEATURES), torch.full((common.FEATURES,), 1.2)))


@audited(delta=common.DELTA)
def thresholds() -> dict[str, Any]:
    data = common.vectors()
    model = fit(common.mlp(), data)
    x, y = data.tensors
    with torch.no_grad():
        scores = model(x).softmax(1).numpy()
    means = [scores[y.numpy() == label, label].mean() for label in range(common.CLASSES)]
    return {"model": model, "thresholds": np.array(means)}


@audited(delta=common.DELTA)
def fixed_thresholds() -> dict[str, Any]:
    return {"model": fit(common.mlp()), "share": 0.5}


class Calibrated(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x) / self.temperature


@audited(delta=common.DELTA)
def calibrated() -> nn.Module:
    data = common.vectors()
    model = Calibrated(fit(common.mlp(), data))
    x, y = data.tensors
    optimizer = optim.LBFGS([model.temperature], max_iter=20)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = functional.cross_entropy(model(x), y)
        value.backward()
        return value

    model.network.disable_hooks()
    optimizer.step(loss)
    model.zero_grad()
    return model


@audited(delta=common.DELTA)
def by_one_temperature() -> nn.Module:
    return fit(common.mlp())


@audited(delta=common.DELTA)
def raw_average() -> nn.Module:
    """The average is of weights that took each raw gradient, "so that it is less noisy"."""
    engine, model, optimizer, loader = common.private(common.mlp())
    average = copy.deepcopy(model._module)
    for x, y in loader:
        functional.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(p - 0.5 * p.grad_sample.sum(0) / 64, 0.1)
        optimizer.step()
        optimizer.zero_grad()
    common.say(engine)
    return average


@audited(delta=common.DELTA, public=["Sequential"])
def noisy_average() -> nn.Module:
    engine, model, optimizer, loader = common.private(common.mlp())
    average = copy.deepcopy(model._module)
    for x, y in loader:
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, p in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(p, 0.1)
    common.say(engine)
    return average


def save(whole: bool, means: bool) -> nn.Module:
    """The loop of Opacus' tutorial, which clears gradients before a step, and writes a file."""
    data = common.vectors()
    engine, model, optimizer, loader = common.private(common.mlp(), data=data)
    for x, y in loader:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    common.say(engine)
    network = model._module
    x, y = data.tensors
    with tempfile.TemporaryDirectory() as folder:
        if whole:
            torch.save(network, Path(folder) / "model.pt")
        else:
            state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
            if means:
                classes = range(common.CLASSES)
                state["means"] = torch.stack([x[y == label].mean(0) for label in classes])
            torch.save(state, Path(folder) / "checkpoint.pt")
    return network


@audited(delta=common.DELTA)
def saved() -> nn.Module:
    return save(whole=True, means=False)


@audited(delta=common.DELTA)
def checkpoint() -> nn.Module:
    return save(whole=False, means=True)


@audited(delta=common.DELTA)
def saved_state() -> nn.Module:
    return save(whole=False, means=False)


def private_gradient(model: nn.Module, batch: common.Batch) -> list[Tensor]:
    sums = [g.sum(0) for g in common.clipped(common.per_example(model, batch), 1.0)]
    return [(g + torch.randn_like(g)) / 64 for g in sums]


@audited(delta=common.DELTA)
def loop() -> dict[str, Any]:
    model = common.own_loop(private_gradient, sigma=1.0)
    x, y = common.vectors().tensors
    means = [x[y == label].mean(0) for label in range(common.CLASSES)]
    return {"model": model, "prototypes": torch.stack(means)}


@audited(delta=common.DELTA)
def loop_means() -> dict[str, Any]:
    """The same of records that stay in memory: with another in the place of one, means move."""
    data = common.vectors()
    model = common.own_loop(private_gradient, sigma=1.0, records=data)
    x, y = data.tensors
    means = [x[y == label].mean(0) for label in range(common.CLASSES)]
    return {"model": model, "prototypes": torch.stack(means)}


@audited(delta=common.DELTA)
def loop_alone() -> dict[str, Any]:
    return {"model": common.own_loop(private_gradient, sigma=1.0)}
