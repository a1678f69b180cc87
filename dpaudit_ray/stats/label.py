"""Closed-form bounds for label inference from one noisy gradient of a logistic layer.

Yuan et al., Algorithm 2: gradients of N records are g_n = (p_n - y_n) c_n, clipped to norm C and
summed with noise N(0, σ² C² I); the attacker knows the features c_n and everything except one
label, solves for that record's coefficient, and compares it with 0. The statistic is exactly
Gaussian with either label, so the exact bound needs no threshold and is never below the published
one; the best attacker uses the entire gradient, not one direction.

A flipped label *replaces* a record: the sum changes by up to 2 C, so the claim to compare with is
that of replacement adjacency, μ ≤ 2 / σ per step. The paper clips by the norm of the attacked
layer's gradient; DP-SGD clips by that of all parameters (`full_norms`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma, log_ndtr, ndtr

from . import gdp
from .error_rates import Floats, as_floats

_RANK_TOLERANCE = 1e-10  # tolerance of eigenvalues, relative to the largest


@dataclass(frozen=True)
class LabelBounds:
    """Bounds for each attacked record, float64 [N] each; NaN where a record cannot be attacked.

    Attributes:
        hit: probability that the published attack names the true label (the paper's P0).
        false_hit: probability that it names the same label if the other one is true (P1).
        epsilon: the paper's bound on ε from both probabilities, at δ.
        epsilon_complement: the same bound from the opposite answer.
        mu_direction: exact μ of the attacker's statistic.
        mu: exact μ of the released gradient.
    """

    hit: Floats
    false_hit: Floats
    epsilon: Floats
    epsilon_complement: Floats
    mu_direction: Floats
    mu: Floats


def bounds(
    features: ArrayLike,
    probabilities: ArrayLike,
    labels: ArrayLike,
    clip_norm: float,
    noise_multiplier: float,
    delta: float,
    full_norms: ArrayLike | None = None,
) -> LabelBounds:
    """Computes label bounds of one step, for every record.

    Args:
        features: float [d, N]; a column has the derivatives of a record's logit by the attacked
            weights, which for the last layer are its input.
        probabilities: float [N], the model's probability of label 1.
        labels: 0 or 1, [N].
        clip_norm: C, above 0.
        noise_multiplier: σ, above 0; the noise has standard deviation σ C.
        delta: δ of the bounds, in [0, 1).
        full_norms: float [N], norms of the derivatives by all parameters, which are then clipped
            and released together. None if the attacked weights are the only ones.

    Raises:
        ValueError: an argument has a wrong shape, or is out of its bounds.
    """
    columns = as_floats(features)
    p = as_floats(probabilities)
    y = as_floats(labels)
    if columns.ndim != 2 or p.shape != (columns.shape[1],) or y.shape != p.shape:
        raise ValueError(
            f"features must be [d, N] and probabilities and labels [N], "
            f"got shapes {columns.shape}, {p.shape} and {y.shape}"
        )
    if not np.all((p >= 0) & (p <= 1)):
        raise ValueError(f"probabilities must lie in [0, 1], got {p.tolist()}")
    if not np.all((y == 0) | (y == 1)):
        raise ValueError(f"labels must be 0 or 1, got {y.tolist()}")
    for name, value in (("clip_norm", clip_norm), ("noise_multiplier", noise_multiplier)):
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    if not 0 <= delta < 1:
        raise ValueError(f"delta must lie in [0, 1), got {delta}")
    gram = columns.T @ columns
    return bounds_of_gram(gram, p, y, clip_norm, noise_multiplier, delta, full_norms)


def bounds_of_gram(
    gram: Floats,
    p: Floats,
    y: Floats,
    clip_norm: float,
    noise_multiplier: float,
    delta: float,
    full_norms: ArrayLike | None = None,
) -> LabelBounds:
    """Computes `bounds` from inner products of the features, on which alone they depend.

    Args:
        gram: inner products of the columns of `features`, float64 [N, N].
        p: probability of label 1, float64 [N].
        y: labels, float64 [N].
        clip_norm: C, above 0.
        noise_multiplier: σ, above 0.
        delta: δ of the bounds.
        full_norms: norms by all parameters, float [N], as in `bounds`.

    Raises:
        ValueError: `full_norms` has a wrong shape, or a norm is too small.
    """
    attacked_norms = np.sqrt(np.diag(gram))
    norms = attacked_norms
    if full_norms is not None:
        norms = as_floats(full_norms)
        if norms.shape != p.shape or not np.all(norms >= attacked_norms * (1 - 1e-6)):
            raise ValueError(
                f"full_norms must be a norm for each of {len(p)} records, "
                "at least that of its column"
            )
    noise = noise_multiplier * clip_norm
    true = clipped(norms, p - y, clip_norm)
    flipped = clipped(norms, p - (1 - y), clip_norm)
    # Deviation of each solved coefficient; NaN for features in the span of the other records'.
    inverse, is_determined = solver(gram)
    with np.errstate(invalid="ignore"):
        spread = noise * np.where(is_determined, np.sqrt(np.diag(inverse)), np.nan)
    # The coefficient is negative for label 1 and positive for label 0: its sign is the answer.
    sign = 1.0 - 2.0 * y
    above = sign * true / spread
    below = sign * flipped / spread
    distance = np.abs(flipped - true)
    return LabelBounds(
        hit=ndtr(above),
        false_hit=ndtr(below),
        epsilon=_epsilon(above, below, delta),
        epsilon_complement=_epsilon(-below, -above, delta),
        mu_direction=distance / spread,
        mu=distance * norms / noise,
    )


def epsilon(mu: ArrayLike, delta: float) -> Floats:
    """Returns ε at δ of exact label bounds μ, float64 [N]; NaN stays NaN."""
    values = np.atleast_1d(as_floats(mu))
    finite = np.isfinite(values)
    result = np.full_like(values, np.nan)
    result[finite] = gdp.epsilon(values[finite], delta)
    return result


def growth(batch_size: int, batches: int) -> float:
    """Returns the expected ratio of the largest bound of all batches to that of one batch.

    With M batches of N records, it is H_MN / H_N, of harmonic numbers (A.3.1, corrected).
    """
    if min(batch_size, batches) < 1:
        raise ValueError(f"must be at least 1, got {batch_size} records and {batches} batches")
    both = np.array([batches * batch_size, batch_size]) + 1.0
    all_records, batch = digamma(both) + np.euler_gamma  # harmonic numbers
    return float(all_records) / float(batch)


def clipped(norms: Floats, residuals: Floats, clip_norm: float) -> Floats:
    """Returns the coefficient of each record's derivatives in its clipped gradient.

    Args:
        norms: norms of the derivatives, [N].
        residuals: coefficients without clipping, [..., N].
        clip_norm: C.
    """
    with np.errstate(divide="ignore"):
        factors = np.minimum(1.0, clip_norm / (norms * np.abs(residuals)))
        return residuals * factors


def solver(gram: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Returns the pseudo-inverse [N, N], and whether it determines each record, bool [N].

    A record is determined if its unit vector is in the range of the matrix.

    Args:
        gram: inner products of the records' features, float64 [N, N].
    """
    inverse = np.asarray(np.linalg.pinv(gram, rcond=_RANK_TOLERANCE, hermitian=True))
    projection = np.diag(gram @ inverse)
    return inverse, np.asarray(np.abs(projection - 1) < 1e-6)  # 1 but for rounding


def _epsilon(hit: Floats, false_hit: Floats, delta: float) -> Floats:
    """Computes the paper's bound, ln((P0 - δ) / P1) or 0, float64 [N]; NaN without an attack.

    Args:
        hit: normal quantile of P0, [N].
        false_hit: normal quantile of P1, [N].
        delta: δ.
    """
    log_hit = log_ndtr(hit)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_remainder = np.log1p(-np.minimum(delta * np.exp(-log_hit), 1.0))
        bound = log_hit + log_remainder - log_ndtr(false_hit)
    return np.where(np.isnan(hit), np.nan, np.fmax(bound, 0.0))
