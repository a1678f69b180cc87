"""A session as a trainer opens it, with shadow models where the adversary has some."""

from __future__ import annotations

from typing import Any

import torch

from dpaudit_ray.adversaries.shadows import Shadowed
from dpaudit_ray.mechanisms.dp_sgd import crafting, shadowing
from dpaudit_ray.mechanisms.dp_sgd.options import DpSgd
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
from dpaudit_ray.sweep import spec

PRECISE = torch.float64


def cell(tiny: dict[str, Any], adversary: Any, **mechanism: Any) -> tuple[DpSgd, Any]:
    """The mechanism and the adversary of a sweep of one audit."""
    raw = {**tiny, "mechanism": tiny["mechanism"] | mechanism, "adversary": adversary, "grid": {}}
    (found,) = spec.from_raw(raw).cells
    assert isinstance(found.mechanism, DpSgd)
    return found.mechanism, found.adversary


def opened(
    tiny: dict[str, Any], adversary: Any, dtype: torch.dtype = torch.float32, **mechanism: Any
) -> Any:
    """DP-SGD against this adversary, from seed 3; shadows and canary from seeds of their own."""
    options, against = cell(tiny, adversary, **mechanism)
    training = DpSgdTraining.prepare(options.recipe, 3, gpu=False, dtype=dtype)
    prepared = ()
    if isinstance(against, Shadowed):
        numbers = range(against.shadow_parts)
        prepared = tuple(shadowing.part(training, against, i, seed=11 + i) for i in numbers)
    return crafting.opened(training, against, 4, prepared)
