"""One training with thousands of canaries, thousands with one, or something in between.

A budget pays for so many trainings. What each design can show is simulated: canaries that do not
interfere, each as visible as the claim allows (a Gaussian pair of its μ), judged by the method that
is valid for the design. A real attack shows less, and canaries that err together less still.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import stats
from ..errors import SpecError
from ..stats import gdp

CANARIES = (1, 16, 64, 1000, 5000)  # in each training
_DRAWS = 5  # simulated audits, of which the median counts
_MOST = 100_000  # scores of one: a bound from more is hardly another one
_ALIKE = 0.98  # of the best, where a design costs less
_SEED = 20231
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


@dataclasses.dataclass(frozen=True)
class Design:
    """So many trainings of so many canaries, and the ε that is typically shown by `method`."""

    trainings: int
    canaries: int
    method: str
    epsilon: float
    seconds: float  # of one trainer


def parse_duration(budget: str) -> float:
    """Seconds of `90s`, `10min`, `1.5h` or `2d`. Raises SpecError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d)", budget.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise SpecError("--budget", f"is {budget!r}; write a time as 90s, 10min, 1.5h or 2d")
    return seconds


def affordable(
    claim: float, level: tuple[float, float], seconds: float, budget: float
) -> list[Design]:
    """The best method of every design that a `budget` of trainer seconds pays for.

    The `claim` is an ε; `level` is its δ, and the confidence of the bounds. A training takes so
    many `seconds`. Canaries are taken to cost nothing: gradients do not, and records cost a
    gradient each.
    """
    mu, most, designs = float(gdp.mu(claim, level[0])), int(budget / seconds), []
    shapes = {
        (min(runs, max(_MOST // canaries, 1)), canaries)
        for canaries in CANARIES
        for runs in {1, most}
        if most >= 1 and runs * canaries >= 100
    }
    for trainings, canaries in sorted(shapes):
        shown = {}
        for method, options in _methods(trainings, canaries):
            options |= {"planned": trainings * canaries, "canaries": canaries}
            make = functools.partial(stats.make, method, independent=canaries == 1, **options)
            shown[method] = statistics.median(simulated(make, mu, level))
        best = max(shown, key=lambda name: shown[name])
        designs.append(Design(trainings, canaries, best, shown[best], trainings * seconds))
    return designs


def recommended(designs: list[Design]) -> Design | None:
    """The cheapest of those that show about the most; None where none shows anything."""
    most = max((design.epsilon for design in designs), default=0.0)
    good = [design for design in designs if design.epsilon >= _ALIKE * most > 0]
    return min(good, key=lambda design: (design.seconds, design.canaries), default=None)


def _methods(trainings: int, canaries: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if canaries == 1:
        yield "accuracy", {}
        return
    if trainings >= 20:
        yield "several-canaries", {}
    total = trainings * canaries
    yield "one-run", {"guesses": total // 20}
    yield "one-run-fdp", {"guesses": total // 10}


def simulated(
    make: Callable[[], stats.Estimator], mu: float, level: tuple[float, float], draws: int = _DRAWS
) -> list[float]:
    """ε of so many audits, rising, of as many canaries as `make` plans, all μ apart."""
    rng, shown = np.random.default_rng(_SEED), []
    for _ in range(draws):
        made = make()
        bits = rng.random(made.planned) < 0.5
        made.fold(mu * bits + rng.standard_normal(made.planned), bits)
        shown.append(made.bound(*level).epsilon_lower)
    return sorted(shown)
