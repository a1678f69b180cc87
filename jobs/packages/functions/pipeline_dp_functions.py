"""Aggregations of PipelineDP, n outputs each. It draws from the system, not from `rng`."""

from typing import Any

import pipeline_dp as dp
from numpy.random import Generator

NAMES = {
    "COUNT": "count",
    "SUM": "sum",
    "MEAN": "mean",
    "PRIVACY_ID_COUNT": "privacy_id_count",
    "VARIANCE": "variance",
}
PUBLIC = [0]  # the one partition


def aggregate(
    data: Any,
    rng: Generator,
    n: int,
    metric: str,
    epsilon: float,
    delta: float = 0.0,
    noise: str = "LAPLACE",
) -> Any:
    """Aggregates one partition; each entry of data is a privacy unit and a value from 0 to 1."""
    return [_aggregated(data, metric, epsilon, delta, noise) for _ in range(n)]


def _aggregated(data: Any, metric: str, epsilon: float, delta: float, noise: str) -> float:
    accountant = dp.NaiveBudgetAccountant(total_epsilon=epsilon, total_delta=delta)
    engine = dp.DPEngine(accountant, dp.LocalBackend())
    parameters = dp.AggregateParams(
        metrics=[getattr(dp.Metrics, metric)],
        max_partitions_contributed=1,
        max_contributions_per_partition=1,
        min_value=0,
        max_value=1,
        noise_kind=getattr(dp.NoiseKind, noise),
    )
    extractors = dp.DataExtractors(
        privacy_id_extractor=lambda row: row[0],
        partition_extractor=lambda row: 0,
        value_extractor=lambda row: row[1],
    )
    rows = engine.aggregate(data, parameters, extractors, public_partitions=PUBLIC)
    accountant.compute_budgets()
    ((_, metrics),) = list(rows)
    return float(getattr(metrics, NAMES[metric]))
