"""What real runs of small scripts record."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from dpaudit_ray.isolation import Limits, Sandbox
from dpaudit_ray.scripts import checks, script_runs
from dpaudit_ray.scripts.checks import Inspection, PinnedRun, PinnedRuns
from dpaudit_ray.scripts.checks.pinned_releases import PinnedReleases
from dpaudit_ray.scripts.protocol import (
    ForwardInspection,
    Made,
    PinnedStep,
    RunRequest,
    StepInspection,
    entries_of,
)
from dpaudit_ray.scripts.script_runs import EndedRun, Target
from tests.scripts.conftest import ZOO

pytestmark = pytest.mark.slow

HEAD = """
import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_release

def private(engine=None, **options):
    x = torch.randn(200, 4)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    model = nn.Linear(4, 2)
    engine = engine or PrivacyEngine()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = options.pop("loader", lambda data: DataLoader(data, batch_size=20))(data)
    return engine, *engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader,
        noise_multiplier=1.0, max_grad_norm=1.0, **options)

def loss(model, x, y):
    return nn.functional.cross_entropy(model(x), y)

@audited(delta=1e-5)
def main():
"""


def run(warm: Sandbox, folder: Path, body: str, **fields: Any) -> EndedRun:
    """Runs a script whose function has these lines."""
    script = folder / f"script_{len(list(folder.iterdir()))}.py"
    lines = [f"    {line}" for line in body.strip().splitlines()]
    script.write_text(HEAD + "\n".join(lines) + "\n")
    request = RunRequest(seed=3, **fields)
    ended = script_runs.run_once(warm, Target(script, "main"), request, Limits(1800.0), 1)
    assert ended.result is not None, ended.ended
    return ended


RAW_UPDATE = """
engine, model, optimizer, loader = private()
for x, y in loader:
    optimizer.zero_grad()
    loss(model, x, y).backward()
    raw = [p.grad.clone() for p in model.parameters()]
    if optimizer.pre_step():
        for p, gradient in zip(model.parameters(), raw):
            p.grad = gradient
        optimizer.original_optimizer.step()
"""


@pytest.mark.parametrize("puts_back", [True, False])
def test_what_reaches_the_parameters_after_a_pinned_release(warm, tmp_path, puts_back):
    body = RAW_UPDATE if puts_back else RAW_UPDATE.replace("p.grad = gradient", "pass")
    alone = run(warm, tmp_path, body, pinned="unchanged", most_steps=3)
    record = alone.result.chosen
    exchanged = run(warm, tmp_path, body, pinned="exchanged", record=record, most_steps=3)
    first, second = (entries_of(r.record, PinnedStep) for r in (alone, exchanged))
    members = [n for n, step in enumerate(second) if step.member]
    assert members
    n = members[0]
    assert first[n].release != second[n].release
    assert (first[n].update != second[n].update) == puts_back


def test_virtual_steps_use_the_draws_that_they_add_up(warm, tmp_path):
    body = """
