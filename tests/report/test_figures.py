"""Figures of a whole run, curves of one audit, and how often its bits are guessed right."""

import math

import numpy as np
import pytest

from dpaudit_ray.plan.score_stream import Trials
from dpaudit_ray.report import charts
from dpaudit_ray.report.figures import whole_run
from dpaudit_ray.report.figures.whole_run import is_axis
from dpaudit_ray.report.measures import HitRate, ObservedTradeOff, gaussian_trade_off
from dpaudit_ray.report.tables import Run
from dpaudit_ray.stats import gdp
from dpaudit_ray.stats.guess_count_bound import GuessCounter
from tests.report.handed import played


def test_repetitions_are_one_line_and_claims_one_panel(tiny, tmp_path):
    tiny["audit"]["trials"] = 200
    tiny["grid"]["mechanism.noise_multiplier"] = [2.0, 3.0]
    tiny["grid"]["mechanism.seed"] = [0, 4]
    run = Run.open(str(played(tiny, tmp_path, 10_000)))
    bounds = whole_run.bounds_table(run)
    titles = ["noise_multiplier=2.0", "noise_multiplier=3.0"]
    assert bounds["title"].unique().tolist() == titles
    for _, panel in bounds.groupby("panel"):
        assert panel["label"].unique().tolist() == ["biased-dimension", "loss"]
        assert panel["step"].unique().tolist() == [3, 6]
    assert (bounds.groupby("line")["audit"].nunique() == 2).all()
    for audit in run.plan.audits:
        rows = run.estimates.query("audit == @audit.id and estimator == 'accuracy'")
        mine = bounds[bounds["audit"] == audit.id]
        together = rows.sort_values("step")["epsilon_lower_together"]  # as a quote is
        assert (together > 0).all()
        np.testing.assert_array_equal(mine["bound"], together)
        assert tuple(mine["claim"]) == audit.claims["gaussian"]


def test_axes_say_at_which_delta(tiny, tmp_path):
    """A run that records one step has no evolution."""
    tiny["audit"] |= {"trials": 10, "record_every": 6}
    run = Run.open(str(played(tiny, tmp_path, 10_000)))
    bounds = whole_run.bounds_table(run)
    assert whole_run.evolution_figure(bounds) is None
    assert whole_run.bars_figure(bounds).axes[0].get_xlabel() == "ε at δ = 1e-5"
    audit, none = run.plan.audits[0], np.zeros(0, bool)
    trials = Trials(audit.horizons, none, np.zeros((0, 1)), none, {})
    (by_step,) = charts.of_audit(run.rows(audit), trials, None)
    assert by_step["y"] == "ε at δ = 1e-5"
    bars = charts.of_bounds(bounds)
    assert bars["x"] == "ε at δ = 1e-5"
    assert [row[0] for row in bars["rows"]] == [audit.label for audit in run.plan.audits]


@pytest.mark.parametrize(
    ("key", "values", "drawn"),
    [
        ("mechanism.noise_multiplier", [0.5, 1, 2.0], True),
        ("mechanism.noise_multiplier", [0.5, 1.0], False),
        ("mechanism.training.seed", [0, 1, 2, 3], False),
        ("adversary.layer", ["last", "second-last", "input"], False),
    ],
)
def test_numbers_make_an_axis(key, values, drawn):
    assert is_axis(key, values) == drawn


@pytest.mark.parametrize("response", [False, True])
def test_a_gaussian_pair_fits_a_gaussian_curve_and_randomised_response_does_not(response):
    """R = 20,000. The gap is a Kolmogorov statistic of two worlds at most: above 2.2/√10,000 in
    about 1 of 4,000 seeds; μ errs by 0.1 in fewer. A response is right in 9 of 10 trials: its true
    curve is two lines, 0.1 below which no test comes.
    """
    rng = np.random.default_rng(0)
    members = np.arange(20_000) % 2 == 0
    scores, mu = rng.normal(size=20_000) + 2.0 * members, 2.0
    if response:
        scores = (
            np.where(rng.random(20_000) < 0.9, members, ~members) + rng.uniform(size=20_000) / 1e3
        )
        mu = float(gdp.mu(0.0, 0.8))
    curve = ObservedTradeOff.from_scores(scores, members)
    assert curve.mu == pytest.approx(mu, abs=0.1)
    assert (curve.gap > 0.04) == response


def test_the_slow_twin_counts_errors_one_by_one():
    rng = np.random.default_rng(1)
    scores, members = rng.normal(size=30), rng.random(30) < 0.5
    scores[3] = np.nan  # diverged: wrong at every threshold
    curve = ObservedTradeOff.from_scores(scores, members)
    finite = np.sort(scores[np.isfinite(scores)])
    thresholds = [np.inf, *((finite[:-1] + finite[1:]) / 2)[::-1], -np.inf]
    for h, alpha, beta in zip(thresholds, curve.alpha, curve.beta, strict=True):
        wrong_out = sum(not s < h for s, m in zip(scores, members, strict=True) if not m)
        wrong_in = sum(not s >= h for s, m in zip(scores, members, strict=True) if m)
        assert alpha == pytest.approx(wrong_out / (~members).sum())
        assert beta == pytest.approx(wrong_in / members.sum())
    assert ObservedTradeOff.from_scores(np.ones(3), np.ones(3, dtype=bool)).mu == 0.0
    assert gaussian_trade_off(0.0, 1.3) == 1.0


def trials(n: int, mu: float, missed: float = 0.0) -> Trials:
    rng = np.random.default_rng(1)
    members = rng.random(n) < 0.5
    lost = rng.random(n) < missed
    scores = np.where(lost, math.nan, rng.normal(size=n) + mu * members)[:, None]
    return Trials((1,), members, scores, lost, {})


def test_missed_trials_are_wrong_guesses_in_their_place():
    """As the estimator folds them, one by one."""
    mixed = trials(300, 2.0, missed=0.1)
    counter = GuessCounter()
    for missed, score, member in zip(mixed.missed, mixed.scores[:, 0], mixed.members, strict=True):
        if missed:
            counter.miss(np.array([member]))
        else:
            counter.fold(np.array([score]), np.array([member]))
    rate = HitRate.from_trials(mixed, 0.95)
    assert (rate.hits, rate.guesses) == (counter.hits, counter.guesses)
    assert HitRate.from_trials(trials(5, 1.0), 0.95) is None
