"""True ε of noisy maxima and of selection by weights."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats
from scipy.stats import rv_continuous

from dpaudit_ray.mechanisms.release.pairs import VectorPairs
from tests.jobs.truths import loss

Inputs = Sequence[float]
PAIRS = [pair for _, pair in VectorPairs(vectors=5).pairs()]
REACH = 900.0  # of an integral over noise of scale 20


def winners(noise: rv_continuous, answers: Inputs) -> list[float]:
    """Returns the probability of each answer to be the largest, with its noise."""
    y, weights = loss.quadrature(answers, REACH)
    densities = [noise.pdf(y - a) for a in answers]
    below = [noise.cdf(y - a) for a in answers]
    probabilities = []
    for winner, density in enumerate(densities):
        others = below[:winner] + below[winner + 1 :]
        probabilities.append(weights @ (density * np.prod(others, axis=0)))
    return probabilities


def noisy_max(noise: rv_continuous) -> float:
    return loss.worst(
        PAIRS, lambda a, b: loss.of_probabilities(winners(noise, a), winners(noise, b))
    )


def largest_value(noise: rv_continuous) -> float:
    """The density of the largest is the derivative of the product of all distributions."""
    grid = np.concatenate([np.linspace(-400, 400, 8001), [1.5]])

    def log_density(answers: Inputs) -> np.ndarray:
        with np.errstate(divide="ignore"):
            log_cdf = [noise.logcdf(grid - a) for a in answers]
            hazard = [noise.pdf(grid - a) / noise.cdf(grid - a).clip(1e-300) for a in answers]
            return np.sum(log_cdf, axis=0) + np.log(np.sum(hazard, axis=0))

    return loss.worst(PAIRS, lambda a, b: loss.of_logs(log_density(a), log_density(b)))


def exponential_weights(scores: Sequence[float], epsilon: float) -> np.ndarray:
    weights = np.exp(epsilon / 2 * np.asarray(scores))
    return weights / weights.sum()


def weights_of_answers(epsilon: float) -> float:
    return loss.worst(
        PAIRS,
        lambda a, b: loss.of_probabilities(
            exponential_weights(a, epsilon), exponential_weights(b, epsilon)
        ),
    )


def median() -> float:
    def probabilities(records: Sequence[int]) -> np.ndarray:
        rank = [sum(np.sign(record - value) for record in records) for value in range(5)]
        return exponential_weights([-abs(r) / 2 for r in rank], 1.0)

    first, second = (0, 1, 1, 2, 3), (1, 1, 2, 3, 3)
    return loss.of_probabilities(probabilities(first), probabilities(second))


def permute_and_flip(epsilon: float) -> float:
    """Enumerates the orders in which candidates come."""

    def probabilities(scores: Sequence[float]) -> np.ndarray:
        accept = [math.exp(epsilon / 2 * (score - max(scores))) for score in scores]
        result = np.zeros(len(scores))
        for order in itertools.permutations(range(len(scores))):
            remaining = 1.0
            for candidate in order:
                result[candidate] += remaining * accept[candidate]
                remaining *= 1 - accept[candidate]
        return result / math.factorial(len(scores))

    return loss.worst(PAIRS, lambda a, b: loss.of_probabilities(probabilities(a), probabilities(b)))


def max_with_gap() -> float:
    """The density of winner and gap, by integrals over the second largest."""
    noise = stats.laplace(scale=2.0)
    gaps = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)

    def log_densities(answers: Inputs) -> list[float]:
        logs = []
        for winner, gap in itertools.product(range(len(answers)), gaps):
            kinks = [*answers, *(a - gap for a in answers)]
            y, weights = loss.quadrature(kinks, 60.0)
            others = [a for i, a in enumerate(answers) if i != winner]
            below = np.array([noise.cdf(y - a) for a in others])
            density = np.array([noise.pdf(y - a) for a in others])
            second = below.prod(axis=0) * (density / below).sum(axis=0)
            logs.append(math.log(weights @ (second * noise.pdf(y + gap - answers[winner]))))
        return logs

    return loss.worst(PAIRS, lambda a, b: loss.of_logs(log_densities(a), log_densities(b)))


TRUTHS = {
    "RNM1": lambda: noisy_max(stats.laplace(scale=20)),
    "RNM2": lambda: noisy_max(stats.expon(scale=20)),
    "RNM3": lambda: largest_value(stats.laplace(scale=20)),
    "RNM4": lambda: largest_value(stats.expon(scale=20)),
    "NoisyMax": lambda: weights_of_answers(1.0),
    "exponential median": median,
    "permute and flip": lambda: permute_and_flip(1.0),
    "noisy max with gap": max_with_gap,
    "NoisyMax of half the scale": lambda: weights_of_answers(2.0),
    "permute and flip of half the scale": lambda: permute_and_flip(2.0),
}