engine, model, optimizer, loader = private()
for number, (x, y) in enumerate(loader):
    optimizer.signal_skip_step(do_skip=number % 2 == 0)
    loss(model, x, y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    result = run(warm, tmp_path, body, inspects=True).result
    assert result.steps == (5,)
    assert len(result.draws[0].sizes) == 5, "two draws make one of a higher rate"
    assert (result.unused, result.uneven) == ((), ())
    digests = list(result.sources.values())
    written = [hashlib.sha256(file.read_bytes()).hexdigest() for file in tmp_path.glob("*.py")]
    assert set(digests) <= set(written)
    assert digests
    assert {"python", "torch", "opacus"} <= set(result.versions)


@pytest.mark.parametrize("records", [1, 4])
def test_passes_under_vmap_tell_how_many_records_a_gradient_is_of(warm, tmp_path, records):
    body = f"""
from torch.func import functional_call, grad, vmap
engine, model, optimizer, loader = private(grad_sample_mode="no_op")
network = model._module
def each(params, x, y):
    out = functional_call(network, params, (x.reshape(-1, 4),))
    return nn.functional.cross_entropy(out, y.reshape(-1))
for x, y in loader:
    count = len(x) // {records} * {records}
    x, y = x[:count].view(-1, {records}, 4), y[:count].view(-1, {records})
    params = {{name: p.detach() for name, p in network.named_parameters()}}
    gradients = vmap(grad(each), in_dims=(None, 0, 0))(params, x, y)
    optimizer.zero_grad()
    for name, p in network.named_parameters():
        p.grad_sample = gradients[name]
    optimizer.step()
"""
    ended = run(warm, tmp_path, body, inspects=True, most_steps=3)
    assert {entry.inconclusive for entry in entries_of(ended.record, ForwardInspection)} == {""}
    assert {step.records_each for step in ended.result.uneven} == ({records} - {1})


def test_steps_with_a_generator_of_the_script_repeat(warm, tmp_path):
    body = """
rng = np.random.default_rng()
@audited_release(records=["x"], noise_multiplier=1.0, max_grad_norm=1.0, of=200)
def noisy(x):
    rows = x / np.maximum(1, np.linalg.norm(x, axis=1))[:, None]
    return rows.sum(0) + rng.normal(size=4)
x = np.random.normal(size=(200, 4))
for _ in range(12):
    noisy(x[rng.random(200) < 0.5])
"""
    ended = run(warm, tmp_path, body, inspects=True)
    steps = entries_of(ended.record, StepInspection)
    assert [step.replays for step in steps] == [True] * 12
    assert ended.result.claims[0].history == ((1.0, 1.0, 12),)


TRAIN = """
for x, y in loader:
    optimizer.zero_grad()
    loss(model, x, y).backward()
    optimizer.step()
"""


def test_what_a_script_asks_of_accountants_and_loses_is_recorded(warm, tmp_path):
    body = f"""
def weighted(data):
    return DataLoader(data, 20, sampler=WeightedRandomSampler([1.0] * 200, 200))
engine, model, optimizer, loader = private(PrivacyEngine(accountant="gdp"), loader=weighted)
{TRAIN}
engine.accountant.get_epsilon(delta=1e-5)
state = engine.accountant.state_dict()
other, model, optimizer, loader = private(PrivacyEngine(accountant="gdp"))
other.accountant.load_state_dict(state)
{TRAIN}
other.get_epsilon(1e-6)
"""
    ended = run(warm, tmp_path, body, inspects=True)
    reports = [(r.delta, r.steps, r.claim) for r in ended.result.reported]
    assert reports == [(1e-5, 10, 0), (1e-6, 20, 1)]
    first, second = ended.result.claims
    assert second.loaded == first.history == ((1.0, 0.1, 10),)
    assert (first.data, second.data) == (0, 1)  # other random records
    samplers = [made.replaced_sampler for made in entries_of(ended.record, Made)]
    assert samplers == ["WeightedRandomSampler", ""]


def findings(warm: Sandbox, script: str, function: str) -> list[str]:
    """Returns the checks that find something in the first pinned steps of a script of the zoo."""
    runs: dict[str, PinnedRun] = {}
    for kind in ("unchanged", "exchanged", "other_noise", "other_randomness"):
        record = runs["unchanged"].result.chosen if runs else None
        request = RunRequest(seed=3, pinned=kind, record=record, most_steps=4)
        target = Target(ZOO / f"{script}.py", function)
        ended = script_runs.run_once(warm, target, request, Limits(1800.0), 1)
        assert ended.result is not None, ended.ended
        runs[kind] = PinnedRun.from_record(ended.result, ended.record)
        if kind == "exchanged" and not checks.differences(runs["unchanged"], runs[kind]):
            break
    result = runs["unchanged"].result
    inspection = Inspection(record=[], result=result, delta=1e-5, pinned=PinnedRuns(**runs))
    return [finding.look for finding in PinnedReleases().judge(inspection).findings]


@pytest.mark.parametrize(
    ("script", "function", "expected"),
    [
        ("healthy", "mlp", []),
        ("raw_momentum", "healthy", []),  # of what was released: noise changes it, too
        ("raw_momentum", "main", ["state"]),
        ("batches", "mixed", ["records apart"]),
    ],
)
def test_what_the_first_pinned_steps_of_a_script_show(warm, script, function, expected):
    assert findings(warm, script, function) == expected
