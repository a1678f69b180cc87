"""Estimators and accountants of somebody's own, and claims of sampled trainings, in sweeps."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import special

import dpaudit_ray as da
from dpaudit_ray import accounting, imports, stats
from dpaudit_ray.accounting import Training
from dpaudit_ray.errors import SpecError
from dpaudit_ray.plan import claims
from dpaudit_ray.report import verdict, words
from dpaudit_ray.report.tables import Run, overview
from dpaudit_ray.stats import Status
from dpaudit_ray.stats.threshold_rates import EpsDelta
from dpaudit_ray.sweep import spec
from dpaudit_ray.sweep.cell import Cell
from tests.plan.failing import of_function

HERE = __name__


def train(member: bool, seed: int, noise: float = 1.0, rate: float = 0.2, steps: int = 10) -> float:
    """The likelihood ratio of releases that hold the canary by a coin each."""
    rng = np.random.default_rng(seed)
    seen = noise * rng.normal(size=steps) + member * (rng.random(steps) < rate)
    ratio = (2 * seen - 1) / (2 * noise**2)
    return float(np.logaddexp(math.log1p(-rate), math.log(rate) + ratio).sum())


@dataclasses.dataclass
class Guessed(EpsDelta):
    """Certified where nothing is guessed wrongly."""

    name: ClassVar[str] = "guessed"
    assumes: ClassVar[str] = "nobody looks"


class Base(stats.Estimator):
    """Defines nothing."""


class Loose(accounting.Accountant):
    """Twice the truth."""

    name = "loose"

    def epsilon(self, training: Any, delta: float) -> float:
        return 2 * accounting.epsilon_of(training, delta, "pld").upper

    def delta(self, training: Any, epsilon: float) -> float:
        return accounting.delta_of(training, epsilon / 2, "pld").upper


class Unfinished(accounting.Accountant):
    """Defines nothing."""

    name = "unfinished"


def sampled(**audit: Any) -> dict[str, Any]:
    how = {"path": f"{HERE}:train", "steps": 10, "sample_rate": 0.2, "isolated": False}
    return of_function("sampled", {"trials": 400, "accountants": ["pld"]} | audit, 20, **how) | {
        "seed": 0
    }


def cell(**audit: Any) -> Cell:
    return spec.from_raw(sampled(**audit)).cells[0]


def refused(**audit: Any) -> str:
    with pytest.raises(SpecError) as told:
        cell(**audit)
    return str(told.value)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A sweep with all of these, run to its end."""
    through = {"name": "accuracy", "curve": "claimed"}
    asked = [through, f"{HERE}:Guessed", {"name": "anytime", "curve": "claimed"}, "rank"]
    raw = sampled(estimators=asked, accountants=["pld", f"{HERE}:Loose"])
    folder = str(tmp_path_factory.mktemp("runs"))
    return Run.open(da.run(raw, storage_path=folder, executor="inline").location)


def test_a_sampled_audit_reads_its_hits_through_its_claim(ran):
    rows = ran.estimates[ran.estimates["accountant"] == "pld"].set_index("estimator")
    assert rows["status"].to_dict() == {
        "accuracy": "if-claimed-family",
        f"{HERE}:Guessed": "if-assumed",
        "anytime": "if-claimed-family",
        "rank": "if-gaussian",
    }
    mu = rows.loc["accuracy", "mu_lower"]
    family = accounting.Family(accounting.Training(1.0, 10, 0.2))
    rate = float(special.ndtr(mu / 2))
    assert rows.loc["accuracy", "epsilon_lower"] == family.epsilon(rate - 1e-12, 1e-5)
    assert rows.loc["accuracy", "epsilon_lower"] > stats.gdp.epsilon(mu, 1e-5)
    assert overview(ran)[0]["status"] == "if-claimed-family"
    assert not overview(ran)[0]["above_claim"]


def test_above_its_claim_is_what_refutes_the_claimed_noise(ran):
    """An ε that was read through the claim refutes it; not one of somebody's own."""
    higher = ran.estimates.assign(epsilon_lower_together=100.0)
    marked = dataclasses.replace(ran, estimates=higher).table
    marked = marked[marked["above_claim"]]
    assert set(marked["accountant"]) == {"pld"}
    assert set(marked["estimator"]) == {"accuracy", "anytime"}


def test_claims_of_ones_own_stand_beside_the_others(ran):
    code = json.loads((Path(ran.directory.location) / "plan.json").read_text())["code"]
    assert HERE in json.dumps(code)
    found = ran.plan.audits[0].claims
    assert list(found) == ["pld", f"{HERE}:Loose"]
    assert found[f"{HERE}:Loose"][0] == 2 * found["pld"][0]


