"""Trainings of several canaries in sweeps: from plan to verdict, no score is taken for a trial.

Independent trainings are judged as such by one-run bounds, canaries of one are not.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import special

import dpaudit_ray as da
from dpaudit_ray import stats
from dpaudit_ray.adversaries.base import Adversary
from dpaudit_ray.data.base import Dataset
from dpaudit_ray.errors import SpecError
from dpaudit_ray.mechanisms.base import Claimed, Mechanism, Session
from dpaudit_ray.plan import outcomes
from dpaudit_ray.report import verdict
from dpaudit_ray.report.tables import Run
from dpaudit_ray.sweep import spec
from jobs.studies.coverage import Nobody
from tests.command import changed, dpaudit, inline, stored_scores, write_sweep

SEVERAL = ["several-canaries", "one-run"]
NAMES = ["one-run", "one-run-fdp"]


class OneTraining(Nobody):
    """An adversary whose trials are canaries of one training."""

    name: str = "test_several_canaries:OneTraining"
    one_run: ClassVar[bool] = True


class Twenty(Adversary):
    """Twenty canaries in every training."""

    name: str = "test_several_canaries:Twenty"

    @property
    def canaries(self) -> int:
        return 20


class Alike(Mechanism):
    """A training of the claimed μ, or of `leak` times it, whose canaries all have the same luck."""

    name: str = "test_several_canaries:Alike"
    mu: float = 1.0
    leak: float = 1.0

    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        return (1,)

    def check(self, adversary: Adversary) -> None: ...

    def check_inputs(self) -> None: ...

    def datasets(self) -> Mapping[str, Dataset]:
        return {}

    def claimed(self, adversary: Adversary, horizon: int) -> Claimed:
        return Claimed(1 / self.mu, 1)

    def open(self, adversary: Adversary, seed: int, craft_seed: int, gpu: bool) -> Session:
        return Opened(self.mu * self.leak, adversary.canaries)


class Opened:
    def __init__(self, mu: float, canaries: int) -> None:
        self._mu, self._canaries = mu, canaries

    def run(self, members: np.ndarray, seed: int, horizons: tuple[int, ...]) -> np.ndarray:
        bits = members.reshape(-1, self._canaries)
        hit = np.random.default_rng(seed).random((len(bits), 1)) < special.ndtr(self._mu / 2)
        return np.where(bits == hit, 1.0, -1.0).reshape(-1, 1)


@pytest.fixture
def twenty() -> dict[str, Any]:
    return {
        "name": "twenty",
        "seed": 4,
        "mechanism": {"name": "test_several_canaries:Alike"},
        "adversary": {"name": "test_several_canaries:Twenty"},
        "audit": {"trials": 4000, "delta": 1e-5, "estimators": SEVERAL},
        "resources": {"pack_size": 400},
    }


def opened(raw: dict[str, Any], folder: Path) -> Run:
    da.run(write_sweep(folder, raw), storage_path=str(folder), executor="inline")
    return Run.open(str(folder / raw["name"]))


def test_bounds_are_those_of_trainings(twenty, tmp_path):
    run = opened(twenty, tmp_path)
    (audit,) = run.plan.audits
    assert audit.canaries == 20
    assert run.directory.read_json("plan.json")["audits"][0]["canaries"] == 20
    scores = stored_scores(run.directory, audit.id)
    rows = run.estimates.set_index("estimator")
    for name in SEVERAL:
        expected = stats.estimate(
            scores["score"], scores["member"], 1e-5, 0.95, name, runs=np.arange(4000) // 20
        )
        assert rows.loc[name, "epsilon_lower"] == expected.epsilon_lower
    assert set(rows["free_estimator"]) == {"one-run"}
    assert run.estimates["epsilon_lower_free"].iloc[0] == rows.loc["one-run", "epsilon_lower"]


def test_a_healthy_training_is_no_violation_and_a_leaking_one_is(twenty, tmp_path):
    """Pooled, luck that 20 canaries share would look like a violation every third time."""
    healthy = verdict.judge(opened(twenty, tmp_path))
    assert healthy.verdict is not verdict.Verdict.VIOLATION
    changed(twenty, "mechanism.leak", 2.5)
    leaking = verdict.judge(opened(twenty | {"name": "leaking"}, tmp_path))
    assert leaking.verdict is verdict.Verdict.VIOLATION
    assert leaking.audits[0].effective_noise is not None
    assert leaking.audits[0].effective_noise < 1


def test_what_is_watched_live_and_stops_a_run_are_trainings(twenty, tmp_path):
    """Of 10 healthy runs that stop where they refute, more than 2 do so once in 80 such tests."""
    changed(twenty, "audit.stop_when", {"verdict": True})
    changed(twenty, "audit.trials", 1200)
    stopped = 0
    for seed in range(10):
        run = opened(twenty | {"seed": seed, "name": f"seed-{seed}"}, tmp_path)
        stopped += outcomes.decided(run.directory, run.sweep, run.plan) != {}
    assert stopped <= 2
    changed(twenty, "mechanism.leak", 3.0)
    changed(twenty, "audit.trials", 4000)
    leaking = opened(twenty | {"name": "leaking"}, tmp_path)
    assert outcomes.decided(leaking.directory, leaking.sweep, leaking.plan)[0] <= 1200
    assert set(leaking.estimates["estimator"]) == {*SEVERAL}


def test_plan_and_report_say_it(twenty, tmp_path):
    file = write_sweep(tmp_path, twenty)
    assert inline(file, tmp_path).code == 0
    run = tmp_path / "twenty"
    assert dpaudit("report", run).code == 0
    page = (run / "report.html").read_text()
    assert "Each training has 20 canaries" in page
    assert "The Gaussian fit has" not in page
    shown = dpaudit("plan", file, "--storage-path", tmp_path / "elsewhere")
    alone = stats.power.largest_certifiable(200, 1e-5, 0.95)
    assert f"{alone:.3f}" in shown.out


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("audit.estimators", ["accuracy"], "accuracy takes scores of many training runs, one of"),
        ("audit.trials", 4010, "but each training has 20 canaries, a trial each; use 4000"),
    ],
)
def test_what_does_not_fit_is_refused(twenty, key, value, told):
    with pytest.raises(SpecError, match=told):
        spec.from_raw(changed(twenty, key, value))


def test_a_pack_holds_whole_trainings(twenty, tmp_path):
    changed(twenty, "resources.pack_size", 50)
    told = dpaudit("run", write_sweep(tmp_path, twenty), "--storage-path", tmp_path)
    assert told.code == 2
    assert "is 50, but each training has 20 canaries" in told.err
    assert "use 60" in told.err
    changed(twenty, "resources.pack_size", "auto")
    run = opened(twenty, tmp_path)
    assert {(last - first + 1) % 20 for first, last in run.plan.audits[0].packs} == {0}


def test_one_training_is_no_run_of_independent_trials_for_the_verdict_either(twenty, tmp_path):
    """A single training cannot refute a claim by its canaries' hit rate."""
    changed(twenty, "adversary", {"name": "test_several_canaries:OneTraining"})
    changed(twenty, "audit.estimators", ["one-run"])
    changed(twenty, "mechanism.leak", 3.0)
    found = verdict.judge(opened(twenty, tmp_path))
    assert found.verdict is verdict.Verdict.INCONCLUSIVE


