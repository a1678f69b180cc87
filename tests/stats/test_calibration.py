"""A thousand audits of a Gaussian mechanism of known μ: certified bounds keep their level."""

from __future__ import annotations

import numpy as np
import pytest

from dpaudit_ray import stats

DELTA, CONFIDENCE, AUDITS = 1e-5, 0.95, 1000


@pytest.mark.parametrize("mu", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("method", ["accuracy", "eps-delta", "anytime"])
def test_a_thousand_audits_exceed_the_truth_at_most_at_their_level(method: str, mu: float) -> None:
    """Expected at most 50 of 1000; 72 or more has probability 1.5e-3 at exactly 5 %."""
    rng = np.random.default_rng([round(100 * mu), len(method)])
    truth = float(stats.gdp.epsilon(mu, DELTA))
    exceeded = 0
    for _ in range(AUDITS):
        members = rng.random(400) < 0.5
        scores = rng.normal(size=400) + mu * members
        found = stats.estimate(scores, members, DELTA, CONFIDENCE, method)
        exceeded += found.epsilon_lower > truth
    assert exceeded < 72
