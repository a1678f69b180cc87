"""What the scripts of this folder share: small data, and Opacus in one line."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

DELTA = 1e-5
WIDTH = 20
RECORDS = 800

warnings.filterwarnings("ignore", message="Secure RNG turned off")
warnings.filterwarnings("ignore", message="Full backward hook is firing")


def table(records: int = RECORDS, seed: int = 11) -> TensorDataset:
    """Columns with a label that depends on two of them; a third of it is of the second class."""
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(records, WIDTH, generator=source)
    return TensorDataset(x, (x[:, 0] - x[:, 1] > 0.6).long())


def words(records: int = RECORDS, length: int = 9, seed: int = 12) -> TensorDataset:
    """Numbers of words, and a class."""
    source = torch.Generator().manual_seed(seed)
    tokens = torch.randint(1, 30, (records, length), generator=source)
    return TensorDataset(tokens, (tokens[:, 0] > 15).long())


def net(inputs: int = WIDTH, outputs: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 24), nn.Tanh(), nn.Linear(24, outputs))


def loader_of(data: Dataset[Any], size: int = 40, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, batch_size=size, shuffle=True, **options)


def private(model: nn.Module, data: Dataset[Any] | None = None, **options: Any) -> tuple[Any, ...]:
    """An engine, a network, its optimizer and its loader: draws of 40 records on average."""
    engine = options.pop("engine", None) or PrivacyEngine()
    optimizer = options.pop("optimizer", None) or optim.SGD(model.parameters(), lr=0.2)
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0} | options
    loader = loader_of(data or table())
    made = engine.make_private(module=model, optimizer=optimizer, data_loader=loader, **settings)
    return engine, *made


def _cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y)


def train(
    model: nn.Module, optimizer: Any, loader: Any, epochs: int = 3, loss: Any = _cross_entropy
) -> list[float]:
    """Losses of the batches, of which most scripts make nothing."""
    losses = []
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            value = loss(model, x, y)
            value.backward()
            optimizer.step()
            losses.append(value.item())
    optimizer.zero_grad()
    return losses


def fit(
    model: nn.Module, data: Dataset[Any] | None = None, epochs: int = 3,
    loss: Any = _cross_entropy, delta: float = DELTA, **options: Any,
) -> nn.Module:  # fmt: skip
    """The network after private training, which prints its epsilon."""
    engine, private_model, optimizer, loader = private(model, data, **options)
    train(private_model, optimizer, loader, epochs, loss)
    print("epsilon", engine.get_epsilon(delta))
    return private_model


def rows(parameters: dict[str, Tensor]) -> Tensor:
    """Gradients of records, one below the other."""
    return torch.cat([g.flatten(1) for g in parameters.values()], dim=1)


def clip(gradients: dict[str, Tensor], bound: float) -> dict[str, Tensor]:
    """The sum of gradients of records, each of them at most so long."""
    factors = (bound / rows(gradients).norm(dim=1).clamp(min=1e-9)).clamp(max=1)
    return {name: torch.einsum("i,i...->...", factors, g) for name, g in gradients.items()}
