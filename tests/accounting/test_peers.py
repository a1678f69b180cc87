"""Claims beside those of dp-accounting, whose losses are rounded to a grid of the same width."""

from __future__ import annotations

import pytest
from dp_accounting.pld import privacy_loss_distribution

from dpaudit_ray import accounting
from dpaudit_ray.accounting import Training


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "delta"),
    [
        (1.0, 0.01, 1000, 1e-5),
        (0.7, 1e-3, 10_000, 1e-8),
        (2.0, 0.1, 50, 1e-6),
        (4.0, 1.0, 250, 1e-5),
    ],
)
def test_pld_is_between_the_ends_of_dp_accounting(noise, rate, steps, delta):
    ends = [
        privacy_loss_distribution.from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=1e-4,
        )
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
        for pessimistic in (False, True)
    ]
    claim = accounting.epsilon_of(Training(noise, steps, rate), delta, "pld")
    assert claim.lower <= ends[1] * (1 + 1e-9)
    assert ends[0] <= claim.upper * (1 + 1e-9)
    assert claim.upper == pytest.approx(ends[1], rel=2e-3)
