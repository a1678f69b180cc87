"""Twenty forged runs: what `check` says of each, alone, with the commitment, and training again.

The forger knows the format: digests of score files match, and what rests on the changed values is
computed anew wherever the row says so.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from dpaudit_ray import plan as planning
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.plan import record
from dpaudit_ray.plan.model import Pack
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.report import check
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from dpaudit_ray.sweep import spec
from tests.command import completed, dpaudit, inline, refused, write_sweep
from tests.report.handed import played, sweep
from tests.report.test_check import altered, audit_folder, change_json, change_table, flipped


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    completed(inline(write_sweep(folder, sweep()), folder))
    return folder / "handed"


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest, tmp_path / "handed"))


def committed(run: Path) -> str:
    """The commitment that a second party has received before training."""
    plan = record.load(RunDirectory(str(run)))
    assert plan is not None
    return plan.commitment


def derived_anew(run: Path) -> None:
    """Writes estimates, records and the end as they follow from the scores that are there."""
    for name in ("estimates.parquet", "outcomes.json", "verdict.json"):
        (run / name).unlink(missing_ok=True)
    Aggregation.rebuild(RunDirectory(str(run))).flush()


def change_scores(run: Path, change: Callable[[PackScores], object]) -> None:
    """Changes all packs of the first audit, with digests to match."""
    folder, name = RunDirectory(str(run)), audit_folder(run).name
    for first in range(0, 60, 10):
        pack = folder.read_scores(name, first, first + 9)
        change(pack)
        (run / "scores" / name / f"{first}-{first + 9}.parquet").unlink()
        folder.write_scores(name, pack)


def another(run: Path, raw: dict[str, Any], packs: int = 12) -> None:
    """Another run in its place: its plan, with scores that no training gave."""
    shutil.rmtree(run)
    played(raw, run.parent, packs)
    derived_anew(run)


def one_score(run: Path) -> None:
    file = audit_folder(run) / "20-29.parquet"
    change_table(file, lambda table: altered(table, "score", 5, 0.125))


def scores_with_digests(run: Path) -> None:
    change_scores(run, lambda pack: np.copyto(pack.scores, 0.0))


def bits_that_fit_the_scores(run: Path) -> None:
    change_table(audit_folder(run) / "20-29.parquet", flipped)


def a_chosen_seed(run: Path) -> None:
    """The seed of sweep and plan, for bits that fit better: all others stay."""
    raw = yaml.safe_load((run / "sweep.yaml").read_text())
    (run / "sweep.yaml").write_text(yaml.safe_dump(raw | {"seed": 4}))
    change_json(run, "plan.json", lambda plan: plan.update(seed=4))


def a_pack_left_out(run: Path) -> None:
    (audit_folder(run) / "50-59.parquet").unlink()


def a_pack_left_out_and_bounds_anew(run: Path) -> None:
    (audit_folder(run) / "50-59.parquet").unlink()
    derived_anew(run)


def another_mechanism(run: Path) -> None:
    file = run / "sweep.yaml"
    file.write_text(file.read_text().replace("noise_multiplier: 2.0", "noise_multiplier: 4.0"))


def a_larger_claim(run: Path) -> None:
    def change(plan: Any) -> None:
        plan["audits"][0]["claims"]["gaussian"] = [90.0, 90.0]

    change_json(run, "plan.json", change)


def another_delta(run: Path) -> None:
    file = run / "sweep.yaml"
    file.write_text(file.read_text().replace("delta: 1.0e-05", "delta: 1.0e-02"))


def another_bound(run: Path) -> None:
    change_table(run / "estimates.parquet", lambda t: altered(t, "epsilon_upper", 0, 9.0))


def a_bound_certified(run: Path) -> None:
    table = pq.read_table(run / "estimates.parquet")
    row = table["status"].to_pylist().index("paper")
    change_table(run / "estimates.parquet", lambda t: altered(t, "status", row, "certified"))


def a_row_left_out(run: Path) -> None:
    file = run / "estimates.parquet"
    rows = pd.read_parquet(file)
    schema = pq.read_schema(file)
    rows[rows["audit"] == rows["audit"].iloc[0]].to_parquet(file, schema=schema, index=False)


def a_decision(run: Path) -> None:
    decided = {"decided": {"000": {"trials": 20, "rule": None}}}
    (run / "outcomes.json").write_text(json.dumps(decided))


def a_failure(run: Path) -> None:
    """A pack of good guesses that is recorded as failed: its trials count as wrong guesses."""
    (audit_folder(run) / "20-29.parquet").unlink()
    (run / "_SUCCESS").unlink()
    aggregation = Aggregation.rebuild(RunDirectory(str(run)))
    aggregation.give_up([Failure(Pack(0, 20, 29), "ValueError", "boom", "")])
    aggregation.flush()


def another_verdict(run: Path) -> None:
    completed(dpaudit("status", run))  # stores it
    change_json(run, "verdict.json", lambda answer: answer.update(verdict="VIOLATION"))


def another_commitment(run: Path) -> None:
    change_json(run, "plan.json", lambda plan: plan["audits"][0].update(bits_sha256="0" * 64))


def other_steps(run: Path) -> None:
    def change(plan: Any) -> None:
        plan["audits"][0]["horizons"] = [1, 6]

    change_json(run, "plan.json", change)


def fewer_trials_throughout(run: Path) -> None:
    """Sweep, plan, scores and bounds of the first 40 trials: the others did not suit."""
    raw = sweep()
    raw["audit"] = raw["audit"] | {"trials": 40}
    scores = {folder.name: folder for folder in (run / "scores").iterdir()}
    kept = Path(shutil.copytree(run, run.parent / "kept"))
    shutil.rmtree(run)
    directory = RunDirectory.under(str(run.parent), "handed")
    planning.open_run(spec.from_raw(raw), directory)
    for name in scores:
        for first in range(0, 40, 10):
            file = f"scores/{name}/{first}-{first + 9}.parquet"
            (run / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(kept / file, run / file)
    derived_anew(run)


def growth_after_a_look(run: Path) -> None:
    """Twenty trials more, and a plan that says that they were declared first."""
    raw = sweep()
    raw["audit"] = raw["audit"] | {"trials": 80}
    completed(inline(write_sweep(run.parent, raw), run.parent))
    change_json(run, "plan.json", lambda plan: [
        audit.update(declared=[80]) for audit in plan["audits"]
    ])  # fmt: skip
    derived_anew(run)


def invented_scores(run: Path) -> None:
    """Scores that no training gave, with all that follows from them."""
    another(run, sweep())


# By forger: which of `check`, `check --commitment` and `check --rerun 100%` refuses first, and how.
FORGED = {
    one_score: ("check", "scores of SHA-256"),
    scores_with_digests: ("check", "estimates.parquet"),
    bits_that_fit_the_scores: ("check", "trial 22: the first of 1 other bits"),
    a_chosen_seed: ("check", "the bits of 000-landscape-"),
    a_pack_left_out: ("check", "no such file there, not the scores behind its estimates"),
    a_pack_left_out_and_bounds_anew: ("check", "_SUCCESS: complete there, not while"),
    another_mechanism: ("check", "sweep.yaml: fingerprint"),
    a_larger_claim: ("check", "claim after step 3 by gaussian: 90.0 there"),
    another_delta: ("check", "sweep.yaml: fingerprint"),
    another_bound: ("check", "estimates.parquet"),
    a_bound_certified: ("check", "estimates.parquet"),
    a_row_left_out: ("check", "estimates.parquet"),
    a_decision: ("check", "trials that were enough: 20 there, not nothing"),
    another_verdict: ("check", "verdict.json"),
    another_commitment: ("check", "the bits of 000-landscape-"),
    other_steps: ("check", "plan.json"),
    fewer_trials_throughout: ("commitment", "plan.json: commitment"),
    growth_after_a_look: ("commitment", "plan.json: commitment"),
    a_failure: ("rerun", "trained again: gives scores, but is recorded as failed"),
    invented_scores: ("rerun", "trained again: gave"),
}


def test_there_are_twenty_kinds():
    assert len(FORGED) == 20


@pytest.mark.parametrize("forge", FORGED, ids=lambda forge: forge.__name__)
def test_forged_run_is_refused(run, forge):
    before = committed(run)
    forge(run)
    by, words = FORGED[forge]
    options: dict[str, dict[str, Any]] = {"check": {}}
    options["commitment"] = {"commitment": before}
    options["rerun"] = options["commitment"] | {"rerun": 1.0}
    for way, more in options.items():
        checked = check.check_run(str(run), **more)
        if way == by:
            break
        assert checked.in_order, (way, [*map(str, checked.differences)])
    lines = [str(difference) for difference in checked.differences]
    assert any(words in line for line in lines), lines


def test_honest_run_passes_all_three(run):
    checked = check.check_run(str(run), rerun=1.0, commitment=committed(run))
    assert checked.in_order
    assert checked.derived["repeated packs"] == 12


def test_planned_growth_keeps_the_commitment(tmp_path):
    raw = sweep()
    raw["audit"] = raw["audit"] | {"up_to": 120}
    completed(inline(write_sweep(tmp_path, raw), tmp_path))
    before = committed(tmp_path / "handed")
    completed(inline(tmp_path / "sweep.yaml", tmp_path, "--set", "audit.trials=80"))
    assert check.check_run(str(tmp_path / "handed"), commitment=before).in_order


def test_plan_prints_the_commitment_before_training(honest, tmp_path):
    file = write_sweep(tmp_path, sweep())
    entries = json.loads(completed(dpaudit("plan", file, "--json", "-o", tmp_path)).out)
    assert entries["commitment"] == committed(honest)
    done = completed(dpaudit("check", honest, "--commitment", entries["commitment"].upper()))
    assert "in order" in done.out
    assert dpaudit("check", honest, "--commitment", "0" * 64).code == 2


@pytest.mark.parametrize("share", ["0", "0%", "101%", "-1%", "some", "2"])
def test_share_to_train_again_has_bounds(honest, share):
    line = refused("check", honest, f"--rerun={share}")
    assert line == f"--rerun: is {share}; give a share above 0 and up to 100%, such as 1%"


def test_one_percent_trains_at_least_one_pack(honest):
    assert "1 repeated pack" in completed(dpaudit("check", honest, "--rerun", "1%")).out
