"""An S3 server that fails: a run ends with the same bits or one clear line, never a loss."""

import dataclasses
import datetime
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest

import dpaudit_ray as da
from dpaudit_ray.errors import RunDirectoryError, StorageError
from dpaudit_ray.storage import buckets, lease, place, run_directory
from dpaudit_ray.storage.place import Patience
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from tests.command import changed, dpaudit, inline, write_sweep
from tests.long import long
from tests.orchestration.test_faults import assert_same
from tests.storage.faulty_store import Fault, FaultyStore, opened
from tests.storage.test_storage import assert_same as assert_same_scores
from tests.storage.test_storage import pack

QUICK = Patience(seconds=2, sleep=lambda seconds: None)


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyStore]:
    with pytest.MonkeyPatch.context() as patch, opened(patch) as store:
        yield store


@pytest.fixture
def store(server: FaultyStore) -> Iterator[FaultyStore]:
    yield server
    server.faults.clear()


@pytest.fixture
def run(store: FaultyStore, request: pytest.FixtureRequest) -> RunDirectory:
    return RunDirectory.under(store.address, re.sub(r"\W", "-", request.node.name), QUICK)


SCORES = "scores/.*parquet"
PASSING = {
    "409 with nothing stored": Fault("PUT", SCORES, "409 ConditionalRequestConflict"),
    "412 with nothing stored": Fault("PUT", SCORES, "412 PreconditionFailed"),
    "500 after storing": Fault("PUT", SCORES, "store, then 500 InternalError"),
    "503 in a burst": Fault("PUT", SCORES, "503 SlowDown", count=4),
    "an answer that is cut": Fault("GET", SCORES, "cut"),
}


@pytest.mark.parametrize("name", PASSING)
def test_scores_survive_what_passes(name, run, store):
    store.faults.append(dataclasses.replace(PASSING[name]))
    run.write_scores("a", pack())
    assert_same_scores(run.read_scores("a", 10, 15), pack())
    assert store.faults[0].count <= 0, "the fault did not happen"


def test_an_upload_that_is_always_refused_is_an_error(run, store):
    store.faults.append(Fault("PUT", SCORES, "409 ConditionalRequestConflict", count=10**9))
    with pytest.raises(StorageError, match="has no object"):
        run.with_patience(Patience()).write_scores("a", pack())


def test_a_lease_or_a_part_is_not_taken_for_stored(run, store):
    store.faults.append(Fault("PUT", "driver.json", "409 ConditionalRequestConflict"))
    assert run.create_json("driver.json", {"owner": "x"}) is None
    assert run.read_json("driver.json") == {"owner": "x"}
    assert run.create_json("driver.json", {"owner": "y"}) == {"owner": "x"}


def test_a_stored_pack_is_found_though_no_list_has_it(run, store):
    run.write_text("sweep.yaml", "name: x")
    run.write_scores("a", pack())
    store.faults.append(Fault("GET", "list-type", "hide", count=10**9))
    assert run.score_files("a") == set()
    assert run.has_scores_of("a", (10, 15))
    assert not run.has_scores_of("a", (16, 21))


@pytest.fixture
def light(light: dict) -> dict:
    """The light sweep with eight packs."""
    return changed(light, "audit.trials", 40)


@pytest.fixture
def quiet(light: dict, tmp_path: Path) -> str:
    """The light sweep in a folder, by storage that works."""
    return da.run(light, storage_path=str(tmp_path), executor="inline").location


ANY = "GET|HEAD|PUT|DELETE"
LAG = [Fault("GET", "list-type", "hide", skip=4, count=10**9)]  # newest objects: scores
WHOLE_RUNS = {
    "409": [Fault("PUT", SCORES, "409 ConditionalRequestConflict", skip=3)],
    "503 in bursts": [
        Fault(ANY, "", "503 SlowDown", skip=skip, count=4) for skip in range(9, 200, 25)
    ],
    "500 after storing": [
        Fault("PUT", "", "store, then 500 InternalError", skip=skip) for skip in range(2, 99, 3)
    ],
    "bodies that are cut": [
        Fault("GET", "", "cut", skip=skip, count=3) for skip in range(2, 99, 10)
    ],
    "errors with status 200": [
        Fault("GET", "", "error", skip=skip, count=3) for skip in range(2, 99, 10)
    ],
    "a slow line": [Fault(ANY, "", "line", count=10**9, seconds=2.5)],
    "a gateway that times out": [
        Fault(ANY, "", "store, then 504 GatewayTimeout", skip=skip) for skip in range(9, 200, 25)
    ],
}
LONG_ONE = long("a run each, by a server in this process")
NAMES = ["lists that lag", *(pytest.param(n, marks=LONG_ONE) for n in WHOLE_RUNS)]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_is_complete_with_every_bit(name, light, quiet, store):
    storage = f"{store.address}/{name.replace(' ', '-')}"
    faults = WHOLE_RUNS.get(name, LAG)
    store.faults[:] = map(dataclasses.replace, faults)
    result = da.run(light, storage_path=storage, executor="inline")
    assert result.complete
    assert store.faults[0].count != faults[0].count, "the fault did not happen"
    assert da.Result.open(result.location).complete
    assert_same(quiet, result.location)


