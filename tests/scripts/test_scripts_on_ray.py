"""A script's runs as tasks of a real Ray cluster."""

import pytest

from dpaudit_ray.orchestration import ray_executor
from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.scripts.script_audit import Audit, Options
from dpaudit_ray.scripts.script_runs import RayRunner, Target

pytestmark = pytest.mark.cluster

SCRIPT = """
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import beside


def main():
    x = torch.randn(2000, 20)
    model = nn.Linear(20, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    engine = PrivacyEngine(accountant="rdp")
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, noise_multiplier=1.0, max_grad_norm=1.0,
        data_loader=DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=20),
    )
    optimizer.noise_multiplier *= beside.SHARE
    for inputs, labels in loader:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model
"""


def test_layers_are_run_on_a_cluster(tmp_path, shared_head):
    """With what lies beside the script. Coins are seeded; a false alarm would come once in 33."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("SHARE = 1.0\n")
    target = Target.from_text(f"{tmp_path}/train.py:main", 1e-5)
    assert target is not None
    told: list[str] = []
    with ray_executor.connected(shared_head.gcs) as ray:
        runner = RayRunner(ray, target)
        options = Options(budget=60, layers=(0, 1), seed=3)
        found = Audit(target, runner, options, told.append).verdict()
    assert found.verdict is not Verdict.VIOLATION, found.findings
    assert found.step_trials >= 20
    assert runner.width >= 1
    assert any("L1: a canary in every other step" in line for line in told)
