"""Trainers: failures are data, and a user's error never takes the sweep down with it."""

import sys
from pathlib import Path

import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.orchestration.trainer import Brief, PackTrainer
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec

FAULTY = """
import torch
from dpaudit_ray.adversaries.biased_dimension import BiasedDimension

class Faulty(BiasedDimension):
    name: str = "faulty:Faulty"
    def score(self, canary, observed):
        raise ZeroDivisionError("scores went wrong")

class Hungry(BiasedDimension):
    name: str = "faulty:Hungry"
    error: str
    def score(self, canary, observed):
        raise eval(self.error)

class Diverging(BiasedDimension):
    name: str = "faulty:Diverging"
    def score(self, canary, observed):
        scores = super().score(canary, observed)
        scores[::5] = torch.nan
        return scores
"""


@pytest.fixture(autouse=True)
def faulty_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty.py").write_text(FAULTY)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("faulty", None)


def failed(raw: dict) -> Failure:
    """The failure of its first pack."""
    sweep = spec.from_raw(raw)
    plan = planning.make(sweep)
    trainer = PackTrainer(sweep.raw, Brief.from_plan(plan, sweep))
    failure = trainer.attempt(next(plan.remaining(RunDirectory("nowhere"))))
    assert isinstance(failure, Failure)
    return failure


def test_an_error_in_user_code_is_a_failure_with_its_reason(tiny):
    tiny["grid"]["adversary"] = ["faulty:Faulty"]
    failure = failed(tiny)
    assert failure.message == "ZeroDivisionError: scores went wrong"
    assert "in score" in failure.traceback


@pytest.mark.parametrize(
    ("error", "count", "message"),
    [
        ("RuntimeError('alloc_cpu.cpp:127] . can\\'t allocate memory: you tried')", 1, 2),
        ("torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2 GiB')", 1, 2),
        ("MemoryError()", 1, 2),
        ("MemoryError()", 5, 5),
        ("MemoryError()", 10, "run fewer trainers on a node, or give them a larger resources."),
        ("MemoryError('one model is too large; lower mechanism.batch_size')", 1, None),
        ("ValueError('the cat ran out of memory')", 1, None),
    ],
)
def test_memory_that_runs_out_is_told_with_a_smaller_pack(error, count, message, tiny):
    """A quarter of the pack's 10 trials, in whole trainings."""
    tiny |= {"grid": {}, "adversary": {"name": "faulty:Hungry", "error": error, "count": count}}
    tiny["audit"]["estimators"] = ["eps-delta" if count == 1 else "several-canaries"]
    failure = failed(tiny)
    if message is None:
        assert failure.kind == error.partition("(")[0]
    else:
        size = isinstance(message, int)
        remedy = f"set resources.pack_size: {message}" if size else message
        assert failure.message.startswith(f"out of memory; {remedy}")
        assert failure.kind == "OutOfMemory"
        assert "in score" in failure.traceback


def test_other_audits_go_on_and_the_run_is_not_complete(tiny, tmp_path):
    tiny["grid"]["adversary"] = ["faulty:Faulty", "loss"]
    result = da.run(tiny, storage_path=str(tmp_path), executor="inline")
    assert not result.complete
    assert [failure.kind for failure in result.failures] == ["ZeroDivisionError"] * 3
    done = result.estimates.groupby("audit")["trials"].max()
    assert sorted(done) == [30, 90], "three packs of misses, then the audit is stopped"
    assert result.estimates.loc[result.estimates["trials"] == 0, "epsilon_lower"].eq(0).all()


def test_diverged_trials_are_kept_and_count_against_the_adversary(tiny, tmp_path):
    tiny["grid"]["adversary"] = ["faulty:Diverging", "biased-dimension"]
    result = da.run(tiny, storage_path=str(tmp_path), executor="inline")
    assert result.complete
    scores = result.scores
    first, second = scores["audit"].unique()
    assert np.isnan(scores.loc[scores["audit"] == first, "score"]).mean() == pytest.approx(0.2)
    assert set(result.estimates["trials"]) == {90}
    table = result.estimates.set_index(["audit", "estimator", "step"])["epsilon_lower"]
    assert (table[first] <= table[second]).all()
