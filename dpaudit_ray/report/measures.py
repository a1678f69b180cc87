"""What an audit's scores say beside its bounds: how often its bits are guessed right, what its
models are worth, and the trade-off curve, with whether it is Gaussian."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from .. import imports
from ..accounting import Training
from ..mechanisms.base import Claimed
from ..plan import claims
from ..plan.model import PlannedAudit
from ..plan.score_stream import Trials
from ..stats import clopper_pearson_lower, clopper_pearson_upper, gdp, profile
from ..stats.base import alike_in_a_row, checked
from ..stats.curve import Curve, gaussian
from ..stats.guess_count_bound import GuessCounter
from ..stats.threshold_rates import Worlds
from ..sweep.cell import Cell

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class HitRate:
    """`hits` of `guesses`, as `accuracy` counts them, and a two-sided interval for the rate."""

    guesses: int
    hits: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        return self.hits / self.guesses

    @classmethod
    def from_trials(cls, trials: Trials, confidence: float) -> HitRate | None:
        """Counts by the scores at the last step; None before the first guess."""
        counter = GuessCounter()
        for rows, missed in alike_in_a_row(trials.missed):
            if missed:
                counter.miss(trials.members[rows])
            else:
                counter.fold(trials.scores[rows, -1], trials.members[rows])
        if counter.guesses == 0:
            return None
        counts, alpha = (counter.hits, counter.guesses), (1 - confidence) / 2
        low, high = clopper_pearson_lower(*counts, alpha), clopper_pearson_upper(*counts, alpha)
        return cls(counter.guesses, counter.hits, float(low), float(high))


def utilities(audit: PlannedAudit, trials: Trials) -> Iterator[dict[str, Any]]:
    """Each measure at the last step over all trainings ("any"), and by world where there are two.

    `mean` and its standard `error` are of so many `trainings`; `diverged` more gave no finite
    value. Failed trials have no model. The trials of one training share what was measured.
    """
    every = max(audit.in_a_training, 1)
    members, kept = trials.members[::every], ~trials.missed[::every]
    worlds = {"any": kept}
    if every == 1:
        worlds |= {"in": kept & members, "out": kept & ~members}
    for name, canary in itertools.product(trials.utility, worlds):
        values = trials.utility[name][::every, -1][worlds[canary]]
        finite = values[np.isfinite(values)]
        n = len(finite)
        yield {
            "measure": name,
            "canary": canary,
            "trainings": n,
            "diverged": len(values) - n,
            "mean": float(finite.mean()) if n else math.nan,
            "error": float(finite.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan,
        }


@dataclasses.dataclass(frozen=True)
class ObservedTradeOff:
    """Observed error rates at every threshold, and μ of the fit: estimates, not bounds."""

    alpha: Floats  # false-positive rates [n], increasing
    beta: Floats  # false-negative rates [n]
    mu: float

    @classmethod
    def from_scores(cls, scores: npt.ArrayLike, members: npt.ArrayLike) -> ObservedTradeOff:
        """Fits μ where both errors together are rarest: the point that most trials speak for."""
        worlds = Worlds.observed(*checked(scores, members))
        thresholds = np.concatenate([[np.inf], worlds.midpoints(profile.MOST)[::-1], [-np.inf]])
        # One half of an error per world: a perfect attack has no finite μ.
        sizes = [max(size, 1) for size in worlds.sizes]
        alpha, beta = (np.asarray(errors / size) for errors, size in
                       zip(worlds.errors(thresholds), sizes, strict=True))  # fmt: skip
        error = max(float((alpha + beta).min()), 1 / min(sizes)) / 2
        return cls(alpha, beta, max(-2 * float(special.ndtri(error)), 0.0))

    @property
    def saturated(self) -> bool:
        """Whether some threshold errs nowhere: no number of trials so far shows an end."""
        return float((self.alpha + self.beta).min()) == 0

    @property
    def gap(self) -> float:
        """Largest distance of the curve from the fit, in α or β, whichever is less: it is steep."""
        upwards = np.abs(self.beta - gaussian_trade_off(self.alpha, self.mu))
        sideways = np.abs(self.alpha - gaussian_trade_off(self.beta, self.mu))  # its own inverse
        return float(np.max(np.minimum(upwards, sideways)))


def gaussian_trade_off(alpha: npt.ArrayLike, mu: float) -> Floats:
    """G_μ(α) = Φ(Φ⁻¹(1 - α) - μ): the fewest misses of a μ-GDP mechanism (Dong et al., 2022)."""
    return np.asarray(1 - gdp.true_positive_rate(alpha, mu), dtype=np.float64)


@dataclasses.dataclass(frozen=True)
class Profile:
    """Curves that the last step's scores trace, and the claimed one."""

    tradeoff: ObservedTradeOff
    gaussian: bool  # False where one μ fits not all thresholds, at the audit's confidence
    claim: Curve

    @classmethod
    def from_trials(cls, cell: Cell, audit: PlannedAudit, trials: Trials) -> Profile:
        scores, members = trials.with_errors(), trials.members
        # No world of so many trials is larger, but by a chance of 1 in 16,000: one calibration
        # does for all audits of that many, and a larger world has its own (`stats.error_rates`).
        size = math.ceil(len(scores) / 2 + 2 * math.sqrt(len(scores)))
        along = profile.mu_profile(scores, members, cell.audit.confidence, size=size)
        observed = ObservedTradeOff.from_scores(scores, members)
        return cls(observed, along.gaussian, claimed_curve(cell, audit))


def claimed_at_end(cell: Cell) -> Claimed:
    """Returns the releases that accountants count for the complete training run."""
    return cell.mechanism.claimed(cell.adversary, cell.horizons[-1])


def claimed_curve(cell: Cell, audit: PlannedAudit, points: int = 60) -> Curve:
    """What the first accountant claims at the last step, at so many ε."""
    accountant = next(iter(audit.claims))
    if audit.claim == math.inf:
        return gaussian(math.inf)
    if ":" in accountant and imports.is_data(accountant):  # its one recorded point
        return Curve(np.array([audit.claim]), np.array([cell.audit.delta]))
    training = claimed_at_end(cell).training
    return _curve(training, 2 * audit.claim, points, accountant)


@functools.lru_cache  # audits share claims, and some accountants take seconds
def _curve(training: Training, top: float, points: int, accountant: str) -> Curve:
    return claims.at_points(training, np.linspace(0.0, top, points), accountant)
