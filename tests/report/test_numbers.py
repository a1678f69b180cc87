"""Numbers of ε have significant digits at every size."""

import pytest

from dpaudit_ray.report.quote import claimed, epsilon_text


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [(0.0, "0"), (1e-4, "1.0e-4"), (0.00456, "4.6e-3"), (0.01, "0.010"), (4.331, "4.331"),
     (12345.6, "12,345.600")],
)  # fmt: skip
def test_an_epsilon_has_significant_digits(epsilon, text):
    assert epsilon_text(epsilon) == text
    assert claimed(epsilon) == text


def test_a_claim_of_everything_is_named():
    assert claimed(float("inf")) == "nothing"
