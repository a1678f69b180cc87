"""Reference values: all of `oracles.json` where it is at hand, the most important ones always."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special

from dpaudit_ray import stats
from dpaudit_ray.stats import threshold_rates
from dpaudit_ray.stats.curve import Responses
from dpaudit_ray.stats.ranking import Weights

SHARED = Path(os.environ.get("DPAUDIT_SHARED", Path(__file__).resolve().parents[3] / "shared"))
FILE = SHARED / "reference" / "oracles.json"
ORACLES = json.loads(FILE.read_text()) if FILE.is_file() else None
# Estimators of independent trials, or of trainings of several canaries: not of pairs.
SINGLE = {name: cls for name, cls in stats.estimators().items() if not cls.by_pair}
_ABSENT = "the reference values are not at hand; set DPAUDIT_SHARED to their parent folder"


def cases(*families: str) -> list[Any]:
    """Oracle cases of these families as pytest parameters, or one that skips with a reason."""
    if ORACLES is None:
        return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=_ABSENT))]
    found = [c for c in ORACLES["cases"] if c["family"] in families]
    assert found, f"no oracle of family {families}"
    return [pytest.param(c, id=c["id"]) for c in found]


def rows(table: str) -> list[Any]:
    """Rows of an oracle table as pytest parameters, or one that skips with a reason."""
    if ORACLES is None:
        return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=_ABSENT))]
    data = ORACLES["tables"][table]["data"]
    if isinstance(data, dict):
        return [pytest.param(pair, id=f"{table}-{pair[0]}") for pair in data.items()]
    return [pytest.param(row, id=f"{table}-{i}") for i, row in enumerate(data)]


def allowed(repetitions: int, level: float = 0.05) -> int:
    """The 99.99 % quantile of the number of errors of a bound that errs at its level."""
    k = np.arange(repetitions + 1)
    return int(k[special.bdtr(k, repetitions, level) >= 0.9999][0])


def two_worlds(n: int, mu: float) -> tuple[np.ndarray, np.ndarray]:
    """Scores at the quantiles of N(0, 1) and N(mu, 1), n per world, and their members."""
    quantiles = special.ndtri((np.arange(1, n + 1) - 0.5) / n)
    scores = np.concatenate([quantiles, quantiles + mu])
    return scores, np.repeat([False, True], n)


def gaussian_trials(
    rng: np.random.Generator, trials: int, mu: float
) -> tuple[np.ndarray, np.ndarray]:
    """Scores N(0, 1) or N(mu, 1) by fair bits."""
    members = rng.random(trials) < 0.5
    return rng.normal(size=trials) + mu * members, members


def randomised_response(
    rng: np.random.Generator, trials: int, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
    """Scores 0 or 1 that tell the bit with probability e^ε / (1 + e^ε)."""
    members = rng.random(trials) < 0.5
    truthful = rng.random(trials) < special.expit(epsilon)
    return np.where(truthful, members, ~members).astype(float), members


def laplace_trials(
    rng: np.random.Generator, trials: int, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
    """Scores of a sum of sensitivity 1 with Laplace noise of scale 1/ε; 0 or 1 when ε is 0."""
    members = rng.random(trials) < 0.5
    noise = rng.laplace(size=trials)
    return noise + epsilon * members, members


def several_canaries(scores: np.ndarray, members: np.ndarray) -> stats.Estimate:
    """The bound of trainings of several canaries each, scores and bits [runs, canaries]."""
    runs = np.repeat(np.arange(len(scores)), scores.shape[1])
    ask = {"delta": 1e-5, "confidence": 0.95, "method": "several-canaries", "runs": runs}
    return stats.estimate(scores.ravel(), members.ravel(), **ask)


def drawn_mistakes(
    size: int, responses: Responses, draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Mistakes of one group, trial by trial, the surest level first: bool [draws, size]."""
    levels = rng.choice(len(responses.shares), p=responses.shares, size=(draws, size))
    levels.sort(axis=1)
    return np.asarray(rng.random((draws, size)) < responses.mistakes[levels])


def drawn_costs(
    weights: Weights, responses: Responses, draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Costs of one group, int64 [draws]: one binomial for each overlap of a level and a block."""
    size = int(weights.edges[-1])
    shares = responses.shares / responses.shares.sum()
    ends = rng.multinomial(size, shares, size=draws).cumsum(axis=1)
    levels, blocks = ends.shape[1], len(weights.costs)
    bounds = np.concatenate([ends, np.broadcast_to(weights.edges[1:], (draws, blocks))], axis=1)
    order = np.argsort(bounds, axis=1, kind="stable")
    bounds = np.take_along_axis(bounds, order, axis=1)
    # An overlap ends at each bound; it belongs to the level and the block that are still open.
    is_level = order < levels
    level = np.minimum(np.cumsum(is_level, axis=1) - is_level, levels - 1)
    block = np.minimum(np.cumsum(~is_level, axis=1) - ~is_level, blocks - 1)
    mistakes = rng.binomial(np.diff(bounds, axis=1, prepend=0), responses.mistakes[level])
    return np.asarray((mistakes * weights.costs[block]).sum(axis=1))


def epsilon_of_counts(errors: Any, sizes: Any, delta: float, alpha: float) -> Any:
    """Lower bounds on ε from counts of false positives and negatives, a half of `alpha` each."""
    rates = threshold_rates.rates_at_most(errors, sizes, alpha)
    return threshold_rates.epsilon_of_rates(*rates, delta)


def mu_of_counts(errors: Any, sizes: Any, alpha: float) -> Any:
    """Lower bounds on μ from the same."""
    return threshold_rates.mu_of_rates(*threshold_rates.rates_at_most(errors, sizes, alpha))
