"""Claims of mechanisms whose trade-off curve is not Gaussian: no ε above them is shown.

All four are exactly (1, 0)-DP as they stand. A twin has twice the ε. Seeds are fixed.
"""

import json
import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray import accounting
from dpaudit_ray.report import page
from dpaudit_ray.report.verdict import Verdict
from tests.command import dpaudit
from tests.plan.failing import of_function

HERE = __name__
TRIALS = 2000


class PureDp(accounting.Accountant):
    """A claim of (1, 0)-DP, which all mechanisms with a bounded loss of 1 meet."""

    name: ClassVar[str] = "pure-dp"

    def epsilon(self, training: Any, delta: float) -> float:
        """Returns ε of randomised response at `delta`, the largest of (1, 0)-DP."""
        return math.log(math.e - delta * (1 + math.e))

    def delta(self, training: Any, epsilon: float) -> float:
        """Returns δ of randomised response at `epsilon`."""
        return max(0.0, (math.e - math.exp(epsilon)) / (1 + math.e))


def laplace(member: bool, seed: int, epsilon: float = 1.0) -> float:
    """Returns the rounded log-likelihood ratio of one Laplace release."""
    released = np.random.default_rng(seed).laplace(0.0, 1 / epsilon) + member
    return float(round(abs(released) - abs(released - 1), 9))


def response(member: bool, seed: int, epsilon: float = 1.0) -> float:
    """Returns the bit itself with probability e^ε / (1 + e^ε), the other one otherwise."""
    truthful = np.random.default_rng(seed).random() < 1 / (1 + math.exp(-epsilon))
    return float(member == truthful)


def exponential(member: bool, seed: int, epsilon: float = 1.0) -> float:
    """Returns a choice among three, by utilities that one record moves by one."""
    utilities = np.array([1.0, 0.0, 0.5]) if member else np.array([0.0, 1.0, 0.5])
    weights = np.exp(epsilon * utilities)  # their sum is the same in both worlds
    chosen = np.random.default_rng(seed).choice(3, p=weights / weights.sum())
    return (1.0, 0.0, 0.5)[chosen]


def clipped(member: bool, seed: int, epsilon: float = 1.0) -> float:
    """Returns a Laplace release clipped to [0, 1]: a point mass at both ends."""
    released = np.random.default_rng(seed).laplace(0.0, 1 / epsilon) + member
    return float(np.clip(released, 0.0, 1.0).round(6))


def audited(folder: Path, function: str, *, epsilon: float = 1.0, **audit: Any) -> da.Result:
    how = {"path": f"{HERE}:{function}", "options": {"epsilon": epsilon}, "isolated": False}
    audit = {"trials": TRIALS, "accountants": [f"{HERE}:PureDp"], **audit}
    raw = of_function(function, audit, TRIALS, **how, noise_multiplier=3.73)
    raw["mechanism"]["steps"] = 1
    return da.run(raw, str(folder), "inline")


@pytest.mark.parametrize("function", ["laplace", "response", "exponential", "clipped"])
def test_no_output_shows_more_than_a_true_claim(function, tmp_path):
    result = audited(tmp_path, function)
    answer = result.answer
    assert answer.verdict is not Verdict.VIOLATION
    assert not answer.quote.above
    assert "above" not in answer.sentence
    assert not any("above its claim" in line for line in answer.help)
    assert not result.estimates["above_claim"].any()
    (entry,) = json.loads(dpaudit("status", result.location, "--json").out)["audits"]
    assert entry["epsilon_lower"] <= entry["epsilon_upper"]
    assert not entry["above_claim"]
    row = result.overview.iloc[0]
    assert row["quote"] <= 1.0
    assert row["ratio"] <= 1.0
    for text in (Path(page.write(result.run)).read_text(), result._repr_html_()):
        assert answer.sentence in " ".join(text.split())
        assert 'class="tag above"' not in text
    assert not is_marked(dpaudit("report", result.location, "--format", "table").out)
    assert not is_marked(dpaudit("verify", result.location).out)


def is_marked(text: str) -> bool:
    return "above the claim" in text or "above its claim" in text or "! " in text


@pytest.mark.parametrize("function", ["laplace", "response", "exponential", "clipped"])
def test_twins_of_twice_the_loss_are_not_consistent(function, tmp_path):
    result = audited(tmp_path, function, epsilon=2.0)
    assert result.answer.verdict is Verdict.VIOLATION
    assert result.answer.quote.assumes == "assumption-free"


def test_a_claim_stated_as_gaussian_releases_is_refuted_by_its_curve_only(tmp_path):
    """The claimed curve is wrong at small ε; the ε that is quoted holds for any curve."""
    result = audited(tmp_path, "laplace", accountants=["gaussian"])
    quote = result.answer.quote
    assert result.answer.verdict is Verdict.VIOLATION
    assert quote.assumes == "assumption-free"
    assert quote.epsilon <= 1.0


def test_a_live_bound_and_a_stop_do_not_compare_a_gaussian_curve(tmp_path):
    stop = {"estimators": ["anytime"], "stop_when": {"within": 0.05}}
    result = audited(tmp_path, "laplace", **stop)
    assert result.complete
    assert result.overview["used"].iloc[0] == TRIALS, "no assumption-free bound comes so near"
