"""Ten scripts without a bug: no audit may raise an alarm."""

from __future__ import annotations

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from dpaudit_ray.opacus import audited
from jobs.zoo import common

SIGMA = 1.0
CLIP = 1.0
BATCH = 64
SCRIPTS = (
    "mlp",
    "cnn",
    "transformer",
    "ghost",
    "memory_manager",
    "adam_schedule",
    "fixed_sampling",
    "several_epochs",
    "frozen_body",
    "own_loop",
)


@audited(delta=common.DELTA)
def mlp() -> nn.Module:
    model = common.mlp()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(common.vectors(), batch_size=BATCH, shuffle=True),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
    )
    return common.train(engine, model, optimizer, loader)


@audited(delta=common.DELTA)
def cnn() -> nn.Module:
    model = common.cnn()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5, momentum=0.5),
        data_loader=DataLoader(common.images(), batch_size=BATCH, shuffle=True),
        noise_multiplier=0.8,
        max_grad_norm=CLIP,
    )
    return common.train(engine, model, optimizer, loader)


@audited(delta=common.DELTA)
def transformer() -> nn.Module:
    model = common.Transformer()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.Adam(model.parameters(), lr=0.01),
        data_loader=DataLoader(common.sequences(), batch_size=BATCH, shuffle=True),
        noise_multiplier=0.8,
        max_grad_norm=CLIP,
    )
    return common.train(engine, model, optimizer, loader)


@audited(delta=common.DELTA)
def ghost() -> nn.Module:
    model = common.mlp()
    engine = PrivacyEngine()
    model, optimizer, criterion, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(common.vectors(), batch_size=BATCH, shuffle=True),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
        grad_sample_mode="ghost",
    )
    return common.train(engine, model, optimizer, loader, criterion)


@audited(delta=common.DELTA)
def memory_manager() -> nn.Module:
    model = common.mlp()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(common.vectors(), batch_size=BATCH, shuffle=True),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
    )
    for _ in range(2):
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=16, optimizer=optimizer
        ) as physical:
            common.train(engine, model, optimizer, physical, epochs=1)
    return model


@audited(delta=common.DELTA)
def adam_schedule() -> nn.Module:
    model = common.mlp()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.Adam(model.parameters(), lr=0.01),
        data_loader=DataLoader(common.vectors(), batch_size=BATCH, shuffle=True),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
    )
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.3)
    for _ in range(2):
        common.train(engine, model, optimizer, loader, epochs=1)
        schedule.step()
    return model


@audited(delta=common.DELTA)
def fixed_sampling() -> nn.Module:
    """Everybody in every batch: the rate is 1, and nothing is claimed from sampling."""
    data = common.vectors(600)
    model = common.mlp()
    # Opacus' PRV accountant divides by zero at a rate of 1.
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(data, batch_size=len(data)),
        noise_multiplier=8.0,
        max_grad_norm=CLIP,
        poisson_sampling=False,
    )
    for _ in range(60):
        for x, y in loader:
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"loss {loss.item():.3f}, epsilon {engine.get_epsilon(common.DELTA):.2f}")
    return model


@audited(delta=common.DELTA)
def several_epochs() -> nn.Module:
    model = common.mlp()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(common.vectors(), batch_size=BATCH, shuffle=True),
        target_epsilon=2.0,
        target_delta=common.DELTA,
        epochs=4,
        max_grad_norm=CLIP,
    )
    return common.train(engine, model, optimizer, loader, epochs=4)


@audited(delta=common.DELTA)
def frozen_body() -> nn.Module:
    """A head of 10,250 parameters on random features."""
    body = nn.Sequential(nn.Linear(common.FEATURES, 1024), nn.ReLU())
    head = nn.Linear(1024, common.CLASSES)
    for p in body.parameters():
        p.requires_grad = False
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=nn.Sequential(body, head),
        optimizer=optim.SGD(head.parameters(), lr=0.1),
        data_loader=DataLoader(common.vectors(), batch_size=BATCH, shuffle=True),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP,
    )
    return common.train(engine, model, optimizer, loader)


def private_gradient(model: nn.Module, batch: common.Batch) -> list[torch.Tensor]:
    sums = [g.sum(0) for g in common.clipped(common.per_example(model, batch), CLIP)]
    return [(g + SIGMA * CLIP * torch.randn_like(g)) / BATCH for g in sums]


@audited(delta=common.DELTA)
def own_loop() -> nn.Module:
    return common.own_loop(private_gradient, sigma=SIGMA)


def run_unwatched(name: str) -> None:
    """Runs one of these scripts in a process where nobody watches it, with one thread."""
    torch.set_num_threads(1)
    globals()[name]()


def main() -> None:
    for name in SCRIPTS:
        print(name)
        globals()[name]()


if __name__ == "__main__":
    main()
