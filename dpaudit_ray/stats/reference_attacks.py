"""Membership attacks by reference models: scores of records from their logits in other models.

A matrix [training runs, records] has the logit s = log(p / (1 - p)) of each record in each model,
where p is the probability of its label. The first training runs calibrate an attack, which scores
the others: these are independent given the calibration, as the intervals require.

Sources: `loss` Yeom et al. 2018; `calibrated` Watson et al. 2022, by the mean of models without the
record; `lira` Carlini et al. 2022, Algorithm 1; `rmia` Zarifzadeh et al. 2024, its likelihood ratio
and its line for models that are missing offline, with all records as the population; `quantile`
Bertran et al. 2023, its normal distribution, of which mean and log variance are linear here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit

from .base import Members, Scores
from .error_rates import Floats
from .membership import Membership

Attack = Literal["loss", "calibrated", "lira", "rmia", "quantile"]
Variance = Literal["record", "global"]
_ITERATIONS = 30  # iterations of the fit of a normal distribution by features
_BLOCK = 2**21  # logits that are processed together in calibration: 16 MiB


def membership(  # noqa: PLR0913 (options of attacks are keyword-only)
    logits: ArrayLike,
    members: ArrayLike,
    attack: Attack = "lira",
    *,
    online: bool = True,
    variance: Variance = "record",
    gamma: float = 2.0,
    slope: float = 0.3,
    features: ArrayLike | None = None,
    calibrating: int | None = None,
    confidence: float = 0.95,
) -> Membership:
    """Attacks the training runs that do not calibrate the attack, and measures its success.

    Args:
        logits: log(p / (1 - p)) of each record's label, float [training runs, records].
        members: whether the training run had the record, by a fair coin each; bool, same shape.
        attack: `loss`, log p; `calibrated`, log p minus its mean without the record; `lira`, log
            N(s; in) - log N(s; out), or offline (s - μ) / σ by the models without the record, of
            which the paper's test is Φ; `rmia`, the share of records whose ratio p / p̄ the record's
            own exceeds `gamma` times; `quantile`, (s - μ) / σ with μ and σ predicted from records
            with similar `features`, for one calibrating training run or few.
        online: whether there are models with the record; if not, `rmia` takes slope * p + 1 - slope
            as their mean, where p is the mean of models without it.
        variance: variance for `lira`: that of each "record", or one of all, "global", for few
            models.
        gamma: ratio of `rmia`, above 0.
        slope: slope for `rmia` if not `online`.
        features: features of each record for `quantile`, float [records, any number].
        calibrating: number of training runs that calibrate, from the first on; half of them if
            None.
        confidence: confidence of the intervals.

    Returns:
        The attack's scores of the other training runs, with their bits.

    Raises:
        ValueError: An argument is invalid, a logit is NaN, or a record is in, or out, of too few
            calibrating training runs.
    """
    values = np.asarray(logits)
    bits = np.asarray(members)
    first = _calibrating_runs(values, bits, calibrating)
    for name, value, kinds in (("attack", attack, Attack), ("variance", variance, Variance)):
        choices = get_args(kinds)
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    if not gamma > 0:
        raise ValueError(f"gamma must be above 0, got {gamma}")

    # Calibrating models that the attack needs: without the record (False), and with it (True).
    worlds = [False]
    if attack == "loss":
        worlds = []
    elif online and attack in ("lira", "rmia"):
        worlds = [False, True]
    fewest_models = 0 if attack == "quantile" else 1
    if attack == "lira" and variance == "record":
        fewest_models = 2  # one score has no variance
    statistic = _STATISTICS[attack]
    models = values[:first], bits[:first].astype(bool)
    sides = [_Side.calibrated(*models, inside, statistic, fewest_models) for inside in worlds]
    if attack == "quantile":
        mean, deviation = sides[0].expected(features)

    # A row of scores for each training run that does not calibrate.
    scores = np.empty((len(values) - first, values.shape[1]))
    for row, run_logits in zip(scores, values[first:], strict=True):
        logit = run_logits.astype(float)
        row[:] = statistic(logit)
        if attack == "lira":
            row[:] = _lira(logit, sides, variance)
        elif attack == "rmia":
            row[:] = _rmia(logit, sides, gamma, slope)
        elif attack == "quantile":
            row[:] = (row - mean) / deviation
        elif attack == "calibrated":
            row -= sides[0].mean
    return Membership(scores, bits[first:], confidence)


def _calibrating_runs(
    logits: NDArray[Any],
    members: NDArray[Any],
    calibrating: int | None,
) -> int:
    """Returns the number of training runs that calibrate the attack.

    Args:
        logits: [training runs, records].
        members: secret bits, of the same shape.
        calibrating: number of runs as passed; None for half of them.

    Raises:
        ValueError: the shapes differ, a logit is NaN, or no run calibrates or remains.
    """
    if logits.ndim != 2 or members.shape != logits.shape:
        shapes = f"{logits.shape} and {members.shape}"
        raise ValueError(
            f"logits and members must be [training runs, records], got shapes {shapes}"
        )
    if np.isnan(logits).any():
        raise ValueError("logits must be numbers, got NaN; leave that training run out")
    first = len(logits) // 2 if calibrating is None else calibrating
    if not 0 < first < len(logits):
        most = len(logits) - 1
        raise ValueError(f"calibrating must lie in 1..{most}, got {first}; the others are judged")
    return first


@dataclass(frozen=True)
class _Side:
    """Statistics of each record in the calibrating models with it, or in those without, [m]."""

    count: NDArray[np.int64]  # models
    mean: Floats
    squares: Floats  # sums of squared differences from the mean

    @classmethod
    def calibrated(
        cls,
        logits: NDArray[Any],
        members: Members,
        inside: bool,
        statistic: Callable[[Floats], Floats],
        fewest_models: int,
    ) -> "_Side":
        """Computes mean and spread of an attack's statistic of logits.

        Args:
            logits: logits of the calibrating models, float [n, m].
            members: which of them had each record, bool [n, m].
            inside: whether the models with the record count, or those without.
            statistic: maps logits to the values that are calibrated.
            fewest_models: number of such models that each record must have.

        Raises:
            ValueError: a record has fewer such models.
        """
        n, m = logits.shape
        chosen = members == inside
        model_counts = chosen.sum(axis=0)
        fewest = int(model_counts.min())
        if fewest < fewest_models:
            side = "in" if inside else "out"
            raise ValueError(
                f"each record must be {side} of {fewest_models} or more calibrating "
                f"training runs, got {fewest} of {n}; take more, or online=False"
            )
        mean, squares = np.empty((2, m))
        size = max(_BLOCK // n, 1)
        for start in range(0, m, size):
            part = slice(start, start + size)
            values = statistic(logits[:, part].astype(float))
            is_chosen = chosen[:, part]
            sums = np.where(is_chosen, values, 0.0).sum(axis=0)
            mean[part] = sums / np.maximum(model_counts[part], 1)
            residuals = np.where(is_chosen, values - mean[part], 0.0)
            squares[part] = (residuals**2).sum(axis=0)
        return cls(model_counts, mean, squares)

    def deviation(self, variance: Variance) -> Floats:
        """Returns the standard deviation of each record, or for each that of all: [m], never 0."""
        degrees_of_freedom = max(self.count.sum() - len(self.count), 1)
        shared = math.sqrt(self.squares.sum() / degrees_of_freedom)
        least = 1e-6 * shared + 1e-12  # distances are divided by it
        if variance == "global":
            return np.full(len(self.count), max(shared, least))
        return np.maximum(np.sqrt(self.squares / self.count), least)

    def expected(self, features: ArrayLike | None) -> tuple[Floats, Floats]:
        """Fits a normal distribution to all records' statistics by their features, float [m, d].

        The mean and the log variance are linear in the features. They are fitted in turn, by
        weighted least squares.

        Returns:
            Mean and standard deviation for each record, [m] each.

        Raises:
            ValueError: the features have another shape, or are not finite.
        """
        columns = np.asarray(features, float)
        m = len(self.count)
        if columns.ndim != 2 or len(columns) != m or not np.isfinite(columns).all():
            problem = f"features must be finite numbers [{m} records, any number]"
            raise ValueError(f"{problem}, got shape {columns.shape}")
        spread = columns.std(axis=0)
        varying = spread > 0
        centred = columns - columns.mean(axis=0)
        scaled = centred[:, varying] / spread[varying]
        design = np.column_stack([np.ones(m), scaled])
        counts = self.count.astype(float)
        log_variance = np.zeros(m)

        def fit(target: Floats, weights: Floats) -> Floats:
            """Returns the weighted least squares prediction of `target` for each record."""
            weighted = design.T * weights
            equations = weighted @ design, weighted @ target
            coefficients, *_ = np.linalg.lstsq(*equations, rcond=1e-10)
            return np.asarray(design @ coefficients)

        for iteration in range(_ITERATIONS):
            mean = fit(self.mean, counts * np.exp(-log_variance))
            squares = self.squares + counts * (self.mean - mean) ** 2
            squares /= np.maximum(counts, 1)
            if iteration == 0:  # begins with one variance for all records
                variance = float(counts @ squares) / counts.sum()
                log_variance += math.log(variance + 1e-12)
            step = fit(squares * np.exp(-log_variance) - 1, counts)
            longest = float(np.abs(step).max())
            log_variance += step / max(1.0, longest)  # changes no log variance by more than 1
        return mean, np.exp(log_variance / 2)


def _lira(
    logits: Floats,
    sides: list[_Side],
    variance: Variance,
) -> Scores:
    """Returns log ratios of normal densities with and without the record, float64 [m].

    Offline, without models with the record, these are distances from the mean of the models without
    it, in standard deviations.

    Args:
        logits: logits of one training run, float64 [m].
        sides: statistics of models without each record; online also of those with it.
        variance: variance of each "record", or "global".
    """
    deviations = [side.deviation(variance) for side in sides]
    distances = []
    for side, deviation in zip(sides, deviations, strict=True):
        distances.append((logits - side.mean) / deviation)
    if len(sides) == 1:
        return distances[0]
    without, inside = distances
    log_ratio = np.log(deviations[0] / deviations[1])
    return (without**2 - inside**2) / 2 + log_ratio


def _rmia(
    logits: Floats,
    sides: list[_Side],
    gamma: float,
    slope: float,
) -> Scores:
    """Returns the share of records whose ratio p / p̄ each record's exceeds `gamma` times, [m].

    Here p̄ is the mean p of models with and without the record.

    Args:
        logits: logits of one training run, float64 [m].
        sides: statistics of models without each record; online also of those with it.
        gamma: ratio that is exceeded.
        slope: slope of the line that stands for models with the record if there are none.
    """
    without = sides[0].mean
    inside = slope * without + 1 - slope
    if len(sides) > 1:
        inside = sides[1].mean
    average = np.maximum((inside + without) / 2, 1e-300)  # 0 has no logarithm
    log_ratios = log_expit(logits) - np.log(average)
    threshold = log_ratios - math.log(gamma)
    below = np.searchsorted(np.sort(log_ratios), threshold, "right")
    return np.asarray(below / len(log_ratios))


# Functions of logits that are calibrated, by attack.
_STATISTICS: dict[str, Callable[[Floats], Floats]] = {
    "loss": log_expit,
    "calibrated": log_expit,
    "lira": np.asarray,
    "quantile": np.asarray,
    "rmia": expit,
}
