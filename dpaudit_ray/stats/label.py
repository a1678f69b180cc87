"""Closed-form bounds for label inference from one noisy gradient of a logistic layer.

Yuan et al., Algorithm 2: gradients of N records are g_n = (p_n - y_n) c_n, clipped to norm C and
summed with noise N(0, σ² C² I); the attacker knows the features c_n and everything but one label,
solves for that record's coefficient, and thresholds it at 0. The statistic is exactly Gaussian in
either world, so the exact bound needs no threshold and dominates the published one; the best
attacker uses the whole gradient, not one direction.

A flipped label *replaces* a record: the sum moves by up to 2 C, so the claim to compare with is
that of replacement adjacency, μ ≤ 2 / σ per step. As printed, the norm that is clipped is that of
the attacked layer's gradient; DP-SGD clips that of all parameters (`whole`).
"""

import dataclasses

import numpy as np
import numpy.typing as npt
from scipy import special

from . import gdp
from .error_rates import Floats

_RANK_TOLERANCE = 1e-10  # of eigenvalues, relative to the largest


@dataclasses.dataclass(frozen=True)
class LabelBounds:
    """Bounds for each attacked record, float64 [N] each; NaN where a record cannot be attacked.

    `hit` and `false_hit` are the chances that the published attack names the true label when it
    is true and when it is not (the paper's P0, P1). `epsilon` is the paper's bound from them and
    `epsilon_complement` the same from the opposite answer, both with δ. `mu_direction` is the
    exact distance of the attacker's statistic, `mu` that of all that is released.
    """

    hit: Floats
    false_hit: Floats
    epsilon: Floats
    epsilon_complement: Floats
    mu_direction: Floats
    mu: Floats


def bounds(
    features: npt.ArrayLike,
    probabilities: npt.ArrayLike,
    labels: npt.ArrayLike,
    clip_norm: float,
    noise_multiplier: float,
    delta: float,
    whole: npt.ArrayLike | None = None,
) -> LabelBounds:
    """Label bounds of one step, for every record.

    Args:
        features: float [d, N], the derivatives of each record's logit by the attacked weights, in
            a column; for the last layer, its input.
        probabilities: float [N], the model's probability of label 1.
        labels: 0 or 1, [N].
        clip_norm: C, above 0.
        noise_multiplier: σ, above 0; the noise has standard deviation σ C.
        delta: δ of the bounds, in [0, 1).
        whole: float [N], norms of the derivatives by all parameters, which are then clipped and
            released together. None where the attacked weights are all there is.
    """
    columns = np.asarray(features, dtype=np.float64)
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels, np.float64)
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
    return bounds_of_gram(columns.T @ columns, p, y, clip_norm, noise_multiplier, delta, whole)


def bounds_of_gram(
    gram: Floats,
    p: Floats,
    y: Floats,
    clip_norm: float,
    noise_multiplier: float,
    delta: float,
    whole: npt.ArrayLike | None = None,
) -> LabelBounds:
    """`bounds` from CᵀC, float64 [N, N], which is all that they take of the features."""
    norms = np.sqrt(np.diag(gram))
    if whole is not None:
        attacked, norms = norms, np.asarray(whole, dtype=np.float64)
        if norms.shape != attacked.shape or not np.all(norms >= attacked * (1 - 1e-6)):
            raise ValueError(
                f"whole must be a norm for each of {len(attacked)} records, "
                "at least that of its column"
            )
    noise = noise_multiplier * clip_norm
    true, flipped = (clipped(norms, p - label, clip_norm) for label in (y, 1 - y))
    # √(rᵀ (CᵀC)⁻¹ r) of each record; NaN for features in the span of the others.
    inverse, kept = solver(gram)
    with np.errstate(invalid="ignore"):
        spread = noise * np.where(kept, np.sqrt(np.diag(inverse)), np.nan)
    # The coefficient is negative for label 1 and positive for label 0: its sign is the answer.
    sign = 1.0 - 2.0 * y
    above, below = sign * true / spread, sign * flipped / spread
    return LabelBounds(
        hit=special.ndtr(above),
        false_hit=special.ndtr(below),
        epsilon=_epsilon(above, below, delta),
        epsilon_complement=_epsilon(-below, -above, delta),
        mu_direction=np.abs(flipped - true) / spread,
        mu=np.abs(flipped - true) * norms / noise,
    )


def epsilon(mu: npt.ArrayLike, delta: float) -> Floats:
    """ε at δ of exact label bounds μ, float64 [N]; NaN stays NaN."""
    values = np.atleast_1d(np.asarray(mu, dtype=np.float64))
    finite = np.isfinite(values)
    result = np.full_like(values, np.nan)
    result[finite] = gdp.epsilon(values[finite], delta)
    return result


def coefficients(features: npt.ArrayLike, gradient: npt.ArrayLike) -> Floats:
    """The least-squares coefficient of each record in a summed gradient, (CᵀC)⁺ Cᵀ g.

    Yuan et al., equation 1: without clipping and noise they are p - y. `features` are float [d, N],
    as in `bounds`, `gradient` float [d], the sum over records. Returns float64 [N], NaN where the
    system does not determine it: a dead neuron's, or a record whose column lies in the span of the
    others. Raises ValueError for shapes that do not fit.
    """
    columns, total = np.asarray(features, np.float64), np.asarray(gradient, np.float64)
    if columns.ndim != 2 or total.shape != columns.shape[:1]:
        raise ValueError(
            f"features must be [d, N] and gradient [d], got shapes {columns.shape}, {total.shape}"
        )
    inverse, kept = solver(columns.T @ columns)
    return np.asarray(np.where(kept, inverse @ (columns.T @ total), np.nan))


def growth(batch_size: int, batches: int) -> float:
    """Expected ratio of the largest bound of all batches to one's: H_MN / H_N (A.3.1, mended)."""
    if min(batch_size, batches) < 1:
        raise ValueError(f"must be at least 1, got {batch_size} records and {batches} batches")
    both = np.array([batches * batch_size, batch_size]) + 1.0
    all_records, batch = special.digamma(both) + np.euler_gamma
    return float(all_records) / float(batch)


def clipped(norms: Floats, residuals: Floats, clip_norm: float) -> Floats:
    """Coefficient of each record's derivatives in its clipped gradient, [..., N]; `norms` [N]."""
    with np.errstate(divide="ignore"):
        return np.asarray(residuals * np.minimum(1.0, clip_norm / (norms * np.abs(residuals))))


def solver(gram: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """(CᵀC)⁺ [N, N], and which records it singles out: those with a unit vector in its range."""
    inverse = np.asarray(np.linalg.pinv(gram, rcond=_RANK_TOLERANCE, hermitian=True), np.float64)
    return inverse, np.asarray(np.abs(np.diag(gram @ inverse) - 1) < 1e-6, np.bool_)


def _epsilon(likely: Floats, unlikely: Floats, delta: float) -> Floats:
    """ln((Φ(likely) - δ) / Φ(unlikely)) in logarithms, at least 0, NaN without an attack."""
    chance = special.log_ndtr(likely)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        left = np.log1p(-np.minimum(delta * np.exp(-chance), 1.0))
        bound = chance + left - special.log_ndtr(unlikely)
    return np.where(np.isnan(likely), np.nan, np.fmax(bound, 0.0))
