"""The sampled process: its law is that of the exact backend, and it runs away from h."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from scipy import stats

from dpaudit_ray.mechanisms.landscape.exact import Mass, evolve
from tests.mechanisms.test_landscape_exact import powers, process

TRIALS = 100_000


def slow(landscape, member: bool, steps: int, normals: np.ndarray) -> float:
    """Twin: eq. 3 for one run, term by term."""
    b, c, h = landscape.batch_size, landscape.clip_norm, landscape.threshold
    noise = landscape.noise_multiplier * c
    theta = (member * c + noise * normals[0]) * landscape.first_scale
    for t in range(1, steps):
        if landscape.gradient == "constant":
            g = -b * c
        elif landscape.gradient == "threshold":
            g = -b * c if theta > h else b * c
        else:
            g = -b * c * min(max((theta - h) / landscape.width, -1.0), 1.0)
        theta = theta - (g - noise * normals[t]) / b
    return float(theta)


@pytest.mark.parametrize("gradient", ["threshold", "constant", "linear"])
@pytest.mark.parametrize("first", ["unscaled", "scaled"])
def test_each_run_follows_equation_3(gradient: str, first: str) -> None:
    landscape = process(2.0, 3, gradient, first, clip=1.5)
    members = np.arange(40) % 2 == 0
    found = landscape.run(members, 5, (1, 6))
    normals = np.random.default_rng(5).normal(size=(6, 40))
    for step, column in ((1, 0), (6, 1)):
        expected = [slow(landscape, m, step, normals[:, i]) for i, m in enumerate(members)]
        assert found[:, column] == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("sigma", "batch", "gradient", "first"),
    [
        (1.0, 1, "threshold", "unscaled"),
        (4.0, 2, "threshold", "unscaled"),
        (8.0, 16, "threshold", "scaled"),
        (4.0, 4, "linear", "scaled"),
        (2.0, 2, "constant", "unscaled"),
    ],
)
def test_samples_have_the_exact_law(sigma: float, batch: int, gradient: str, first: str) -> None:
    """Kolmogorov-Smirnov at 1e-4, 20 tests: one seed in 500 would fail; this one is fixed."""
    landscape = process(sigma, batch, gradient, first, width=3.0)
    steps = (2, 25)
    for member in (False, True):
        theta = landscape.run(np.full(TRIALS // 4, member), 11, steps)
        for column, worlds in enumerate(evolve(landscape, steps)):
            exact = Mass(worlds.panels, worlds.densities[int(member)])
            found = stats.kstest(theta[:, column], lambda x, m=exact: m.split(x)[0])
            assert found.pvalue > 1e-4, (steps[column], member)


@pytest.mark.parametrize(("sigma", "batch"), [(4.0, 1), (4.0, 2), (4.0, 4), (4.0, 8), (4.0, 16)])
def test_sampled_mu_agrees_within_its_error(sigma: float, batch: int) -> None:
    """At the exact backend's best test; 4 standard errors, so one seed in 3000 would fail."""
    landscape = process(sigma, batch)
    (exact,) = powers(landscape, 25)
    members = np.arange(2 * TRIALS) % 2 == 0
    theta = landscape.run(members, 2, (25,))[:, 0]
    fpr = np.mean(theta[~members] > exact.threshold)
    fnr = np.mean(theta[members] <= exact.threshold)
    mu = -stats.norm.ppf(fpr) - stats.norm.ppf(fnr)
    slopes = (stats.norm.pdf(stats.norm.ppf(rate)) for rate in (fpr, fnr))
    error = math.hypot(
        *(math.sqrt(r * (1 - r) / TRIALS) / s for r, s in zip((fpr, fnr), slopes, strict=True))
    )
    assert abs(mu - exact.mu) < 4 * error


def test_the_sign_pushes_away_from_the_threshold() -> None:
    theta = np.array([-3.0, 0.4999, 0.5001, 3.0])
    assert process(1.0, 8).moved(theta).tolist() == pytest.approx([-4.0, -0.5001, 1.5001, 4.0])
    steep = process(1.0, 8, "linear")
    assert np.all(np.diff(steep.moved(theta)) > np.diff(theta) - 1e-12)


def test_horizons_are_columns_of_one_run_and_seeds_repeat() -> None:
    landscape = process(2.0, 4)
    members = np.random.default_rng(0).random(100) < 0.5
    every = landscape.run(members, 3, tuple(range(1, 26)))
    assert np.array_equal(every[:, [4, 24]], landscape.run(members, 3, (5, 25)))
    assert not np.array_equal(every, landscape.run(members, 4, tuple(range(1, 26))))


def test_five_thousand_trials_of_25_steps_take_milliseconds() -> None:
    members = np.random.default_rng(0).random(5000) < 0.5
    times = []
    for seed in range(5):
        started = time.perf_counter()
        process(1.0, 4).run(members, seed, tuple(range(1, 26)))
        times.append(time.perf_counter() - started)
    assert min(times) < 0.1
