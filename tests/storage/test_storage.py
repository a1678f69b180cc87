"""The run directory: absent or whole, readable by anything, and honest about damage."""

import collections
import dataclasses
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from dpaudit_ray.errors import RunDirectoryError
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import ESTIMATE_SCHEMA, SCORE_SCHEMA, EstimateRow, PackScores
from tests.command import stored_scores

SCORE_COLUMNS = ["audit", "trial", "member", "step", "score"]
ESTIMATE_COLUMNS = [
    *("audit", "step", "trials", "estimator", "status", "epsilon_lower", "mu_lower", "delta"),
    *("confidence", "epsilon_upper", "accountant", "threshold"),
    *("epsilon_lower_together", "epsilon_lower_free", "free_estimator"),
]


def pack(first: int = 10, trials: int = 6, steps: tuple[int, ...] = (3, 6)) -> PackScores:
    """Scores with everything that a diverged training may leave."""
    rng = np.random.default_rng(first)
    scores = rng.normal(size=(trials, len(steps)))
    scores[1, 0], scores[2, -1], scores[3, 0], scores[4, 0] = np.nan, np.inf, -np.inf, -0.0
    return PackScores(first, rng.random(trials) > 0.5, steps, scores)


def assert_same(left: PackScores, right: PackScores) -> None:
    assert (left.first, left.last, left.steps) == (right.first, right.last, right.steps)
    assert np.array_equal(left.members, right.members)
    assert left.scores.tobytes() == right.scores.tobytes()
    assert left.utility.keys() == right.utility.keys()
    for name, values in left.utility.items():
        assert values.tobytes() == right.utility[name].tobytes()


def measured(first: int = 10, trials: int = 6) -> PackScores:
    """With both measures, named in another order than columns have."""
    plain = pack(first, trials)
    return dataclasses.replace(
        plain, utility={"loss": plain.scores - 5, "accuracy": plain.scores * 2}
    )


@pytest.mark.parametrize("names", [("accuracy", "loss"), ("loss",)])
def test_what_models_are_worth_lies_beside_their_scores(names, tmp_path):
    run, whole = RunDirectory(str(tmp_path / "run")), measured()
    whole = dataclasses.replace(whole, utility={name: whole.utility[name] for name in names})
    run.write_scores("a", whole)
    (file,) = (tmp_path / "run/scores/a").glob("*.parquet")
    assert pq.read_schema(file).names == [*SCORE_COLUMNS, *names]
    assert_same(run.read_scores("a", 10, 15), whole)
    assert_same(PackScores.joined([whole.part(10, 12), whole.part(13, 15)]), whole)


def row(**changes: Any) -> EstimateRow:
    values = ["a", 6, 90, "accuracy", "certified", 1.5, np.nan, 1e-5, 0.95, np.inf, "prv", np.nan]
    values += [1.4, 0.7, "eps-delta"]
    return EstimateRow(**dict(zip(ESTIMATE_COLUMNS, values, strict=True)) | changes)


def memory(monkeypatch: pytest.MonkeyPatch) -> str:
    """An object store in this process, behind an s3:// address: a bucket for each run directory."""
    buckets = collections.defaultdict[str, MemoryStore](MemoryStore)
    monkeypatch.setattr("obstore.store.from_url", lambda url, **options: buckets[url])
    return "s3://bucket/runs"


