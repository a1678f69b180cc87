"""One driver writes a run directory: who gets it, who keeps it, and what who lost it may do."""

import contextlib
import errno
import functools
import itertools
import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest

import dpaudit_ray as da
from dpaudit_ray.errors import LeaseLostError, RunDirectoryError, StorageError
from dpaudit_ray.orchestration.trainer import PackTrainer
from dpaudit_ray.storage import files, lease
from dpaudit_ray.storage.lease import Lease
from dpaudit_ray.storage.place import DRIVER, LOCK, OPENING
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import inline, write_sweep
from tests.long import LONG
from tests.storage.test_storage import memory, pack, row

NEVER = 1000.0


@pytest.fixture(params=["local", "memory"])
def run(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.1)
    place = str(tmp_path / "runs") if request.param == "local" else memory(monkeypatch)
    run = RunDirectory.under(place, "tiny")
    run.require_writable()
    return run


@pytest.fixture
def local(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(str(tmp_path / "tiny"))
    run.require_writable()
    return run


def contents(run: RunDirectory) -> dict[str, bytes | None]:
    """Every file of a small run directory, hidden ones included."""
    folder = run._folder
    names = [
        f"{place}{name}" for place in ("", "scores/a/", "figures/") for name in folder.names(place)
    ]
    return {name: folder.read(name) for name in names}


def snapshot(location: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below a folder, as it is and when it was put there; none that is not in place."""
    return {
        str(file): (file.stat().st_mtime_ns, file.stat().st_ino, file.read_bytes())
        for file in location.rglob("*")
        if file.is_file() and file.suffix != ".tmp"
    }


def outcomes_of_two(run: RunDirectory) -> list[str]:
    """Two drivers that start at the same moment, the winner staying until the other has ended."""
    both, ended = threading.Barrier(2), threading.Event()
    found: list[str] = []

    def drive() -> None:
        other = RunDirectory(run.location)
        both.wait()
        try:
            with lease.held(other, watch=0.2, beat=NEVER) as held:
                found.append("drives")
                ended.wait(60)
                held.run.require_owned()
                return
        except RunDirectoryError as error:
            found.append("refused" if "another driver works on" in str(error) else str(error))
        except LeaseLostError:
            found.append("stopped")
        ended.set()

    threads = [threading.Thread(target=drive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found)


@pytest.fixture
def slow(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """Storage that takes up to .2 s a write."""
    dice, sync, put = random.Random(5), os.fsync, obstore.put

    def slow_sync(file: int) -> None:
        time.sleep(dice.uniform(0, 0.1))  # a write syncs twice
        sync(file)

    def slow_put(*arguments: Any, **options: Any) -> Any:
        time.sleep(dice.uniform(0, 0.2))
        return put(*arguments, **options)

    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.3)
    monkeypatch.setattr(os, "fsync", slow_sync)
    monkeypatch.setattr(obstore, "put", slow_put)
    return run


@pytest.mark.parametrize("left", [None, {"owner": "x", "host": "elsewhere", "pid": 1}])
def test_of_two_that_start_at_once_on_slow_storage_one_drives(left, slow):
    """Both held it in two of five such starts."""
    for _ in range(50 if LONG else 3):
        if left is not None:
            slow.write_json(DRIVER, left)
        assert outcomes_of_two(slow) == ["drives", "refused"]


@pytest.mark.parametrize("key", ["boot", "pids", "host"])
def test_a_process_id_of_elsewhere_says_nothing(key, local, monkeypatch):
    """Containers may have equal host names; the process is not here, and may live there."""
    gone = {"owner": "x", **lease._where(), "pid": 2**22 + 1, "started": "1"}
    assert socket.gethostname() == gone["host"]
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    for entry, watched_seconds in ((gone, 0.0), (gone | {key: "another"}, 2.0)):
        local.write_json(DRIVER, entry)
        pauses.clear()
        with lease.held(local, watch=2.0):
            *watching, settling = pauses
        assert (sum(watching), settling) == (watched_seconds, 0.05)


def test_a_process_that_is_hidden_is_not_gone(monkeypatch):
    """`/proc` may be mounted so that it shows one's own processes only."""

    def hidden(pid: int, signal: int) -> None:
        raise PermissionError

    entry = {"owner": "x", **lease._where(), "pid": 2**22 + 1, "started": "1"}
    assert lease._is_gone(entry)
    monkeypatch.setattr(os, "kill", hidden)
    assert not lease._is_gone(entry)


@pytest.mark.parametrize("pid", [10**30, 10**4000, -(10**30), 0, -1])
def test_a_foreign_process_id_is_of_no_process(pid):
    """A number that no process can have raised OverflowError in `status`: a bug in dpaudit."""
    assert lease._is_gone({"owner": "x", **lease._where(), "pid": pid, "started": "1"})


def test_a_foreign_lease_stops_the_driver(run):
    with lease.held(run, beat=NEVER) as held:
        run.write_text(DRIVER, "[" * 10**5)
        with pytest.raises(LeaseLostError, match="another driver has taken over"):
            held.run.require_owned()


def test_a_clock_that_jumps_takes_nothing_over(local, monkeypatch):
    """Every look at any clock finds it an hour on, as after a pause; the owner had one beat."""
    with lease.held(local, beat=0.1):
        hours = iter(range(10**6))
        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", lambda: next(hours) * 3600.0)
            patch.setattr(time, "time", lambda: -next(hours) * 3600.0)
            taken = pytest.raises(RunDirectoryError, match="another driver works on")
            with taken, lease.held(local, watch=1):
                pass


WRITES: dict[str, Callable[[RunDirectory], object]] = {
    "scores": lambda run: run.write_scores("a", pack(16)),
    "the same scores": lambda run: run.write_scores("a", pack()),
    "estimates": lambda run: run.write_estimates([row(trials=3)]),
    "json": lambda run: run.write_json("outcomes.json", [3]),
    "new json": lambda run: run.create_json("other.json", [3]),
    "complete": lambda run: run.set_complete(True),
    "not complete": lambda run: run.set_complete(False),
    "delete": lambda run: run.delete(DRIVER),
    "set aside": lambda run: run.set_aside("scores/a/10-15.parquet"),
    "patient": lambda run: run.with_patience(run._patience).write_text("sweep.yaml", "x"),
}


@contextlib.contextmanager
def overtaken(run: RunDirectory, ended: bool) -> Iterator[Lease]:
    """A driver that was paused while another one took over and wrote, and perhaps ended."""
    with lease.held(run, beat=NEVER) as paused:
        with contextlib.ExitStack() as other:
            new = other.enter_context(lease.held(RunDirectory(run.location), watch=0.2))
            new.run.write_scores("a", pack())
            new.run.write_estimates([row()])
            new.run.set_complete(True)
            if not ended:
                yield paused
        if ended:
            yield paused


@pytest.mark.parametrize("ended", [False, True])
def test_who_lost_the_lease_writes_nothing(ended, run):
    with overtaken(run, ended) as paused:
        before = contents(run)
        told = "driver.json is gone: another driver" if ended else "another driver has taken over"
        for what, write in WRITES.items():
            with pytest.raises(LeaseLostError, match=told) as error:
                write(paused.run)
            assert "\n" not in str(error.value)
            assert contents(run) == before, what


def test_a_pause_in_the_midst_of_a_write_is_no_way_in(local, monkeypatch):
    """Its bytes are on the disk beside their place when another driver takes over."""
    sync = os.fsync
    with contextlib.ExitStack() as later, lease.held(local, beat=NEVER) as paused:

        def pause(file: int) -> None:
            monkeypatch.setattr(os, "fsync", sync)
            later.enter_context(lease.held(RunDirectory(local.location), watch=0.2))
            sync(file)

        monkeypatch.setattr(os, "fsync", pause)
        with pytest.raises(LeaseLostError):
            paused.run.write_estimates([row()])
        assert set(contents(local)) == {DRIVER, LOCK}


def test_a_pause_before_an_upload_replaces_nothing_of_a_new_driver(monkeypatch):
    """It has looked at the lease; another driver then takes over, and writes the same file."""
    run, put = RunDirectory(f"{memory(monkeypatch)}/tiny"), obstore.put
    with contextlib.ExitStack() as later, lease.held(run, beat=NEVER) as paused:
        paused.run.write_estimates([row()])
        paused.run.write_scores("a", pack())

        def pause(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(obstore, "put", put)
            new = later.enter_context(lease.held(RunDirectory(run.location), watch=0.2)).run
            new.write_estimates([row(trials=9)])
            new.write_scores("a", pack(16))
            return put(*arguments, **options)

        monkeypatch.setattr(obstore, "put", pause)
        with pytest.raises((LeaseLostError, StorageError)):
            paused.run.write_estimates([row(trials=3)])
        assert list(run.estimates()["trials"]) == [9]
        with pytest.raises(LeaseLostError):
            paused.run.write_scores("a", pack(16))


def test_nobody_takes_over_while_a_file_is_put_in_place(local, monkeypatch):
    """A driver that is paused between its look at the lease and the rename."""
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.2)
    with lease.held(local, beat=NEVER) as paused:
        refused = pytest.raises(RunDirectoryError, match="paused during a write")
        with paused.run._owned(), refused:
            lease.held(RunDirectory(local.location), watch=0.2).__enter__()
        assert local.read_json(DRIVER)["owner"] == paused.owner


def test_renewals_stop_at_a_foreign_lease(local):
    with lease.held(local, beat=0.05) as held:
        held.require()
        local.write_json(DRIVER, {"owner": "new", "host": "there", "pid": 7})
        time.sleep(0.3)
        with pytest.raises(LeaseLostError, match=r"taken over .* \(process 7 on there\)"):
            held.require()
    assert local.read_json(DRIVER) == {"owner": "new", "host": "there", "pid": 7}


def at_the_third_pack(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> None:
    """Has something happen, once, while a run trains its third pack."""
    attempt, count = PackTrainer.attempt, itertools.count(1)

    def counted(self: PackTrainer, *arguments: Any) -> Any:
        if next(count) == 3:
            action()
        return attempt(self, *arguments)

    monkeypatch.setattr(PackTrainer, "attempt", counted)


def test_an_overtaken_run_ends_in_exit_4(tiny, tmp_path, monkeypatch):
    """Another driver takes over and completes the run while this one stands still."""
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.2)
    monkeypatch.setattr(lease, "held", functools.partial(lease.held, beat=NEVER))
    file, seen = write_sweep(tmp_path, tiny), {}

    def other() -> None:
        assert da.run(tiny, storage_path=str(tmp_path), executor="inline").complete
        seen.update(snapshot(tmp_path / "tiny"))

    at_the_third_pack(monkeypatch, other)
    overtaken = inline(file, tmp_path)
    assert overtaken.code == 4, overtaken.err
    assert overtaken.err.count("\n") == 1
    assert "another driver had taken over and has ended" in overtaken.err
    assert seen == snapshot(tmp_path / "tiny")


@pytest.mark.parametrize("moved", [False, True])
def test_a_run_directory_that_vanishes_ends_in_exit_4(moved, tiny, tmp_path, monkeypatch):
    file, place = write_sweep(tmp_path, tiny), tmp_path / "tiny"

    vanish = (lambda: place.rename(tmp_path / "moved")) if moved else (lambda: shutil.rmtree(place))
    at_the_third_pack(monkeypatch, vanish)
    found = inline(file, tmp_path)
    assert found.code == 4, found.err
    assert found.err.count("\n") == 1
    assert f"{place}/driver.json is gone: " in found.err
    assert "the run directory was moved or deleted" in found.err
    assert not place.exists(), "no hollow one, and no _SUCCESS in it"
    if moved:
        (tmp_path / "moved").rename(place)
        (place / DRIVER).unlink()
        assert inline(file, tmp_path).code == 0
        assert len(da.Result(str(place), complete=True).scores) == 2 * 90 * 2


def test_a_lease_that_is_in_place_when_the_sync_of_its_folder_fails_is_no_other_drivers(
    tmp_path, monkeypatch
):
    """It is taken over at the second try; the storm met it where one write in thirty fails."""
    run = RunDirectory(str(tmp_path)).with_patience(OPENING)
    run.write_json("driver.json", {"owner": "before", "pid": 1})
    sync, failures = files._sync, [OSError(errno.EIO, "no")]

    def once(folder: Path) -> None:
        if failures and "before" not in (tmp_path / "driver.json").read_text():
            raise failures.pop()
        sync(folder)

    monkeypatch.setattr(files, "_sync", once)
    with lease.held(run, watch=0.1) as held:
        assert held.previous_owner == "before"
        assert run.read_json("driver.json")["owner"] == held.owner
    assert not failures
