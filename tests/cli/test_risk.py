"""`dpaudit risk`: what a claim allows, in numbers and words."""

import json
import math

import pytest

from dpaudit_ray.stats import gdp
from tests.command import dpaudit, refused


def test_a_pure_claim_allows_what_a_randomised_response_shows():
    found = json.loads(dpaudit("risk", "--epsilon", "1", "--json").out)["any mechanism"]
    odds = math.exp(1)
    assert found["accuracy"] == pytest.approx(odds / (1 + odds))
    assert found["members"]["0.01"] == pytest.approx(odds * 0.01)
    assert found["beliefs"]["0.01"] == pytest.approx(odds / 99 / (1 + odds / 99))


def test_gaussian_noise_of_the_same_epsilon_allows_less():
    found = json.loads(dpaudit("risk", "--epsilon", "8", "--delta", "1e-5", "--json").out)
    mu = float(gdp.mu(8.0, 1e-5))
    allowed = found["Gaussian noise"]["members"]["0.01"]
    assert allowed == pytest.approx(float(gdp.true_positive_rate(0.01, mu)), rel=0.01)
    assert allowed < found["any mechanism"]["members"]["0.01"]


def test_it_is_said_in_words_and_drawn(tmp_path):
    picture = tmp_path / "risk.png"
    done = dpaudit("risk", "--epsilon", "8", "--delta", "1e-5", "--figure", picture)
    assert done.code == 0, done
    assert "is right in at most 99.97 %" in " ".join(done.out.split())
    assert "no belief is bounded with a chance of δ = 1e-5" in done.out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "takes one of --epsilon, --rho and --mu, got none"),
        (("--epsilon", "1", "--mu", "1"), "got --epsilon, --mu"),
        (("--rho", "-1"), "--rho must be a number above 0, got -1.0"),
        (("--epsilon", "1", "--delta", "1"), "--delta must be below 1, got 1.0"),
    ],
)
def test_what_is_no_claim_is_refused_in_a_line(options, problem):
    assert problem in refused("risk", *options)
