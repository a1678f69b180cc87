"""Measures of an audit's scores in addition to bounds: hit rate, utility, trade-off curve."""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from .. import imports
from ..accounting import Claim
from ..plan import claims, score_stream
from ..plan.model import PlannedAudit
from ..plan.score_stream import Trials
from ..stats import clopper_pearson_lower, clopper_pearson_upper, gdp, profile
from ..stats.base import checked
from ..stats.curve import Curve, gaussian
from ..stats.guess_count_bound import GuessCounter
from ..stats.threshold_rates import Worlds
from ..sweep.cell import Cell

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class HitRate:
    """The rate of correct guesses, counted as `accuracy` does, and its two-sided interval."""

    guesses: int
    hits: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        """The share of correct guesses."""
        return self.hits / self.guesses

    @classmethod
    def from_trials(cls, trials: Trials, confidence: float) -> "HitRate | None":
        """Counts by the scores at the last step; None before the first guess."""
        counter = GuessCounter()
        score_stream.feed(counter, trials)
        if counter.guesses == 0:
            return None
        alpha = (1 - confidence) / 2
        low = clopper_pearson_lower(counter.hits, counter.guesses, alpha)
        high = clopper_pearson_upper(counter.hits, counter.guesses, alpha)
        return cls(counter.guesses, counter.hits, float(low), float(high))


def utilities(
    audit: PlannedAudit,
    trials: Trials,
) -> Iterator[dict[str, Any]]:
    """Yields each utility of the final models over all training runs ("any"), and by world.

    `mean` and its standard `error` are over `trainings` runs; further runs, `diverged`, gave no
    finite value. Failed trials have no model. The canaries of one training run share its utility:
    then there are no worlds.

    Args:
        audit: the audit.
        trials: all its trials.
    """
    canaries = max(audit.in_a_training, 1)
    members = trials.members[::canaries]
    trained = ~trials.missed[::canaries]
    worlds = {"any": trained}
    if canaries == 1:
        worlds |= {"in": trained & members, "out": trained & ~members}
    for name, canary in itertools.product(trials.utility, worlds):
        values = trials.utility[name][::canaries, -1][worlds[canary]]
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


@dataclass(frozen=True)
class ObservedTradeOff:
    """Observed error rates at every threshold, and μ of the fit: estimates, not bounds."""

    alpha: Floats  # false-positive rates [n], increasing
    beta: Floats  # false-negative rates [n]
    mu: float

    @classmethod
    def from_scores(cls, scores: ArrayLike, members: ArrayLike) -> "ObservedTradeOff":
        """Fits μ at the threshold with the smallest sum of error rates.

        Args:
            scores: float [n], at the last step.
            members: bool [n], whether the canary was in.
        """
        worlds = Worlds.observed(*checked(scores, members))
        # Thresholds between scores, from the highest, where no trial counts as "in", to the lowest.
        descending = worlds.midpoints(profile.MOST)[::-1]
        thresholds = np.concatenate([[np.inf], descending, [-np.inf]])
        false_positives, false_negatives = worlds.errors(thresholds)
        outside, inside = (max(size, 1) for size in worlds.sizes)
        alpha = np.asarray(false_positives / outside)
        beta = np.asarray(false_negatives / inside)
        # At least half an error per world: a perfect attack has no finite μ.
        smallest_sum = float((alpha + beta).min())
        error = max(smallest_sum, 1 / min(outside, inside)) / 2
        # At the best threshold, both error rates of a μ-GDP test are Φ(-μ/2).
        mu = -2 * float(special.ndtri(error))
        return cls(alpha, beta, max(mu, 0.0))

    @property
    def saturated(self) -> bool:
        """Whether some threshold makes no error: then the trials bound the curve on one side."""
        return float((self.alpha + self.beta).min()) == 0

    @property
    def gap(self) -> float:
        """The largest distance of the curve from the fit, in α or β, whichever is smaller."""
        upwards = np.abs(self.beta - gaussian_trade_off(self.alpha, self.mu))
        # The curve of Gaussians is its own inverse.
        sideways = np.abs(self.alpha - gaussian_trade_off(self.beta, self.mu))
        return float(np.max(np.minimum(upwards, sideways)))


def gaussian_trade_off(alpha: ArrayLike, mu: float) -> Floats:
    """Returns G_μ(α) = Φ(Φ⁻¹(1 - α) - μ), the least β of a μ-GDP mechanism (Dong et al., 2022)."""
    return np.asarray(1 - gdp.true_positive_rate(alpha, mu), float)


@dataclass(frozen=True)
class Profile:
    """The observed trade-off curve of the last step's scores, and the claimed one."""

    tradeoff: ObservedTradeOff
    gaussian: bool  # False if no single μ fits all thresholds, at the audit's confidence
    claim: Curve

    @classmethod
    def from_trials(cls, cell: Cell, audit: PlannedAudit, trials: Trials) -> "Profile":
        """Computes both curves of an audit, whose trials are independent.

        Args:
            cell: the audit in the sweep.
            audit: the audit in the plan.
            trials: trials of the audit.
        """
        scores = trials.with_errors()
        members = trials.members
        # Each of the worlds "in" and "out" gets n/2 trials on average, with a standard deviation of
        # √n/2. In one of 16,000 audits, a world is larger than that by four standard deviations. So
        # one calibration, for worlds of this size, serves all audits of n trials; a larger world
        # gets a calibration for its size (`stats.error_rates`).
        n = len(scores)
        world_size = math.ceil(n / 2 + 2 * math.sqrt(n))
        confidence = cell.audit.confidence
        mu_bounds = profile.mu_profile(scores, members, confidence, size=world_size)
        observed = ObservedTradeOff.from_scores(scores, members)
        return cls(observed, mu_bounds.gaussian, claimed_curve(cell, audit))


def claimed_curve(cell: Cell, audit: PlannedAudit, points: int = 60) -> Curve:
    """Returns the curve that the first accountant claims at the last step.

    Args:
        cell: the audit in the sweep.
        audit: the audit in the plan.
        points: number of ε at which δ is computed.
    """
    if audit.claim == math.inf:
        return gaussian(math.inf)
    if imports.stays_unimported(audit.accountant):  # one point of its claim is recorded
        return Curve(np.array([audit.claim]), np.array([cell.audit.delta]))
    return _curve(cell.claimed(), 2 * audit.claim, points, audit.accountant)


@functools.lru_cache  # audits share claims, and some accountants take seconds
def _curve(
    claimed: Claim,
    top: float,
    points: int,
    accountant: str,
) -> Curve:
    """Returns the claim as a curve at `points` values of ε, from 0 to `top`."""
    return claims.at_points(claimed, np.linspace(0.0, top, points), accountant)
