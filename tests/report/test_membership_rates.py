"""What an audit's scores tell of membership: in Python, on the page, in `status --json`."""

import json
from pathlib import Path

import pytest

import dpaudit_ray as da
from dpaudit_ray.report.membership_rates import Reading
from dpaudit_ray.report.tables import Run
from dpaudit_ray.stats import gdp
from tests.command import dpaudit
from tests.report.handed import DP_SGD, played, sweep


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    audit = {"trials": 1000, "delta": 1e-5, "estimators": ["accuracy"], "accountants": ["gaussian"]}
    grid = {"mechanism.noise_multiplier": [2.0, 4.0]}
    raw = sweep("scored", mechanism=DP_SGD, adversary="loss", audit=audit, grid=grid)
    raw["resources"] = {"pack_size": 500}
    return played(raw, tmp_path_factory.mktemp("scored"), 10_000)


def test_every_audit_has_rates_beside_its_claim(location):
    table, run = da.open(location).membership, Run.open(str(location))
    audit = run.plan.audits[0]
    assert set(table["audit"]) == {audit.id for audit in run.plan.audits}
    least = 10 / audit.trials
    rates = [rate for rate in (0.1, 0.01, 0.001) if rate >= least]
    rows = table[table["audit"] == audit.id]
    assert rows["fpr"].tolist() == rates
    assert (rows["tpr_low"] <= rows["tpr"]).all()
    assert (rows["tpr"] <= rows["tpr_high"]).all()
    training = run.sweep.cells[0].mechanism.claimed(
        run.sweep.cells[0].adversary, audit.horizons[-1]
    )
    mu = training.releases**0.5 / training.noise_multiplier
    allowed = [float(gdp.true_positive_rate(rate, mu)) for rate in rates]
    assert rows["claim"].tolist() == pytest.approx(allowed, rel=0.01)


def test_status_and_page_say_the_same(location):
    shown = json.loads(dpaudit("status", location, "--json").out)["membership"]
    run = Run.open(str(location))
    reading = Reading.of_audit(run, 0)
    assert shown[reading.id] == json.loads(json.dumps(reading.entry))
    page = Path(dpaudit("report", location).out.strip()).read_text()
    assert all(sentence in page for sentence in reading.sentences)
    assert "Members found, with simultaneous bands and claims" in page
    assert (location / "figures/membership.png").read_bytes().startswith(b"\x89PNG")


def test_too_few_trials_tell_nothing(tmp_path):
    begun = played(sweep("begun"), tmp_path, 1)
    assert da.open(begun).membership.empty
    assert json.loads(dpaudit("status", begun, "--json").out)["membership"] == {}
