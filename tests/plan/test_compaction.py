"""Packs that are gathered into larger files: each counts once, whatever a crash leaves behind."""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.errors import RunDirectoryError, StorageError
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.plan import compaction, finished_trials, outcomes, score_stream
from dpaudit_ray.plan.compaction import Compactor
from dpaudit_ray.plan.finished_trials import PackRange
from dpaudit_ray.plan.model import Plan
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.report import detection, verdict
from dpaudit_ray.report.tables import Run
from dpaudit_ray.stats.claim_verdict import ClaimTest
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec
from dpaudit_ray.sweep.spec import Sweep
from jobs.scale import empty, large
from tests.orchestration.test_faults import assert_same

PACKS, SIZE = 50, 3  # of the one audit: a whole group and 18 packs more
PACKS_PER_FILE, FEWEST = 32, 8  # instead of 256 and 64
Opened = tuple[Sweep, Plan, RunDirectory]
STATS = ("accuracy", "paper-gdp", "eps-delta")


def opened(folder: Path, packs: int = PACKS, **changes: object) -> Opened:
    sweep = spec.from_raw(
        {**empty.sweep("many", packs * SIZE, SIZE, steps=2, estimators=STATS), **changes}
    )
    run = RunDirectory.under(str(folder), sweep.name)
    return sweep, planning.open_run(sweep, run), run


def filled(folder: Path, packs: int = PACKS) -> Opened:
    """A run of which all packs are stored, in files of their own."""
    sweep, plan, run = opened(folder, packs)
    for pack in planning.remaining(run, plan):
        run.write_scores(plan.audits[0].id, large.scores(plan, pack))
    return sweep, plan, run


def files(run: RunDirectory, plan: Plan) -> list[tuple[int, int]]:
    return sorted(run.score_files(plan.audits[0].id))


@pytest.fixture(scope="module", autouse=True)
def _few() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "PACKS_PER_FILE", PACKS_PER_FILE)
        patch.setattr(finished_trials, "FEWEST_PACKS", FEWEST)
        yield


