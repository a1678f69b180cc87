"""Threads on synthetic data, on graphs and on recommendations."""

from __future__ import annotations

from typing import Any

import torch
from opacus import GradSampleModule
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import TensorDataset

from dpaudit_ray.opacus import audited
from tests.scripts.threads import parts

NOISE = 6


def _logits(critic: nn.Module, x: Tensor, real: bool) -> Tensor:
    scores = critic(x).flatten()
    return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))


def _improve(generator: nn.Module, critic: nn.Module, optimizer: Any) -> None:
    """One step of the generator, against the critic."""
    optimizer.zero_grad()
    critic.disable_hooks()
    _logits(critic, generator(torch.randn(40, NOISE)), real=True).backward()
    critic.enable_hooks()
    optimizer.step()


def _adversaries(**options: Any) -> tuple[Any, ...]:
    generator = nn.Sequential(nn.Linear(NOISE, 16), nn.ReLU(), nn.Linear(16, parts.WIDTH))
    critic = nn.Sequential(nn.Linear(parts.WIDTH, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))
    engine, critic, optimizer, loader = parts.private(critic, **options)
    return generator, engine, critic, optimizer, loader


def _fit_adversaries(fakes_of: Any) -> nn.Module:
    generator, engine, critic, optimizer, loader = _adversaries()
    improves = optim.Adam(generator.parameters(), lr=1e-3)
    for _ in range(3):
        for x, _ in loader:
            optimizer.zero_grad()
            fakes = generator(torch.randn(fakes_of(x), NOISE)).detach()
            both = torch.cat([x, fakes])
            wanted = torch.cat([torch.ones(len(x)), torch.zeros(len(fakes))])
            scores = critic(both).flatten()
            functional.binary_cross_entropy_with_logits(scores, wanted).backward()
            optimizer.step()
            _improve(generator, critic, improves)
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return generator


@audited(delta=parts.DELTA)
def fakes_follow_batch() -> nn.Module:
    """meta-pytorch/opacus#418. Broken: as many made-up rows as real ones, so a record more adds
    two clipped gradients to the sum, its own and that of one more made-up row."""
    return _fit_adversaries(len)


@audited(delta=parts.DELTA)
def fixed_fakes() -> nn.Module:
    """meta-pytorch/opacus#494. Healthy: a constant number of made-up rows beside the real ones;
    the generator learns from the private critic only."""
    return _fit_adversaries(lambda x: 40)


@audited(delta=parts.DELTA)
def rows_added() -> nn.Module:
    """opendp/smartnoise-sdk#236. Healthy: gradients of a real and of a made-up row are added, and
    the sum is clipped as one: a row of the batch for each record."""
    generator, engine, critic, optimizer, loader = _adversaries()
    improves = optim.Adam(generator.parameters(), lr=1e-3)
    for _ in range(3):
        for x, _ in loader:
            optimizer.zero_grad()
            _logits(critic, x, real=True).backward()
            real = [p.grad_sample for p in critic.parameters()]
            optimizer.zero_grad()
            fakes = generator(torch.randn(len(x), NOISE)).detach()
            _logits(critic, fakes, real=False).backward()
            for p, g in zip(critic.parameters(), real, strict=True):
                p.grad_sample = p.grad_sample + g
            optimizer.step()
            _improve(generator, critic, improves)
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return generator


@audited(delta=parts.DELTA)
def information_loss() -> nn.Module:
    """Team-TUD/CTAB-GAN-Plus#2. Broken: the generator, which is published, also learns means and
    deviations of the critic's features of the real batch, by an optimizer without noise."""
    generator, engine, critic, optimizer, loader = _adversaries()
    improves = optim.Adam(generator.parameters(), lr=1e-2)
    for _ in range(3):
        for x, _ in loader:
            optimizer.zero_grad()
            _logits(critic, x, real=True).backward()
            optimizer.step()
            improves.zero_grad()
            critic.disable_hooks()
            first = critic._module[0]
            real, made = first(x).detach(), first(generator(torch.randn(40, NOISE)))
            loss = (real.mean(0) - made.mean(0)).norm() + (real.std(0) - made.std(0)).norm()
            loss.backward()
            critic.enable_hooks()
            improves.step()
    print("epsilon", engine.get_epsilon(parts.DELTA))
    return generator


