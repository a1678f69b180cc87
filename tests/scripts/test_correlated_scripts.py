"""Verdicts on loops that state how their noise is correlated, inspected once each."""

from pathlib import Path

import pytest

from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.scripts.script_audit import Audit, Options
from dpaudit_ray.scripts.script_runs import LocalRunner, Target
from tests.long import LONG

FOLDER = Path(__file__).parent
QUICK = ("main", "resumed")  # each takes some seconds; `make long` has all of them
TWINS = {
    "closer": {"sampling"},
    "resumed": {"correlation of steps"},
    "inverse": {"correlation of steps"},
    "one_epoch": {"noise"},
    "reused": {"correlation of steps"},
}


def inspected(function):
    if not LONG and function not in QUICK:
        pytest.skip("another loop of the kind; set DPAUDIT_LONG=1")
    file = FOLDER / "correlated_twins.py"
    if function == "main":
        file = FOLDER.parents[1] / "jobs/frameworks/torch_correlated_noise.py"
    target = Target(file, function)
    return Audit(
        target, LocalRunner(target), Options(300.0, (0,), seed=1), lambda _: None
    ).verdict()


@pytest.mark.parametrize("function", ["main", "identity", "blt", "all_bands"])
def test_healthy_loops_are_consistent(function):
    """A false alarm in 5 % of audits at most; the seed is fixed."""
    verdict = inspected(function)
    assert verdict.verdict is Verdict.CONSISTENT
    assert not verdict.findings


@pytest.mark.parametrize("function", TWINS)
def test_broken_loops_are_found(function):
    verdict = inspected(function)
    assert verdict.verdict is Verdict.VIOLATION
    assert TWINS[function] <= {finding.look for finding in verdict.findings}
