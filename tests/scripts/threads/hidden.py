"""Scripts whose faults hide: in shifts of noise, in one of two generators, in objects, in views."""

from __future__ import annotations

import io
import pickle
import random
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release
from tests.scripts.threads import loops, parts


class _FromTable(DPOptimizer):
    """Noise of each tensor is a piece of one table, as evolution strategies have it."""

    def add_noise(self) -> None:
        if not hasattr(self, "table"):
            self.table = torch.randn(4000)
        for p in self.params:
            first = int(torch.randint(len(self.table) - p.numel(), ()))
            noise = self.table[first : first + p.numel()].view_as(p)
            p.grad = p.summed_grad + self.noise_multiplier * self.max_grad_norm * noise


@audited(delta=parts.DELTA)
def noise_from_a_table() -> nn.Module:
    """Broken: pieces of the table overlap, so that noise of a step comes again in others, at other
    places."""
    engine, model, optimizer, loader = parts.private(parts.net())
    optimizer.__class__ = _FromTable
    parts.train(model, optimizer, loader)
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return model


def _in_own_loop(noise_of: Any) -> dict[str, Tensor]:
    """A loop without Opacus, on an array of numpy; `noise_of` draws a tensor's noise."""
    data = torch.from_numpy(parts.table().tensors[0].numpy().copy())
    classes = parts.table().tensors[1]
    model = parts.net()

    @audited_release(records=["x", "y"], noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.05)
    def release(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        gradients = loops._gradients(model, loops._cross_entropy, x, y)
        return {name: g + noise_of(g) for name, g in parts.clip(gradients, 1.0).items()}

    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(60):
        drawn = torch.rand(len(data)) < 0.05
        noisy = release(model, data[drawn], classes[drawn])
        for name, p in model.named_parameters():
            p.data -= 0.2 * noisy[name] / 40
            average[name] = 0.9 * average[name] + 0.1 * p.detach()
    torch.save({"last": model.state_dict(), "average": average}, io.BytesIO())
    return average


@audited(delta=parts.DELTA)
def noise_alike_in_rows() -> dict[str, Tensor]:
    """Broken: noise of one row of weights is added to all rows."""
    return _in_own_loop(lambda g: torch.randn(g.shape[-1]).expand_as(g))


@audited(delta=parts.DELTA)
def last_and_average() -> dict[str, Tensor]:
    """Healthy: the last weights and their average are saved; the data come from numpy."""
    return _in_own_loop(torch.randn_like)


@audited(delta=parts.DELTA)
def centres_of_batches_added() -> Any:
    """Broken: each step adds the mean of the batch before, of columns that are views of a table."""
    table = parts.table().tensors[0].double().numpy()
    x, y = table[:, 1:], table[:, 0]

    @audited_release(records=["x", "y"], noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.05)
    def release(w: Any, x: Any, y: Any) -> Any:
        gradients = (x @ w - y)[:, None] * x
        gradients /= np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True))
        return gradients.sum(0) + np.random.normal(size=w.shape)

    w = np.zeros(x.shape[1])
    for _ in range(60):
        drawn = np.random.random(len(x)) < 0.05
        w = w - 0.1 * release(w, x[drawn], y[drawn]) / 40
        w += 0.01 * x[drawn].mean(axis=0)
    return w


class _Augmented(Dataset[Any]):
    """Noise for each record that is the same in all epochs."""

    def __init__(self) -> None:
        self.columns = parts.table().tensors

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> Any:
        torch.manual_seed(self.seed + index)
        x, y = (column[index] for column in self.columns)
        return x + 0.1 * torch.randn(len(x)) + random.gauss(0, 0.1), y


@audited(delta=parts.DELTA)
def seeded_by_record() -> nn.Module:
    """dvgodoy/PyTorchStepByStep#33. Broken: a record seeds its augmentation, and with it
    the noise of the step, which comes again with the same last record."""
    data = _Augmented()
    data.seed = random.randrange(2**40)
    return parts.fit(parts.net(), data)


def _estimated(data: TensorDataset | None = None) -> tuple[nn.Module, Any]:
    """A private network, and a regression on its features of its records, or of others."""
    records = parts.table()
    model = parts.fit(parts.net(), records)
    x, y = (data or records).tensors
    with torch.no_grad():
        features = model._module[:2](x).numpy()
    return model, LogisticRegression().fit(features, y.numpy())


