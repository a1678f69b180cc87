"""Claims by events of the real dp_accounting: composed, weakened, sampled, audited."""

import math

import pytest
from dp_accounting import dp_event as dp
from scipy.special import ndtr

from dpaudit_ray.accounting import Claim
from dpaudit_ray.accounting.claim import from_fields
from dpaudit_ray.errors import SpecError
from dpaudit_ray.stats import gdp
from tests.command import completed, dpaudit, inline, refused, write_sweep

HERE = "tests.accounting.test_event_claims"
GAUSSIAN = dp.GaussianDpEvent(2.0)
TWICE = dp.ComposedDpEvent([dp.GaussianDpEvent(2.0), dp.SelfComposedDpEvent(GAUSSIAN, 3)])
LAPLACE = dp.LaplaceDpEvent(1.0)
SEVERAL_LAPLACE = dp.SelfComposedDpEvent(dp.LaplaceDpEvent(4.0), 4)
SAMPLED = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0))
WHOLE = dp.DiscreteLaplaceDpEvent(1.0, 1)
ANSWER = dp.RandomizedResponseDpEvent(0.5, 2)
SECRET = dp.ZCDpEvent(0.1)


def event(name, **fields):
    return Claim(event=f"{HERE}:{name}", **fields)


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("GAUSSIAN", Claim(mu=0.5)),
        ("TWICE", Claim(mu=1.0)),
        ("LAPLACE", Claim(laplace=1.0)),
        ("SEVERAL_LAPLACE", Claim(laplace=4.0, releases=4)),
        ("WHOLE", Claim(epsilon=1.0)),
    ],
)
def test_an_event_claims_what_its_releases_do(name, same):
    for epsilon in (0.0, 0.3, 0.8):
        assert event(name).delta_at(epsilon) == pytest.approx(same.delta_at(epsilon), abs=1e-3)
    for delta in (1e-5, 1e-2):
        assert event(name).epsilon_at(delta) == pytest.approx(same.epsilon_at(delta), abs=2e-2)


@pytest.mark.parametrize("name", ["GAUSSIAN", "TWICE"])
def test_an_event_with_less_noise_is_that_event_of_less_noise(name):
    mu = {"GAUSSIAN": 0.5, "TWICE": 1.0}[name] / 0.7
    for epsilon in (0.0, 0.5, 2.0):
        assert event(name).weakened(0.7).delta_at(epsilon) == pytest.approx(
            float(gdp.delta(epsilon, mu)), abs=1e-5
        )


@pytest.mark.parametrize("name", ["LAPLACE", "SEVERAL_LAPLACE", "SAMPLED", "WHOLE"])
def test_less_noise_claims_less(name):
    assert event(name).weakened(0.7).delta_at(0.1) > event(name).delta_at(0.1)


def test_a_replaced_record_and_a_random_answer():
    assert event("GAUSSIAN", adjacency="replace").delta_at(0.5) == pytest.approx(
        float(gdp.delta(0.5, 1.0)), abs=1e-5
    )
    answer = event("ANSWER", adjacency="replace")
    assert answer.epsilon_at(1e-9) == pytest.approx(math.log(3), abs=1e-3)
    assert answer.weakened(0.7).epsilon_at(1e-9) > math.log(3)


def test_a_sampled_release_claims_the_delta_of_its_mixture():
    rate, epsilon = 0.1, 0.5
    end = 0.5 + math.log((math.exp(epsilon) - 1 + rate) / rate)  # where the loss is ε
    with_record = (1 - rate) * ndtr(-end) + rate * ndtr(1 - end)
    exact = with_record - math.exp(epsilon) * ndtr(-end)
    assert event("SAMPLED").delta_at(epsilon) == pytest.approx(exact, rel=1e-3)


def test_it_is_read_as_it_was_stored():
    claim = event("GAUSSIAN", unit="user").weakened(0.7)
    assert from_fields(claim.as_fields()) == claim
    assert claim.words == f"the event {HERE}:GAUSSIAN with 0.7 times its noise"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("HERE", "but must be a DpEvent"),
        ("MISSING", "cannot import"),
        ("SECRET", "has no loss distribution: Unsupported event"),
        ("ANSWER", "has no loss distribution: .*REPLACE_ONE"),
    ],
)
def test_what_is_no_event_is_refused(name, problem):
    with pytest.raises(SpecError, match=problem):
        event(name).delta_at(1.0)


def test_a_name_that_cannot_be_one_is_refused():
    for name in ("no name", 3):
        with pytest.raises(ValueError, match="event must be module:name"):
            from_fields({"event": name})


def count(data, rng, n, scale=1.0):
    """Releases n counts of a record or none, each with its own noise."""
    return data + rng.laplace(0.0, scale, n)


def pairs():
    return [(0.0, 1.0)]


def sweep(name, event="LAPLACE", scale=1.0):
    return {
        "name": name,
        "seed": 3,
        "mechanism": {
            "name": "release",
            "path": f"{HERE}:count",
            "pairs": f"{HERE}:pairs",
            "claim": {"event": f"{HERE}:{event}"},
            "options": {"scale": scale},
        },
        "adversary": {"name": "learned", "fit": 20_000},
        "audit": {"trials": 20_000, "delta": 1e-6},
    }


def test_a_release_is_audited_against_an_event(tmp_path):
    """At another seed a healthy release is called a VIOLATION in at most 5 % of runs."""
    healthy = inline(write_sweep(tmp_path, sweep("healthy")), tmp_path / "runs")
    assert completed(healthy).out.count("CONSISTENT: no violation found") == 1, healthy.out
    run = tmp_path / "runs" / "healthy"
    assert dpaudit("check", run, "--trust", "tests").code == 0
    assert dpaudit("status", run).code == 0, "what is only read needs no code"
    assert "--trust" in refused("verify", run)

    broken = inline(write_sweep(tmp_path, sweep("broken", scale=0.6)), tmp_path / "runs")
    assert "VIOLATION" in broken.out
    assert f"where the event {HERE}:LAPLACE is claimed" in " ".join(broken.out.split())


def test_a_run_with_another_event_is_refused(tmp_path):
    claimed = sweep("unsupported", event="SECRET")
    assert "has no loss distribution" in refused(
        "run", write_sweep(tmp_path, claimed), "--executor", "inline", "-o", tmp_path
    )
