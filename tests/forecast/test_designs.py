"""Designs that a budget pays for: one training, many, or something in between."""

import pytest

from dpaudit_ray.errors import SpecError
from dpaudit_ray.forecast import designs
from dpaudit_ray.forecast.designs import Design
from tests.command import changed, dpaudit, refused, write_sweep

LEVEL = (1e-5, 0.95)


def test_designs_are_worth_what_theory_says():
    """At ε = 4: 300 trainings of 16 canaries beat 300 of one, and one of 5000 costs 300 times less.

    Expected of ideal canaries: f-DP 2.6 of one training of 5000; betting 3.5 and 3.7 of 300 of 16
    and of 64; 2.2 to 2.4 of 300 of one by `accuracy`.
    """
    found = designs.affordable(4.0, LEVEL, 1.0, 300.0)
    shown = {(one.trainings, one.canaries): one for one in found}
    assert shown[1, 5000].method == "one-run-fdp"
    assert shown[1, 5000].epsilon == pytest.approx(2.6, abs=0.3)
    assert shown[300, 16].method == shown[300, 64].method == "several-canaries"
    assert shown[300, 16].epsilon == pytest.approx(3.54, abs=0.25)
    assert shown[300, 64].epsilon == pytest.approx(3.71, abs=0.2)
    assert shown[300, 1].method == "accuracy"
    assert shown[300, 1].epsilon == pytest.approx(2.3, abs=0.4)
    assert all(one.seconds == one.trainings <= 300 for one in found)
    assert designs.recommended(found) == shown[300, 64]


def test_a_budget_of_one_training_is_spent_on_canaries():
    found = designs.affordable(4.0, LEVEL, 60.0, 100.0)
    assert {one.trainings for one in found} == {1}
    best = designs.recommended(found)
    assert best is not None
    assert (best.canaries, best.seconds) == (5000, 60.0)


def test_nothing_is_recommended_that_shows_nothing():
    assert designs.affordable(4.0, LEVEL, 60.0, 59.0) == []
    assert designs.recommended([]) is None
    assert designs.recommended([Design(1, 100, "one-run", 0.0, 1.0)]) is None


def test_of_what_shows_about_the_same_the_cheapest_is_recommended():
    cheap, dear = Design(10, 64, "m", 3.95, 10.0), Design(900, 1, "m", 4.0, 900.0)
    assert designs.recommended([dear, cheap]) == cheap
    assert designs.recommended([dear, Design(10, 64, "m", 3.9, 10.0)]) == dear


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10min", 600), ("1.5h", 5400), ("2 d", 172_800)]
)
def test_budgets_are_times(text, seconds):
    assert designs.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "10", "min", "-3h", "0s", "1e3s", "1h30", "nan h", "9" * 400 + "d"]
)
def test_other_budgets_are_refused(text):
    with pytest.raises(SpecError, match="write a time as 90s, 10min"):
        designs.parse_duration(text)


def test_a_plan_with_a_budget_recommends_a_design(tiny, tmp_path):
    file = write_sweep(tmp_path, changed(tiny, "mechanism.noise_multiplier", 4.0))
    plan = dpaudit("plan", file, "--budget", "20s")
    assert plan.code == 0
    (line,) = [line for line in plan.out.splitlines() if "recommended" in line]
    assert "several-canaries" in line or "accuracy" in line
    assert plan.out.count("designs of at most") == 1  # two audits with one claim
    assert "more than the budget" in dpaudit("plan", file, "--budget", "0.000001s").out
    assert "--budget: is '1 year'" in refused("plan", file, "--budget", "1 year")
