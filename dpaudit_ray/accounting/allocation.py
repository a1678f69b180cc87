"""Balls and bins, by the package PLD_accounting: each record joins one random batch of an epoch.

Such an epoch is dominated by a pair of distributions that can be computed to any accuracy (Feldman
and Shenfeld 2026, "Efficient Privacy Loss Accounting for Subsampling and Random Allocation"), and
epochs compose. Losses are rounded up to a grid, so the result is an upper bound.
"""

import functools
import warnings
from typing import Any

from .accountant import Accountant, UnansweredError
from .training import Adjacency, Sampling, Training

GRID = 0.01  # width of the grid of losses of an epoch: a finer one takes proportionally longer
TAIL = 1e-12  # part of δ that is truncated and added
MOST_STEPS = 1_000  # batches times epochs: with more, the library may take minutes


class Allocation(Accountant):
    """Amplification by random allocation, for balls and bins only."""

    name = "allocation"
    samplings = frozenset({Sampling.BALLS_AND_BINS})

    def epsilon(self, training: Training, delta: float) -> float:
        return max(float(_losses_of(training).get_epsilon_for_delta(delta)), 0.0)

    def delta(self, training: Training, epsilon: float) -> float:
        return min(float(_losses_of(training).get_delta_for_epsilon(epsilon)), 1.0)

    def fallback(self, training: Training) -> str:
        """Returns the exact formula for an adversary who knows all batches; else the PLD."""
        return "gaussian" if training.unamplified.sample_rate == 1 else "pld"


def _losses_of(training: Training) -> Any:
    """Returns the library's privacy loss distribution of a training run.

    Raises:
        UnansweredError: the library does not support its sampling or adjacency, or would take too
            long.
    """
    if training.sampling is not Sampling.BALLS_AND_BINS:
        raise UnansweredError("allocation answers for balls-and-bins")
    if training.adjacency is Adjacency.REPLACE:
        raise UnansweredError("allocation takes one record more or less")
    if training.batches * training.epochs > MOST_STEPS:
        raise UnansweredError(f"allocation takes {MOST_STEPS:,} steps at most")
    return _losses(training.noise_multiplier, training.batches, training.epochs)


@functools.lru_cache(maxsize=64)
def _losses(noise_multiplier: float, batches: int, epochs: int) -> Any:
    """Returns the library's privacy loss distribution of complete epochs.

    Args:
        noise_multiplier: σ of each step.
        batches: number of steps of an epoch, in one of which each record takes part.
        epochs: number of epochs.
    """
    from PLD_accounting import AllocationSchemeConfig, PrivacyParams, gaussian_allocation_pld

    config = AllocationSchemeConfig(loss_discretization=GRID, tail_truncation=TAIL)
    params = PrivacyParams(sigma=noise_multiplier, num_steps=batches, num_epochs=epochs)
    with warnings.catch_warnings():
        # The library warns of a slower algorithm or a coarser grid; its bounds stay valid.
        warnings.simplefilter("ignore")
        return gaussian_allocation_pld(params=params, config=config)
