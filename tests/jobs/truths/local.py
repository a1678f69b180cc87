"""True ε of local protocols, by listing what is reported of the values 0 and 1."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

from tests.jobs.truths import loss

VALUES = 8
E = math.e


def generalised(truthful: float, values: int = VALUES) -> np.ndarray:
    """Returns P(report | value), [values, values]."""
    return np.where(np.eye(values, dtype=bool), truthful, (1 - truthful) / (values - 1))


def rate(epsilon: float, values: int) -> float:
    return math.exp(epsilon) / (math.exp(epsilon) + values - 1)


def of_bits(one: float, zero: float) -> float:
    """Two bits differ between the values; all reports of both are listed."""

    def probabilities(bits: Sequence[int]) -> list[float]:
        rates = [one if bit else zero for bit in bits]
        return [
            math.prod(r if reported else 1 - r for r, reported in zip(rates, report, strict=True))
            for report in itertools.product((0, 1), repeat=2)
        ]

    return loss.of_probabilities(probabilities((1, 0)), probabilities((0, 1)))


def hashed(cells: int) -> float:
    """Lists hashes of both values, which are released with the report."""
    truthful = rate(1.0, cells)
    reports = generalised(truthful, cells)
    p, q = [], []
    for first, second in itertools.product(range(cells), repeat=2):
        p.extend(reports[first] / cells**2)
        q.extend(reports[second] / cells**2)
    return loss.of_probabilities(p, q)


def subset(size: int, included: float) -> float:
    """Lists the sets of values."""

    def probability(chosen: Sequence[int], value: int) -> float:
        if value in chosen:
            return included / math.comb(VALUES - 1, size - 1)
        return (1 - included) / math.comb(VALUES - 1, size)

    sets = list(itertools.combinations(range(VALUES), size))
    p, q = ([probability(chosen, value) for chosen in sets] for value in (0, 1))
    return loss.of_probabilities(p, q)


def noisy_cells() -> float:
    """Two cells with noise of scale 2 move by 1 each."""
    grid = np.linspace(-10, 10, 201)
    noise = stats.laplace(scale=2)
    return 2 * loss.of_logs(noise.logpdf(grid), noise.logpdf(grid - 1))


def of_filter(one: float, zero: float, reports: int, permanent: float = 0.75) -> float:
    """Eight bits of the filter differ, each reported several times after one permanent draw."""
    kept = 1 - permanent / 2

    def probabilities(bit: int) -> list[float]:
        chance = kept if bit else 1 - kept
        listed = []
        for report in itertools.product((0, 1), repeat=reports):
            given = [math.prod(r if b else 1 - r for b in report) for r in (zero, one)]
            listed.append((1 - chance) * given[0] + chance * given[1])
        return listed

    return 8 * loss.of_probabilities(probabilities(0), probabilities(1))


def longitudinal() -> float:
    """Lists the reports of three rounds, given each permanent value."""
    permanent = generalised(rate(2.0, VALUES))
    each = generalised(0.7)
    together = np.einsum("vk,ka,kb,kc->vabc", permanent, each, each, each)
    return loss.of_probabilities(together[0].ravel(), together[1].ravel())


def of_responses(truthful: float) -> float:
    reports = generalised(truthful)
    return loss.of_probabilities(reports[0], reports[1])


INCLUDED = 2 * E / (2 * E + VALUES - 2)

TRUTHS: dict[str, Callable[[], float]] = {
    "GRR": lambda: of_responses(rate(1.0, VALUES)),
    "SUE": lambda: of_bits(E**0.5 / (E**0.5 + 1), 1 / (E**0.5 + 1)),
    "OUE": lambda: of_bits(0.5, 1 / (E + 1)),
    "BLH": lambda: hashed(2),
    "OLH": lambda: hashed(4),
    "SS": lambda: subset(2, INCLUDED),
    "SHE": noisy_cells,
    "THE": lambda: of_bits(stats.laplace.sf(0.75, 1, 2), stats.laplace.sf(0.75, 0, 2)),
    "RAPPOR": lambda: of_filter(0.55, 0.45, 1),
    "OneTimeRAPPOR": lambda: of_filter(1.0, 0.0, 1, permanent=0.95),
    "L-GRR": longitudinal,
    "RAPPOR, three reports": lambda: of_filter(0.55, 0.45, 3),
    "L-GRR by its first report": longitudinal,
    "GRR of a smaller domain": lambda: of_responses(rate(1.0, VALUES // 2)),
    "UE with all of ε for each bit": lambda: of_bits(E / (E + 1), 1 / (E + 1)),
    "SS of a smaller set": lambda: subset(1, INCLUDED),
}
