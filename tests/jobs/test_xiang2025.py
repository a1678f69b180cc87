"""The published rows of Xiang et al."""

import pytest

from dpaudit_ray.stats import one_run
from dpaudit_ray.stats.one_run_fdp import gaussian_p_value
from jobs.xiang2025 import rows


@pytest.mark.parametrize("place", [1, 4])
def test_ten_thousand_canaries_of_which_half_are_guessed(place):
    table = rows.PUBLISHED[place]
    assert rows.sampled_epsilon(table.mu, table.rate) == pytest.approx(table.epsilon, abs=0.01)
    found = rows.bound(table.mistakes[6], 5000, 10_000, table.rate)
    assert found == pytest.approx(table.bounds[6], abs=0.02)
    plain = one_run.epsilon_lower(5000 - table.mistakes[6], 5000, 10_000, 1e-5, 0.95)
    assert plain == pytest.approx(table.one_run[6], abs=1e-3)


@pytest.mark.parametrize("guesses", [40, 100])
def test_sampled_at_rate_1_it_is_the_gaussian_one(guesses):
    mistakes = guesses // 8
    found = rows.p_value(mistakes, guesses, 100, 1.3, 1.0)
    assert found == pytest.approx(gaussian_p_value(mistakes, guesses, 100, 1.3), abs=1e-6)
