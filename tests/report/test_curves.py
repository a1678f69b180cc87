"""What the report makes of a run: which audits stand together, and how Gaussian a curve is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray.plan.prefix import Trials
from dpaudit_ray.report import overviews
from dpaudit_ray.report.groups import Panel, panels
from dpaudit_ray.report.profiles import Profile
from dpaudit_ray.report.tables import Run
from dpaudit_ray.report.tradeoff import ObservedTradeOff, gaussian
from dpaudit_ray.stats import error_rates, gdp


def grouped(tiny: dict, folder: Path) -> tuple[Run, list[Panel]]:
    run = Run.open(da.run(tiny, storage_path=str(folder), executor="inline").location)
    return run, panels(run)


def test_repetitions_are_one_line_and_claims_one_panel(tiny: dict, tmp_path: Path) -> None:
    tiny["audit"]["trials"] = 20
    tiny["grid"]["mechanism.noise_multiplier"] = [2.0, 3.0]
    tiny["grid"]["mechanism.seed"] = [0, 4]
    run, found = grouped(tiny, tmp_path)
    assert [panel.title for panel in found] == ["noise_multiplier=2.0", "noise_multiplier=3.0"]
    for panel in found:
        assert [line.label for line in panel.lines] == ["biased-dimension", "loss"]
        assert panel.horizons == (3, 6)
        assert panel.claims == pytest.approx(panel.lines[0].audits[0].claims["gaussian"])
    for line in (line for panel in found for line in panel.lines):
        assert len(line.audits) == 2
        for audit in line.audits:
            rows = run.estimates[run.estimates["audit"] == audit.id].set_index("estimator")
            accuracy = rows.loc["accuracy"].set_index("step")["epsilon_lower"]
            np.testing.assert_array_equal(line.bounds[audit.id], accuracy.loc[[3, 6]])
    assert overviews.amplification_figure(run, found) is None, "the claim grows with the steps"


def test_a_run_that_records_one_step_has_no_evolution(tiny: dict, tmp_path: Path) -> None:
    tiny["audit"] |= {"trials": 10, "record_every": 6}
    _, found = grouped(tiny, tmp_path)
    assert overviews.evolution_figure(found) is None
    assert overviews.bars_figure(found).startswith(b"\x89PNG")


def test_amplification_is_the_last_epsilon_over_the_first(tmp_path: Path) -> None:
    """Landscapes insert the canary once; their grid is noise by batch size."""
    sweep = {
        "name": "landscape",
        "mechanism": {"name": "landscape", "steps": 3, "batch_size": 1, "noise_multiplier": 1.0,
                      "clip_norm": 1.0, "backend": "exact"},
        "adversary": "landscape",
        "audit": {"trials": 1, "delta": 1e-5, "record_every": 1},
        "grid": {"mechanism.noise_multiplier": [2.0, 4.0], "mechanism.batch_size": [1, 4]},
    }  # fmt: skip
    run, found = grouped(sweep, tmp_path)
    assert [panel.title for panel in found] == ["noise_multiplier=2.0", "noise_multiplier=4.0"]
    assert overviews.amplification_figure(run, found) is not None
    exact, read_as_gaussian = (panels(run, name)[0].lines[0] for name in ("exact", "exact-gdp"))
    assert exact.last[0] < read_as_gaussian.last[0]


def test_amplification_averages_repetitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the seeds stand in the grid, a cell is the mean of its own repetitions."""
    sweep = {
        "name": "landscape",
        "mechanism": {"name": "landscape", "steps": 3, "batch_size": 1, "noise_multiplier": 1.0},
        "adversary": "landscape",
        "audit": {"trials": 400, "delta": 1e-5, "record_every": 1},
        "grid": {
            "mechanism.noise_multiplier": [0.5, 1.0],
            "mechanism.seed": [1, 2, 3],
            "mechanism.batch_size": [1, 4],
        },
    }
    run, found = grouped(sweep, tmp_path)
    assert len(run.plan.audits) == 12
    kept = []
    monkeypatch.setattr(overviews, "_kept", lambda line: kept.append(line) or 0.5)
    assert overviews.amplification_figure(run, found) is not None
    cells = dict(zip((audit.id for audit in run.plan.audits), run.sweep.cells, strict=True))
    mechanisms = [[cells[audit.id].mechanism for audit in line.audits] for line in kept]
    assert [{(m.noise_multiplier, m.batch_size) for m in line} for line in mechanisms] == [
        {(0.5, 1)}, {(0.5, 4)}, {(1.0, 1)}, {(1.0, 4)},
    ]  # fmt: skip
    assert all([m.seed for m in line] == [1, 2, 3] for line in mechanisms)


