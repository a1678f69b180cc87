"""`dpaudit check`: a run that was handed over is in order, and every change to it is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dpaudit_ray import stats
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.plan.model import PlannedAudit
from dpaudit_ray.report import check
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from tests.command import completed, contents, dpaudit, inline, write_sweep
from tests.orchestration import shadows
from tests.plan.test_inputs import write_data
from tests.report.handed import DP_SGD, LANDSCAPE, played, several_canaries, sweep


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    assert inline(write_sweep(folder, sweep()), folder).code == 0
    return folder / "handed"


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    """The run, handed over: a copy at another place, under another name."""
    return Path(shutil.copytree(original, tmp_path / "somewhere" / "else"))


def altered(table: pa.Table, column: str, row: int, value: Any) -> pa.Table:
    """With one value changed, and all metadata kept."""
    values = table[column].to_pylist()
    values[row] = value
    at = table.column_names.index(column)
    return table.set_column(
        at, table.schema.field(at), pa.array(values, table.schema.field(at).type)
    )


def audit_folder(run: Path, index: int = 0) -> Path:
    return sorted((run / "scores").iterdir())[index]


def change_json(run: Path, name: str, change: Callable[[Any], object]) -> str:
    raw = json.loads((run / name).read_text())
    change(raw)
    (run / name).write_text(json.dumps(raw))
    return name


def change_table(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(file)), file)


def change_estimates(run: Path, column: str, row: int, value: Any) -> str:
    change_table(run / "estimates.parquet", lambda table: altered(table, column, row, value))
    return "estimates.parquet"


def test_a_run_that_was_handed_over_is_in_order_and_stays_as_it_is(run, tmp_path, monkeypatch):
    before = contents(run)
    monkeypatch.chdir(tmp_path)
    outcome = completed(dpaudit("check", run))
    said = " ".join(outcome.out.split())
    assert said.startswith(
        "in order: 2 audits, 120 bits, 8 claims, 12 packs, 120 trials, 24 estimates, the verdict ("
    )
    assert contents(run) == before
    shown = json.loads(dpaudit("check", run, "--json").out)
    assert (shown["in_order"], shown["different"], shown["partial"]) == (True, 0, "")
    assert (shown["unchecked"], shown["notes"]) == ({}, [])
    assert shown["verdict"] == json.loads(dpaudit("verify", run, "--json").out)["verdict"]


def test_what_a_report_draws_is_not_checked_and_what_lies_beside_is_no_difference(run):
    (run / "report.html").write_text("<html>")
    (run / "notes.txt").write_text("read me")
    checked = check.check_run(str(run))
    assert (checked.in_order, checked.notes) == (True, [])
    assert [*checked.unchecked] == ["report.html and figures: `dpaudit report` draws them again"]


Change = Callable[[Path], str]  # changes a run; returns how a line of what is checked begins


def in_a_pack(change: Callable[[pa.Table], pa.Table], place: str = "") -> Change:
    return in_a_file("scores/000*/20-29.parquet", lambda file: change_table(file, change), place)


def in_the_plan(place: str, change: Callable[[Any], object]) -> Change:
    return lambda run: f"{change_json(run, 'plan.json', change)}: {place}"


def written(name: str, place: str, content: str) -> Change:
    def change(run: Path) -> str:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text(content)
        return f"{name}: {place}"

    return change


def in_a_file(pattern: str, change: Callable[[Path], object], place: str = "") -> Change:
    def changed(run: Path) -> str:
        file = next(run.glob(pattern))
        change(file)
        return f"{file.relative_to(run)}: {place}" if place else str(file.relative_to(run))

    return changed


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def flipped(table: pa.Table) -> pa.Table:
    """With another bit for trial 22, at both steps."""
    bit = not table["member"][4].as_py()
    return altered(altered(table, "member", 4, bit), "member", 5, bit)


def a_pack_that_its_estimates_do_not_know(run: Path) -> str:
    """And a lie that all is there."""
    (audit_folder(run, 1) / "50-59.parquet").unlink()
    Aggregation.rebuild(RunDirectory(str(run))).flush()
    return "_SUCCESS: complete there, not while gradient=constant is not"


def a_pack_of_no_plan(run: Path) -> str:
    file = audit_folder(run) / "20-28.parquet"
    shutil.copy(file.with_name("20-29.parquet"), file)
    return str(file.relative_to(run))


def scores_of_no_audit(run: Path) -> str:
    shutil.copytree(audit_folder(run), run / "scores" / "002-landscape-01234567")
    return "scores/002-landscape-01234567/0-9.parquet"


def a_pack_that_is_twice_and_other(run: Path) -> str:
    """Two packs in one file over files of one each, of which one has another score."""
    folder, id = RunDirectory(str(run)), audit_folder(run).name
    whole = PackScores.joined([folder.read_scores(id, 0, 9), folder.read_scores(id, 10, 19)])
    whole.scores[3, 0] += 1
    folder.write_scores(id, whole)
    return f"scores/{id}/0-9.parquet"


def another_seed(raw: Any) -> None:
    raw["seed"] = 4
    keys = ("id", "label", "fingerprint", "trials", "horizons", "claims", "packs", "declared")
    for audit in raw["audits"]:
        planned = PlannedAudit(**{key: audit[key] for key in keys})
        audit["bits_sha256"] = planned.commitment(4)


def the_number_of_trials(run: Path) -> str:
    raw = yaml.safe_load((run / "sweep.yaml").read_text())
    raw["audit"]["trials"] = 50
    (run / "sweep.yaml").write_text(yaml.safe_dump(raw))
    return "plan.json: gradient=threshold, audits.0.trials: 60 there, not 50"


def one_bound(run: Path) -> str:
    value = pd.read_parquet(run / "estimates.parquet")["epsilon_lower_together"].iloc[0]
    name = change_estimates(run, "epsilon_lower_together", 0, value + 1e-6)
    return f"{name}: gradient=threshold, step 3, accuracy, gaussian, epsilon_lower_together: "


CHANGES = {
    "one_score": in_a_pack(lambda table: altered(table, "score", 5, 0.125)),
    # As programs write that know nothing of it.
    "one_digest": in_a_pack(lambda table: table.replace_schema_metadata(None)),
    "one_bit": in_a_pack(flipped, "gradient=threshold, trial 22"),
    "one_step": in_a_pack(lambda table: table.set_column(
        3, table.schema.field(3), pa.array([2, 6] * 10, pa.int32()))),
    "one_claim": in_the_plan("gradient=constant, claim after step 3 by rdp",
                             lambda raw: raw["audits"][1]["claims"]["rdp"].__setitem__(0, 9.0)),
    "one_commitment": in_the_plan("the bits of 000-landscape-",
                                  lambda raw: raw["audits"][0].update(bits_sha256="0" * 64)),
    "another_cut": in_the_plan(
        "gradient=threshold, audits.0.packs",
        lambda raw: raw["audits"][0]["packs"].__setitem__(slice(2), [[0, 4], [5, 19]])),
    "another_seed": in_the_plan("seed: 4 there, not 3", another_seed),
    "a_decision": written("outcomes.json",
                          "gradient=threshold, trials that were enough: 20 there, not nothing",
                          '{"decided": {"000": {"trials": 20, "rule": null}}}'),
    "a_damaged_decision": written("outcomes.json", "", "[1]"),
    "a_truncated_pack": in_a_file("scores/000*/20-29.parquet", cut),
    "a_deleted_pack": in_a_file("scores/001*/50-59.parquet", Path.unlink,
                                "gradient=constant: no such file there, not the scores behind"),
    "no_plan": in_a_file("plan.json", Path.unlink, "no such file"),
    "the_sweep": in_a_file("sweep.yaml", lambda file: file.write_text(
        file.read_text().replace("noise_multiplier: 2.0", "noise_multiplier: 4.0")), "fingerprint"),
    "the_verdict": lambda run: change_json(run, "verdict.json",
                                           lambda raw: raw.update(verdict="VIOLATION")),
}  # fmt: skip
FUNCTIONS = [a_pack_of_no_plan, scores_of_no_audit, a_pack_that_its_estimates_do_not_know]
FUNCTIONS += [a_pack_that_is_twice_and_other, the_number_of_trials, one_bound]
CHANGES |= {change.__name__: change for change in FUNCTIONS}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_named(run, change):
    place = CHANGES[change](run)
    before = contents(run)
    outcome = dpaudit("check", run)
    assert outcome.code == 2, outcome.out
    assert outcome.err == ""
    assert outcome.out.startswith("differs in ")
    assert any(line.startswith(f"  {place}") for line in outcome.out.splitlines()), outcome.out
    assert contents(run) == before


def test_a_change_with_a_digest_to_match_is_seen_in_the_bounds(run):
    """Who writes scores anew, digest and all, has to write the estimates anew, too."""
    folder, id = RunDirectory(str(run)), audit_folder(run).name
    for first in range(0, 60, 10):
        pack = folder.read_scores(id, first, first + 9)
        pack.scores[:] = np.where(pack.members[:, None], 1.0, -1.0)
        (run / "scores" / id / f"{first}-{first + 9}.parquet").unlink()
        folder.write_scores(id, pack)
    checked = check.check_run(str(run))
    assert checked.differences
    assert {place.file for place in checked.differences} == {"estimates.parquet", "verdict.json"}
    assert {place.audit for place in checked.differences} == {"gradient=threshold", ""}


def test_many_places_are_counted(run):
    def sevens(table: pa.Table) -> pa.Table:
        at = table.column_names.index("epsilon_lower")
        return table.set_column(at, table.schema.field(at), pa.array(np.full(len(table), 7.0)))

    change_table(run / "estimates.parquet", sevens)
    out = dpaudit("check", run).out
    assert out.startswith("differs in 24 places: ")
    assert out.count("\n  estimates.parquet: ") == 20
    assert "\n  and 4 more places\n" in out
    assert len(json.loads(dpaudit("check", run, "--json").out)["differences"]) == 24


def test_last_digits_are_no_difference(run):
    value = float(pd.read_parquet(run / "estimates.parquet")["epsilon_upper"].iloc[0])
    change_json(run, "plan.json", lambda raw: raw["audits"][0]["claims"]["gaussian"].__setitem__(
        0, value * (1 + 1e-13)))  # fmt: skip
    checked = check.check_run(str(run))
    assert checked.in_order, checked.differences


def exact(folder: Path) -> Path:
    return finished(folder, sweep(mechanism=LANDSCAPE | {"backend": "exact"}))


def extended(folder: Path) -> Path:
    finished(folder, sweep())
    return finished(folder, sweep(), "--set", "audit.trials=85")


def decided(folder: Path) -> Path:
    audit = sweep()["audit"] | {"trials": 300, "stop_when": {"within": 0.9}}
    mechanism = LANDSCAPE | {"steps": 1}
    return finished(folder, sweep(audit=audit | {"record_every": 1}, mechanism=mechanism,
                                  grid={}, resources={"pack_size": 30}))  # fmt: skip


def waiting_for_a_preparation(folder: Path) -> Path:
    """Two audits by functions of somebody's own, which may not be imported where it is checked."""
    mechanism = {
        "name": "tests.pace:WithoutTorch", "path": "tests.orchestration.shadows:train", "steps": 4,
        "noise_multiplier": 1.0, "prepare": "tests.orchestration.shadows:shadow", "parts": 2,
    }  # fmt: skip
    audit = {"trials": 20, "delta": 1e-5}
    grid = {"mechanism.options": [{"noise": 1.0}, {"noise": 2.0}]}
    return finished(folder, sweep(mechanism=mechanism, adversary="own", audit=audit, grid=grid))


