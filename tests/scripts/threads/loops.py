"""Threads on loops without Opacus' engine: shards, federations, dropout, diffusion."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from opacus.accountants import PRVAccountant
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import TensorDataset

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release
from tests.scripts.threads import parts

RATE = 0.05
SIZE = int(RATE * parts.RECORDS)


def _gradients(model: nn.Module, loss: Any, *batch: Tensor) -> dict[str, Tensor]:
    """Gradients of records, by vmap; each with random numbers of its own."""
    state = {name: p.detach() for name, p in model.named_parameters()}

    def loss_of(state: dict[str, Tensor], *record: Tensor) -> Tensor:
        return loss(lambda x: functional_call(model, state, x), *record)

    in_dims = (None, *[0] * len(batch))
    return vmap(grad(loss_of), in_dims=in_dims, randomness="different")(state, *batch)


def _cross_entropy(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x[None]), y[None])


def _loop(
    model: nn.Module, release: Any, data: Any, rates: Any = RATE, drawn_with: Any = None
) -> nn.Module:
    """Poisson batches; nothing here but `release` touches a record.

    `drawn_with` returns further arrays for a batch of so many records, which `release` gets.
    """
    accountant = PRVAccountant()
    names = [name for name in inspect.signature(release).parameters if name != "model"]
    marked = audited_release(
        records=names, noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=RATE, of=parts.RECORDS
    )(release)
    for _ in range(60):
        drawn = torch.rand(len(data)) < rates
        batch = [column[drawn] for column in data.tensors]
        if drawn_with is not None:
            batch += drawn_with(len(batch[0]))
        noisy = marked(model, *batch)
        accountant.step(noise_multiplier=1.0, sample_rate=RATE)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= 0.2 * noisy[name]
    print("epsilon", accountant.get_epsilon(parts.DELTA))
    return model


def _release(loss: Any) -> Any:
    """Clipped gradients of records, with noise."""

    def release(model: nn.Module, *batch: Tensor) -> dict[str, Tensor]:
        sums = parts.clip(_gradients(model, loss, *batch), 1.0)
        return {name: (g + torch.randn_like(g)) / SIZE for name, g in sums.items()}

    return release


def _in_shards(model: nn.Module, x: Tensor, y: Tensor, noise: float) -> dict[str, Tensor]:
    """Four devices clip, add noise of their own, and their results are averaged."""
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for part in range(4):
        gradients = _gradients(model, _cross_entropy, x[part::4], y[part::4])
        for name, g in parts.clip(gradients, 1.0).items():
            total[name] += g + noise * torch.randn_like(g)
    return {name: g / SIZE for name, g in total.items()}


@audited(delta=parts.DELTA)
def shards_divide() -> nn.Module:
    """google-deepmind/optax#148. Broken: each of four devices adds a quarter of the noise, which
    adds up to half of it, as deviations do not add up."""

    def release(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return _in_shards(model, x, y, 1 / 4)

    return _loop(parts.net(), release, parts.table())


@audited(delta=parts.DELTA)
def shards_root() -> nn.Module:
    """meta-pytorch/opacus#166. Healthy: each of four devices adds half of the noise."""

    def release(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return _in_shards(model, x, y, 1 / 2)

    return _loop(parts.net(), release, parts.table())


@audited(delta=parts.DELTA)
def dropout_by_vmap() -> nn.Module:
    """pytorch/pytorch#92283. Healthy: each record has a dropout mask of its own."""
    model = nn.Sequential(nn.Linear(parts.WIDTH, 24), nn.Dropout(0.3), nn.Tanh(), nn.Linear(24, 2))
    return _loop(model, _release(_cross_entropy), parts.table())


@audited(delta=parts.DELTA)
def diffusion() -> nn.Module:
    """meta-pytorch/opacus#455. Healthy: a record's loss is the mean over eight draws of time and
    noise, so it has one clipped gradient."""
    model = parts.net(parts.WIDTH + 1, parts.WIDTH)

    def denoise(model: Any, x: Tensor, y: Tensor) -> Tensor:
        time = torch.rand(8, 1)
        noise = torch.randn(8, parts.WIDTH)
        mixed = torch.cos(time) * x + torch.sin(time) * noise
        return (model(torch.cat([mixed, time], dim=1)) - noise).square().mean()

    return _loop(model, _release(denoise), parts.table())


@audited(delta=parts.DELTA)
def diffusion_drawn_before() -> nn.Module:
    """meta-pytorch/opacus#455. Healthy: the same with times and noise in the records' rows."""

    def denoise(model: Any, x: Tensor, time: Tensor, noise: Tensor) -> Tensor:
        mixed = torch.cos(time) * x + torch.sin(time) * noise
        return (model(torch.cat([mixed, time], dim=1)) - noise).square().mean()

    def drawn(count: int) -> list[Tensor]:
        return [torch.rand(count, 8, 1), torch.randn(count, 8, parts.WIDTH)]

    data = TensorDataset(parts.table().tensors[0])
    model = parts.net(parts.WIDTH + 1, parts.WIDTH)
    return _loop(model, _release(denoise), data, drawn_with=drawn)


@audited(delta=parts.DELTA)
def training_by_sampling() -> nn.Module:
    """opendp/smartnoise-sdk#484. Broken: half of a batch comes from the rare class, as CTGAN does
    it, and its records are drawn more often than accounted."""
    data = parts.table()
    is_rare = data.tensors[1] == 1
    share = is_rare.float().mean()
    rates = torch.where(is_rare, RATE / 2 / share, RATE / 2 / (1 - share))
    return _loop(parts.net(), _release(_cross_entropy), data, rates)


def _federate(adaptive: bool) -> Tensor:
    """A linear model of 200 clients; the server clips their updates, and adds noise to the sum."""
    targets = torch.randn(200, 30) + 2
    weights, bound = torch.zeros(30), [1.0]
    accountant = PRVAccountant()

    @audited_release(records=["clients"], noise_multiplier=1.0, max_grad_norm=1.0)
    def release(weights: Tensor, clients: Tensor, bound: float) -> Tensor:
        updates = 0.5 * (clients - weights)
        norms = updates.norm(dim=1, keepdim=True)
        total = (updates * (bound / norms).clamp(max=1)).sum(0)
        return (total / bound + torch.randn(30)) / 200

    for _ in range(25):
        weights = weights + bound[0] * release(weights, targets, bound[0])
        accountant.step(noise_multiplier=1.0, sample_rate=1.0)
        if adaptive:
            norms = 0.5 * (targets - weights).norm(dim=1)
            inside = (norms <= bound[0]).float().mean()
            bound[0] *= float(torch.exp(-0.2 * (inside - 0.5)))
    print("epsilon", accountant.get_epsilon(parts.DELTA))
    return weights


@audited(delta=parts.DELTA)
def adaptive_server() -> Tensor:
    """flwrlabs/flower#2909. Broken: the bound follows how many clients are inside of it, a count
    without noise."""
    return _federate(adaptive=True)


@audited(delta=parts.DELTA)
def fixed_server() -> Tensor:
    """flwrlabs/flower#2798. Healthy: the same with a constant bound."""
    return _federate(adaptive=False)
