"""Who drives a run, as `status` tells it on any machine; a page that follows a run."""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dpaudit_ray as da
from dpaudit_ray.orchestration.trainer import PackTrainer
from dpaudit_ray.report import page
from dpaudit_ray.report.tables import Run
from dpaudit_ray.storage import lease
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from tests.command import dpaudit, inline, refused, write_sweep
from tests.report.handed import played

REFRESH = re.compile(r'<meta http-equiv="refresh" content="(\d+)">')


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(str(tmp_path))


def elsewhere(run: RunDirectory, beat: int) -> None:
    """What a driver on another machine writes."""
    entry = {"owner": "ab", "host": "node-7", "pid": 12, "started": "34", "beat": beat}
    run.write_json(lease.FILE, entry)


@pytest.fixture
def renewed(run: RunDirectory) -> Iterator[None]:
    """A driver on another machine renews its lease every tenth of a second."""
    over = threading.Event()

    def renew() -> None:
        beat = 0
        while not over.wait(0.1):
            elsewhere(run, beat := beat + 1)

    elsewhere(run, 0)
    thread = threading.Thread(target=renew)
    thread.start()
    yield
    over.set()
    thread.join()


class TestHolder:
    def test_nobody(self, run):
        assert lease.holder(run) is None

    def test_a_process_of_this_machine_is_known_at_once(self, run):
        with lease.held(run, watch=0.1):
            began = time.monotonic()
            holder = lease.holder(run)
            assert time.monotonic() - began < lease.BEAT_SECONDS
        assert holder is not None
        assert holder.host == socket.gethostname()
        assert holder.silent == 0

    def test_one_that_was_killed_is_gone(self, run):
        with lease.held(run, watch=0.1):
            entry = run.read_json(lease.FILE)
        run.write_json(lease.FILE, entry | {"started": "1"})
        assert lease.holder(run, wait=0.2) is None

    @pytest.mark.usefixtures("renewed")
    def test_one_on_another_machine_is_seen_by_its_renewals(self, run):
        assert lease.holder(run) == lease.Holder("node-7", 12)

    def test_one_on_another_machine_that_renews_nothing_is_told_as_silent(self, run):
        elsewhere(run, 3)
        holder = lease.holder(run, wait=1.2)
        assert holder is not None
        assert holder.silent >= 1.2
        assert "process 12 on node-7, has given no sign for 1 s" in str(holder)

    @pytest.mark.parametrize("damage", ["[]", "{", '{"host": 3, "pid": "x"}', '"a"'])
    def test_damage_is_a_driver_that_nobody_knows(self, run, damage):
        run.write_text(lease.FILE, damage)
        holder = lease.holder(run, wait=0.2)
        assert holder is not None
        assert holder.silent


@pytest.fixture
def sweep(light: dict, tmp_path: Path) -> Path:
    return write_sweep(tmp_path, light)


def test_status_knows_the_driver_and_the_failures_while_the_sweep_runs(
    sweep, tmp_path, monkeypatch
):
    """Asked from within the last pack, when an earlier one has failed."""
    train = PackTrainer.train
    seen: list[str] = []
    raw: list[Any] = []

    def looking(self: PackTrainer, pack: Any, *how: Any) -> PackScores:
        if (pack.audit, pack.first) == (0, 40):
            raise ValueError("boom")
        if (pack.audit, pack.first) == (1, 80):
            seen.append(dpaudit("status", tmp_path / "tiny").out)
            raw.append(json.loads(dpaudit("status", tmp_path / "tiny", "--json").out))
        return train(self, pack, *how)

    monkeypatch.setattr(PackTrainer, "train", looking)
    assert inline(sweep, tmp_path).code == 3
    assert "trials 40-49 failed: ValueError: boom" in seen[0]
    assert seen[0].splitlines()[-1].startswith("not complete; a driver is at work: process ")
    assert raw[0]["driver"]["host"] == socket.gethostname()
    after = dpaudit("status", tmp_path / "tiny").out
    assert after.splitlines()[-1].startswith("not complete: all that is left has failed; ")
    assert json.loads(dpaudit("status", tmp_path / "tiny", "--json").out)["driver"] is None


class TestPage:
    def test_it_is_written_anew_while_the_run_goes_on_and_ends_with_it(
        self, sweep, tmp_path, monkeypatch
    ):
        train, trained = PackTrainer.train, threading.Semaphore(9)  # packs of 18
        file = tmp_path / "tiny/report.html"

        def waiting(self: PackTrainer, pack: Any, *how: Any) -> PackScores:
            assert trained.acquire(timeout=300)
            return train(self, pack, *how)

        monkeypatch.setattr(PackTrainer, "train", waiting)
        driver = threading.Thread(target=da.run, args=(sweep, str(tmp_path), "inline"))
        driver.start()
        pages: list[str] = []
        lines: list[str] = []

        def pause(seconds: float) -> bool:
            assert seconds >= page.AGAIN_SECONDS
            pages.append(file.read_text())
            if "10 / 90" in pages[-1] or "90 / 90" in pages[-1]:
                trained.release(9)
                driver.join(200)
            return False

        while not (tmp_path / "tiny/plan.json").exists():
            time.sleep(0.05)
        page.follow(str(tmp_path / "tiny"), lines.append, pause)
        assert REFRESH.findall(pages[0]) == ["10"]
        assert "Interim" in pages[0]
        last = file.read_text()
        assert not REFRESH.findall(last)
        assert "Interim" not in last
        assert last.count("90 / 90") == 2
        assert lines == [lines[0], str(file)]
        assert f"{file} is written anew" in lines[0]

    def test_without_news_it_is_left_alone(self, light, tmp_path, monkeypatch):
        played(light, tmp_path, 2)
        written: list[float | None] = []
        write = page.write

        def counting(run: Run, again: float | None = None) -> str:
            written.append(again)
            return write(run, again)

        monkeypatch.setattr(page, "write", counting)
        pauses = iter([False, False, True])
        page.follow(str(tmp_path / "tiny"), lambda line: None, lambda seconds: next(pauses))
        assert written == [page.AGAIN_SECONDS, None]

    def test_a_run_can_keep_its_page_by_itself_and_so_can_the_verb(self, sweep, tmp_path):
        assert inline(sweep, tmp_path, "--report").code == 0
        html = (tmp_path / "tiny/report.html").read_text()
        assert html.count("90 / 90") == 2
        assert not REFRESH.findall(html)
        outcome = dpaudit("report", tmp_path / "tiny", "--watch")
        assert (outcome.code, outcome.out) == (0, f"{tmp_path}/tiny/report.html\n")
        said = refused("report", tmp_path / "tiny", "--watch", "--format", "csv")
        assert said == "--watch: writes a page, not csv; leave out --format"
        assert "nowhere" in refused("report", tmp_path / "nowhere", "--watch")
