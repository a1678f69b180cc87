"""What an audit's scores tell of membership: in Python, on the page, in `status --json`."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray.plan.score_stream import Trials
from dpaudit_ray.report.membership_rates import Reading
from dpaudit_ray.report.tables import Run
from dpaudit_ray.stats import gdp
from tests.command import dpaudit
from tests.report.handed import DP_SGD, played, sweep


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
    assert "Members that the scores of the first six audits find" in page
    assert (location / "figures/membership.png").read_bytes().startswith(b"\x89PNG")


def test_too_few_trials_tell_nothing(tmp_path):
    run = Run.open(str(played(sweep(), tmp_path, 6)))
    trials = Trials.joined(run.plan.audits[0], run.prefix(run.plan.audits[0]))
    assert Reading.of_audit(run, 0, trials) is not None
    few = np.arange(len(trials.members)) < 19
    assert Reading.of_audit(run, 0, dataclasses.replace(trials, missed=~few)) is None
