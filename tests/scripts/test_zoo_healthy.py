"""Healthy scripts under watch: no alarm, the parameters they would have had, little time more."""

import functools
import os
from collections.abc import Iterable
from dataclasses import asdict

import pytest

from dpaudit_ray.isolation import Limits, Sandbox
from dpaudit_ray.scripts import checks, script_runs
from dpaudit_ray.scripts.checks import Inspection
from dpaudit_ray.scripts.protocol import (
    ForwardInspection,
    RunRequest,
    StepInspection,
    Trial,
    entries_of,
)
from dpaudit_ray.scripts.script_audit import Options
from dpaudit_ray.scripts.script_findings import Weight
from dpaudit_ray.scripts.script_runs import EndedRun, Target
from jobs.zoo import alarms, common
from jobs.zoo.healthy import SCRIPTS
from tests.long import long
from tests.scripts.conftest import ZOO

SEED = 5
BITWISE = ("mlp", "ghost", "memory_manager", "adam_schedule")
QUICK = ("mlp", "ghost")  # in the suite, the others in `make long`

pytestmark = pytest.mark.slow


def run(warm: Sandbox, name: str, **asked: object) -> EndedRun:
    seen = script_runs.run_once(
        warm, Target(ZOO / "healthy.py", name), RunRequest(seed=SEED, **asked), Limits(1800.0), 1
    )
    assert seen.result is not None, seen.ended
    return seen


@functools.cache
def looked_into(warm: Sandbox, name: str) -> EndedRun:
    return run(warm, name, inspects=True)


def cases(names: Iterable[str]) -> list:
    return [
        pytest.param(name, marks=() if name in QUICK else long("as the others")) for name in names
    ]


@pytest.mark.parametrize("name", cases(BITWISE))
def test_looking_changes_no_bit_of_the_parameters(warm, name, tmp_path):
    request = {"script": "healthy", "function": name, "seed": SEED}
    plain = warm.call("tests.scripts.plainly:run", request, Limits(1800.0))
    assert plain.how == "returned", plain.traceback
    argument = {
        "script": str(ZOO / "healthy.py"), "function": name, "delta": None, "arguments": (),
        "threads": 1, "record": str(tmp_path / "record.jsonl"),
        "request": asdict(RunRequest(seed=SEED, inspects=True)),
    }  # fmt: skip
    watched = warm.call("tests.scripts.plainly:under_watch", argument, Limits(1800.0))
    assert watched.value == plain.value


@pytest.mark.parametrize("name", cases(SCRIPTS))
def test_a_healthy_script_raises_no_alarm(warm, name):
    """One run in a hundred may raise one, with other seeds."""
    seen = looked_into(warm, name)
    inspection = Inspection(record=seen.record, result=seen.result, delta=common.DELTA)
    judged = checks.judge(inspection)
    assert not [finding for finding in judged.findings if finding.weight is Weight.VIOLATION]
    assert judged.complete, judged.looks


def test_a_run_with_canaries_looks_into_no_step(warm):
    """Looking tries each step again and again; a canary is one gradient more."""
    seen = run(warm, "mlp", canary="steps", reseeds=True)
    assert not entries_of(seen.record, StepInspection)
    assert not entries_of(seen.record, ForwardInspection)
    # The claim is that of the run without canaries: nobody waits for its accountant again.
    assert [claim.epsilons for claim in seen.result.claims] == [()]
    assert len(entries_of(seen.record, Trial)) == 100


def test_an_engine_is_not_asked_again_what_an_earlier_run_asked(warm):
    answers = dict.fromkeys(looked_into(warm, "mlp").result.answers, 7.0)
    reported = run(warm, "mlp", answers=answers).result.reported
    assert [report.epsilon for report in reported] == [7.0, 7.0]


def test_an_accountant_that_computes_with_others_is_one(warm):
    """That of Opacus for PRVs asks two of its RDP accountants how wide its grid must be."""
    (claim,) = run(warm, "own_loop").result.claims
    assert (claim.name, sum(steps for _, _, steps in claim.history)) == ("prv", 100)


def test_a_study_goes_on_where_it_was_cut(tmp_path, monkeypatch):
    made = []

    def audit(target, options, runner):
        made.append((str(target), options.seed))
        return {"script": str(target), "seed": options.seed, "verdict": "CONSISTENT"}

    monkeypatch.setattr(alarms, "audit", audit)
    file, target = tmp_path / "lines", Target(ZOO / "healthy.py", "mlp")
    audits = [(target, Options(seed=seed)) for seed in range(2)]
    alarms.work(file, audits[:1], os.getppid())
    with file.open("a") as out:
        out.write('\n{"script": "hea')
    alarms.work(file, audits[1:], os.getppid())
    alarms.work(file, audits, 0)  # whoever started it is gone
    assert made == [("healthy.py:mlp", 0), ("healthy.py:mlp", 1)]
    assert [line["seed"] for line in alarms.read(file)] == [0, 1]


def test_a_row_of_the_study():
    kept = {"verdict": "CONSISTENT", "processor": 20.0}
    broken = {"verdict": "VIOLATION", "violations": [[1, "steps", "guessed"]], "processor": 30.0}
    expected = "| mlp | 20 | 1 | 0.001 to 0.249 | L1: 1 | 0 | 20 (20 to 30) |"
    assert alarms.row("mlp", [kept] * 19 + [broken]) == expected
