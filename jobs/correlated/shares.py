"""Shares of the claimed μ that the scores of a run show, next to the exact ones.

`python -m jobs.correlated.shares RUN` prints a row for each audit of a run of this folder.
"""

import math
import sys

import numpy as np

import dpaudit_ray as da
from dpaudit_ray.mechanisms.dp_sgd import DpSgd
from dpaudit_ray.stats import gdp


def exact(mechanism: DpSgd, period: int, name: str) -> float:
    """Returns the share by dense matrices; that of the final model is of the sum of all steps."""
    strategy = mechanism.noise.strategy(mechanism.steps)
    assert strategy is not None
    pattern = (np.arange(mechanism.steps) % period == 0).astype(float)
    if name == "gradient":
        weights = pattern
    elif name == "biased-dimension":
        weights = np.ones(mechanism.steps)
    else:
        weights = strategy.T @ strategy @ pattern
    deviation = float(np.linalg.norm(np.linalg.solve(strategy.T, weights)))
    return float(weights @ pattern) / deviation / mechanism.noise.scale(mechanism.steps)


def measured(scores: np.ndarray, members: np.ndarray, mu: float) -> tuple[float, float]:
    """Returns the distance of the means in standard deviations over μ, and its standard error."""
    inside, outside = scores[members], scores[~members]
    deviation = math.sqrt((inside.var() + outside.var()) / 2)
    distance = float(inside.mean() - outside.mean()) / deviation
    variance = 1 / len(inside) + 1 / len(outside) + distance**2 / (2 * len(scores))
    return distance / mu, math.sqrt(variance) / mu


def main(location: str) -> None:
    """Prints the table."""
    result = da.open(location)
    bounds = result.estimates.set_index("audit")
    lines = [
        "| steps | b | adversary | exact | measured | certified |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for index, cell in enumerate(result.run.sweep.cells):
        mechanism, adversary = cell.mechanism, cell.adversary
        assert isinstance(mechanism, DpSgd)
        mu = 1 / mechanism.multiplier
        scores, members = result.matrix(index)
        share, error = measured(scores.ravel(), members.ravel(), mu)
        bound = bounds.loc[result.run.plan.audits[index].id]
        certified = gdp.mu(bound.epsilon_lower, bound.delta) / mu
        lines.append(
            f"| {mechanism.steps} | {adversary.period} | {adversary.name} "
            f"| {exact(mechanism, adversary.period, adversary.name):.3f} "
            f"| {share:.3f} ± {error:.3f} | {certified:.3f} |"
        )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
