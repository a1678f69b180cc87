"""Numbers of ε have significant digits at every size."""

import pytest

from dpaudit_ray.report import page, words
from dpaudit_ray.report.quote import Quote, claimed, epsilon_text
from dpaudit_ray.sweep.cell import CANARY
from dpaudit_ray.sweep.grid import LABEL_SEPARATOR


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [(0.0, "0"), (1e-4, "1.0e-4"), (0.00456, "4.6e-3"), (0.01, "0.010"), (4.331, "4.331"),
     (12345.6, "12,345.600")],
)  # fmt: skip
def test_an_epsilon_has_significant_digits(epsilon, text):
    assert epsilon_text(epsilon) == text
    assert claimed(epsilon) == text


def test_digits_of_small_numbers_over_canaries():
    labels = [f"loss{LABEL_SEPARATOR}{CANARY}{canary}" for canary in range(3)]
    quotes = [
        Quote(label, epsilon, 1e-5, 0.95, "", 1.0, "gaussian", "accuracy", 1, together=True)
        for label, epsilon in zip(labels, (1e-4, 2e-4, 3e-4), strict=True)
    ]
    (line,) = words.over_canaries(quotes)
    assert "ε ≥ 1.0e-4 to 3.0e-4" in line
    assert "is 2.0e-4 ± 2.5e-4" in line


@pytest.mark.parametrize(("value", "shown"), [(1e-4, "1.0e-4"), (0.25, "0.250"), (0.0, "0")])
def test_digits_of_small_numbers_on_the_page(value, shown):
    source = "{% from 'macros.html.j2' import number %}{{ number(value) }}"
    assert page.environment().from_string(source).render(value=value) == shown


def test_a_claim_of_everything_is_named():
    assert claimed(float("inf")) == "nothing"
