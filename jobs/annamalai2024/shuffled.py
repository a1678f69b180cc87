"""Shuffled trainings whose accountant takes them for Poisson-sampled (Annamalai et al. 2024).

Both have a data set that makes shuffling show most: every other record moves its batch against the
canary. So the batch with the canary differs from all others, and so does the batch in which its
place stays empty. Scores are exact log likelihood ratios, given all that training shows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
RECORDS = 10  # of a batch
_FEATURES = np.full(20, 10.0)  # of all records: gradients are longer than the clipping norm, 1
_LEARNING_RATE = 1e-4  # so small that no record is ever learnt so well that its gradient is short


def batched_gaussian(member: bool, seed: int, batches: int, noise: float) -> float:
    """An epoch of the batched Gaussian mechanism (Chua et al. 2024): noisy sums of -1, canary 1."""
    rng = np.random.default_rng(seed)
    sums = rng.normal(scale=noise, size=batches)
    sums[rng.integers(batches)] += 2.0 if member else 1.0
    return likelihood_ratio(sums, noise)


def likelihood_ratio(sums: Floats, noise: float) -> float:
    """log P(sums | canary) / P(sums | empty place), of sums [batches] above those of a full batch.

    One of them, nobody knows which, has 2 with the canary, and 1 with its place empty.
    """
    with_canary = np.logaddexp.reduce((2 * sums - 2) / noise**2)
    return float(with_canary - np.logaddexp.reduce((sums - 0.5) / noise**2))


def trained(member: bool, seed: int, batches: int, noise: float) -> float:
    """An epoch of DP-SGD on a layer of one output (logistic regression), by its models alone.

    All records have the same features and the label 0, the canary has the label 1. What an update
    shows along the gradient's direction, times the batch, is a noisy sum.
    """
    rng = np.random.default_rng(seed)
    labels = np.zeros(batches * RECORDS)
    labels[-1] = 1.0
    weights, direction = np.zeros(len(_FEATURES)), _FEATURES / np.linalg.norm(_FEATURES)
    sums = np.empty(batches)
    for step, batch in enumerate(rng.permutation(len(labels)).reshape(batches, RECORDS)):
        chances = 1 / (1 + np.exp(-_FEATURES @ weights))
        gradients = np.outer(chances - labels[batch], _FEATURES)
        gradients /= np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1.0)
        if not member:
            gradients[labels[batch] == 1] = 0.0
        total = gradients.sum(axis=0) + rng.normal(scale=noise, size=len(weights))
        after = weights - _LEARNING_RATE * total / RECORDS
        shown = (weights - after) @ direction * RECORDS / _LEARNING_RATE
        sums[step], weights = RECORDS - shown, after
    return likelihood_ratio(sums, noise)
