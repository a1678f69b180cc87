"""Bugs in batches: a step has other rows than one for each drawn record, or rows depend on others.

`augmented` trains on each record and its mirror image, `replayed` takes the hardest records of the
last batch again: each has several clipped gradients of one record under the noise for one.
`outliers` leaves out what is far from the others of a batch, `mixed` adds two records up before
the network sees them (mixup), `standardised` subtracts the mean of a batch, and `weighted` weights
losses by a batch's labels: a record moves the gradients of others. Healthy twins treat each record
by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpaudit_ray.opacus import audited
from jobs.zoo import common

Prepare = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Loss = Callable[[Tensor, Tensor], Tensor]


def fit(prepare: Prepare = lambda x, y: (x, y), loss: Loss = functional.cross_entropy) -> nn.Module:
    engine, model, optimizer, loader = common.private(common.mlp())
    for x, y in loader:
        if len(x) < 2:
            x, y = x[:0], y[:0]
        x, y = prepare(x, y)
        loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    common.say(engine)
    return model


@audited(delta=common.DELTA)
def augmented() -> nn.Module:
    return fit(lambda x, y: (torch.cat([x, x.flip(1)]), torch.cat([y, y])))


@audited(delta=common.DELTA)
def augmented_once() -> nn.Module:
    def prepare(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        mirrored = torch.rand(len(x), 1) < 0.5
        return torch.where(mirrored, x.flip(1), x), y

    return fit(prepare)


@audited(delta=common.DELTA)
def replayed() -> nn.Module:
    engine, model, optimizer, loader = common.private(common.mlp())
    hard: list[tuple[Tensor, Tensor]] = []
    for x, y in loader:
        x, y = (torch.cat(parts) for parts in zip((x, y), *hard, strict=True))
        losses = functional.cross_entropy(model(x), y, reduction="none")
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        hardest = losses.topk(min(8, len(losses))).indices
        hard = [(x[hardest], y[hardest])]
    common.say(engine)
    return model


@audited(delta=common.DELTA)
def as_drawn() -> nn.Module:
    return fit()


@audited(delta=common.DELTA)
def outliers() -> nn.Module:
    def prepare(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        lengths = x.norm(dim=1)
        kept = lengths <= lengths.mean() + lengths.std()
        return x[kept], y[kept]

    return fit(prepare)


@audited(delta=common.DELTA)
def mixed() -> nn.Module:
    def prepare(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return 0.7 * x + 0.3 * x[torch.randperm(len(x))], y

    return fit(prepare)


@audited(delta=common.DELTA)
def jittered() -> nn.Module:
    return fit(lambda x, y: (x + 0.1 * torch.randn_like(x), y))


@audited(delta=common.DELTA)
def standardised() -> nn.Module:
    return fit(lambda x, y: ((x - x.mean(0)) / (x.std(0) + 1e-3), y))


@audited(delta=common.DELTA)
def by_constants() -> nn.Module:
    return fit(lambda x, y: (x / 1.2, y))


@audited(delta=common.DELTA)
def weighted() -> nn.Module:
    def loss(scores: Tensor, y: Tensor) -> Tensor:
        counts = torch.bincount(y, minlength=common.CLASSES) + 1.0
        return functional.cross_entropy(scores, y, weight=1 / counts)

    return fit(loss=loss)


@audited(delta=common.DELTA)
def weighted_by_constants() -> nn.Module:
    weights = torch.linspace(1, 2, common.CLASSES)

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        return (functional.cross_entropy(scores, y, reduction="none") * weights[y]).mean()

    return fit(loss=loss)