@pytest.fixture(scope="module")
def alone(_few: None, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The run with a file per pack, as it was before anything is gathered."""
    sweep, plan, run = filled(tmp_path_factory.mktemp("alone"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compactor, "compact_finished", lambda self, audits: None)
        Aggregation(sweep, plan, run).flush()
    assert len(files(run, plan)) == PACKS
    return run


GROUPS = [(0, PACKS_PER_FILE * SIZE - 1), (PACKS_PER_FILE * SIZE, PACKS * SIZE - 1)]


def test_a_gathered_run_shows_what_one_with_a_file_per_pack_does(tmp_path, alone):
    sweep, plan, run = opened(tmp_path / "many")
    aggregation = Aggregation(sweep, plan, run)
    order = list(planning.remaining(run, plan))
    random.Random(0).shuffle(order)
    for number, pack in enumerate(order):
        aggregation.fold(pack, large.scores(plan, pack))
        if number % 10 == 0:
            aggregation.keep_up()
    aggregation.flush()
    assert run.complete
    assert files(run, plan) == GROUPS
    assert_same(run.location, alone.location)
    again = Aggregation.rebuild(run)
    assert again.progress() == aggregation.progress()
    assert list(planning.remaining(run, plan)) == []
    again.flush()
    assert_same(run.location, alone.location)
    assert verdict.judge(Run.open(run.location)) == verdict.judge(Run.open(alone.location))


class Died(BaseException):
    """SIGKILL, as far as the code after it can tell."""


def mortal(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    """Lets so many files be written or deleted, and then no more."""
    left = itertools.count(allowed, -1)
    for name in ("write_scores", "delete_scores"):
        act = getattr(RunDirectory, name)

        def acts(*given: object, act: Callable[..., None] = act) -> None:
            if next(left) <= 0:
                raise Died
            act(*given)

        monkeypatch.setattr(RunDirectory, name, acts)


def test_a_crash_at_any_moment_counts_no_trial_twice_and_loses_none(tmp_path, alone):
    """Killed before and after a write, after some deletions, in the second group; and again."""
    sweep, plan, run = filled(tmp_path / "many")
    counts = []
    for allowed in (0, 1, 2, 10, 25):
        aggregation = Aggregation(sweep, plan, run)
        with pytest.MonkeyPatch.context() as patch:
            mortal(patch, allowed)
            with pytest.raises(Died):
                aggregation.flush()
        assert_same(run.location, alone.location)
        assert list(planning.remaining(run, plan)) == []
        counts.append(len(files(run, plan)))
    assert counts == [50, 51, 49, 39, 16]
    Aggregation(sweep, plan, run).flush()
    assert files(run, plan) == GROUPS
    assert_same(run.location, alone.location)


def test_old_files_stay_where_the_new_one_is_not_whole(tmp_path, monkeypatch):
    sweep, plan, run = filled(tmp_path / "many")
    write = RunDirectory.write_scores

    def torn(self: RunDirectory, audit: str, pack: object) -> None:
        write(self, audit, pack)
        file = Path(f"{self.location}/scores/{audit}/{pack.first}-{pack.last}.parquet")
        file.write_bytes(file.read_bytes()[:-40])

    monkeypatch.setattr(RunDirectory, "write_scores", torn)
    Aggregation(sweep, plan, run).flush()
    assert run.complete
    assert len(files(run, plan)) == PACKS + 1
    with pytest.raises(RunDirectoryError, match=r"0-95\.parquet is not readable"):
        Aggregation(sweep, plan, run)


@pytest.mark.parametrize("what", ["write_scores", "delete_scores"])
def test_storage_that_will_not_have_it_fails_no_run(what, tmp_path, alone, monkeypatch):
    sweep, plan, run = filled(tmp_path / "many")

    def refused(*_: object) -> None:
        raise StorageError("no")

    monkeypatch.setattr(RunDirectory, what, refused)
    Aggregation(sweep, plan, run).flush()
    assert run.complete
    assert_same(run.location, alone.location)


def test_what_is_gathered_while_it_is_read_is_found(tmp_path, alone):
    sweep, plan, run = filled(tmp_path / "many")
    slow = outcomes.finished_trials(run, sweep, plan, 0).packs()
    first = next(slow)
    Aggregation(sweep, plan, run).flush()
    assert files(run, plan) == GROUPS
    found = [first, *slow]
    assert [pack.first for pack in found] == list(range(0, PACKS * SIZE, SIZE))
    scores = np.concatenate([pack.scores for pack in found])
    whole = da.Result(alone.location, complete=True).scores["score"].to_numpy()
    assert np.array_equal(scores, whole.reshape(scores.shape))


def test_packs_around_one_that_failed_are_gathered_and_then_all(tmp_path):
    sweep, plan, run = opened(tmp_path)
    packs = list(planning.remaining(run, plan))
    bad = packs[12]
    aggregation = Aggregation(sweep, plan, run)
    for pack in packs:
        if pack != bad:
            aggregation.fold(pack, large.scores(plan, pack))
    aggregation.keep_up()
    assert len(files(run, plan)) == PACKS - 1, "the pack may come yet"
    aggregation.give_up([Failure(bad, "ValueError", "boom", "")])
    aggregation.keep_up()
    assert files(run, plan) == [(0, bad.first - 1), (bad.last + 1, GROUPS[0][1]), GROUPS[1]]
    assert [f.pack for f in outcomes.failed(run, plan)] == [bad]
    again = Aggregation.rebuild(run)
    assert again.progress() == aggregation.progress()
    again.try_again([bad])
    again.fold(bad, large.scores(plan, bad))
    again.flush()
    assert run.complete
    assert files(run, plan) == GROUPS


def test_an_extension_goes_on_in_the_same_group(tmp_path):
    sweep, plan, run = filled(tmp_path)
    Aggregation(sweep, plan, run).flush()
    sweep, plan, run = opened(tmp_path, packs=75)
    aggregation, new = Aggregation(sweep, plan, run), list(planning.remaining(run, plan))
    assert len(new) == 25
    for pack in new:
        aggregation.fold(pack, large.scores(plan, pack))
    aggregation.flush()
    assert files(run, plan) == [(0, 95), (96, 191), (192, 224)]
    assert len(da.Result(run.location, complete=True).scores) == 75 * SIZE * 2


PLAN = [(n, n + 9) for n in range(0, 100, 10)]


def covering(given: list[tuple[int, int]]) -> Iterator[int]:
    """The slow twin: packs that lie in some file that begins and ends where packs do."""
    starts, ends = {first for first, _ in PLAN}, {last for _, last in PLAN}
    whole = [file for file in given if file[0] in starts and file[1] in ends]
    for number, (first, last) in enumerate(PLAN):
        if any(file[0] <= first and last <= file[1] for file in whole):
            yield number


def test_every_pack_is_taken_once_from_any_files():
    rng = random.Random(0)
    edges = sorted({edge for first, _ in PLAN for edge in (first, first + 4)})
    for _ in range(2000):
        given = [
            (first, last)
            for first, last in ((rng.choice(edges), rng.choice(edges) + 9) for _ in range(6))
            if first < last
        ]
        found = finished_trials.resolved(PLAN, given)
        numbers = [n for each in found for n in range(each.start, each.stop)]
        assert numbers == list(covering(given))
        for each in found:
            assert each.file is not None
            assert each.file[0] <= PLAN[each.start][0]
            assert PLAN[each.stop - 1][1] <= each.file[1]


def test_the_prefix_ends_at_the_first_gap():
    audit = type("Audit", (), {"packs": PLAN})
    there = [PackRange((0, 29), 0, 3), PackRange((40, 79), 4, 8)]

    def ends(*given, **more):
        ranges = finished_trials.prefix_ranges(audit, *given, **more)
        return [(each.file, each.start, each.stop) for each in ranges]

    assert ends(there, set()) == [((0, 29), 0, 3)]
    assert ends(there, {(30, 39)}) == [((0, 29), 0, 3), (None, 3, 4), ((40, 79), 4, 8)]
    assert ends(there, {(30, 39), (80, 89)})[-1] == (None, 8, 9)
    assert ends(there, {(30, 39)}, start=5) == [((40, 79), 5, 8)]
    assert ends(there, {(30, 39)}, end=50) == [((0, 29), 0, 3), (None, 3, 4), ((40, 79), 4, 5)]
    assert ends(there, {(30, 39)}, end=40) == [((0, 29), 0, 3), (None, 3, 4)]
    assert ends([], {(0, 9)}) == [(None, 0, 1)]


def test_a_verdict_looks_after_packs_and_not_after_files(tmp_path, monkeypatch):
    """Slow twin: pack by pack, as each of them was looked at when it was a file."""
    sweep, plan, run = filled(tmp_path)
    Aggregation(sweep, plan, run).flush()
    seen: list[int] = []
    look = ClaimTest.look

    def noted(self: ClaimTest, now: bool = False) -> object:
        if now or self.trials >= self.due:
            seen.append(self.trials)
        return look(self, now)

    monkeypatch.setattr(ClaimTest, "look", noted)
    monkeypatch.setattr(detection, "chance_to_refute", lambda *_: 0.0)
    opened_run = Run.open(run.location)
    fast, _ = verdict._judge_audit(opened_run, 0, alpha=0.05, thorough=False)
    looks, seen[:] = list(seen), []
    slow = ClaimTest(fast.curve, plan.audits[0].declared[0])
    for whole in opened_run.finished_prefix(plan.audits[0]):
        for first in range(whole.first, whole.last + 1, SIZE):
            score_stream.feed(slow, whole.part(first, first + SIZE - 1))
            slow.look()
    slow.look(now=True)
    assert seen == looks
    assert len(looks) > 40
    assert (fast.best, fast.latest, fast._reached) == (slow.best, slow.latest, slow._reached)
