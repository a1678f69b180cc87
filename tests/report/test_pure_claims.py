"""Claims of mechanisms whose trade-off curve is not Gaussian: no ε above them is shown.

All four are exactly (1, 0)-DP as they stand. A twin has twice the ε. Seeds are fixed.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray import accounting
from dpaudit_ray.report import many_audits, page, words
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


def test_bounds_that_assume_another_curve_are_marked_wherever_they_are_listed(tmp_path):
    result = audited(tmp_path, "laplace", estimators=["accuracy", "paper-gdp", "eps-delta"])
    table = result.estimates.set_index("estimator")
    assert (table["epsilon_lower"] > 1).to_dict() == {
        "accuracy": True,
        "paper-gdp": True,
        "eps-delta": False,
    }
    assert table["assumes_other_curve"].equals(table["epsilon_lower"] > 1)
    listed = json.loads(dpaudit("report", result.location, "--format", "json").out)
    assert [row["assumes_other_curve"] for row in listed] == [True, True, False]
    html = Path(page.write(result.run)).read_text()
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', html, re.DOTALL)[1])
    by_step = charts[result.run.plan.audits[0].id][0]
    labels = [series["name"] for series in by_step["series"]]
    assert html.count(f"{words.OTHER_CURVE}.") == 2, "below the table, and how to read it"
    for name, epsilon in table["epsilon_lower"].items():
        mark = " *" if epsilon > 1 else ""
        assert f'<td class="n">{epsilon:.4f}{mark}</td>' in html
        (label,) = [label for label in labels if label.startswith(name)]
        assert label.startswith(f"{name}* (" if mark else f"{name} (")
    content = many_audits.numbers(result.run, 0, result.answer.audits[0])
    assert [entry[3] for entry in content["estimates"]] == ["*", "*", ""]


def test_details_mark_a_bound_that_assumes_another_curve(tmp_path):
    """Here it is below the claim, so that it stands for the audit."""
    result = audited(tmp_path, "laplace", trials=60, accountants=["gaussian"])
    out = dpaudit("status", result.location, "--details").out
    assert f"{result.overview['epsilon_lower'].iloc[0]:.3f} *" in out
    assert words.OTHER_CURVE in " ".join(out.split())


def is_marked(text: str) -> bool:
    return "above the claim" in text or "above its claim" in text or "! " in text


@pytest.mark.parametrize("function", ["laplace", "response", "exponential", "clipped"])
def test_twins_of_twice_the_loss_are_not_consistent(function, tmp_path):
    result = audited(tmp_path, function, epsilon=2.0)
    assert result.answer.verdict is Verdict.VIOLATION
    assert result.answer.quote.assumes == "assumption-free"
    assert result.answer.quote.above
    assert "the claim is refuted after" in result.answer.sentence


def test_a_claim_stated_as_gaussian_releases_is_refuted_by_its_curve_only(tmp_path):
    """The claimed curve is wrong at small ε; the ε that is quoted holds for any curve."""
    result = audited(tmp_path, "laplace", accountants=["gaussian"])
    quote = result.answer.quote
    assert result.answer.verdict is Verdict.VIOLATION
    assert quote.assumes == "assumption-free"
    assert quote.epsilon <= 1.0
    sentence = result.answer.sentence
    assert "as Gaussian releases, the claim is refuted (its ε = 1 at δ = 1e-5" in sentence
    assert any("`mechanism.claim: {epsilon: 1" in hint for hint in result.answer.help)


def test_a_live_bound_and_a_stop_do_not_compare_a_gaussian_curve(tmp_path):
    stop = {"estimators": ["anytime"], "stop_when": {"within": 0.05}}
    result = audited(tmp_path, "laplace", **stop)
    assert result.complete
    assert result.overview["used"].iloc[0] == TRIALS, "no assumption-free bound comes so near"
