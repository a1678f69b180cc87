"""Variants of threads' kinds that no thread has, and healthy scripts that resemble them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler, Subset, TensorDataset

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release
from tests.scripts.threads import parts


class _Repeated(Dataset[Any]):
    """A data set that comes three times."""

    def __init__(self) -> None:
        self._data = parts.table()

    def __len__(self) -> int:
        return 3 * len(self._data)

    def __getitem__(self, index: int) -> Any:
        return self._data[index % len(self._data)]


@audited(delta=parts.DELTA)
def rows_repeated() -> nn.Module:
    """Of oversampled. Broken: rows of the rare class are in the arrays four times."""
    x, y = parts.table().tensors
    times = torch.where(y == 1, 4, 1)
    return parts.fit(
        parts.net(), TensorDataset(x.repeat_interleave(times, 0), y.repeat_interleave(times))
    )


@audited(delta=parts.DELTA)
def data_repeated() -> nn.Module:
    """Of oversampled. Broken: a data set that gives each record for three indices."""
    return parts.fit(parts.net(), _Repeated(), epochs=2)


@audited(delta=parts.DELTA)
def parts_joined() -> nn.Module:
    """Of oversampled. Healthy: different records of one data set, and those of another."""
    data = parts.table()
    halves = [Subset(data, range(300)), Subset(data, range(400, 700))]
    return parts.fit(parts.net(), ConcatDataset([*halves, parts.table(200, seed=5)]))


@audited(delta=parts.DELTA)
def size_is_a_column() -> nn.Module:
    """Of sum_for_mean. Broken: the network is given the size of the batch."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        size = torch.full((len(x), 1), len(x) / 40)
        return functional.cross_entropy(model(torch.cat([x, size], dim=1)), y)

    return parts.fit(parts.net(parts.WIDTH + 1), loss=loss)