@pytest.fixture(params=["local", "file", "memory"])
def run(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    place = {
        "local": lambda: str(tmp_path),
        "file": lambda: tmp_path.as_uri(),
        "memory": lambda: memory(monkeypatch),
    }[request.param]()
    return RunDirectory.under(place, "tiny")


@pytest.fixture
def local(tmp_path: Path) -> RunDirectory:
    return RunDirectory(str(tmp_path / "tiny"))


def test_an_empty_directory_holds_nothing(run):
    assert run.read_text("sweep.yaml") is None
    assert run.read_json("plan.json") is None
    assert run.score_files("a") == set()
    assert not run.has_scores
    assert not run.complete
    assert run.estimates().columns.tolist() == ESTIMATE_COLUMNS
    assert stored_scores(run, "a").columns.tolist() == SCORE_COLUMNS
    assert len(run.estimates()) == len(stored_scores(run, "a")) == 0


def test_what_is_replaced_comes_back(run):
    run.write_text("sweep.yaml", "name: é\n")
    run.require_writable()
    assert run._folder.names("") == ["sweep.yaml"], "left as it was"
    run.write_json("plan.json", {"a": [1, 2.5, None]})
    run.write_json("plan.json", {"a": [3]})
    assert run.read_text("sweep.yaml") == "name: é\n"
    assert run.read_json("plan.json") == {"a": [3]}
    run.write_estimates([row(), row(step=3)])
    run.write_estimates([row(trials=180)])
    (only,) = run.estimates().to_dict("records")
    assert only["trials"] == 180
    assert np.isnan(only["mu_lower"])
    assert np.isinf(only["epsilon_upper"])
    for complete in (False, True, True, False, False):
        run.set_complete(complete)
        assert run.complete is complete


def test_scores_come_back_bit_for_bit(run):
    for given in (pack(10), pack(16, trials=9), pack(0, trials=10, steps=(250,))):
        audit = f"audit-{given.first}"
        run.write_scores(audit, given)
        assert run.score_files(audit) == {(given.first, given.last)}
        assert_same(run.read_scores(audit, given.first, given.last), given)
    assert run.has_scores


def test_layout_and_columns_are_those_of_the_contract(local):
    """Nothing is pickled."""
    local.write_scores("000-loss-x", pack())
    local.write_estimates([row()])
    local.write_figure("a.png", b"png")
    local.write_json("plan.json", {"x": 1})
    local.set_complete(True)
    root = Path(local.location)
    scores, estimates = root / "scores/000-loss-x/10-15.parquet", root / "estimates.parquet"
    others = {root / name for name in ("figures/a.png", "plan.json", "_SUCCESS")}
    assert {file for file in root.rglob("*") if file.is_file()} == {scores, estimates} | others
    assert json.loads((root / "plan.json").read_text()) == {"x": 1}
    assert pq.read_schema(scores).names == SCORE_COLUMNS == SCORE_SCHEMA.names
    assert pq.read_schema(estimates).names == ESTIMATE_COLUMNS == ESTIMATE_SCHEMA.names
    assert pd.read_parquet(estimates).loc[0, "epsilon_lower"] == 1.5
    frame = pd.read_parquet(scores)
    assert [str(kind) for kind in frame.dtypes.iloc[1:]] == ["int64", "bool", "int32", "float64"]
    assert set(frame["audit"]) == {"000-loss-x"}
    assert (np.isinf(frame["score"]).sum(), frame["score"].isna().sum()) == (2, 1)


def dies(*_: Any, **__: Any) -> None:
    """SIGKILL, as far as the code after this line can tell."""
    raise KeyboardInterrupt


@pytest.mark.parametrize("moment", ["fsync", "place"])
def test_a_killed_write_leaves_no_visible_file(moment, local, monkeypatch):
    local.write_estimates([row()])
    with monkeypatch.context() as patch:
        places = [(os, "link"), (Path, "replace")]
        for killed in {"fsync": [(os, "fsync")], "place": places}[moment]:
            patch.setattr(*killed, dies)
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # the dead do not clean up
        with pytest.raises(KeyboardInterrupt):
            local.write_scores("a", pack())
        with pytest.raises(KeyboardInterrupt):
            local.write_estimates([row(trials=180)])
    leftovers = list(Path(local.location).rglob("*.tmp"))
    assert len(leftovers) == 2, "the write was cut off between the temporary file and the rename"
    assert all(file.name.startswith(".") for file in leftovers)
    assert local.score_files("a") == set()
    assert not local.has_scores
    assert len(stored_scores(local, "a")) == 0
    assert local.estimates()["trials"].tolist() == [90], "the old estimates are still there"
    local.write_scores("a", pack())
    assert_same(local.read_scores("a", 10, 15), pack())


def test_two_writers_of_one_file_do_not_share_a_temporary_one(local, monkeypatch):
    """Two drivers on one run directory: the second writes while the first is about to link."""
    link = os.link

    def meanwhile(beside: Path, place: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        local.write_scores("a", pack())
        link(beside, place)

    monkeypatch.setattr(os, "link", meanwhile)
    local.write_scores("a", pack())
    assert_same(local.read_scores("a", 10, 15), pack())
    assert list(Path(local.location).rglob("*.tmp")) == []


def test_what_is_no_pack_is_no_pack(local):
    local.write_scores("a", pack())
    folder = Path(local.location) / "scores/a"
    strange = ("notes.txt", "0-9.parquet.bak", "x-9.parquet", "0-9.csv", "10-15.parquet\n")
    for name in (*strange, ".0-9.parquet.1f.tmp", "010-015.parquet", "10-15.parquet.damaged-1f"):
        (folder / name).write_text("x")
    (folder / "0-9.parquet").mkdir()
    assert local.score_files("a") == {(10, 15)}
    assert len(stored_scores(local, "a")) == 12


def altered(pack: PackScores, column: str, values: list[Any]) -> pa.Table:
    """The score file of a pack, with other values in a column."""
    whole = pack.table("a")
    place = whole.column_names.index(column)
    return whole.set_column(place, column, pa.array(values, whole.schema.types[place]))


BITS, SCORES = (pack().table("a")[name].to_pylist() for name in ("member", "score"))
TABLES: dict[str, pa.Table] = {
    "other pack": pack(16).table("a"),
    "other audit": pack().table("b"),
    "swapped rows": pack().table("a").take([1, 0, *range(2, 12)]),
    "one row less": pack().table("a").slice(0, 11),
    "no rows": SCORE_SCHEMA.empty_table(),
    "steps of a trial disagree about its bit": altered(pack(), "member", [not BITS[0], *BITS[1:]]),
    "missing score": altered(pack(), "score", [None, *SCORES[1:]]),
    "other columns": pa.table({"x": [1]}),
}
DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "start": lambda file: file.write_bytes(b"PAR1"),
    "text": lambda file: file.write_text("trial,score\n"),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    **{name: functools.partial(pq.write_table, table) for name, table in TABLES.items()},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_score_file_is_told_with_a_remedy(damage, local):
    local.write_scores("a", pack())
    file = Path(local.location) / "scores/a/10-15.parquet"
    DAMAGES[damage](file)
    for read in (lambda: local.read_scores("a", 10, 15), lambda: stored_scores(local, "a")):
        with pytest.raises(RunDirectoryError) as error:
            read()
        assert str(file) in str(error.value)
        assert str(error.value).endswith(
            "run the sweep again: it is set aside and its trials are run again"
        )
        assert "\n" not in str(error.value)


def test_no_changed_byte_is_read_as_another_score(local):
    """Every byte of the file is flipped in turn: told, or without consequence."""
    local.write_scores("a", pack())
    file = Path(local.location) / "scores/a/10-15.parquet"
    whole = file.read_bytes()
    told = 0
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            assert_same(local.read_scores("a", 10, 15), pack())
        except RunDirectoryError:
            told += 1
    assert told > len(whole) / 2


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "other columns"])
def test_damaged_estimates_are_told_with_a_remedy(damage, local):
    local.write_estimates([row()])
    DAMAGES[damage](Path(local.location) / "estimates.parquet")
    with pytest.raises(RunDirectoryError, match=r"estimates\.parquet is not .*; delete it"):
        local.estimates()
    local.write_estimates([row()])
    assert len(local.estimates()) == 1


def test_a_pack_that_vanished_is_told(local):
    with pytest.raises(RunDirectoryError, match=r"0-9\.parquet is not readable \(it is gone\)"):
        local.read_scores("a", 0, 9)


def test_names_are_appended_to_any_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    memory(monkeypatch)
    for place, location in [
        ("runs", f"{tmp_path}/runs/x"),
        ("runs/", f"{tmp_path}/runs/x"),
        ("/", "/x"),
        (".", f"{tmp_path}/x"),
        ("~/runs", f"{tmp_path}/home/runs/x"),
        ("file:///data/", "/data/x"),
        ("s3://bucket/runs/", "s3://bucket/runs/x"),
    ]:
        assert RunDirectory.under(place, "x").location == location
        assert RunDirectory(f"{location}//").location == location


@pytest.mark.parametrize("place", ["", "s3://", "s3:///", "gs://", "://", "floppy://a"])
def test_a_place_without_a_name_or_of_an_unknown_kind_is_refused(place):
    told = r"(names no place|floppy:// is not one .*); give a f"
    with pytest.raises(RunDirectoryError, match=told):
        RunDirectory.under(place, "x")