def finished(folder: Path, raw: dict[str, Any], *more: str) -> Path:
    completed(inline(write_sweep(folder, raw), folder, *more))
    return folder / raw["name"]


@pytest.mark.parametrize(
    "made", [exact, extended, decided, waiting_for_a_preparation, several_canaries]
)
def test_runs_of_all_kinds_are_in_order(made, tmp_path, monkeypatch):
    (tmp_path / "log").mkdir()
    monkeypatch.setenv(shadows.LOG, str(tmp_path / "log"))
    location = made(tmp_path)
    outcome = completed(dpaudit("check", location))
    assert "\nin order: " in f"\n{outcome.out}"
    if made is waiting_for_a_preparation:  # what a stranger wrote is not run, and said
        unread = "not checked: the fingerprint of sweep.yaml: it needs code that was not imported"
        assert unread in outcome.out
        assert "not checked: values in preparations: " in outcome.out
        trusted = completed(dpaudit("check", location, "--trust", "tests"))
        assert "fingerprint" not in trusted.out
    rows = len(pq.read_table(location / "estimates.parquet"))
    change_estimates(location, "epsilon_lower", rows - 1, 99.0)
    (difference,) = check.check_run(str(location)).differences
    assert difference.place.endswith(", epsilon_lower")
    assert difference.stored == "99.0"