class _Graph(nn.Module):
    """A layer over the mean of a node's neighbours, whose features it looks up in a table."""

    def __init__(self, features: Tensor, neighbours: Tensor) -> None:
        super().__init__()
        self.own = nn.Linear(parts.WIDTH, 16)
        self.near = nn.Linear(parts.WIDTH, 16)
        self.head = nn.Linear(16, 2)
        self._table = [features, neighbours]  # in a list: no buffers, not in the state_dict

    def forward(self, nodes: Tensor) -> Tensor:
        features, neighbours = self._table
        near = features[neighbours[nodes]].mean(1)
        return self.head(torch.relu(self.own(features[nodes]) + self.near(near)))


@audited(delta=parts.DELTA)
def neighbours_looked_up() -> dict[str, Tensor]:
    """meta-pytorch/opacus#586. Broken for nodes: each node is in the gradients of its neighbours,
    which a loader of numbers of nodes does not show."""
    features, labels = parts.table().tensors
    neighbours = torch.randint(len(features), (len(features), 5))
    data = TensorDataset(torch.arange(len(features)), labels)
    return parts.fit(_Graph(features, neighbours), data)._module.state_dict()


class _WholeGraph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 16)
        self.head = nn.Linear(16, 2)

    def forward(self, graph: Tensor) -> Tensor:
        nodes, edges = graph[:, :, :8], graph[:, :, 8:]
        edges = edges / edges.sum(2, keepdim=True).clamp(min=1)
        x = torch.relu(self.first(edges @ nodes))
        return self.head(self.second(edges @ x).relu().mean(1))


@audited(delta=parts.DELTA)
def whole_graphs() -> nn.Module:
    """meta-pytorch/opacus#588. Healthy: a record is a whole small graph with its own edges."""
    nodes = torch.randn(parts.RECORDS, 6, 8)
    edges = (torch.rand(parts.RECORDS, 6, 6) < 0.4).float() + torch.eye(6)
    data = TensorDataset(torch.cat([nodes, edges], dim=2), (nodes[:, 0, 0] > 0).long())
    return parts.fit(_WholeGraph(), data)


class _Taste(nn.Module):
    """Scores a list of items (0 is padding) by the mean of their vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(30, 12, padding_idx=0)
        self.head = nn.Linear(12, 2)

    def forward(self, basket: Tensor) -> Tensor:
        bought = (basket > 0).float()[..., None]
        return self.head((self.items(basket) * bought).sum(1) / bought.sum(1).clamp(min=1))


@audited(delta=parts.DELTA)
def baskets() -> nn.Module:
    """meta-pytorch/opacus#518. Healthy: in place of EmbeddingBag with offsets, lists of a constant
    length with a mask, averaged for each record alone."""
    tokens, labels = parts.words().tensors
    tokens = tokens * (torch.rand(tokens.shape) < 0.6)
    model = GradSampleModule(_Taste())
    return parts.fit(
        model, TensorDataset(tokens, labels), optimizer=optim.Adam(model.parameters(), lr=0.02)
    )


@audited(delta=parts.DELTA)
def fitted_axes() -> dict[str, Tensor]:
    """opendp/smartnoise-sdk#484. Broken: the network begins with principal axes that were fitted
    to the records without noise, and that are published with it."""
    x, y = parts.table().tensors
    axes = torch.linalg.svd(x, full_matrices=False).Vh[:8]
    first = nn.Linear(parts.WIDTH, 8, bias=False).requires_grad_(False)
    first.weight.copy_(axes)
    return parts.fit(nn.Sequential(first, parts.net(8)), TensorDataset(x, y))._module.state_dict()
