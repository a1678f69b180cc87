"""Score files that are damaged, foreign, or cannot be read at the moment."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.errors import StorageError
from dpaudit_ray.plan import quarantine
from dpaudit_ray.report.tables import Run
from dpaudit_ray.storage.files import Folder
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import Outcome, completed, dpaudit, inline, write_sweep
from tests.orchestration.test_faults import assert_same
from tests.report.handed import sweep
from tests.storage.test_storage import memory, pack, row

AUDIT = {"trials": 90, "delta": 1e-5}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run to damage copies of, with its sweep file beside it."""
    folder = tmp_path_factory.mktemp("whole")
    assert inline(write_sweep(folder, sweep("whole", audit=AUDIT)), folder).code == 0
    return folder / "whole"


@pytest.fixture
def run(tmp_path: Path, whole: Path) -> Path:
    return Path(shutil.copytree(whole.parent, tmp_path / "copy")) / "whole"


def audit(run: Path) -> Path:
    return run / "scores" / planning.require(RunDirectory(str(run))).audits[0].id


def again(run: Path) -> Outcome:
    return inline(run.parent / "sweep.yaml", run.parent)


def flipped(file: Path) -> None:
    """Whole by its size and by both ends."""
    content = bytearray(file.read_bytes())
    for place in range(len(content) // 3, len(content) - 8):
        content[place] ^= 0x55
    file.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-40]),
    "flipped": flipped,
}


@pytest.mark.parametrize(
    ("damage", "first"), [("empty", 0), ("cut", 0), ("flipped", 0), ("flipped", 80)]
)
def test_damaged_packs_are_set_aside_and_run_again(damage, first, run, whole):
    file = audit(run) / f"{first}-{first + 9}.parquet"
    DAMAGES[damage](file)
    content = file.read_bytes()
    found = completed(again(run))
    line, *more = found.err.splitlines()
    assert line.startswith(f"dpaudit: {file} is damaged: set aside as {file.name}.damaged-")
    assert line.endswith(", and made again")
    assert more in ([], ["dpaudit: resuming at 170 of 180 trials"]), "some damage is found later"
    (aside,) = file.parent.glob("*.damaged-*")
    assert aside.read_bytes() == content
    assert_same(run, whole)
    assert again(run).err == "", "once"


def test_a_late_pack_is_found_when_its_turn_comes(run, whole):
    scores = audit(run)
    (scores / "10-19.parquet").unlink()
    DAMAGES["empty"](scores / "70-79.parquet")
    found = completed(again(run))
    assert "70-79.parquet is damaged" in found.err
    assert_same(run, whole)


def test_a_damaged_file_of_many_packs_is_set_aside(tmp_path):
    file = write_sweep(tmp_path, sweep("many", audit=AUDIT, grid={}, resources={"pack_size": 1}))
    assert inline(file, tmp_path).code == 0
    shutil.copytree(tmp_path / "many", tmp_path / "quiet")
    (gathered,) = audit(tmp_path / "many").glob("*.parquet")
    assert gathered.name == "0-89.parquet"
    flipped(gathered)
    found = completed(inline(file, tmp_path))
    assert f"{gathered} is damaged: set aside as 0-89.parquet.damaged-" in found.err
    assert_same(tmp_path / "many", tmp_path / "quiet")


def test_many_damaged_packs_are_counted(run):
    for file in run.glob("scores/*/*.parquet"):
        file.write_bytes(b"")
    outcome = completed(again(run))
    *named, rest = outcome.err.splitlines()
    assert len(named) == quarantine.NAMED
    assert "13 more files are damaged" in rest


def test_a_foreign_pack_counts_no_trial_twice(run):
    """It overlaps two packs of the plan, and is a proper file of its name."""
    scores, directory = audit(run), RunDirectory(str(run))
    other = directory.read_scores(scores.name, 0, 9)
    shifted = type(other)(5, other.members, other.steps, other.scores + 1)
    before, status = da.Result(str(run), True).scores, dpaudit("status", run, "--json").out
    table = dpaudit("report", run, "--format", "csv").out
    directory.write_scores(scores.name, shifted)
    found = da.Result(str(run), True).scores
    pd.testing.assert_frame_equal(found, before, check_exact=True)
    assert not found.duplicated(["audit", "trial", "step"]).any()
    assert dpaudit("status", run, "--json").out == status
    assert dpaudit("report", run, "--format", "csv").out == table
    assert again(run).code == 0
    opened = Run.open(str(run))
    assert [opened.done(planned) for planned in opened.plan.audits] == [90, 90]


READS: dict[str, Callable[[RunDirectory], object]] = {
    "scores": lambda run: run.read_scores("a", 10, 15),
    "estimates": lambda run: run.estimates(),
    "json": lambda run: run.read_json("plan.json"),
    "files": lambda run: run.score_files("a"),
    "complete": lambda run: run.complete,
}


def times_out(*_: Any, **__: Any) -> None:
    raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))


@pytest.mark.parametrize("what", READS)
def test_what_cannot_be_read_now_is_not_to_be_deleted(what, tmp_path, monkeypatch):
    run = RunDirectory(str(tmp_path))
    run.write_scores("a", pack())
    run.write_estimates([row()])
    for name in ("read", "names", "exists"):
        monkeypatch.setattr(Folder, name, times_out)
    with pytest.raises(StorageError) as error:
        READS[what](run)
    assert "Connection timed out" in str(error.value)
    assert str(error.value).endswith("run the same command again once the storage answers")
    assert "delete" not in str(error.value)


def test_a_time_out_sets_nothing_aside(run, monkeypatch):
    directory = RunDirectory(str(run))
    plan = planning.require(directory)
    monkeypatch.setattr(Folder, "read", times_out)
    with pytest.raises(StorageError, match="timed out"):
        quarantine.set_aside(directory, plan, pytest.fail)
    assert list(run.glob("scores/*/*.damaged-*")) == []


@pytest.fixture(params=["local", "memory", "no links"])
def place(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if request.param == "no links":
        monkeypatch.setattr(os, "link", no_links)
    store = memory(monkeypatch) if request.param == "memory" else str(tmp_path)
    return RunDirectory.under(store, "tiny")


def test_scores_are_never_replaced(place):
    first, other = pack(), pack()
    other.scores[0, 0] += 1
    place.write_scores("a", first)
    place.write_scores("a", pack())
    with pytest.raises(
        StorageError, match=r"10-15\.parquet was written by another process"
    ) as error:
        place.write_scores("a", other)
    assert "for trial 10, not " in str(error.value)
    assert "\n" not in str(error.value)
    assert place.read_scores("a", 10, 15).difference(first) is None
    flipped = type(first)(10, ~first.members, first.steps, first.scores)
    with pytest.raises(StorageError, match="has other bits or steps"):
        place.write_scores("a", flipped)
    assert place._folder.names("scores/a") == ["10-15.parquet"], "nothing is left beside it"


def test_the_same_scores_in_other_bytes_are_the_same(tmp_path):
    """As another version of pyarrow writes them."""
    run = RunDirectory(str(tmp_path))
    (tmp_path / "scores/a").mkdir(parents=True)
    pq.write_table(pack().table("a"), tmp_path / "scores/a/10-15.parquet", compression="none")
    run.write_scores("a", pack())
