"""Audits without trials, as `plan` announces and `verify` judges them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit_ray.forecast import forecast
from dpaudit_ray.report import verdict
from dpaudit_ray.report.tables import Run
from dpaudit_ray.report.verdict import EXACT_TOLERANCE, Verdict
from dpaudit_ray.sweep import spec
from tests.command import dpaudit, inline, write_sweep

BOASTFUL = """
from dpaudit_ray.mechanisms.base import Claimed
from dpaudit_ray.mechanisms.landscape import Landscape

class Boastful(Landscape):
    '''Claims this many times its noise, here of a first step that nothing amplifies.'''
    name: str = "boastful:Boastful"
    boast: float = 1.0
    def claimed(self, adversary, horizon):
        return Claimed(self.noise_multiplier * self.boast, 1)
"""


@pytest.fixture
def boastful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "boastful.py").write_text(BOASTFUL)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("boastful", None)


def sweep(**mechanism: Any) -> dict[str, Any]:
    options = {"steps": 6, "batch_size": 2, "noise_multiplier": 1.0, "backend": "exact"}
    return {
        "name": "land",
        "mechanism": {"name": "landscape", **options, **mechanism},
        "adversary": {"name": "landscape"},
        "audit": {"trials": 300, "delta": 1e-5, "record_every": 1},
    }


def judged(raw: dict[str, Any], folder: Path) -> verdict.RunVerdict:
    assert inline(write_sweep(folder, raw), folder).code == 0
    return verdict.judge(Run.open(str(folder / "land")))


def test_an_exact_epsilon_below_the_claim_is_consistent(tmp_path: Path) -> None:
    found = judged(sweep(), tmp_path)
    assert found.verdict is Verdict.CONSISTENT
    assert found.audits == ()
    (audit,) = found.exact
    assert audit.verdict is Verdict.CONSISTENT
    assert audit.step == 6
    assert 0.2 < audit.epsilon < audit.claim == pytest.approx(4.3772, abs=1e-4)
    shown = dpaudit("verify", tmp_path / "land")
    assert shown.code == 0
    assert shown.out.startswith("CONSISTENT\n")
    assert " ".join(shown.out.split()).endswith(
        "exact, no trials: eps of 1 audit is computed at every recorded step; above the claim by "
        "more than 1e-05 is a violation"
    )
    printed = json.loads(dpaudit("verify", tmp_path / "land", "--json").out)
    assert printed["exact"][0]["epsilon"] == audit.epsilon


@pytest.mark.usefixtures("boastful")
@pytest.mark.parametrize("boast", [1.01, 1.0 + 1e-5])
def test_a_claim_of_slightly_more_noise_is_refuted_without_a_trial(
    boast: float, tmp_path: Path
) -> None:
    """At the first step the claim is tight, so 1e-5 more noise is 5e-5 of ε too little."""
    found = judged(sweep(name="boastful:Boastful", boast=boast), tmp_path)
    assert found.verdict is Verdict.VIOLATION
    (audit,) = found.exact
    assert audit.step == 1
    assert audit.epsilon > audit.claim + EXACT_TOLERANCE
    assert audit.epsilon == pytest.approx(4.3772, abs=1e-4)
    shown = dpaudit("verify", tmp_path / "land")
    assert (shown.code, shown.out.splitlines()[0]) == (1, "VIOLATION")


@pytest.mark.parametrize("noise", [0.3, 1.0, 8.0])
def test_a_tight_claim_is_not_refuted_by_rounding(noise: float, tmp_path: Path) -> None:
    """One step of Gaussian noise, whose ε the claim is."""
    (audit,) = judged(sweep(steps=1, noise_multiplier=noise), tmp_path).exact
    assert audit.verdict is Verdict.CONSISTENT
    assert audit.epsilon == pytest.approx(audit.claim, abs=EXACT_TOLERANCE)


def test_what_is_not_computed_yet_is_inconclusive(tmp_path: Path) -> None:
    judged(sweep(), tmp_path)
    (tmp_path / "land/estimates.parquet").unlink()
    found = verdict.judge(Run.open(str(tmp_path / "land")))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert math.isnan(found.exact[0].epsilon)
    assert dpaudit("verify", tmp_path / "land").code == 5


def test_both_kinds_in_one_run_and_the_error_is_for_trials_only(tmp_path: Path) -> None:
    raw = sweep() | {"grid": {"mechanism.backend": ["sampled", "exact"]}}
    found = judged(raw, tmp_path)
    assert [len(found.audits), len(found.exact)] == [1, 1]
    assert found.audits[0].needed == pytest.approx(-np.log10(0.3 * 0.05))
    assert found.verdict is Verdict.INCONCLUSIVE, "300 trials show nothing"
    shown = dpaudit("verify", tmp_path / "land")
    assert shown.code == 5
    assert "wrong about a true claim" in shown.out
    assert "exact, no trials" in shown.out


def test_a_plan_leaves_nothing_to_chance(tmp_path: Path) -> None:
    (audit,) = forecast.forecast(spec.from_raw(sweep()), str(tmp_path)).audits
    assert not audit.sampled
    assert (audit.largest_certifiable, audit.power, audit.trials_needed) == (None, None, None)
    planned = dpaudit("plan", write_sweep(tmp_path, sweep()), "--storage-path", tmp_path / "runs")
    assert planned.code == 0
    _, _, row, *rest = planned.out.splitlines()
    assert row.split()[-8:] == ["0", "0", "0", "4.377", "–", "–", "–", "–"]
    assert rest == ["exact, no trials: `dpaudit run` computes eps of 1 audit"]
