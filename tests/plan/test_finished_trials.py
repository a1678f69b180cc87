"""The reader of an audit's finished trials: what is stored, what failed, and what remains."""

from pathlib import Path

import pytest

from dpaudit_ray import plan as planning
from dpaudit_ray.plan import finished_trials
from dpaudit_ray.plan.finished_trials import FinishedTrials
from dpaudit_ray.plan.model import Plan
from dpaudit_ray.plan.score_stream import MissedPack
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec
from jobs.scale import empty, large

SIZE = 3  # trials of a pack


def opened(folder: Path, packs: int) -> tuple[Plan, RunDirectory]:
    sweep = spec.from_raw(empty.sweep("few", packs * SIZE, SIZE))
    run = RunDirectory.under(str(folder), sweep.name)
    return planning.open_run(sweep, run), run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the requests to storage that read scores or list their files."""
    requests: list[str] = []
    for name in ("score_files", "read_scores"):
        request = getattr(RunDirectory, name)

        def noted(*options, name=name, request=request):
            requests.append(name)
            return request(*options)

        monkeypatch.setattr(RunDirectory, name, noted)
    return requests


def test_storage_is_asked_once_and_not_again_for_packs_in_memory(tmp_path, asked):
    plan, run = opened(tmp_path, packs=8)
    packs = list(planning.remaining(run, plan))
    asked.clear()
    trials = FinishedTrials(run, plan, 0)
    assert asked == ["score_files"]
    for pack in (*packs[:3], packs[4]):
        trials.add(large.scores(plan, pack))
    assert [each.first for each in trials.packs()] == [0, 3, 6]
    assert list(trials.packs()) == []
    trials.failed.add((9, 11))
    missed, after = trials.packs()
    assert isinstance(missed, MissedPack)
    assert (missed.first, after.first, trials.consumed) == (9, 12, 5)
    assert asked == ["score_files"]
    assert list(trials.remaining()) == [packs[3], *packs[5:]]
    assert trials.stored_trials == 4 * SIZE


def test_many_packs_behind_a_late_one_are_listed_once_more(tmp_path, asked, monkeypatch):
    monkeypatch.setattr(finished_trials, "FEWEST_PACKS", 4)
    plan, run = opened(tmp_path, packs=8)
    packs = list(planning.remaining(run, plan))
    trials = FinishedTrials(run, plan, 0)
    for pack in packs[1:6]:
        run.write_scores(plan.audits[0].id, large.scores(plan, pack))
        trials.add(large.scores(plan, pack))
        assert list(trials.packs()) == []
    asked.clear()
    run.write_scores(plan.audits[0].id, large.scores(plan, packs[0]))
    trials.add(large.scores(plan, packs[0]))
    assert [each.first for each in trials.packs()] == [0, 3, 6, 9, 12, 15]
    assert asked == ["score_files"]


def test_an_audit_is_complete_where_its_end_is_reached_without_a_miss(tmp_path):
    plan, run = opened(tmp_path, packs=4)
    packs = list(planning.remaining(run, plan))
    for pack in (packs[0], packs[2]):
        run.write_scores(plan.audits[0].id, large.scores(plan, pack))
    bounds = (packs[1].first, packs[1].last)
    for failed, end, consumed, complete in (
        ((), None, 1, False),  # the second pack is open
        ((), SIZE, 1, True),
        ((bounds,), None, 3, False),
        ((bounds,), 3 * SIZE, 3, False),  # it is a miss
        (((0, 2),), SIZE, 1, True),  # its scores are stored after all
    ):
        trials = FinishedTrials(run, plan, 0, failed, end)
        list(trials.packs())
        assert (trials.consumed, trials.complete) == (consumed, complete)
