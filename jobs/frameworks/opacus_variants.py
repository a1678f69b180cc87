"""Ways of Opacus beside its usual one: an unwrapped model, a bound for each layer, DDP."""

from __future__ import annotations

import os
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import distributed, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo.common import mlp, vectors

DELTA = 1e-5


def train(engine: PrivacyEngine, model: nn.Module, optimizer: Any, loader: Any) -> None:
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    print(f"epsilon {engine.get_epsilon(DELTA):.2f}")


@audited(delta=DELTA)
def unwrapped() -> nn.Module:
    """The network stays as it is, and Opacus' hooks are beside it."""
    model = mlp()
    engine = PrivacyEngine()
    hooks, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(vectors(), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        wrap_model=False,
    )
    train(engine, model, optimizer, loader)
    hooks.cleanup()
    return model


@audited(delta=DELTA)
def per_layer() -> nn.Module:
    """Six bounds, whose squares add up to 1."""
    model = mlp()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(vectors(), batch_size=64),
        noise_multiplier=1.0,
        max_grad_norm=[6**-0.5] * 6,
        clipping="per_layer",
    )
    train(engine, model, optimizer, loader)
    return model


@audited(delta=DELTA)
def one_process_of_many() -> nn.Module:
    """Distributed training, with one process."""
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "0")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = DifferentiallyPrivateDistributedDataParallel(mlp())
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            data_loader=DataLoader(vectors(), batch_size=64),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        train(engine, model, optimizer, loader)
        return model
    finally:
        distributed.destroy_process_group()
