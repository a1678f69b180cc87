"""Recorded claims are held against the sweep: true ones pass, edited ones do not."""

import json
from typing import Any

import pytest

from dpaudit_ray.plan import claims
from dpaudit_ray.sweep import spec
from dpaudit_ray.sweep.cell import Cell
from tests.command import dpaudit, inline, refused, write_sweep
from tests.plan.failing import of_function
from tests.plan.test_inputs import write_data
from tests.report.handed import DP_SGD


def cell(name: str, steps: int, noise: float, **more: Any) -> Cell:
    """An audit whose claim is that of `steps` releases, recorded at three of them."""
    more |= {"path": "own:train", "steps": steps, "noise_multiplier": noise}
    return spec.from_raw(of_function("x", {"accountants": [name]}, 10, **more)).cells[0]


def recorded(name: str) -> Cell:
    """One that inserts its canary in every second step of DP-SGD, recorded four times."""
    mechanism = DP_SGD | {"steps": 40, "noise_multiplier": 4.0}
    audit = {"trials": 10, "delta": 1e-5, "record_every": 10, "accountants": [name]}
    adversary = {"name": "loss", "period": 2}
    raw = {"name": "x", "mechanism": mechanism, "adversary": adversary, "audit": audit}
    return spec.from_raw(raw).cells[0]


@pytest.mark.parametrize("name", ["gaussian", "rdp", "pld", "prv"])
def test_claims_are_those_of_the_sweep_and_edited_ones_are_not(name):
    for noise, steps in ((0.5, 10), (40.0, 2)):  # of large and of small claims
        audit = cell(name, steps, noise)
        assert claims.difference(claims.claimed_epsilons(audit), audit) is None
    audit = recorded(name)
    found = claims.claimed_epsilons(audit)
    assert claims.difference(found, audit) is None
    for index in range(4):
        for factor in (0.9, 1.3):
            values = list(found[name])
            values[index] *= factor
            if name == "rdp" and factor > 1 and index < 3:
                continue  # below the last claim it is only known to be no smaller than the exact
            assert claims.difference({name: tuple(values)}, audit) is not None, (index, factor)
    assert claims.difference({name: (float("nan"),) * 4}, audit) is not None
    assert claims.difference({}, audit) == f"accountants are , not {name}"


def test_claims_of_sampled_steps_are_computed_again():
    audit = cell("prv", 20, 1.0, sample_rate=0.1)
    found = claims.claimed_epsilons(audit)
    assert claims.difference(found, audit) is None
    (value,) = found["prv"]
    assert "its claim after step 20 by" in str(claims.difference({"prv": (value * 1.01,)}, audit))


def test_a_sampled_run_is_read_where_its_data_are_not(tiny, tmp_path):
    """How many there are is as it was recorded, and held against the data where they are."""
    data, run = write_data(tmp_path / "mine.npz"), tmp_path / "tiny"
    npz = {"name": "npz", "path": str(data)}
    tiny["mechanism"] |= {"data": npz, "sampling": "poisson", "batch_size": 8}
    tiny["audit"]["accountants"] = ["rdp"]
    assert inline(write_sweep(tmp_path, tiny), tmp_path).code == 0
    views = (("status", run, "--json"), ("report", run, "--format", "csv"), ("verify", run))
    here, moved = [dpaudit(*view) for view in views], data.rename(tmp_path / "moved.npz")
    for view, before in zip(views, here, strict=True):
        away = dpaudit(*view)
        assert (away.code, away.out) == (before.code, before.out)
        assert "are read from plan.json" in away.err
        assert "plan.json" not in before.err
    plan = json.loads((run / "plan.json").read_text())
    assert plan["audits"][0]["claimed"][0]["sample_rate"] == 0.1
    for audit in plan["audits"]:
        audit["claims"] = {name: [9.9, 9.9] for name in audit["claims"]}
    (run / "plan.json").write_text(json.dumps(plan))
    assert "is not what its sweep promises" in refused("status", run)  # by its own record
    moved.rename(data)
    assert "is not what its sweep promises" in refused("status", run)
