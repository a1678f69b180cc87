"""`mechanism.name: landscape` in sweeps: rows, resuming, bad input, and verdicts without trials."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit_ray.accounting import Training
from dpaudit_ray.adversaries.landscape import LandscapeAdversary
from dpaudit_ray.forecast import forecast
from dpaudit_ray.mechanisms.landscape import Landscape
from dpaudit_ray.report import detection, verdict
from dpaudit_ray.report.tables import Run
from dpaudit_ray.report.verdict import EXACT_TOLERANCE, Verdict
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec
from tests.command import changed, completed, dpaudit, inline, refused, write_sweep


def sweep(**mechanism: Any) -> dict[str, Any]:
    options = {"steps": 6, "batch_size": 2, "noise_multiplier": 1.0, "clip_norm": 1.0}
    return {
        "name": "land",
        "mechanism": {"name": "landscape", **options, **mechanism},
        "adversary": {"name": "landscape"},
        "audit": {"trials": 300, "delta": 1e-5, "record_every": 2},
    }


def landscape(**options: Any) -> Landscape:
    return Landscape(**{"steps": 6, "batch_size": 2, "noise_multiplier": 1.0, **options})


def test_an_exact_run_has_rows_of_every_step_and_can_be_asked_again_and_looked_at(tmp_path):
    file = write_sweep(tmp_path, sweep(backend="exact"))
    assert inline(file, tmp_path).code == 0
    run = RunDirectory(str(tmp_path / "land"))
    rows = run.estimates()
    assert run.complete
    assert not run.has_scores
    assert rows["step"].tolist() == [2, 2, 4, 4, 6, 6]
    assert rows["estimator"].tolist() == ["exact-gdp", "exact"] * 3
    assert rows["status"].tolist() == ["if-gaussian", "certified"] * 3
    assert set(rows["trials"]) == {0}
    assert set(rows["epsilon_upper"].round(4)) == {4.3772}  # one release, however many steps
    assert rows[rows["estimator"] == "exact"]["mu_lower"].isna().all()
    for more in ((), ("--set", "audit.trials=500")):
        assert inline(file, tmp_path, *more).code == 0
        assert run.estimates().equals(rows)
    assert dpaudit("report", tmp_path / "land").code == 0
    status = dpaudit("status", tmp_path / "land").out
    assert status.startswith("land: eps at delta = 1e-5, claims by gaussian\n")
    assert "  exact  " in status
    assert "confidence" not in status, "nothing is random here"


def test_a_seed_draws_other_trials_of_the_same_process():
    cells = spec.from_raw(sweep() | {"grid": {"mechanism.seed": [0, 1]}}).cells
    first, second = (cell.mechanism.process(cell.adversary) for cell in cells)
    assert first == second
    assert cells[0].fingerprint != cells[1].fingerprint, "which keys bits and seeds"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"mechanism.gradient": "constant", "adversary.threshold": 0.5},
            "adversary.threshold: is 0.5, but a constant gradient has none; leave it out",
        ),
        ({"adversary.threshold": None}, "adversary.threshold: must be a number, optimal or sear"),
        ({"adversary.period": 2}, "adversary.period: is 2, but the canary is in the first step"),
        ({"adversary": {"name": "loss"}}, "adversary.name: loss cannot attack landscape"),
        ({"mechanism.width": 3.0}, "mechanism.width: is 3.0, but only a linear gradient has one"),
        ({"mechanism.width": "wide"}, "mechanism.width: must be a number of at least 1e-6, or"),
        (
            {"mechanism.gradient": "linear", "adversary.threshold": "searched"},
            "adversary.threshold: is searched, but a search needs a number",
        ),
        ({"mechanism.backend": "exact", "mechanism.seed": 3}, "mechanism.seed: is 3, but exact"),
        (
            {"mechanism.backend": "exact", "mechanism.noise_multiplier": 0.1},
            "mechanism.noise_multiplier: is 0.1, but exact densities need at least 0.25",
        ),
        (
            {"mechanism.backend": "exact", "mechanism.steps": 10**6, "audit.record_every": 10**6},
            "mechanism.steps: is 1000000, for which exact densities take",
        ),
    ],
)
def test_bad_input_is_one_line(tmp_path, changes, line):
    raw = sweep()
    for key, value in changes.items():
        raw = changed(raw, key, value)
    assert refused("run", write_sweep(tmp_path, raw)).startswith(line)


def test_optimal_is_halfway_in_either_convention():
    for first, expected in (("unscaled", 1.0), ("scaled", 0.5)):
        mechanism = landscape(first_step=first, clip_norm=2.0)
        assert mechanism.process(LandscapeAdversary()).threshold == expected
    assert landscape().process(LandscapeAdversary(threshold=-3)).threshold == -3.0


def test_searched_and_tuned_are_settled_before_any_trial():
    assert landscape(steps=2).process(LandscapeAdversary(threshold="searched")).threshold == 0.5
    tuned = landscape(gradient="linear", width="tuned").process(LandscapeAdversary())
    assert tuned.width > tuned.step_noise
    fixed = landscape(gradient="linear", width=3.0).process(LandscapeAdversary())
    assert fixed.width == pytest.approx(3 * fixed.step_noise)


class Boastful(Landscape):
    """Claims a little more than its noise, here of a first step that nothing amplifies."""

    name: str = f"{__name__}:Boastful"

    def claimed(self, adversary, horizon):
        return Training(self.noise_multiplier * (1 + 1e-5), 1)


def exact(**mechanism: Any) -> dict[str, Any]:
    raw = sweep(backend="exact", **mechanism)
    raw["audit"]["record_every"] = 1
    return raw


def judged(raw: dict[str, Any], folder: Path) -> verdict.RunVerdict:
    assert inline(write_sweep(folder, raw), folder).code == 0
    return verdict.judge(Run.open(str(folder / "land")))


def test_an_exact_epsilon_below_the_claim_is_consistent(tmp_path):
    found = judged(exact(), tmp_path)
    assert found.verdict is Verdict.CONSISTENT
    assert found.audits == ()
    (audit,) = found.exact
    assert audit.verdict is Verdict.CONSISTENT
    assert audit.step == 6
    assert 0.2 < audit.epsilon < audit.claim == pytest.approx(4.3772, abs=1e-4)
    shown = completed(dpaudit("verify", tmp_path / "land"))
    assert shown.out.startswith("CONSISTENT: no violation found. Measured ε = 2.754 of the claimed")
    shown = dpaudit("verify", tmp_path / "land", "--details")
    assert " ".join(shown.out.split()).endswith(
        "exact, no trials: eps is computed at every recorded step; it is a violation if it exceeds "
        "the claim by more than 1e-5"
    )
    printed = json.loads(dpaudit("verify", tmp_path / "land", "--json").out)
    assert printed["exact"][0]["epsilon"] == audit.epsilon


def test_a_claim_of_slightly_more_noise_is_refuted_without_a_trial(tmp_path):
    """At the first step the claim is tight, so 1e-5 more noise is 5e-5 of ε too little."""
    found = judged(exact(name=f"{__name__}:Boastful"), tmp_path)
    assert found.verdict is Verdict.VIOLATION
    (audit,) = found.exact
    assert audit.step == 1
    assert audit.epsilon > audit.claim + EXACT_TOLERANCE
    assert audit.epsilon == pytest.approx(4.3772, abs=1e-4)
    shown = dpaudit("verify", tmp_path / "land")
    assert shown.code == 1
    assert shown.out.startswith("VIOLATION: ε is 4.3772 at step 1, above the claim of ")


@pytest.mark.parametrize("noise", [0.3, 8.0])
def test_a_tight_claim_is_not_refuted_by_rounding(noise, tmp_path):
    """One step of Gaussian noise, whose ε the claim is."""
    (audit,) = judged(exact(steps=1, noise_multiplier=noise), tmp_path).exact
    assert audit.verdict is Verdict.CONSISTENT
    assert audit.epsilon == pytest.approx(audit.claim, abs=EXACT_TOLERANCE)


def test_what_is_not_computed_yet_is_inconclusive(tmp_path):
    judged(exact(), tmp_path)
    (tmp_path / "land/estimates.parquet").unlink()
    found = verdict.judge(Run.open(str(tmp_path / "land")))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert math.isnan(found.exact[0].epsilon)
    assert dpaudit("verify", tmp_path / "land").code == 5


def test_both_kinds_in_one_run_and_the_error_is_for_trials_only(tmp_path, monkeypatch):
    monkeypatch.setattr(detection, "SIMULATIONS", 5)  # what it shows is asked here
    raw = exact() | {"grid": {"mechanism.backend": ["sampled", "exact"]}}
    found = judged(raw, tmp_path)
    assert [len(found.audits), len(found.exact)] == [1, 1]
    assert found.audits[0].needed == pytest.approx(-np.log10(0.3 * 0.05))
    assert found.verdict is Verdict.INCONCLUSIVE, "300 trials show nothing"
    shown = dpaudit("verify", tmp_path / "land", "--details")
    assert shown.code == 5
    assert "of runs refute a true claim" in " ".join(shown.out.split())
    assert "exact, no trials" in shown.out


def test_a_plan_leaves_nothing_to_chance(tmp_path):
    (audit,) = forecast.forecast(spec.from_raw(exact()), str(tmp_path)).audits
    assert not audit.sampled
    assert (audit.largest_certifiable, audit.power, audit.trials_needed) == (None, None, None)
    planned = dpaudit("plan", write_sweep(tmp_path, exact()), "--storage-path", tmp_path / "runs")
    assert planned.code == 0
    _, _, row, *rest = planned.out.splitlines()
    assert row.split()[-8:] == ["0", "0", "0", "4.377", "–", "–", "–", "–"]
    assert rest == ["exact, no trials: `dpaudit run` computes eps of 1 audit"]
