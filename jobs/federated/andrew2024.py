"""The estimates of Andrew et al. (2024) for canary clients of one training.

`python -m jobs.federated.andrew2024` simulates the Gaussian mechanism (their section 3), and with a
run of `canaries.yaml` as argument it estimates ε of each training there.
"""

import math
import sys

import numpy as np

import dpaudit_ray as da
from dpaudit_ray.stats import gdp

DELTA = 1e-5
_GRID = np.linspace(-14, 14, 28_001)


def epsilon_of_normals(mean: float, deviation: float, delta: float = DELTA) -> float:
    """Returns ε between N(0, 1) and N(mean, deviation²), the larger of both directions."""
    points = np.concatenate([_GRID, mean + deviation * _GRID])
    points = np.unique(points)
    width = np.diff(points, append=points[-1])
    outside = -(points**2) / 2
    inside = -(((points - mean) / deviation) ** 2) / 2 - math.log(deviation)
    scale = width / math.sqrt(2 * math.pi)

    def largest_delta(epsilon: float) -> float:
        one = np.maximum(np.exp(inside) - np.exp(epsilon + outside), 0) @ scale
        other = np.maximum(np.exp(outside) - np.exp(epsilon + inside), 0) @ scale
        return float(max(one, other))

    low, high = 0.0, 700.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if largest_delta(middle) > delta else (low, middle)
    return high


def estimated(inside: np.ndarray, null_deviation: float) -> float:
    """Fits a normal to the cosines of canaries that are in, against the null N(0, 1/d)."""
    scaled = inside / null_deviation
    return epsilon_of_normals(float(scaled.mean()), float(scaled.std(ddof=1)))


def of_maxima(inside: np.ndarray, outside: np.ndarray) -> float:
    """Compares normal fits of the largest cosines of all rounds: their section 4.2."""
    deviation = float(outside.std(ddof=1))
    mean = float(inside.mean() - outside.mean()) / deviation
    return epsilon_of_normals(mean, float(inside.std(ddof=1)) / deviation)


def gaussian_mechanism(size: int, canaries: int, epsilon: float, seed: int) -> float:
    """Estimates ε of one release of the sum of all canaries in `size` dimensions."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((canaries, size), dtype=np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    deviation = 1 / gdp.mu(epsilon, DELTA)
    noise = rng.standard_normal(size, dtype=np.float32)
    release = directions.sum(0) + deviation * noise
    cosines = directions @ (release / np.linalg.norm(release))
    return estimated(cosines.astype(float), 1 / math.sqrt(size))


def simulate() -> None:
    """Prints means and deviations of the estimates over 20 simulations of each setting."""
    lines = ["| d | canaries | ε = 1 | ε = 3 | ε = 10 |", "| --- | --- | --- | --- | --- |"]
    for size, canaries in ((10_000, 100), (100_000, 100), (100_000, 300)):
        row = f"| {size:,} | {canaries} |"
        for epsilon in (1.0, 3.0, 10.0):
            found = [gaussian_mechanism(size, canaries, epsilon, seed) for seed in range(20)]
            row += f" {np.mean(found):.2f} ± {np.std(found, ddof=1):.2f} |"
        lines.append(row)
    sys.stdout.write("\n".join(lines) + "\n")


def of_run(location: str) -> None:
    """Prints, for each audit, the claim, both estimates, and the certified bound."""
    result = da.open(location)
    table = result.estimates
    lines = [
        "| sampling | claim | final model | all rounds | `one-run` certifies |",
        "| --- | --- | --- | --- | --- |",
    ]
    all_scores = result.scores
    for index, cell in enumerate(result.run.sweep.cells):
        audit = result.run.plan.audits[index].id
        wide = all_scores[all_scores["audit"] == audit].pivot(
            index=["trial", "member"], columns="step", values="score"
        )
        members = wide.index.get_level_values("member").to_numpy()
        canaries = cell.adversary.canaries
        sums = wide.to_numpy().reshape(-1, canaries, wide.shape[1])
        bits = members.reshape(-1, canaries)
        finals, maxima = [], []
        for run, inside in zip(sums, bits, strict=True):
            rounds = np.diff(run, axis=1, prepend=0.0)
            largest = (rounds / rounds[~inside].std(axis=0)).max(axis=1)
            final = run[:, -1]
            finals.append(estimated(final[inside], float(final[~inside].std(ddof=1))))
            maxima.append(of_maxima(largest[inside], largest[~inside]))
        rows = table[table["audit"] == audit]
        last = rows[rows["step"] == rows["step"].max()].set_index("estimator")
        lines.append(
            f"| {cell.mechanism.sampling.name} | {last['epsilon_upper'].iloc[0]:.2f} "
            f"| {np.mean(finals):.2f} ± {np.std(finals, ddof=1):.2f} "
            f"| {np.mean(maxima):.2f} ± {np.std(maxima, ddof=1):.2f} "
            f"| {last['epsilon_lower']['one-run']:.2f} |"
        )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    of_run(*sys.argv[1:]) if sys.argv[1:] else simulate()
