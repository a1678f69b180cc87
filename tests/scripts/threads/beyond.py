"""An eighth round of scripts: folds, bounds by all records, and noise with a structure."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.accountants import RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from opacus.schedulers import ExponentialNoise
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Subset

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release
from tests.scripts.threads import parts


def _of_folds(engine: PrivacyEngine, data: Any, folds: int = 3) -> dict[str, Any]:
    """Trains a network on all folds but one, for each of them."""
    numbers = torch.randperm(len(data), generator=torch.Generator().manual_seed(2))
    networks = {}
    for fold in range(folds):
        rows = numbers[torch.arange(len(data)) % folds != fold].tolist()
        _, *made = parts.private(parts.net(), Subset(data, rows), engine=engine)
        parts.train(*made, epochs=1)
        networks[f"fold {fold}"] = made[0]._module.state_dict()
    return networks


@audited(delta=parts.DELTA)
def folds_by_one_engine() -> dict[str, Any]:
    """pytorch/opacus#254. Healthy: one accountant counts the steps of all folds, and a record has
    another number in each of them."""
    return _of_folds(PrivacyEngine(), parts.table())


@audited(delta=parts.DELTA)
def parts_by_one_engine() -> dict[str, Any]:
    """Of folds_by_one_engine. Healthy: networks of parts of the data without a common record."""
    data = parts.table()
    engine = PrivacyEngine()
    networks = {}
    for part in range(2):
        rows = list(range(part, len(data), 2))
        _, *made = parts.private(parts.net(), Subset(data, rows), engine=engine)
        parts.train(*made, epochs=2)
        networks[f"part {part}"] = made[0]._module.state_dict()
    return networks


@audited(delta=parts.DELTA)
def folds_look_at_each_other() -> dict[str, Any]:
    """Of folds_by_one_engine. Broken: the bound of the second fold is the largest gradient that the
    first fold's network has on all records."""
    data = parts.table()
    engine = PrivacyEngine()
    _, *made = parts.private(parts.net(), Subset(data, list(range(600))), engine=engine)
    parts.train(*made, epochs=1)
    bound = _largest_gradient(made[0], *data.tensors)
    rows = list(range(200, len(data)))
    _, *made = parts.private(parts.net(), Subset(data, rows), engine=engine, max_grad_norm=bound)
    parts.train(*made, epochs=2)
    return made[0]._module.state_dict()


def _largest_gradient(model: nn.Module, x: Tensor, y: Tensor) -> float:
    functional.cross_entropy(model(x), y).backward()
    squares = [p.grad_sample.flatten(1).square().sum(1) for p in model.parameters()]
    model.zero_grad()
    for p in model.parameters():
        p.grad_sample = None
    return float(sum(squares).sqrt().max())


@audited(delta=parts.DELTA)
def bound_by_largest() -> nn.Module:
    """tensorflow/privacy#157. Broken: in each epoch the bound is the largest gradient of all
    records, without noise."""
    data = parts.table()
    _, model, optimizer, loader = parts.private(parts.net(), data)
    for _ in range(3):
        optimizer.max_grad_norm = _largest_gradient(model, *data.tensors)
        parts.train(model, optimizer, loader, epochs=1)
    return model._module


@audited_release(records=["x"], noise_multiplier=4.0, max_grad_norm=1.0, of=800)
def _second_moments(x: Any) -> Any:
    rows = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    noise = np.random.normal(0.0, 4.0, (rows.shape[1], rows.shape[1]))
    return rows.T @ rows + (noise + noise.T) / 2


@audited_release(records=["x"], noise_multiplier=4.0, max_grad_norm=1.0, of=800)
def _second_moments_of_half_the_noise(x: Any) -> Any:
    rows = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    noise = np.random.normal(0.0, 2.0, (rows.shape[1], rows.shape[1]))
    return rows.T @ rows + (noise + noise.T) / 2


_KEPT = np.arange(64) % 4 == 0  # columns that are released


@audited_release(records=["x"], noise_multiplier=4.0, max_grad_norm=1.0, of=800)
def _sum_of_kept_columns(x: Any) -> Any:
    rows = x * _KEPT
    rows = rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    return _KEPT * (rows.sum(axis=0) + np.random.normal(0.0, 4.0, len(_KEPT)))


def _rows(columns: int) -> Any:
    source = np.random.default_rng(20)
    return source.normal(size=(800, 3)) @ source.normal(size=(3, columns)) * 0.3


@audited(delta=parts.DELTA)
def moments_of_symmetric_noise() -> Any:
    """IBM/differential-privacy-library#23. Healthy: a matrix of second moments, to which a
    symmetric matrix of noise is added: off the diagonal each number stands twice."""
    return np.linalg.eigh(_second_moments(_rows(8)))[1][:, -3:]


