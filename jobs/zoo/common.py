"""Parts that the scripts of the zoo share: data, models, an Opacus run and a PyTorch loop.

Nothing here touches the global seed: the data have a generator of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from opacus.layers import DPMultiheadAttention
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn, optim
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dpaudit_ray.releases import audited_release

DELTA = 1e-5
CLASSES = 10
FEATURES = 32
TOKENS = 64
LENGTH = 12

Batch = tuple[Tensor, Tensor]

# Opacus speaks of its random numbers at every engine, PyTorch of inputs that need no gradient.
warnings.filterwarnings("ignore", message="Secure RNG turned off")
warnings.filterwarnings("ignore", message="Full backward hook is firing")


def vectors(records: int = 3200) -> TensorDataset:
    """A mixture of ten Gaussians."""
    source = torch.Generator().manual_seed(1)
    centres = 0.6 * torch.randn(CLASSES, FEATURES, generator=source)
    labels = torch.randint(CLASSES, (records,), generator=source)
    noise = torch.randn(records, FEATURES, generator=source)
    return TensorDataset(centres[labels] + noise, labels)


def images(records: int = 2000) -> TensorDataset:
    """Grey images of 14 x 14 pixels, one pattern per class."""
    source = torch.Generator().manual_seed(2)
    patterns = torch.randn(CLASSES, 1, 14, 14, generator=source)
    labels = torch.randint(CLASSES, (records,), generator=source)
    noise = torch.randn(records, 1, 14, 14, generator=source)
    return TensorDataset(patterns[labels] + noise, labels)


def sequences(records: int = 2000) -> TensorDataset:
    """Token sequences; each class prefers tokens of its own."""
    source = torch.Generator().manual_seed(3)
    odds = 3 * torch.randn(CLASSES, TOKENS, generator=source).softmax(1)
    labels = torch.randint(CLASSES, (records,), generator=source)
    tokens = torch.multinomial(odds[labels], LENGTH, replacement=True, generator=source)
    return TensorDataset(tokens, labels)


def mlp() -> nn.Sequential:
    """13,130 parameters."""
    return nn.Sequential(
        nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, CLASSES)
    )


def cnn() -> nn.Sequential:
    """11,182 parameters; GroupNorm, since batch statistics are not private."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 12),
        nn.ReLU(),
        nn.Linear(12, CLASSES),
    )


class Transformer(nn.Module):
    """Embedding, one block of attention, mean over the sequence."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.places = nn.Embedding(LENGTH, width)
        self.attention = DPMultiheadAttention(width, 2, batch_first=True)
        self.first_norm = nn.LayerNorm(width)
        self.body = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))
        self.second_norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        # One row of places per record: Opacus takes the first dimension for the batch.
        places = torch.arange(tokens.shape[1]).expand_as(tokens)
        x = self.tokens(tokens) + self.places(places)
        x = self.first_norm(x + self.attention(x, x, x, need_weights=False)[0])
        return self.head(self.second_norm(x + self.body(x)).mean(1))


def report(epoch: int, losses: list[float], epsilon: float) -> None:
    """The line that users print. A Poisson batch may be empty: its loss is not a number."""
    loss = float(torch.tensor(losses).nanmean())
    print(f"epoch {epoch + 1}: loss {loss:.3f}, epsilon {epsilon:.2f} at delta {DELTA}")


def train(
    engine: PrivacyEngine,
    model: nn.Module,
    optimizer: optim.Optimizer,
    loader: DataLoader[Any],
    criterion: Callable[[Tensor, Tensor], Any] = functional.cross_entropy,
    epochs: int = 2,
) -> nn.Module:
    """The loop of Opacus' first tutorial, but gradients are cleared after the step.

    Cleared before it, every example's own gradient of the last batch would stay in the model.
    """
    for epoch in range(epochs):
        losses = []
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        report(epoch, losses, engine.get_epsilon(DELTA))
    return model


def private(
    model: nn.Module, optimizer: optim.Optimizer | None = None, data: Any = None, **options: Any
) -> tuple[Any, ...]:
    """An engine, and what its `make_private` gives: a network, its optimizer and its loader.

    Poisson batches of 64 records, a noise multiplier and a clipping bound of 1, if not otherwise.
    """
    engine = PrivacyEngine()
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0} | options
    made = engine.make_private(
        module=model,
        optimizer=optimizer or optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(data or vectors(), batch_size=64, shuffle=True),
        **settings,
    )
    return engine, *made


def say(*engines: PrivacyEngine) -> None:
    """The line that users print at the end: the sum of what the engines say."""
    epsilon = sum(engine.get_epsilon(DELTA) for engine in engines)
    print(f"epsilon {epsilon:.2f} at delta {DELTA}")


def own_optimizer(optimizer: DPOptimizer, kind: type[DPOptimizer], **settings: Any) -> DPOptimizer:
    """The optimizer that `make_private` returned, as a class of one's own; accounting goes on."""
    own = kind(
        optimizer.original_optimizer,
        noise_multiplier=optimizer.noise_multiplier,
        max_grad_norm=optimizer.max_grad_norm,
        expected_batch_size=optimizer.expected_batch_size,
        **settings,
    )
    own.attach_step_hook(optimizer.step_hook)
    return own