def one_run_sweep(adversary: str, estimators: list[str]) -> dict[str, Any]:
    return {
        "name": "one-run",
        "mechanism": {"name": "test_several_canaries:Alike", "mu": 3.0},
        "adversary": {"name": adversary},
        "audit": {"trials": 300, "delta": 1e-5, "estimators": estimators},
        "resources": {"pack_size": 100},
    }


@pytest.mark.parametrize(
    "adversary", ["jobs.studies.coverage:Nobody", "test_several_canaries:OneTraining"]
)
def test_what_the_trials_are_is_read_off_the_adversary(adversary, tmp_path):
    file = write_sweep(tmp_path, one_run_sweep(adversary, NAMES))
    assert inline(file, tmp_path).code == 0
    run = Run.open(str(tmp_path / "one-run"))
    rows = run.estimates.set_index("estimator")
    scores = stored_scores(run.directory, run.plan.audits[0].id)
    one_training = adversary.endswith("OneTraining")
    for name in NAMES:
        expected = stats.estimate(
            scores["score"], scores["member"], 1e-5, 0.95, name,
            runs=np.zeros(300) if one_training else np.arange(300),
        )  # fmt: skip
        assert rows.loc[name, "epsilon_lower"] == expected.epsilon_lower > 0
        assert rows.loc[name, "status"] == expected.status


def test_methods_for_many_trainings_are_refused_on_one():
    spec.from_raw(one_run_sweep("jobs.studies.coverage:Nobody", [*NAMES, "accuracy"]))
    with pytest.raises(SpecError, match="accuracy takes scores of many training runs"):
        spec.from_raw(one_run_sweep("test_several_canaries:OneTraining", [*NAMES, "accuracy"]))