def test_audits_of_one_size_share_their_calibration(tiny: dict, tmp_path: Path) -> None:
    """It takes most of the time where there are thousands of trials; two levels need one each."""
    tiny["grid"]["mechanism.seed"] = [1, 2, 3]
    run, _ = grouped(tiny, tmp_path)
    error_rates.local_level.cache_clear()
    for audit in run.plan.audits:
        trials = Trials.of(audit, run.prefix(audit))
        Profile.of(run, audit, trials.with_errors(), trials.members)
    assert error_rates.local_level.cache_info().misses == 2


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_a_gaussian_pair_fits_a_gaussian_curve(mu: float) -> None:
    """R = 20,000. The gap is a Kolmogorov statistic of two worlds at most: above 2.2/√10,000 in
    about 1 of 4,000 seeds; μ errs by 0.1 in fewer.
    """
    rng = np.random.default_rng(0)
    members = np.arange(20_000) % 2 == 0
    curve = ObservedTradeOff.of(rng.normal(size=20_000) + mu * members, members)
    assert curve.mu == pytest.approx(mu, abs=0.1)
    assert curve.gap < 0.05


def test_randomised_response_does_not_fit() -> None:
    """Right in 9 of 10 trials: the true curve is two lines, 0.1 below which no test comes."""
    rng = np.random.default_rng(0)
    members = np.arange(20_000) % 2 == 0
    told = np.where(rng.random(20_000) < 0.9, members, ~members)
    curve = ObservedTradeOff.of(told + rng.uniform(size=20_000) / 1e3, members)
    assert curve.mu == pytest.approx(float(gdp.mu(0.0, 0.8)), abs=0.1)
    assert curve.gap > 0.04


def test_the_slow_twin_counts_errors_one_by_one() -> None:
    rng = np.random.default_rng(1)
    scores, members = rng.normal(size=30), rng.random(30) < 0.5
    scores[3] = np.nan  # diverged: wrong at every threshold
    curve = ObservedTradeOff.of(scores, members)
    finite = np.sort(scores[np.isfinite(scores)])
    thresholds = [np.inf, *((finite[:-1] + finite[1:]) / 2)[::-1], -np.inf]
    for h, alpha, beta in zip(thresholds, curve.alpha, curve.beta, strict=True):
        wrong_out = sum(not s < h for s, m in zip(scores, members, strict=True) if not m)
        wrong_in = sum(not s >= h for s, m in zip(scores, members, strict=True) if m)
        assert alpha == pytest.approx(wrong_out / (~members).sum())
        assert beta == pytest.approx(wrong_in / members.sum())


def test_g_mu_is_its_own_inverse_and_starts_at_one() -> None:
    rates = np.linspace(0.01, 0.99, 50)
    np.testing.assert_allclose(gaussian(gaussian(rates, 1.3), 1.3), rates, atol=1e-12)
    assert gaussian(0.0, 1.3) == 1.0


def test_worlds_without_trials_have_no_curve() -> None:
    empty = ObservedTradeOff.of(np.ones(3), np.ones(3, dtype=bool))
    assert (len(empty.alpha), empty.mu, empty.gap) == (0, 0.0, 0.0)
