"""Machines with another version are refused by name; kinds of machine are recorded and told."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dpaudit_ray import plan as planning
from dpaudit_ray.orchestration.executors import Work
from dpaudit_ray.orchestration.workers import MachineCompatibility
from dpaudit_ray.plan import provenance
from dpaudit_ray.plan.model import Plan
from dpaudit_ray.plan.provenance import Code, Machine
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep.spec import from_raw
from tests.command import changed

HERE = {"dpaudit": "1", "torch": "2", "numba": "3", "ray": "4"}
CODE = Code({"own": "a" * 64}, HERE, "Abacus")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(str(tmp_path / "run"))


Opened = Callable[..., MachineCompatibility]


@pytest.fixture
def machines(run: RunDirectory, tiny: dict) -> Opened:
    """What a new driver of the same run knows; lines for the user are added to `told`."""

    def opened(told: list[str] | None = None, **resources: float) -> MachineCompatibility:
        sweep = from_raw(tiny | {"resources": resources})
        tell = ([] if told is None else told).append
        return MachineCompatibility(Work(sweep, Plan(0, "", (), (), (CODE,)), run, 0, tell))

    return opened


def machine(device: str = "Abacus", own: str | None = "a" * 64, **versions: str) -> Machine:
    return Machine(device, HERE | versions, {"own": own})


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (machine(), None),
        (machine(ray="5"), None),
        (machine(own=None), None),
        (machine(torch="2.1"), "it has torch 2.1, the driver 2"),
        (machine(numba="4"), "it has numba 4, the driver 3"),
        (machine(dpaudit="2"), "it has dpaudit 2, the driver 1"),
        (
            machine(own="b" * 64),
            "own has SHA-256 bbbbbbbbbbbb... there, SHA-256 aaaaaaaaaaaa... where the driver runs",
        ),
    ],
)
def test_a_machine_has_the_code_of_the_driver(other, why, machines):
    assert machines().modules == ("own",)
    assert machines().admit("10.0.0.7", other) == why


def test_kinds_are_recorded_and_mixing_them_is_told_once(run, machines):
    told: list[str] = []
    first = machines(told)
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1"):
        first.admit(address, machine())
    assert told == []
    for address in ("10.0.0.3", "10.0.0.4"):
        first.admit(address, machine("Slide rule"))
    assert run.read_json("machines.json") == {
        "Abacus": ["10.0.0.1", "10.0.0.2"],
        "Slide rule": ["10.0.0.3", "10.0.0.4"],
    }
    assert told == [
        "warning: trials run on several kinds of machine (Abacus; Slide rule): scores are equal in "
        "distribution, and may differ in last bits"
    ]


@pytest.mark.parametrize(
    ("cpus", "kind"),
    [(1, "Abacus"), (0.5, "Abacus"), (2, "Abacus, 2 threads"), (4.0, "Abacus, 4 threads")],
)
def test_another_number_of_threads_is_told_as_another_kind(cpus, kind, machines):
    """Threads share the models out in other groups, which may change last bits."""
    machines().admit("10.0.0.1", machine())
    told: list[str] = []
    machines(told, num_cpus=cpus).admit("10.0.0.1", machine())
    mixed = [f"warning: trials run on several kinds of machine (Abacus; {kind})"]
    assert [line.partition(": scores")[0] for line in told] == (mixed if kind != "Abacus" else [])


@pytest.mark.parametrize("damage", ["{", "[1]", '{"a": 3}', "3"])
def test_a_damaged_record_is_made_again(damage, run, machines):
    run.write_text("machines.json", damage)
    told: list[str] = []
    machines(told).admit("10.0.0.1", machine())
    assert told == []
    assert run.read_json("machines.json") == {"Abacus": ["10.0.0.1"]}


def test_the_kind_of_this_machine_names_what_changes_last_bits(monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    kind = provenance.device.__wrapped__()
    assert kind.endswith(", default")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    assert provenance.device.__wrapped__() == kind.removesuffix(", default")


def test_a_run_in_this_process_records_it(tiny, tmp_path):
    import dpaudit_ray as da

    changed(tiny, "audit.trials", 10)
    result = da.run(tiny, storage_path=str(tmp_path), executor="inline")
    (kind,) = json.loads((Path(result.location) / "machines.json").read_text())
    _, plan = planning.read(RunDirectory(result.location))
    assert plan.code is not None
    assert plan.code[0].device == kind == provenance.device()
