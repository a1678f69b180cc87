"""What an audit's scores tell of membership: in Python, on the page, in `status --json`."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray.plan.score_stream import Trials
from dpaudit_ray.report.membership_rates import Reading, matrix
from dpaudit_ray.report.tables import Run
from dpaudit_ray.stats import gdp
from dpaudit_ray.stats.curve import gaussian
from dpaudit_ray.stats.membership import Membership
from tests.command import completed, dpaudit
from tests.report.handed import DP_SGD, played, sweep


class Together:
    """An audit whose training runs have 60 canaries."""

    together = 60


def test_python_status_and_page_say_what_scores_show_beside_the_claim(tmp_path):
    audit = {"trials": 1000, "delta": 1e-5, "estimators": ["accuracy"], "accountants": ["gaussian"]}
    raw = sweep(mechanism=DP_SGD, adversary="loss", audit=audit, grid={})
    location = played(raw | {"resources": {"pack_size": 500}}, tmp_path, 10)
    rows = da.open(location).membership
    assert rows["fpr"].tolist() == [0.1, 0.01]  # 1000 trials resolve no less
    assert ((rows["tpr_low"] <= rows["tpr"]) & (rows["tpr"] <= rows["tpr_high"])).all()
    allowed = [float(gdp.true_positive_rate(rate, 6**0.5 / 2)) for rate in (0.1, 0.01)]
    assert rows["claim"].tolist() == pytest.approx(allowed, rel=0.01)
    reading = Reading.of_audit(Run.open(str(location)), 0)
    shown = json.loads(dpaudit("status", location, "--json").out)["membership"]
    assert shown == {reading.id: json.loads(json.dumps(reading.entry))}
    page = Path(dpaudit("report", location).out.strip()).read_text()
    assert all(sentence in page for sentence in reading.sentences)
    assert "Members found by the scores of up to six audits" in page
    assert (location / "figures/membership.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("trainings", [1, 2, 3])
def test_few_training_runs_have_a_report_and_a_status(tmp_path, trainings):
    """No threshold can be fitted to other training runs if there are none."""
    audit = {"trials": 60 * trainings, "delta": 1e-5, "estimators": ["order-statistics"]}
    adversary = {"name": "one-run", "canaries": 60, "kind": "dirac"}
    raw = sweep(mechanism=DP_SGD | {"model": "mlp3"}, adversary=adversary, audit=audit, grid={})
    location = played(raw | {"resources": {"pack_size": 60}}, tmp_path, trainings)
    page = Path(completed(dpaudit("report", location)).out.strip()).read_text()
    status = completed(dpaudit("status", location, "--json")).out
    assert "NaN" not in status
    (entry,) = json.loads(status)["membership"].values()
    assert entry["trainings"] == trainings
    accuracy = entry["balanced_accuracy"]
    if trainings == 1:
        assert accuracy == {"value": None, "low": 0.0, "high": 1.0}
        assert "balanced accuracy unknown" in page
    else:
        assert 0 <= accuracy["low"] <= accuracy["value"] <= accuracy["high"] <= 1


@pytest.mark.parametrize("shape", [(1, 40), (2, 20), (3, 20), (25,), (25, 1)])
@pytest.mark.parametrize("value", [None, 0.0, np.nan, np.inf])
def test_the_smallest_readings_have_all_their_forms(shape, value):
    """Few training runs, one record, and scores that are all equal or not finite."""
    members = np.arange(np.prod(shape)).reshape(shape) % 2 == 0
    scores = np.random.default_rng(0).normal(size=shape)
    if value is not None:
        scores = np.full(shape, value)
    reading = Reading("id", "label", Membership(scores, members), gaussian(1.0))
    sentences = list(reading.sentences)
    assert len(sentences) == len(reading.entry["points"]) + 2
    assert not any("nan" in sentence for sentence in sentences)
    curves = reading.curves
    assert set(curves["series"]) == {"label", "claim: label"}
    band = curves[curves["series"] == "label"]
    assert ((band["low"] <= band["y"]) & (band["y"] <= band["high"])).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.0])
@pytest.mark.parametrize("trials", [1, 30, 60, 90])
def test_a_matrix_has_complete_training_runs_and_finite_scores(value, trials):
    """60 trials are a training run; one that is not complete counts if it is alone."""
    members = np.arange(trials) % 2 == 0
    no_trial = np.zeros(trials, dtype=bool)
    last = Trials((1,), members, np.full((trials, 1), value), no_trial, {})
    scores, bits = matrix(Together(), last)
    assert scores.shape == bits.shape == (1, min(trials, 60))
    assert len(set(scores.ravel())) == 1
    assert np.isfinite(scores).all()


def test_one_world_alone_has_no_reading(tmp_path):
    run = Run.open(str(played(sweep(), tmp_path, 6)))
    trials = Trials.joined(run.plan.audits[0], run.finished_prefix(run.plan.audits[0]))
    for inside in (True, False):
        alone = dataclasses.replace(trials, members=np.full_like(trials.members, inside))
        assert Reading.of_audit(run, 0, alone) is None
    assert Reading.of_audit(run, 0, trials.part(slice(1))) is None


def test_too_few_trials_tell_nothing(tmp_path):
    run = Run.open(str(played(sweep(), tmp_path, 6)))
    trials = Trials.joined(run.plan.audits[0], run.finished_prefix(run.plan.audits[0]))
    assert Reading.of_audit(run, 0, trials) is not None
    few = np.arange(len(trials.members)) < 19
    assert Reading.of_audit(run, 0, dataclasses.replace(trials, missed=~few)) is None
