"""Several canaries per training, and pairs of trainings that share their noise.

In both cases the unit is a training run (or a pair), its outcome A lies in [0, 1], and its mean
is at most the best guessing accuracy Φ(μ/2), whatever the dependence inside the run or between
the worlds. Pooling the canaries of a run as if they were trials of their own is
not valid: its error was measured at 0.3 to 0.5 for dependent canaries.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from . import betting, gdp
from .base import Members, Scores, check_level
from .guessing import GuessCounter, mu_from_accuracy
from .statement import Estimate, Status

WARMUP = 20


def several_canaries(
    scores: npt.ArrayLike, members: npt.ArrayLike, delta: float, confidence: float
) -> Estimate:
    """Bound from R trainings with m canaries each, every canary with a coin of its own.

    Args:
        scores: float [R, m], trainings in order, higher = more "in"; what is not finite has
            diverged, and is guessed as earlier trainings teach.
        members: bool [R, m], the secret bits.
        delta: δ of the bound, in (0, 1).
        confidence: level of the bound, in (0, 1); it holds at every earlier stop as well.

    Raises:
        ValueError: an argument outside its bounds.
    """
    check_level(delta, confidence)
    values, bits = np.asarray(scores, dtype=np.float64), np.asarray(members, dtype=np.bool_)
    if values.ndim != 2 or values.shape != bits.shape:
        raise ValueError(
            f"scores and members must be two arrays [runs, canaries], "
            f"got shapes {values.shape} and {bits.shape}"
        )
    hits = run_accuracies(values, bits)
    return _estimate("several-canaries", hits, len(values), delta, confidence)


def run_accuracies(scores: Scores, members: Members) -> betting.Outcomes:
    """Share of each run's canaries that were guessed, float64 [runs with a threshold].

    The threshold of a run is the midpoint of the class means of the runs before it; runs before
    `WARMUP` scores of both worlds were seen are left out, which is decided by the past alone.
    """
    counter, shares = GuessCounter(warmup=0), []
    for row, bits in zip(scores, members, strict=True):
        guess = counter.guess(row)
        if counter.trials >= WARMUP and guess is not None and len(row) > 0:
            shares.append(float(np.mean(guess == bits)))
        counter.fold(row, bits)
    return np.array(shares)


def coupled_worlds(
    outside: npt.ArrayLike,
    inside: npt.ArrayLike,
    delta: float,
    confidence: float,
    width: float = 1.0,
) -> Estimate:
    """Bound from pairs of trainings, one per world, that used the same noise.

    The shared noise cancels in the pair, so far fewer trainings show a small ε (R = 1000, ε = 1:
    0.81 instead of 0.47); above ε = 4 nothing is gained. Any coupling is valid, independence
    included.

    Args:
        outside: float [n], scores without the canary, in order; what is not finite has diverged.
        inside: float [n], scores of the same pairs with the canary.
        delta: δ of the bound, in (0, 1).
        confidence: level of the bound, in (0, 1); it holds at every earlier stop as well.
        width: width of the ramp from "out" to "in", in standard deviations of a world's scores.

    Raises:
        ValueError: an argument outside its bounds.
    """
    check_level(delta, confidence)
    pair = np.array([outside, inside], dtype=np.float64)
    if pair.ndim != 2:
        raise ValueError(f"outside and inside must be two 1-D arrays, got shape {pair.shape}")
    if not width > 0:
        raise ValueError(f"width must be positive, got {width}")
    outcomes = pair_outcomes(pair[0], pair[1], width)
    return _estimate("coupled-worlds", outcomes, 2 * pair.shape[1], delta, confidence)


def pair_outcomes(outside: Scores, inside: Scores, width: float) -> betting.Outcomes:
    """(1 - φ(out) + φ(in)) / 2 of each pair, φ a ramp placed by the pairs before it."""
    usable = np.isfinite(outside) & np.isfinite(inside)
    origin = float(outside[usable][0]) if usable.any() else 0.0
    shifted = [np.where(usable, s - origin, 0.0) for s in (outside, inside)]
    seen = np.concatenate([[0], np.cumsum(usable)[:-1]])
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        means = [np.concatenate([[0.0], np.cumsum(s)[:-1]]) / seen for s in shifted]
        squares = [np.concatenate([[0.0], np.cumsum(s**2)[:-1]]) / seen for s in shifted]
        spread = [np.sqrt(np.maximum(q - m**2, 0)) for q, m in zip(squares, means, strict=True)]
        ramp = np.maximum(width * (spread[0] + spread[1]) / 2, np.finfo(np.float64).tiny)
        middle = (means[0] + means[1]) / 2 + origin
        phi = [np.clip((s - middle) / ramp + 0.5, 0.0, 1.0) for s in (outside, inside)]
    lost = [~np.isfinite(s) for s in (outside, inside)]
    before = [np.concatenate([[0], np.cumsum(gone)[:-1]]) for gone in lost]
    diverged = np.where(before[1] >= before[0], 1.0, 0.0)  # "in" where more of them have diverged
    phi = [np.where(gone, diverged, value) for gone, value in zip(lost, phi, strict=True)]
    return np.asarray(((1 - phi[0] + phi[1]) / 2)[seen >= 2])


def _estimate(
    name: str, outcomes: betting.Outcomes, trials: int, delta: float, confidence: float
) -> Estimate:
    mu = mu_from_accuracy(betting.mean_lower(outcomes, 1 - confidence))
    epsilon = float(gdp.epsilon(mu, delta))
    return Estimate(name, Status.IF_GAUSSIAN, epsilon, mu, delta, confidence, trials)
