"""One-run bounds in sweeps: independent trainings are judged as such, canaries of one are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dpaudit_ray import stats
from dpaudit_ray.errors import SpecError
from dpaudit_ray.report.tables import Run
from dpaudit_ray.sweep import spec
from jobs.studies.coverage import Nobody
from tests.command import inline, write_sweep

NAMES = ["one-run", "one-run-fdp"]


class OneTraining(Nobody):
    """An adversary whose trials are canaries of one training."""

    name: str = "test_one_run_sweeps:OneTraining"
    one_run: ClassVar[bool] = True


def sweep(adversary: str, estimators: list[str]) -> dict[str, Any]:
    return {
        "name": "one-run",
        "mechanism": {
            "name": "jobs.studies.coverage:Coverage",
            "sizes": [40],
            "worlds": "randomised-response",
            "epsilon": 3.0,
        },
        "adversary": {"name": adversary},
        "audit": {"trials": 300, "delta": 1e-5, "estimators": estimators},
        "resources": {"pack_size": 100},
    }


@pytest.mark.parametrize(
    "adversary", ["jobs.studies.coverage:Nobody", "test_one_run_sweeps:OneTraining"]
)
def test_what_the_trials_are_is_read_off_the_adversary(adversary, tmp_path: Path) -> None:
    file = write_sweep(tmp_path, sweep(adversary, NAMES))
    assert inline(file, tmp_path).code == 0
    run = Run.open(str(tmp_path / "one-run"))
    rows = run.estimates.set_index("estimator")
    scores = run.directory.scores(run.plan.audits[0].id)
    one_training = adversary.startswith("test_one_run")
    for name in NAMES:
        expected = stats.estimate(
            scores["score"], scores["member"], 1e-5, 0.95, name,
            runs=np.zeros(300) if one_training else np.arange(300),
        )  # fmt: skip
        assert rows.loc[name, "epsilon_lower"] == expected.epsilon_lower
        assert rows.loc[name, "status"] == expected.status


def test_methods_for_many_trainings_are_refused_on_one() -> None:
    spec.from_raw(sweep("jobs.studies.coverage:Nobody", [*NAMES, "accuracy"]))
    with pytest.raises(SpecError, match="accuracy takes scores of many training runs"):
        spec.from_raw(sweep("test_one_run_sweeps:OneTraining", [*NAMES, "accuracy"]))


def test_no_sweep_says_what_its_trials_are() -> None:
    raw = sweep("jobs.studies.coverage:Nobody", [])
    raw["audit"]["estimators"] = [{"name": "one-run", "independent": False}]
    with pytest.raises(SpecError, match="independent: unknown key; known: guesses"):
        spec.from_raw(raw)