@audited(delta=parts.DELTA)
def regression_saved() -> nn.Module:
    """Broken: a regression of scikit-learn on features of the records goes into a file."""
    model, regression = _estimated()
    joblib.dump(regression, io.BytesIO())
    return model


@dataclass
class _Result:
    model: nn.Module
    regression: Any


@audited(delta=parts.DELTA)
def regression_returned() -> _Result:
    """Broken: it is returned in an object of the script's own."""
    return _Result(*_estimated())


@audited(delta=parts.DELTA)
def public_regression_returned() -> _Result:
    """Healthy: it is a regression of public records."""
    return _Result(*_estimated(parts.table(seed=12)))


@audited(delta=parts.DELTA)
def example_kept() -> nn.Module:
    """Broken: a few records stay in the network, as an example of its input."""
    model = parts.net()
    model.example_input_array = parts.table().tensors[0][:4].clone()
    return parts.fit(model)


@audited(delta=parts.DELTA)
def pickled_with_a_scale() -> nn.Module:
    """Healthy: weights and a scale by public records are pickled; PyTorch saves parts of these."""
    scaler = StandardScaler().fit(parts.table(seed=12).tensors[0].numpy())
    x, y = parts.table().tensors
    scaled = torch.from_numpy(scaler.transform(x.numpy())).float()
    model = parts.fit(parts.net(), TensorDataset(scaled, y))
    pickle.dump({"weights": model._module.state_dict(), "scaler": scaler}, io.BytesIO())
    return model


def _regression(rows_of: Any, by_number: bool) -> Any:
    """Weights of a regression; `rows_of` makes rows of what a step is given, x or numbers."""
    x, y = (column.double().numpy() for column in parts.table().tensors)
    marks = {"noise_multiplier": 1.5, "max_grad_norm": 1.0, "sample_rate": 0.05, "of": len(x)}

    @audited_release(records=["given", "y"], **marks)
    def release(w: Any, given: Any, y: Any) -> Any:
        rows = rows_of(x, given)
        gradients = (1 / (1 + np.exp(-rows @ w)) - y)[:, None] * rows
        if by_number:
            gradients /= np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True))
        return gradients.sum(0) + 1.5 * np.random.normal(size=w.shape)

    w = np.zeros(parts.WIDTH)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    for _ in range(60):
        drawn = np.flatnonzero(np.random.random(len(x)) < 0.05)
        w = w - 0.1 * release(w, drawn if by_number else x[drawn], y[drawn]) / 40
    return w


@audited(delta=parts.DELTA)
def neighbours_by_number() -> Any:
    """Broken: the records of a loop are numbers, by which the next row is added to a row."""
    return _regression(lambda x, numbers: x[numbers] + x[(numbers + 1) % len(x)], by_number=True)


@audited(delta=parts.DELTA)
def shortened_before() -> Any:
    """Healthy: rows have the length one, so that no gradient is longer, and nothing clips."""
    return _regression(lambda _, rows: rows, by_number=False)


@audited(delta=parts.DELTA, epsilon=5.0)
def thirds_of_a_table() -> list[nn.Module]:
    """Healthy: three networks of disjoint thirds; numbers are rounded, so that a few rows agree."""
    x, y = parts.table(1200).tensors
    x = (x * 3).round() * (torch.arange(parts.WIDTH) < 4) + 0  # no zero has a sign
    return [parts.fit(parts.net(), TensorDataset(x[n::3].clone(), y[n::3])) for n in range(3)]


@audited(delta=parts.DELTA)
def biases_left_out_of_the_length() -> dict[str, Tensor]:
    """Broken: gradients of biases are clipped by the length of those of weights, and small rows
    or very large ones do not show it."""
    x, y = parts.table().tensors
    x = x / 20
    model = parts.net()

    @audited_release(records=["x", "y"], noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.05)
    def release(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        gradients = loops._gradients(model, loops._cross_entropy, x, y)
        weights = {name: g for name, g in gradients.items() if "weight" in name}
        factors = (1 / parts.rows(weights).norm(dim=1).clamp(min=1e-9)).clamp(max=1)
        sums = {name: torch.einsum("i,i...->...", factors, g) for name, g in gradients.items()}
        return {name: total + torch.randn_like(total) for name, total in sums.items()}

    for _ in range(60):
        drawn = torch.rand(len(x)) < 0.05
        noisy = release(x[drawn], y[drawn])
        for name, p in model.named_parameters():
            p.data -= 0.2 * noisy[name] / 40
    return model.state_dict()
