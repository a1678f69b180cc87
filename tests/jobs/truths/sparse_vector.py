"""True ε of sparse vectors, by integrals over the noise of the threshold."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special, stats

from dpaudit_ray.mechanisms.release.pairs import VectorPairs
from tests.jobs.truths import loss

Inputs = Sequence[float]
Logs = dict[tuple[int, ...], float]  # log probability of each sequence of comparisons
PAIRS = [pair for _, pair in VectorPairs(vectors=10).pairs()]
FAR = 3000.0  # of an integral over noise of scale 40


def comparisons(
    answers: Inputs,
    threshold_scale: float,
    answer_scale: float,
    most_above: int,
    threshold: float = 1.0,
) -> Logs:
    """Returns log probabilities of all sequences, which end with the last answer compared."""
    rho, weights = loss.quadrature([0.0, *(a - threshold for a in answers)], FAR)
    density = stats.laplace.logpdf(rho, scale=threshold_scale) + np.log(weights)
    log_above, log_below = [], []
    for answer in answers:
        noise = stats.laplace(answer, answer_scale)
        log_above.append(noise.logsf(threshold + rho))
        log_below.append(noise.logcdf(threshold + rho))
    logs = {}

    def extend(sequence: tuple[int, ...], log_product: np.ndarray) -> None:
        if len(sequence) == len(answers) or sum(sequence) == most_above:
            logs[sequence] = float(special.logsumexp(log_product))
            return
        position = len(sequence)
        extend((*sequence, 0), log_product + log_below[position])
        extend((*sequence, 1), log_product + log_above[position])

    extend((), density)
    return logs


def largest_ratios(of_inputs: Callable[[Inputs], Logs]) -> list[tuple[float, float]]:
    """Returns log ratios at their largest, for each pair in both directions."""
    ratios = []
    for a, b in PAIRS:
        first, second = of_inputs(a), of_inputs(b)
        differences = [first[key] - second[key] for key in first]
        ratios.append((max(differences), -min(differences)))
    return ratios


def sparse_vector(*scales: float, **options: float) -> float:
    return float(np.max(largest_ratios(lambda a: comparisons(a, *scales, **options))))


@functools.cache
def values_of_first_above() -> list[tuple[float, float]]:
    """Log ratios of SVT3 at their largest: which answer is the first above, and its noisy value.

    The value bounds the noisy threshold from above. Below all answers the ratio is constant.
    """
    scale, values = 20.0, np.array([-300.0, 0.0, 1.0, 2.0, 300.0])

    def logs(answers: Inputs) -> Logs:
        result = {}
        none_above = comparisons(answers, scale, scale, 1)[(0,) * len(answers)]
        result[()] = none_above
        for (row, value), first in itertools.product(enumerate(values), range(len(answers))):
            kinks = [0.0, value - 1, *(a - 1 for a in answers)]
            rho, weights = loss.quadrature(kinks, FAR)
            within = rho < value - 1
            log_product = stats.laplace.logpdf(rho[within], scale=scale) + np.log(weights[within])
            for answer in answers[:first]:
                log_product += stats.laplace.logcdf(1 + rho[within], answer, scale)
            log_value = stats.laplace.logpdf(value, answers[first], scale)
            result[row, first] = float(special.logsumexp(log_product) + log_value)
        return result

    return largest_ratios(logs)


def svt34() -> float:
    """Two independent mechanisms: ratios at their largest add up, in each direction."""
    svt3, svt4 = values_of_first_above(), largest_ratios(svt4_logs)
    return float(np.max(np.array(svt3) + np.array(svt4)))


def svt4_logs(answers: Inputs) -> Logs:
    return comparisons(answers, 40.0, 40 / 3, 1)


def without_answer_noise() -> float:
    """Only a threshold between two answers parts them: an input with equal answers never does."""
    probabilities = []
    for answers in ([1.0] * 10, [2.0, *[1.0] * 9]):
        is_above = [
            tuple(answer >= 1 + rho for answer in answers) for rho in (-0.5, 0.0, 0.5, 1.0, 1.5)
        ]
        probabilities.append(set(is_above))
    return math.inf if probabilities[1] - probabilities[0] else 0.0


def numerical() -> float:
    """Each answer above is released with noise of scale 60; far values have the largest ratio."""
    ratios = []
    for a, b in PAIRS:
        first, second = (comparisons(answers, 30.0, 120.0, 2) for answers in (a, b))
        for key, log_first in first.items():
            values = sum(abs(x - y) / 60 for x, y, above in zip(a, b, key, strict=False) if above)
            ratios.append(abs(log_first - second[key]) + values)
    return float(max(ratios))


def prefix_sum() -> float:
    """Sums can be undone: ten answers with noise of scale 10, each of which moves by 1."""
    grid = np.linspace(-30, 30, 601)
    one = loss.of_logs(stats.laplace.logpdf(grid, 1, 10), stats.laplace.logpdf(grid, 2, 10))
    return 10 * one


TRUTHS = {
    "SVT1": lambda: sparse_vector(20.0, 40.0, 1, threshold=0.5),
    "SVT2": lambda: sparse_vector(20.0, 40.0, 1),
    "SVT3": lambda: float(np.max(values_of_first_above())),
    "SVT4": lambda: float(np.max(largest_ratios(svt4_logs))),
    "SVT5": without_answer_noise,
    "SVT6": lambda: sparse_vector(20.0, 20.0, 10),
    "SVT34Parallel": svt34,
    "NumericalSVT": numerical,
    "PrefixSum": prefix_sum,
}
