"""Speed as ratios against the obvious way and as limits, in CPU time: a machine may be busy."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from scipy import optimize, special

from dpaudit_ray import stats
from dpaudit_ray.stats import gdp, one_run, threshold_rates
from tests.stats.reference import gaussian_trials

MANY_RUN = sorted(name for name, cls in stats.estimators().items() if not cls.one_run)


def best_of(repeats: int, call: Callable[[], object]) -> float:
    """Shortest of several timings, in CPU seconds: what the code needs when left alone."""
    found = []
    for _ in range(repeats):
        start = time.thread_time()
        call()
        found.append(time.thread_time() - start)
    return min(found)


def test_algorithm_4_against_root_finding_per_threshold():
    scores, members = gaussian_trials(np.random.default_rng(1), 5000, 2.0)
    worlds = threshold_rates.Worlds.from_scores(scores, members)
    candidates = worlds.midpoints()[::100]

    def upper(k: int, n: int) -> float:
        if k == n:
            return 1.0
        return optimize.brentq(lambda p: special.bdtr(k, n, p) - 0.025, 0.0, 1.0)

    def naive() -> float:
        best = 0.0
        for h in candidates:
            fp, fn = int(np.sum(worlds.outside >= h)), int(np.sum(worlds.inside < h))
            mu = -special.ndtri(upper(fp, worlds.sizes[0]))
            mu -= special.ndtri(upper(fn, worlds.sizes[1]))
            if mu > 0:
                epsilon = optimize.brentq(lambda e, m=mu: gdp.delta(e, m) - 1e-5, 0.0, 100.0)
                best = max(best, epsilon)
        return best

    args = worlds, 0.05, threshold_rates.mu_of_rates
    fast = best_of(5, lambda: gdp.epsilon(threshold_rates.best_test(*args)[0], 1e-5))
    slow = best_of(1, naive) * len(worlds.midpoints()) / len(candidates)
    assert slow / fast >= 100, slow / fast


@pytest.mark.parametrize("method", MANY_RUN)
def test_estimate_after_a_pack(method):
    scores, members = gaussian_trials(np.random.default_rng(2), 5000, 2.0)
    state, times = stats.make(method, 5000), []
    for first in range(0, 4950, 50):
        state.fold(scores[first : first + 50], members[first : first + 50])
        start = time.thread_time()
        if first >= 4500:
            state.bound(1e-5, 0.95)
            times.append(time.thread_time() - start)
    # 20 ms is the goal; a machine that is busy with other tests may take three times as long.
    assert np.median(times) <= 0.02
    assert min(times) <= 0.02


@pytest.mark.parametrize("method", MANY_RUN)
def test_a_million_scores(method):
    scores, members = gaussian_trials(np.random.default_rng(3), 1_000_000, 1.0)

    def whole() -> None:
        state = stats.make(method, 1_000_000, canaries=100)  # where a method asks for them
        state.fold(scores, members)
        state.bound(1e-5, 0.95)

    assert best_of(1, whole) <= 2.0


def test_one_run_theorem_at_a_hundred_thousand_canaries():
    for v, r in ((69_146, 100_000), (1439, 1510), (99_000, 100_000)):
        one_run._log_ratios.cache_clear()
        assert best_of(3, lambda v=v, r=r: one_run.epsilon_lower(v, r, 100_000, 1e-5, 0.95)) < 0.05