@audited(delta=parts.DELTA)
def scaled_by_size() -> nn.Module:
    """Of sum_for_mean. Broken: the loss is multiplied by the root of the batch's size."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), y) * len(x) ** 0.5

    return parts.fit(parts.net(), loss=loss, max_grad_norm=5.0)


class _Jittered(Dataset[Any]):
    """Columns with small random numbers, from a generator of its own."""

    def __init__(self) -> None:
        self._data = parts.table()
        self._generator = torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        x, y = self._data[index]
        return x + 0.1 * torch.randn(parts.WIDTH, generator=self._generator), y


@audited(delta=parts.DELTA)
def jittered() -> nn.Module:
    """Of sum_for_mean. Healthy: each record draws random numbers, in their order in the batch."""
    return parts.fit(parts.net(), _Jittered())


class _Numbers(Dataset[Any]):
    """Numbers of records, and their labels."""

    def __init__(self, labels: Tensor) -> None:
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, int(self._labels[index])


class _Lookup(nn.Module):
    def __init__(self, features: Tensor, reach: int) -> None:
        super().__init__()
        self._features = [features]
        self._reach = reach
        self.layers = parts.net()

    def forward(self, numbers: Tensor) -> Tensor:
        (table,) = self._features
        x = table[numbers]
        for distance in range(1, self._reach + 1):
            x = x + table[(numbers + distance) % len(table)]
        return self.layers(x)


def _looked_up(reach: int) -> Any:
    features, labels = parts.table().tensors
    network = _Lookup(functional.normalize(features), reach)
    return parts.fit(network, _Numbers(labels))._module.state_dict()


@audited(delta=parts.DELTA)
def next_looked_up() -> Any:
    """Of neighbours_looked_up. Broken: the next two records in time are added to a record."""
    return _looked_up(reach=2)


@audited(delta=parts.DELTA)
def itself_looked_up() -> Any:
    """Of neighbours_looked_up. Healthy: a record is looked up by its number, and no other one."""
    return _looked_up(reach=0)


@audited(delta=parts.DELTA)
def some_nodes() -> Any:
    """Of neighbours_looked_up. Broken: training nodes are a part, neighbours are of all."""
    features, labels = parts.table().tensors
    data = Subset(TensorDataset(torch.arange(len(features)), labels), range(100, 700))
    return parts.fit(_Lookup(features, 3), data)._module.state_dict()


def _begun_with(weights: Tensor) -> Any:
    first = nn.Linear(parts.WIDTH, len(weights), bias=False).requires_grad_(False)
    first.weight.copy_(weights)
    network = nn.Sequential(first, parts.net(len(weights)))
    return parts.fit(network, parts.table())._module.state_dict()


@audited(delta=parts.DELTA)
def whitened() -> Any:
    """Of fitted_axes. Broken: principal axes about the mean, scaled by their deviations."""
    x, _ = parts.table().tensors
    _, lengths, axes = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    return _begun_with(axes[:6] / lengths[:6, None] * 28)


@audited(delta=parts.DELTA)
def centres_fitted() -> Any:
    """Of fitted_axes. Broken: a layer of the centres that k-means finds."""
    x, _ = parts.table().tensors
    centres = x[:6].clone()
    for _ in range(60):
        nearest = torch.cdist(x, centres).argmin(1)
        centres = torch.stack([x[nearest == k].mean(0) for k in range(6)])
    return _begun_with(centres)


@audited(delta=parts.DELTA)
def random_features() -> Any:
    """Of fitted_axes. Healthy: random directions."""
    return _begun_with(torch.randn(8, parts.WIDTH))


def _fit_by_numpy(weighted: bool) -> Any:
    rng = np.random.default_rng()
    x = rng.normal(size=(1000, 12))
    y = (x[:, 0] > 0).astype(float)
    rates = np.full(1000, 0.04)
    if weighted:
        sizes = np.abs(x[:, 0])
        rates = rates * sizes / sizes.mean()

    @audited_release(
        records=["x", "y"], noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.04, of=1000
    )
    def release(weights: Any, x: Any, y: Any) -> Any:
        gradients = (1 / (1 + np.exp(-x @ weights)) - y)[:, None] * x
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        return (gradients / np.maximum(norms, 1)).sum(0) + rng.normal(size=12)

    weights = np.zeros(12)
    for _ in range(80):
        drawn = rng.random(1000) < rates
        weights = weights - release(weights, x[drawn], y[drawn]) / 40
    return weights


@audited(delta=parts.DELTA)
def large_drawn_often() -> Any:
    """Of training_by_sampling. Broken: records are drawn by how large they are."""
    return _fit_by_numpy(weighted=True)


@audited(delta=parts.DELTA)
def drawn_by_numpy() -> Any:
    """Of training_by_sampling. Healthy: equal rates, from a generator with a random seed."""
    return _fit_by_numpy(weighted=False)


class _Poisson(Sampler[list[int]]):
    def __init__(self, rates: Tensor) -> None:
        self._rates = rates

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield torch.nonzero(torch.rand(len(self._rates)) < self._rates).flatten().tolist()


def _fit_by_sampler(rates: Tensor) -> nn.Module:
    model, engine = parts.net(), PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=optim.SGD(model.parameters(), lr=0.2),
        data_loader=DataLoader(parts.table(), batch_sampler=_Poisson(rates)),
        noise_multiplier=1.0, max_grad_norm=1.0, poisson_sampling=False,
    )  # fmt: skip
    parts.train(model, optimizer, loader, epochs=4)
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


@audited(delta=parts.DELTA)
def classes_drawn_alike() -> nn.Module:
    """Of training_by_sampling. Broken: a sampler draws the same number of both classes."""
    labels = parts.table().tensors[1].float()
    share = labels.mean()
    return _fit_by_sampler(torch.where(labels == 1, 0.025 / share, 0.025 / (1 - share)))


@audited(delta=parts.DELTA)
def own_sampler() -> nn.Module:
    """Of training_by_sampling. Healthy: a sampler of the script's own, with equal rates."""
    return _fit_by_sampler(torch.full((parts.RECORDS,), 0.05))


def rounded_delta() -> nn.Module:
    """Of wrong_delta. Broken: δ of a hundredth, which eight records in 800 exceed."""
    return parts.fit(parts.net(), delta=0.01)


def small_delta() -> nn.Module:
    """Of wrong_delta. Healthy: δ of a tenth of 1 / n."""
    return parts.fit(parts.net(), delta=0.1 / parts.RECORDS)
