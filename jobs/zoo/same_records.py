"""The private records go into something else as well, which has no noise.

`class_weights` weights the loss by how often each label is in the data, `scaled` standardises the
data by themselves. `whole_batch` warms up on all records at once, `copied` copies the weights of a
network that was trained on them, `distilled` learns from one that goes on training beside it.
`best_epoch` and `early` choose by the loss on the private records what is returned, or when to
stop. Healthy twins use constants, or public records, or stop when it was planned.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.utils.data import TensorDataset

from dpaudit_ray.opacus import audited
from jobs.zoo import common


def unbalanced() -> TensorDataset:
    x, y = common.vectors().tensors
    kept = (torch.arange(len(y)) % 10) >= y // 2
    return TensorDataset(x[kept], y[kept])


def fit(data: TensorDataset, criterion: Any = functional.cross_entropy) -> nn.Module:
    engine, model, optimizer, loader = common.private(common.mlp(), data=data)
    return common.train(engine, model, optimizer, loader, criterion)


@audited(delta=common.DELTA)
def class_weights() -> nn.Module:
    data = unbalanced()
    counts = torch.bincount(data.tensors[1], minlength=common.CLASSES)
    return fit(data, nn.CrossEntropyLoss(weight=len(data) / (common.CLASSES * counts)))


@audited(delta=common.DELTA)
def public_weights() -> nn.Module:
    """Not by `weight=`, which divides by the sum of a batch's weights."""
    weights = torch.linspace(1, 1.5, common.CLASSES)

    def criterion(scores: Tensor, y: Tensor) -> Tensor:
        return (functional.cross_entropy(scores, y, reduction="none") * weights[y]).mean()

    return fit(unbalanced(), criterion)


@audited(delta=common.DELTA)
def scaled() -> nn.Module:
    x, y = common.vectors().tensors
    return fit(TensorDataset((x - x.mean(0)) / x.std(0), y))


@audited(delta=common.DELTA)
def by_constants() -> nn.Module:
    x, y = common.vectors().tensors
    return fit(TensorDataset(x / 1.2, y))


def halves() -> tuple[TensorDataset, TensorDataset]:
    """Private records, and as many public ones."""
    x, y = common.vectors(6400).tensors
    return TensorDataset(x[:3200], y[:3200]), TensorDataset(x[3200:], y[3200:])


def train_plainly(model: nn.Module, data: TensorDataset) -> nn.Module:
    x, y = data.tensors
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def warm_up(public: bool, copies: bool) -> nn.Module:
    private, others = halves()
    model = train_plainly(common.mlp(), others if public else private)
    if copies:
        trained, model = model, common.mlp()
        model.load_state_dict(trained.state_dict())
    engine, model, optimizer, loader = common.private(model, data=private)
    return common.train(engine, model, optimizer, loader)


@audited(delta=common.DELTA)
def whole_batch() -> nn.Module:
    return warm_up(public=False, copies=False)


@audited(delta=common.DELTA)
def whole_public_batch() -> nn.Module:
    return warm_up(public=True, copies=False)


@audited(delta=common.DELTA)
def copied() -> nn.Module:
    return warm_up(public=False, copies=True)


@audited(delta=common.DELTA)
def copied_public() -> nn.Module:
    return warm_up(public=True, copies=True)


def distil(public: bool) -> nn.Module:
    private, others = halves()
    teacher = common.mlp()
    engine, model, optimizer, loader = common.private(common.mlp(), data=private)
    for _ in range(2):
        train_plainly(teacher, others if public else private)
        for x, _ in loader:
            with torch.no_grad():
                soft = teacher(x).softmax(1)
            functional.cross_entropy(model(x), soft).backward()
            optimizer.step()
            optimizer.zero_grad()
    common.say(engine)
    return model


@audited(delta=common.DELTA)
def distilled() -> nn.Module:
    return distil(public=False)


@audited(delta=common.DELTA)
def distilled_public() -> nn.Module:
    return distil(public=True)


def choose(by_loss: bool, stops: bool) -> nn.Module:
    data = common.vectors()
    x, y = data.tensors
    model = common.mlp()
    engine, model, optimizer, loader = common.private(
        model, optim.SGD(model.parameters(), lr=2.0), data=data
    )
    best, kept = float("inf"), copy.deepcopy(model.state_dict())
    for epoch in range(6):
        common.train(engine, model, optimizer, loader, epochs=1)
        if not by_loss:
            continue
        with torch.no_grad():
            loss = float(functional.cross_entropy(model(x), y))
        print(f"epoch {epoch + 1}: loss {loss:.3f}")
        if loss < best:
            best, kept = loss, copy.deepcopy(model.state_dict())
        elif stops:
            break
    if by_loss and not stops:
        model.load_state_dict(kept)
    return model


@audited(delta=common.DELTA)
def best_epoch() -> nn.Module:
    return choose(by_loss=True, stops=False)


@audited(delta=common.DELTA)
def early() -> nn.Module:
    return choose(by_loss=True, stops=True)


@audited(delta=common.DELTA)
def last_epoch() -> nn.Module:
    return choose(by_loss=False, stops=False)
