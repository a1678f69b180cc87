"""The 60 rows that Xiang et al. (2025, arXiv 2509.08704) publish, beside what this package gives.

`python -m jobs.xiang2025.rows` prints a table. Their outcomes are no draws: of the r surest of n
guesses, the number of mistakes is the expected one, rounded. Rows of the Gaussian mechanism are
`gaussian_mu`, which `order-statistics` uses. For the sampled Gaussian one the package has no such
bound; the same argument about its own log likelihood ratio is written out here. They print Steinke
et al.'s bound beside theirs, which is `one-run` here.
"""

from __future__ import annotations

import dataclasses
import math
import sys

import numpy as np
import numpy.typing as npt
from scipy import special

from dpaudit_ray import accounting
from dpaudit_ray.stats import gdp, one_run
from dpaudit_ray.stats.error_rates import last_refuted
from dpaudit_ray.stats.one_run_fdp import gaussian_mu

DELTA, CONFIDENCE = 1e-5, 0.95
CANARIES, SHARES = (1000, 10_000, 100_000), (0.1, 0.25, 0.5, 1.0)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(256)
Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Published:
    """Twelve rows: n = 1,000, 10,000 and 100,000, and of each r / n = .1, .25, .5 and 1."""

    mu: float
    rate: float  # at which the canary is sampled
    epsilon: float  # the truth
    mistakes: tuple[int, ...]
    bounds: tuple[float, ...]
    one_run: tuple[float, ...]  # what they print of Steinke et al.'s bound on the same mistakes


PUBLISHED = (
    Published(
        0.5, 1.0, 1.9931,
        (26, 75, 172, 401, 259, 755, 1721, 4013, 2585, 7545, 17213, 40129),
        (1.1926, 1.4203, 1.4689, 1.4140, 1.7437, 1.8052, 1.8279, 1.8074, 1.9166, 1.9348, 1.9406,
         1.9345),
        (0.6519, 0.6124, 0.4866, 0.2931, 0.9277, 0.7643, 0.5948, 0.3661, 1.0128, 0.8149, 0.6283,
         0.3892),
    ),
    Published(
        1.0, 1.0, 4.3772,
        (10, 36, 103, 309, 97, 364, 1034, 3085, 967, 3641, 10343, 30854),
        (3.1645, 3.6327, 3.7557, 3.6700, 4.0141, 4.1371, 4.1789, 4.1592, 4.2662, 4.3013, 4.3144,
         4.3079),
        (1.6265, 1.4767, 1.1630, 0.6902, 2.0466, 1.6736, 1.2858, 0.7711, 2.1713, 1.7377, 1.3250,
         0.7954),
    ),
    Published(
        2.0, 1.0, 9.9973,
        (1, 4, 20, 159, 5, 36, 202, 1587, 51, 362, 2016, 15866),
        (5.9018, 7.9541, 8.9216, 9.0038, 8.7173, 9.4097, 9.6526, 9.6881, 9.5899, 9.8094, 9.8905,
         9.9002),
        (3.0052, 3.2737, 2.7928, 1.5210, 4.4836, 3.9322, 3.0457, 1.6223, 4.8674, 4.1144, 3.1291,
         1.6535),
    ),
    Published(
        1.0, 0.5, 3.5340,
        (24, 78, 176, 404, 242, 776, 1761, 4043, 2423, 7763, 17606, 40427),
        (2.1584, 2.1201, 2.2774, 2.2223, 3.1102, 3.0878, 3.1149, 3.0963, 3.3995, 3.3907, 3.4007,
         3.3944),
        (0.7484, 0.5583, 0.4522, 0.2808, 1.0154, 0.7254, 0.5598, 0.3536, 1.0982, 0.7740, 0.5938,
         0.3768),
    ),
    Published(
        2.0, 0.2, 7.6204,
        (22, 87, 199, 432, 216, 870, 1987, 4317, 2156, 8697, 19868, 43173),
        (4.6207, 3.5077, 2.8572, 2.8743, 6.7008, 6.1668, 5.8117, 5.8610, 7.3328, 7.1450, 7.0063,
         7.0250),
        (0.8493, 0.4015, 0.2594, 0.1666, 1.1576, 0.5570, 0.3679, 0.2413, 1.2476, 0.6054, 0.4009,
         0.2640),
    ),
)  # fmt: skip