def fit(
    kind: type[DPOptimizer] | None = None,
    *,
    sigma: float = 1.0,
    clip: float = 1.0,
    lr: float = 0.5,
    **options: Any,
) -> nn.Module:
    """A script with Opacus: the MLP, Poisson batches of 64 records, 100 steps."""
    model = mlp()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=lr),
        data_loader=DataLoader(vectors(), batch_size=64, shuffle=True),
        noise_multiplier=sigma,
        max_grad_norm=clip,
        **options,
    )
    if kind is not None:
        optimizer = own_optimizer(optimizer, kind)
    return train(engine, model, optimizer, loader)


class OwnNoise(DPOptimizer):
    """Draws its noise in a method that is short to override."""

    def noise(self, p: Tensor) -> Tensor:
        return self.noise_multiplier * self.max_grad_norm * torch.randn_like(p)

    def add_noise(self) -> None:
        for p in self.params:
            p.grad = p.summed_grad + self.noise(p)


def per_example(model: nn.Module, batch: Batch) -> list[Tensor]:
    """Every example's own gradient, a tensor with a row per example for each parameter."""

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, parameters, x[None]), y[None])

    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return list(vmap(grad(loss), in_dims=(None, 0, 0))(parameters, *batch).values())


def clipped(gradients: list[Tensor], clip: float) -> list[Tensor]:
    """Rows scaled down to norm `clip`, the norm being taken over all parameters."""
    squares = [g.flatten(1).square().sum(1) for g in gradients]
    factors = (clip / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1)
    return [torch.einsum("i,i...->i...", factors, g) for g in gradients]


def descend(model: nn.Module, gradient: list[Tensor], lr: float) -> None:
    with torch.no_grad():
        for p, g in zip(model.parameters(), gradient, strict=True):
            p -= lr * g


def own_loop(
    gradient: Callable[[nn.Module, Batch], list[Tensor]],
    *,
    sigma: float,
    rate: float = 0.02,
    accounted: float | None = None,
    lr: float = 0.5,
    steps: int = 100,
    records: TensorDataset | None = None,
) -> nn.Module:
    """A script without Opacus' engine: Poisson batches at `rate`, accounted at that rate if right.

    `gradient` makes the noisy gradient from a batch; everything else here touches no record.
    """
    data, labels = (records or vectors()).tensors
    model = mlp()
    accountant = PRVAccountant()
    told = audited_release(
        records=["batch"],
        noise_multiplier=sigma,
        max_grad_norm=1.0,
        sample_rate=accounted or rate,
        of=len(data),
    )
    private = told(gradient)
    for _ in range(steps):
        chosen = torch.rand(len(data)) < rate
        descend(model, private(model, (data[chosen], labels[chosen])), lr)
        accountant.step(noise_multiplier=sigma, sample_rate=accounted or rate)
    print(f"{steps} steps, epsilon {accountant.get_epsilon(DELTA):.2f} at delta {DELTA}")
    return model