@audited(delta=parts.DELTA)
def moments_of_half_the_noise() -> Any:
    """Of moments_of_symmetric_noise. Broken: half of the noise."""
    return np.linalg.eigh(_second_moments_of_half_the_noise(_rows(8)))[1][:, -3:]


@audited(delta=parts.DELTA)
def some_columns_released() -> Any:
    """Of moments_of_symmetric_noise. Healthy: columns that are not released have no noise."""
    return _sum_of_kept_columns(_rows(64))


def _resumable(beside: bool) -> nn.Module:
    """Saves the states of all generators before each epoch."""
    _, model, optimizer, loader = parts.private(parts.net())
    for _ in range(3):
        state = {"generator": torch.get_rng_state()}
        values = {"model": model._module.state_dict()}
        torch.save(state | values if beside else state, io.BytesIO())
        parts.train(model, optimizer, loader, epochs=1)
    return model._module


@audited(delta=parts.DELTA)
def states_in_checkpoints() -> nn.Module:
    """pytorch/pytorch#26013. Broken if a checkpoint is shared: all noise follows from the state of
    the generator that it has."""
    return _resumable(beside=True)


@audited(delta=parts.DELTA)
def states_in_their_own_file() -> nn.Module:
    """Of states_in_checkpoints. Healthy: the states are in a file of their own."""
    return _resumable(beside=False)


@audited(delta=parts.DELTA)
def noise_for_small_batches() -> nn.Module:
    """google-deepmind/jax_privacy#271. Broken: the noise is for the rate of physical batches, and
    the script states its target alone."""
    noise = get_noise_multiplier(
        target_epsilon=3.0, target_delta=parts.DELTA, sample_rate=10 / 800, epochs=5
    )
    _, model, optimizer, loader = parts.private(parts.net(), noise_multiplier=noise)
    parts.train(model, optimizer, loader, epochs=5)
    return model._module


@audited(delta=parts.DELTA)
def noise_for_its_batches() -> nn.Module:
    """Of noise_for_small_batches. Healthy: noise for the rate of the draws."""
    noise = get_noise_multiplier(
        target_epsilon=3.0, target_delta=parts.DELTA, sample_rate=40 / 800, epochs=5
    )
    _, model, optimizer, loader = parts.private(parts.net(), noise_multiplier=noise)
    parts.train(model, optimizer, loader, epochs=5)
    return model._module


def _counted_by_hand(gamma: float) -> nn.Module:
    """Prints ε by an accountant that counts all steps with the first noise multiplier."""
    _, model, optimizer, loader = parts.private(parts.net(), noise_multiplier=1.5)
    schedule = ExponentialNoise(optimizer, gamma=gamma)
    accountant = RDPAccountant()
    for _ in range(4):
        parts.train(model, optimizer, loader, epochs=1)
        for _ in range(len(loader)):
            accountant.step(noise_multiplier=1.5, sample_rate=40 / 800)
        schedule.step()
    print(accountant.get_epsilon(parts.DELTA))
    return model._module


@audited(delta=parts.DELTA)
def decay_not_counted() -> nn.Module:
    """pytorch/opacus#213. Broken: the noise decays, and the script's own accountant does not."""
    return _counted_by_hand(gamma=0.8)


@audited(delta=parts.DELTA)
def growth_not_counted() -> nn.Module:
    """Of decay_not_counted. Healthy: the noise grows, so that the script's ε is an upper bound."""
    return _counted_by_hand(gamma=1.1)


def _from_first_gradient(of_records: bool) -> nn.Module:
    """Begins with a step along one gradient, after pretraining on public rows."""
    public = parts.table(seed=5)
    data = parts.table()
    model = parts.net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(30):
        optimizer.zero_grad()
        functional.cross_entropy(model(public.tensors[0]), public.tensors[1]).backward()
        optimizer.step()
    x, y = (data if of_records else public).tensors
    model.zero_grad()
    functional.cross_entropy(model(x[:400]), y[:400]).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.5 * p.grad
            p.grad = None
    _, *made = parts.private(model, data)
    parts.train(*made, epochs=2)
    return model


@audited(delta=parts.DELTA)
def begun_by_a_gradient() -> nn.Module:
    """huggingface/peft#2926. Broken: initial parameters have a gradient of the records."""
    return _from_first_gradient(of_records=True)


@audited(delta=parts.DELTA)
def begun_by_a_public_gradient() -> nn.Module:
    """Of begun_by_a_gradient. Healthy: the gradient is of public rows."""
    return _from_first_gradient(of_records=False)