def beyond(mu: float, rate: float, odds: Floats) -> tuple[Floats, Floats]:
    """Chance of log odds beyond ±`odds`, float64 [k] from 0 on, and of that and a mistake."""
    with np.errstate(divide="ignore", invalid="ignore"):
        high = (np.log((np.exp(odds) - 1 + rate) / rate) + mu**2 / 2) / mu
        low = (np.log((np.exp(-odds) - 1 + rate) / rate) + mu**2 / 2) / mu
    low = np.where(np.isnan(low), -math.inf, low)  # so sure an "out" there is none
    out_high, out_low = special.ndtr(-high), special.ndtr(low)
    in_high = (1 - rate) * out_high + rate * special.ndtr(mu - high)
    in_low = (1 - rate) * out_low + rate * special.ndtr(low - mu)
    return (out_high + in_high + out_low + in_low) / 2, (out_high + in_low) / 2


def p_value(mistakes: int, guesses: int, canaries: int, mu: float, rate: float) -> float:
    """P(at most `mistakes` among the surest `guesses`) for one sampled Gaussian step of μ."""
    whole, wrong = beyond(mu, rate, np.zeros(1))
    if guesses == canaries:
        return float(special.bdtr(mistakes, guesses, wrong[0] / whole[0]))
    mass = special.betaincinv(guesses + 1, canaries - guesses, (_NODES + 1) / 2)
    least, most = np.zeros_like(mass), np.full_like(mass, 200.0)
    for _ in range(60):
        odds = (least + most) / 2
        more = beyond(mu, rate, odds)[0] > mass
        least, most = np.where(more, odds, least), np.where(more, most, odds)
    rates = beyond(mu, rate, (least + most) / 2)[1] / mass
    return float(special.bdtr(mistakes, guesses, rates) @ _WEIGHTS) / 2


def sampled_epsilon(mu: float, rate: float) -> float:
    """ε of one step of the sampled Gaussian, by PLD."""
    if mu < 1e-3:
        return 0.0
    return accounting.epsilon(1 / mu, 1, DELTA, rate, "pld")


def bound(mistakes: int, guesses: int, canaries: int, rate: float) -> float:
    """The lower bound on ε where the canary is sampled at `rate`."""
    if rate == 1:
        mu = gaussian_mu(guesses - mistakes, guesses, canaries, CONFIDENCE)
        return float(gdp.epsilon(mu, DELTA))

    def excess(mu: float) -> float:
        return (1 - CONFIDENCE) - p_value(mistakes, guesses, canaries, max(mu, 1e-6), rate)

    return sampled_epsilon(last_refuted(excess, most=40.0, xtol=1e-10), rate)


def main() -> None:
    """Prints what is published and what comes out here, the largest differences and mean shares."""
    columns = " | ".join(f"r / n = {share:g}" for share in SHARES)
    lines = [f"| mechanism, true ε | n | {columns} |", "| --- | --- |" + " --- |" * len(SHARES)]
    apart = {"Gaussian": 0.0, "sampled": 0.0, "one-run": 0.0}
    shares: dict[int, list[tuple[float, float]]] = {canaries: [] for canaries in CANARIES}
    for table in PUBLISHED:
        sampled = "" if table.rate == 1 else f", q = {table.rate:g}"
        for number, canaries in enumerate(CANARIES):
            cells = []
            for column, share in enumerate(SHARES):
                place = len(SHARES) * number + column
                guesses, theirs = round(share * canaries), table.bounds[place]
                mistakes = table.mistakes[place]
                here = bound(mistakes, guesses, canaries, table.rate)
                plain = one_run.epsilon_lower(
                    guesses - mistakes, guesses, canaries, DELTA, CONFIDENCE
                )
                kind = "sampled" if sampled else "Gaussian"
                apart[kind] = max(apart[kind], abs(here - theirs))
                apart["one-run"] = max(apart["one-run"], abs(plain - table.one_run[place]))
                shares[canaries].append((here / table.epsilon, plain / table.epsilon))
                cells.append(f"{theirs:.3f} / {here:.3f}")
            name = f"Gaussian μ = {table.mu:g}{sampled}, {table.epsilon:.3f}"
            lines.append(f"| {name} | {canaries:,} | {' | '.join(cells)} |")
    differences = ", ".join(f"{kind} {difference:.4f}" for kind, difference in apart.items())
    lines.append(f"\nlargest difference: {differences}")
    for canaries, pairs in shares.items():
        here, plain = np.mean(pairs, axis=0)
        lines.append(f"mean share of the true ε, n = {canaries:,}: {here:.3f}, one-run {plain:.3f}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
