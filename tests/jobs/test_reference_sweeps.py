"""The sweeps of reference models, what attacks find in them, and the same models one by one."""

import numpy as np
import pytest

from jobs.membership import attacks, one_by_one
from tests.jobs.small import JOBS, names, noise_images, run_small


@pytest.mark.parametrize("name", names("membership"))
def test_every_sweep_file_runs_and_plain_torch_ends_where_it_does(
    name, tmp_path, capsys, monkeypatch
):
    """On noise, with less of everything."""
    file, data = JOBS / f"membership/{name}.yaml", noise_images(tmp_path, (40, 32, 32, 3), 4)
    if name == "location30":
        x = np.random.default_rng(0).integers(2, size=(40, 70), dtype=np.uint8)
        np.savez(data, x=x, y=np.arange(40) % 4)
    changes = [f"mechanism.data.path={data}", "mechanism.batch_size=8", "mechanism.steps=5"]
    changes += ["adversary.records=40", "adversary.period=5"]
    if name == "cifar10":
        changes.append(f"mechanism.held_out.path={data}")
    run = run_small(file, tmp_path / "runs", *changes, f"audit.trials={44 * 40}")
    attacks.main(run.directory.location, *[str(data)] * (name == "location30"))
    shown = capsys.readouterr().out
    seen = {attack for attack in attacks.ATTACKS if f"| {attack} | 20 | 0." in shown}
    assert {*attacks.ATTACKS} - seen == ({"quantile"} if name == "cifar10" else set())
    for constant, value in {"PACKS": (8,), "ROUNDS": 1, "STEPS": 3}.items():
        monkeypatch.setattr(one_by_one, constant, value)
    one_by_one.main(str(file), *changes)
    without, noisy = capsys.readouterr().out.splitlines()[2:]
    assert float(without.split("|")[-2]) < 1e-4
    assert noisy.startswith("| clip_norm=1.0")
