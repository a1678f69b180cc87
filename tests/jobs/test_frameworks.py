"""The examples of loops without Opacus, looked into once each."""

import importlib.util
from pathlib import Path

import pytest

from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.testing import assert_private

FOLDER = Path(__file__).parents[2] / "jobs/frameworks"


@pytest.mark.parametrize(
    ("script", "needs"),
    [("plain_torch", "torch"), ("jax_loop", "jax"), ("tensorflow_loop", "tensorflow")],
)
def test_an_example_is_looked_into(script, needs):
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    found = assert_private(f"{FOLDER / script}.py:main", budget="5min", layers=(0,))
    assert found.verdict is Verdict.CONSISTENT
    assert not found.findings
    done = {look.name: look.done for look in found.looks}
    assert done["noise and clipping"]
    assert done["sampling"]
