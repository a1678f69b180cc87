"""An eighth round of scripts: folds, bounds by all records, and noise with a structure."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Subset

from dpaudit_ray.opacus import audited
from tests.scripts.threads import parts


def _of_folds(engine: PrivacyEngine, data: Any, folds: int = 3) -> dict[str, Any]:
    """Trains a network on all folds but one, for each of them."""
    numbers = torch.randperm(len(data), generator=torch.Generator().manual_seed(2))
    networks = {}
    for fold in range(folds):
        rows = numbers[torch.arange(len(data)) % folds != fold].tolist()
        _, *made = parts.private(parts.net(), Subset(data, rows), engine=engine)
        parts.train(*made, epochs=1)
        networks[f"fold {fold}"] = made[0]._module.state_dict()
    return networks


@audited(delta=parts.DELTA)
def folds_by_one_engine() -> dict[str, Any]:
    """pytorch/opacus#254. Healthy: one accountant counts the steps of all folds, and a record has
    another number in each of them."""
    return _of_folds(PrivacyEngine(), parts.table())


@audited(delta=parts.DELTA)
def parts_by_one_engine() -> dict[str, Any]:
    """Of folds_by_one_engine. Healthy: networks of parts of the data without a common record."""
    data = parts.table()
    engine = PrivacyEngine()
    networks = {}
    for part in range(2):
        rows = list(range(part, len(data), 2))
        _, *made = parts.private(parts.net(), Subset(data, rows), engine=engine)
        parts.train(*made, epochs=2)
        networks[f"part {part}"] = made[0]._module.state_dict()
    return networks


@audited(delta=parts.DELTA)
def folds_look_at_each_other() -> dict[str, Any]:
    """Of folds_by_one_engine. Broken: the bound of the second fold is the largest gradient that the
    first fold's network has on all records."""
    data = parts.table()
    engine = PrivacyEngine()
    _, *made = parts.private(parts.net(), Subset(data, list(range(600))), engine=engine)
    parts.train(*made, epochs=1)
    bound = _largest_gradient(made[0], *data.tensors)
    rows = list(range(200, len(data)))
    _, *made = parts.private(parts.net(), Subset(data, rows), engine=engine, max_grad_norm=bound)
    parts.train(*made, epochs=2)
    return made[0]._module.state_dict()


def _largest_gradient(model: nn.Module, x: Tensor, y: Tensor) -> float:
    functional.cross_entropy(model(x), y).backward()
    squares = [p.grad_sample.flatten(1).square().sum(1) for p in model.parameters()]
    model.zero_grad()
    for p in model.parameters():
        p.grad_sample = None
    return float(sum(squares).sqrt().max())


@audited(delta=parts.DELTA)
def bound_by_largest() -> nn.Module:
    """tensorflow/privacy#157. Broken: in each epoch the bound is the largest gradient of all
    records, without noise."""
    data = parts.table()
    _, model, optimizer, loader = parts.private(parts.net(), data)
    for _ in range(3):
        optimizer.max_grad_norm = _largest_gradient(model, *data.tensors)
        parts.train(model, optimizer, loader, epochs=1)
    return model._module