def test_what_is_assumed_is_said_in_words(ran):
    assumed = {stats.Status(status).assumes(1.0) for status in ran.estimates["status"]}
    assert assumed == {"assumes Gaussian", "assumes claimed family", "own assumption"}
    assert len(list(words.explained(assumed))) == 3
    said = words.conditions(assumed, ran.sweep.cells)
    assert said == [f"{HERE}:Guessed assumes: nobody looks"]


def test_what_is_not_trusted_is_read_as_it_was_recorded(ran):
    with imports.trusting(imports.Trust.parse(None, reads=True)):
        again = Run.open(ran.directory.location)
        assert overview(again) == overview(ran)
        with pytest.raises(SpecError, match="not trusted"):
            again.sweep.cells[0].audit.estimators[1].make(planned=1)


def test_what_cannot_be_used_is_one_line_with_its_key():
    assert refused(estimators=["no_such:Thing"]).startswith(
        "audit.estimators.0.name: cannot import"
    )
    assert "known: accuracy" in refused(estimators=["nothing"])
    assert refused(estimators=[f"{HERE}:train"]).endswith(
        "not a subclass of dpaudit_ray.stats.base:Estimator"
    )
    assert "does not define _fold, bound" in refused(estimators=[f"{HERE}:Base"])
    assert "unknown key; known: threshold" in refused(
        estimators=[{"name": f"{HERE}:Guessed", "x": 1}]
    )
    assert "family: unknown key" in refused(estimators=[{"name": "accuracy", "family": 1}])
    assert refused(accountants=["no_such:Thing"]).startswith("audit.accountants.0: cannot import")
    assert "unknown accountant 'moments'; known: allocation, gaussian" in refused(
        accountants=["moments"]
    )
    assert "not a subclass of dpaudit_ray.accounting.accountant:Accountant" in refused(
        accountants=[f"{HERE}:train"]
    )
    assert "does not define epsilon" in refused(accountants=[f"{HERE}:Unfinished"])


def test_an_estimator_of_a_subclass_is_found():
    """Those below another estimator were not."""

    @dataclasses.dataclass
    class Below(EpsDelta):
        name: ClassVar[str] = "below"

    assert "below" not in stats.estimators(), "one of somebody's own goes by its import path"
    Below.__module__ = "dpaudit_ray.stats.below"
    assert stats.estimators()["below"] is Below
    Below.__module__ = HERE
    assert "guessed" not in stats.estimators()
    assert stats.make(Guessed, planned=1).bound(1e-5, 0.95).status is Status.IF_ASSUMED


@pytest.mark.parametrize(
    ("asked", "mu"),
    [
        (Training(2.0, 50, 0.1, sampling=accounting.Sampling.SHUFFLE), math.sqrt(5) / 2),
        (Training(2.0, 51, 0.1, sampling=accounting.Sampling.SHUFFLE), math.sqrt(6) / 2),
        (Training(4.0, 9, adjacency=accounting.Adjacency.REPLACE), 1.5),
    ],
)
def test_the_curve_of_a_claim_honours_sampling_and_neighbours(asked, mu):
    found = claims.curves(asked, "gaussian", 1e-5)(asked.noise_multiplier)
    np.testing.assert_allclose(found.deltas, stats.gdp.delta(found.epsilons, mu))
    by_pld = claims.curves(asked, "pld", 1e-5)(asked.noise_multiplier)
    np.testing.assert_allclose(by_pld.deltas, stats.gdp.delta(by_pld.epsilons, mu), rtol=1e-3)
    assert asked.gaussian


def test_a_verdict_says_what_its_claim_takes_for_granted(monkeypatch, tmp_path):
    raw = sampled(trials=40, accountants=["gaussian"])
    raw["mechanism"] |= {"sample_rate": 1.0, "options": {"rate": 0.999}}
    run = Run.open(da.run(raw, storage_path=str(tmp_path), executor="inline").location)
    assert verdict.judge(run).audits[0].remark == ""
    shuffled = Training(1.0, 10, 0.2, sampling=accounting.Sampling.SHUFFLE)
    monkeypatch.setattr(type(run.sweep.cells[0].mechanism), "claimed", lambda *_: shuffled)
    assert verdict.judge(run).audits[0].remark.startswith("no amplification by this sampling")
    said = words.conditions({"Gaussian steps"}, run.sweep.cells)
    assert said[0].startswith("claim by gaussian: no amplification by this sampling")