def test_data_that_is_not_here_is_said(tmp_path):
    file = write_data(tmp_path / "data.npz")
    mechanism = DP_SGD | {"data": {"name": "npz", "path": str(file)}, "steps": 2, "batch_size": 10}
    raw = sweep(mechanism=mechanism | {"sampling": "shuffle"}, adversary="loss", grid={},
                audit={"trials": 20, "delta": 1e-5})  # fmt: skip
    location = played(raw, tmp_path, 2)
    assert "not checked" not in dpaudit("check", location).out
    file.unlink()
    outcome = completed(dpaudit("check", location))
    said = " ".join(outcome.out.split())
    assert "the input of accountants: needs code or data that is missing here" in said
    assert f"not checked: the data: {file} missing, or with different content" in said


def test_a_partial_run_is_in_order_as_far_as_it_goes(tmp_path):
    begun = played(sweep(), tmp_path, 0)
    (begun / "estimates.parquet").unlink()
    assert "(partial, 0 of 120 trials)" in completed(dpaudit("check", begun)).out
    location = played(sweep(), tmp_path, 8)
    outcome = completed(dpaudit("check", location))
    assert "in order as far as it goes (partial, 80 of 120 trials): " in outcome.out
    (location / "_SUCCESS").touch()
    assert (
        "  _SUCCESS: complete there, not while gradient=constant is not"
        in dpaudit("check", location).out
    )