class Expiring(Fault):
    """Refuses every request from an upload of scores on, as an expired token does."""

    def applies(self, method: str, path: str) -> bool:
        if method == "PUT" and re.search(SCORES, path):
            self.skip -= 1
        return self.skip < 0


def test_a_token_that_expires_ends_a_run_at_once_and_loses_nothing(
    light, quiet, store, tmp_path, monkeypatch
):
    monkeypatch.setattr(place, "RUNNING", Patience(seconds=60, sleep=forbidden))
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.1)  # the lease could not be given back
    storage = f"{store.address}/expiring"
    file = write_sweep(tmp_path, light)
    store.faults.append(Expiring("", "", "400 ExpiredToken", skip=3))
    outcome = inline(file, storage)
    assert outcome.code == 4, outcome
    assert outcome.err.count("\n") == 1, outcome.err
    assert "the credentials have expired" in outcome.err
    assert "renew them, then run the same command again" in outcome.err
    store.faults.clear()
    run = RunDirectory(f"{storage}/tiny", QUICK)
    assert sum(map(len, map(run.score_files, audits(quiet)))) == 3
    assert inline(file, storage).code == 0
    assert_same(quiet, run.location)
    for verb in ("status", "check"):
        store.faults[:] = [Fault("GET", "", "503 SlowDown", count=2)]
        assert dpaudit(verb, run.location).code == 0  # those who read wait for storage, too


def audits(location: str) -> list[str]:
    """Returns the ids of the audits of a run in a folder."""
    return sorted(folder.name for folder in Path(location, "scores").iterdir())


def test_an_object_that_takes_longer_than_a_small_request_is_stored(store, monkeypatch):
    monkeypatch.setattr(buckets, "_LARGE", 2**18)
    monkeypatch.setattr(buckets, "_REQUEST_TIMEOUT", datetime.timedelta(seconds=1))
    run = RunDirectory(f"{store.address}/large", QUICK)
    store.faults.append(Fault("PUT|GET", "preparations", "line", count=10**9, seconds=2.5))
    arrays = {"x": np.random.default_rng(1).random(2**17)}  # 1 MB, which takes 2.6 s
    run.write_part("p", 0, arrays)
    assert np.array_equal(run.read_part("p", 0)["x"], arrays["x"])


def test_a_pack_that_storage_loses_is_run_again(light, quiet, tmp_path, monkeypatch):
    lose_once(monkeypatch, times=1)
    told: list[str] = []
    result = da.run(light, str(tmp_path / "lossy"), executor="inline", tell=told.append)
    assert result.complete
    assert_same(quiet, result.location)
    (line,) = [line for line in told if "run again" in line]
    assert "20-29.parquet: stored in this run, and gone" in line


def test_storage_that_goes_on_losing_ends_the_run_clearly(light, tmp_path, monkeypatch):
    lose_once(monkeypatch, times=10**9)
    with pytest.raises(StorageError, match="storage loses what it has taken"):
        da.run(light, str(tmp_path), executor="inline")
    assert not (tmp_path / "tiny/_SUCCESS").exists()


