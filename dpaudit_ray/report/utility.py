"""What the trained models of an audit are worth, beside what their privacy is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from ..plan.model import PlannedAudit
from ..plan.prefix import FoldedPack, Trials
from ..storage.scores import UTILITY


@dataclasses.dataclass(frozen=True)
class Worth:
    """Mean of a measure at the last step over `trainings`, and its standard error.

    `diverged` more gave no finite value. `canary`: "in", "out", or "any" for all trainings.
    """

    measure: str
    canary: str
    trainings: int
    diverged: int
    mean: float
    error: float


def of(audit: PlannedAudit, trials: Trials) -> list[Worth]:
    """Of all trainings, then by whether the canary was in where there is one; nothing unmeasured.

    Failed trials have no model. The trials of one training share what was measured.
    """
    every = max(audit.in_a_training, 1)
    members, kept = trials.members[::every], ~trials.missed[::every]
    worlds = {"any": kept}
    if every == 1:
        worlds |= {"in": kept & members, "out": kept & ~members}
    return [
        _worth(name, canary, trials.utility[name][::every, -1][rows])
        for name in UTILITY
        if name in trials.utility
        for canary, rows in worlds.items()
    ]


def means(audit: PlannedAudit, packs: Iterable[FoldedPack]) -> dict[str, float]:
    """Mean of each measure over all trainings at the last step; NaN where it was not measured."""
    known = of(audit, Trials.of(audit, packs))
    measured = {each.measure: each.mean for each in known if each.canary == "any"}
    return dict.fromkeys(UTILITY, math.nan) | measured


def _worth(measure: str, canary: str, values: npt.NDArray[np.float64]) -> Worth:
    finite = values[np.isfinite(values)]
    n, lost = len(finite), len(values) - len(finite)
    mean = float(finite.mean()) if n else math.nan
    error = float(finite.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Worth(measure, canary, n, lost, mean, error)