def test_failed_packs_and_missed_trials_are_held_against_their_records(tmp_path):
    location = played(sweep(), tmp_path, 12, missed=True)
    outcome = completed(dpaudit("check", location))
    assert "(partial, 100 of 120 trials)" in outcome.out
    assert "10 missed trials" in " ".join(outcome.out.split())
    (location / "outcomes.json").unlink()
    checked = check.check_run(str(location))
    assert {place.file for place in checked.differences} == {"outcomes.json"} | {
        f"scores/{audit_folder(location).name}/{pack}.parquet" for pack in ("0-9", "10-19")
    }


def test_estimates_of_before_a_crash_are_behind_and_no_difference(tmp_path):
    """The last packs were stored, and then the driver was killed."""
    location = played(sweep(), tmp_path, 8)
    written = (location / "estimates.parquet").read_bytes()
    played(sweep(), tmp_path, 2)
    (location / "estimates.parquet").write_bytes(written)
    checked = check.check_run(str(location))
    assert checked.in_order, checked.differences
    assert "they are for 20 of 40 stored trials" in " ".join(checked.unchecked)


class Half(stats.Estimator):
    """Somebody's own, which may not be imported where it is checked."""

    name = "half"
    status = stats.Status.CERTIFIED

    def _fold(self, scores: Any, members: Any) -> None: ...

    def bound(self, delta: float, confidence: float) -> stats.Estimate:
        return self._estimate(0.5, float("nan"), (delta, confidence), self.planned)


def test_bounds_by_somebodys_own_estimator_are_said_not_to_be_checked(tmp_path):
    """The rest of an audit that was decided early is checked, to the trial that was enough."""
    mechanism = LANDSCAPE | {"steps": 1}
    audit = {"trials": 300, "delta": 1e-5, "stop_when": {"within": 0.9}}
    audit |= {"estimators": ["tests.report.test_check:Half", "accuracy"]}
    raw = sweep(mechanism=mechanism, audit=audit, grid={}, resources={"pack_size": 30})
    location = finished(tmp_path, raw)
    outcome = completed(dpaudit("check", location))
    said = " ".join(outcome.out.split())
    assert (
        "not checked: landscape: its estimates: its author's code in tests.report.test_check:Half"
        in said
    )
    assert "in order: " in said
    assert "not checked" not in dpaudit("check", location, "--trust", "tests").out