def lose_once(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Lets storage lose a pack after it was stored, so often."""
    write = RunDirectory.write_scores
    left = [times]

    def loses(run: RunDirectory, audit: str, scores: PackScores) -> None:
        write(run, audit, scores)
        if scores.first == 20 and audit.startswith("000") and left[0] > 0:
            left[0] -= 1
            run.delete_scores(audit, scores.first, scores.last)

    monkeypatch.setattr(RunDirectory, "write_scores", loses)


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("replace", [Path.unlink, pipe, folder])
def test_complete_never_stands_beside_a_missing_trial(replace, quiet):
    assert da.Result.open(quiet).complete
    replace(next(Path(quiet).glob("scores/000*/20-29.parquet")))
    assert not da.Result.open(quiet).complete
    outcome = dpaudit("status", quiet)
    assert "not complete" in outcome.out
    assert outcome.code == 0
    assert json.loads(dpaudit("status", quiet, "--json").out)["complete"] is False


LASTING = {
    "400 ExpiredToken": "renew them",
    "400 TokenRefreshRequired": "renew them",
    "403 AccessDenied": "grant list, read, write and delete",
    "403 SignatureDoesNotMatch": "check the key",
    "403 RequestTimeTooSkewed": "set it",
    "301 PermanentRedirect": "AWS_DEFAULT_REGION",
    "404 NoSuchBucket": "correct the address",
    "507 QuotaExceeded": "free some",
}


@pytest.mark.parametrize("answer", LASTING)
def test_what_lasts_is_told_at_once_in_one_plain_line(answer, run, store):
    patient = run.with_patience(Patience(seconds=60, sleep=forbidden))
    store.faults.append(Fault("PUT", ".*", answer, count=10**9))
    with pytest.raises(StorageError, match=LASTING[answer]) as caught:
        patient.write_scores("a", pack())
    line = str(caught.value)
    assert "<" not in line
    assert "http" not in line
    assert answer.split()[1] in line
    assert len(line) < 300


def forbidden(seconds: float) -> None:
    raise AssertionError(f"waits for {seconds} s, though waiting does not heal it")


def test_a_missing_bucket_is_named_and_no_argument_of_a_list(store):
    missing = RunDirectory("s3://nobody/runs/t", QUICK)
    with pytest.raises(RunDirectoryError, match=r"cannot read s3://nobody/runs/t \(there is no"):
        missing.files(depth=3)


def test_waiting_for_storage_is_told():
    told: list[str] = []
    clock = [0.0]

    def fails() -> None:
        raise OSError("no answer")

    patience = Patience(60, lambda seconds: clock.append(seconds), told.append)
    with pytest.raises(OSError, match="no answer"):
        patience(fails)
    assert re.fullmatch(r"storage does not answer, waiting \(\d+ of 60 s\): no answer", told[0])
    assert 3 <= len(told) <= 6


def test_an_object_of_any_size_is_created_on_a_condition(run, store, monkeypatch):
    large = bytes(2**23 + 1)
    folder = run._folder
    used = []
    put = obstore.put
    monkeypatch.setattr(obstore, "put", lambda s, *a, **o: used.append(s) or put(s, *a, **o))
    assert folder.create("large", large) is None
    assert folder.create("large", b"other") == large
    assert used == [folder._large, folder._store]
    assert folder.read("large") == large


def listed(run: RunDirectory) -> dict[str, Callable[[], object]]:
    """Everything that is known by a list, by what it is."""
    return {
        "scores": lambda: run.score_files("a"),
        "parts": lambda: run.parts("p"),
        "any scores": lambda: run.has_scores,
        "all files": lambda: run.files(4),
    }


@pytest.fixture
def filled(run: RunDirectory) -> RunDirectory:
    """A run with a sweep, a score file and a part of a preparation."""
    run.write_text("sweep.yaml", "name: x")
    run.write_scores("a", pack())
    run.write_part("p", 0, {"x": np.zeros(2)})
    return run


@pytest.mark.parametrize("action", ["error", "half", "cut"])
@pytest.mark.parametrize("what", ["scores", "parts", "any scores", "all files"])
def test_a_list_that_is_none_is_not_taken_for_an_empty_one(what, action, filled, store):
    there = listed(filled)[what]()
    assert there
    store.faults.append(Fault("GET", "list-type", action))
    assert listed(filled)[what]() == there
    store.faults[:] = [Fault("GET", "list-type", action, count=10**9)]
    with pytest.raises(StorageError, match="run the same command again once the storage answers"):
        listed(filled)[what]()


def test_a_folder_is_told_from_those_beside_it(filled, store, monkeypatch):
    monkeypatch.setattr(buckets, "_PAGE", 1)
    filled.write_scores("a-b", pack())  # a list in order has it before the files of "a"
    assert filled.score_files("a") == {(10, 15)}
    assert filled.score_files("b") == set()
    assert filled.parts("a") == set()


def test_a_list_without_its_later_pages_is_not_taken_for_all(filled, store, monkeypatch):
    """The second page is an error with status 200: the folder has more than the first."""
    for first in range(20, 50, 10):
        filled.write_scores("a", dataclasses.replace(pack(), first=first))
    there = filled.score_files("a")
    assert len(there) == 4
    ask = obstore.list_with_delimiter

    def first_page(*arguments: Any) -> Any:
        listing = ask(*arguments)
        return {**listing, "objects": listing["objects"][:2]}

    monkeypatch.setattr(buckets, "_PAGE", 2)
    monkeypatch.setattr(obstore, "list_with_delimiter", first_page)
    assert filled.score_files("a") == there


def test_an_error_in_place_of_an_object_is_not_taken_for_its_content(filled, store):
    names = ("sweep.yaml", run_directory.OUTCOMES)
    filled.write_json(names[1], {})
    store.faults.append(Fault("GET", "runs/", "error", count=3))
    assert filled.read_text(names[0]) == "name: x"
    store.faults[:] = [Fault("GET", SCORES, "error", count=10**9)]
    with pytest.raises(StorageError, match="it has no ETag"):  # no damage: nothing is set aside
        filled.read_scores("a", 10, 15)
