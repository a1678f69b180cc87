"""A session as a trainer opens it, with shadow models where the adversary has some."""

from __future__ import annotations

from typing import Any

import torch

from dpaudit_ray.mechanisms.dp_sgd import DpSgd, session
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
from dpaudit_ray.sweep import spec

PRECISE = torch.float64


def cell(tiny: dict[str, Any], adversary: Any, **mechanism: Any) -> tuple[DpSgd, Any]:
    """The mechanism and the adversary of a sweep of one audit."""
    raw = {**tiny, "mechanism": tiny["mechanism"] | mechanism, "adversary": adversary, "grid": {}}
    (only,) = spec.from_raw(raw).cells
    assert isinstance(only.mechanism, DpSgd)
    return only.mechanism, only.adversary


def opened(
    tiny: dict[str, Any], adversary: Any, dtype: torch.dtype = torch.float32, **mechanism: Any
) -> Any:
    """DP-SGD against this adversary, from seed 3; shadows and canary from seeds of their own."""
    options, against = cell(tiny, adversary, **mechanism)
    training = DpSgdTraining.prepare(options.recipe, 3, gpu=False, dtype=dtype)
    prepared = ()
    if (plan := against.shadow_plan) is not None:
        shadows = session.train_shadows
        prepared = tuple(shadows(training, plan, i, seed=11 + i) for i in range(plan.parts))
    return session.open_session(training, against, 4, prepared)
