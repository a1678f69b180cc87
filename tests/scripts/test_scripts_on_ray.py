"""A script's runs as tasks of a real Ray cluster."""

import pytest

from dpaudit_ray.orchestration import ray_executor
from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.scripts import canary_trials
from dpaudit_ray.scripts.script_audit import Audit, Options
from dpaudit_ray.scripts.script_runs import RayRunner, Target
from tests.scripts.test_script_audit import HEAD

pytestmark = pytest.mark.cluster

SCRIPT = """
import beside

def main():
    return train(beside.SHARE, promised=1.0)
"""


def test_layers_are_run_on_a_cluster(tmp_path, shared_head, monkeypatch):
    """With what lies beside the script. Coins are seeded; a false alarm would come once in 33."""
    (tmp_path / "train.py").write_text(HEAD + SCRIPT)
    (tmp_path / "beside.py").write_text("SHARE = 1.0\n")
    target = Target(tmp_path / "train.py", "main", 1e-5)
    monkeypatch.setattr(canary_trials, "steps_needed", lambda noise: 40)  # of one run
    told: list[str] = []
    with ray_executor.connected(shared_head.gcs) as ray:
        runner = RayRunner(ray, target)
        options = Options(budget=60, layers=(0, 1), seed=3)
        found = Audit(target, runner, options, told.append).verdict()
    assert found.verdict is not Verdict.VIOLATION, found.findings
    assert found.step_trials >= 20
    assert runner.width >= 1
    assert any("testing steps: " in line for line in told)
