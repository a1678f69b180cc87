"""Ways to end early, and what comes after: signals, decisions, storage that fails, two drivers."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dpaudit_ray as da
from dpaudit_ray.errors import RunDirectoryError, SpecError
from dpaudit_ray.orchestration import aggregation
from dpaudit_ray.storage import files
from dpaudit_ray.storage.place import Patience
from dpaudit_ray.storage.run_directory import RunDirectory
from tests.command import changed, write_sweep
from tests.orchestration.test_faults import assert_same, wait_for_packs
from tests.screen import DPAUDIT, Screen


@pytest.mark.parametrize("number", [5, 13, 28])
def test_patience_backs_off_and_ends_and_does_not_wait_for_what_lasts(number):
    pauses: list[float] = []

    def fails() -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(OSError, match=r"Input/output|denied|space"):
        Patience(seconds=60, sleep=pauses.append)(fails)
    if number == 5:
        assert 50 < sum(pauses) < 75
        assert pauses[0] < pauses[3]
        assert max(pauses) <= 10
    else:
        assert pauses == []


def test_storage_that_fails_one_write_in_five_changes_nothing(tiny, tmp_path, monkeypatch):
    da.run(tiny, storage_path=str(tmp_path / "quiet"), executor="inline")
    write, dice, failed = files._write, random.Random(1), []

    def flaky(path: Path, *how: Any) -> None:
        if dice.random() < 0.2:
            failed.append(path)
            raise OSError(5, "Input/output error")
        write(path, *how)

    monkeypatch.setattr(files, "_write", flaky)
    assert da.run(tiny, storage_path=str(tmp_path / "flaky"), executor="inline").complete
    assert failed
    assert_same(tmp_path / "flaky/tiny", tmp_path / "quiet/tiny")


def test_stop_when_ends_an_audit_after_the_same_trial_in_any_order(tiny, tmp_path):
    """The bound reaches a tenth of the claim; packs stored beyond the decision change nothing."""
    tiny["audit"] |= {"trials": 600, "record_every": 6}
    full = da.run(tiny, storage_path=str(tmp_path), executor="inline")
    whole = full.estimates
    assert set(whole["trials"]) == {600}
    tiny["audit"]["stop_when"] = {"within": 0.9}
    early = da.run(tiny, storage_path=str(tmp_path / "early"), executor="inline")
    assert early.complete
    ended = early.estimates.groupby("audit")["trials"].max()
    assert ended.min() < 600
    again = da.run(tiny, storage_path=str(tmp_path), executor="inline")  # all packs are there
    pd.testing.assert_frame_equal(again.estimates, early.estimates, check_exact=True)
    assert da.run(tiny, storage_path=str(tmp_path / "early"), executor="inline").complete
    del tiny["audit"]["stop_when"]  # lifting the rule extends the run
    lifted = da.run(tiny, storage_path=str(tmp_path / "early"), executor="inline")
    pd.testing.assert_frame_equal(lifted.estimates, whole, check_exact=True)


def test_a_rule_that_says_nothing_is_refused(tiny, tmp_path):
    tiny["audit"]["stop_when"] = {}
    with pytest.raises(SpecError, match=r"stop_when: names no rule"):
        da.run(tiny, storage_path=str(tmp_path), executor="inline")


def test_members_that_are_not_the_plans_are_told(tiny, tmp_path):
    result = da.run(tiny, storage_path=str(tmp_path), executor="inline")
    file = next((tmp_path / "tiny/scores").glob("000-*/0-9.parquet"))
    table = pd.read_parquet(file)
    run = RunDirectory(result.location)
    pack = run.read_scores(file.parent.name, 0, 9)
    file.unlink()
    run.write_scores(file.parent.name, type(pack)(0, ~pack.members, pack.steps, pack.scores))
    assert len(pd.read_parquet(file)) == len(table)
    with pytest.raises(RunDirectoryError, match=r"0-9\.parquet does not have the bits .*delete it"):
        aggregation.Aggregation.rebuild(run)


@pytest.mark.cluster
def test_sigterm_ends_in_exit_4_and_resumes(light, pace, tmp_path):
    """Also where the terminal, which nobody read, is closed meanwhile: Ray must not hear of it."""
    pace.of(changed(light, "audit.trials", 600))
    pace.slow(0.5)
    command = [*DPAUDIT, "run", write_sweep(tmp_path, light), "--storage-path", tmp_path]
    screen = Screen(*command, errors=tmp_path / "errors")
    wait_for_packs(tmp_path, 5, screen.process)
    screen.process.send_signal(signal.SIGTERM)
    screen.close()
    assert screen.process.wait(timeout=400) == 4
    output = (tmp_path / "errors").read_text()
    assert "stopped; finished packs are safe" in output
    assert "Ray on this node has ended" not in output
    assert "Traceback" not in output
    assert not (tmp_path / "tiny/driver.json").exists()
    pace.hurry()
    assert da.run(light, storage_path=str(tmp_path), executor="inline").complete
    da.run(light, storage_path=str(tmp_path / "quiet"), executor="inline")
    assert_same(tmp_path / "tiny", tmp_path / "quiet/tiny")
