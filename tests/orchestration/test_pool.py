"""The pool of trainers, with trainers that are played."""

from __future__ import annotations

import math
import random

import pytest

from dpaudit_ray.orchestration import pool as pools
from dpaudit_ray.orchestration.nodes import Place, Room
from dpaudit_ray.orchestration.pool import Pool, Worker
from dpaudit_ray.plan.model import Pack


class Played:
    """A pool whose cluster has the room that is set, and the time too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(pools.time, "monotonic", lambda: self.now)
        self.room, self.leaving = Room(keep=4, start=4, now=4), set[str]()
        self.ended: list[str] = []
        self.told: list[int] = []
        self.pool = Pool(
            lambda number: Worker(f"t-{number}", f"t-{number}", None),
            self.ended.append,
            lambda ready: self.room,
            lambda: self.leaving,
            lambda trainers, room: self.told.append(trainers),
        )

    def resize(self, seconds: float = pools.RESIZE_SECONDS) -> list[str]:
        """The trainers' names some time later."""
        self.now += seconds
        self.pool.resize()
        return [worker.name for worker in self.pool.workers]

    def place(self, *nodes: str) -> None:
        """Gives trainers their places, in turn."""
        for worker, node in zip(self.pool.workers, nodes, strict=False):
            worker.place = Place(node, node)
            self.pool.changed(worker)

    def work(self, *packs: int) -> None:
        """Gives trainers so many packs, in turn."""
        for worker, count in zip(self.pool.workers, packs, strict=False):
            worker.packs = {n: Pack(0, n, n) for n in range(count)}
            self.pool.changed(worker)

    @property
    def trusted(self) -> list[str]:
        """Trainers that may be given new packs."""
        return [worker.name for worker in self.pool.workers if worker.trusted]

    def given(self) -> list[str]:
        """Who is given the next packs, as long as there is a place for one."""
        names = []
        while self.pool.places:
            worker = self.pool.next()
            worker.given(len(worker.packs), Pack(0, 0, 0))
            self.pool.changed(worker)
            names.append(worker.name)
        return names


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


def test_idle_trainers_are_given_back_when_no_pack_is_left(played: Played) -> None:
    assert played.resize() == ["t-0", "t-1", "t-2", "t-3"]
    played.place("a", "a", "b")
    played.work(1, 0, 2)
    assert len(played.resize()) == 4, "more may come"
    played.pool.backlog = 1
    assert played.resize() == ["t-0", "t-1", "t-2"], "one is due: who waits for a place is let go"
    played.pool.backlog = 0
    assert played.resize() == ["t-0", "t-2"]
    played.work(0, 1)
    assert played.resize() == ["t-2"]


def test_what_is_lost_at_the_end_finds_a_trainer(played: Played) -> None:
    played.pool.backlog = 0
    assert played.resize() == []
    played.pool.backlog = 2
    assert played.resize() == ["t-0", "t-1"]


def test_too_many_end_their_packs_before_they_go(played: Played) -> None:
    played.resize()
    played.place("a", "a", "a", "a")
    played.work(2, 2, 2, 1)
    played.room = Room(keep=2, start=2, now=4)
    assert len(played.resize()) == 4
    assert played.trusted == ["t-1", "t-2"]
    played.work(0, 2, 2, 0)
    assert played.resize() == ["t-1", "t-2"]
    assert played.ended == ["t-0", "t-3"]


def test_trainers_of_a_drained_node_go_and_others_come(played: Played) -> None:
    played.resize()
    played.place("a", "a", "b", "b")
    played.work(1, 0, 1, 1)
    played.leaving = {"a"}
    assert played.resize() == ["t-0", "t-2", "t-3", "t-4", "t-5"]
    assert played.trusted == ["t-2", "t-3"]


def test_what_is_waited_for_is_told_once_and_after_a_minute_again(played: Played) -> None:
    played.room = Room(keep=1, start=9, now=0)
    for _ in range(5):
        played.resize()
    assert played.told == [9]
    played.resize(pools.PATIENT_SECONDS + 1)
    assert played.told == [9, 9]
    played.place("a")
    played.resize(math.inf)
    assert played.told == [9, 9]


def test_trainers_that_are_about_to_start_are_not_told(played: Played) -> None:
    for _ in range(5):
        played.resize()
    assert played.told == []
    played.resize(pools.PATIENT_SECONDS)
    assert played.told == [4]


def test_the_next_packs_go_to_who_has_the_fewest(played: Played) -> None:
    played.resize()
    played.place("a", "a", "a", "a")
    played.work(2, 1, 0, 0)
    suspect = list(played.pool.workers)[3]
    suspect.suspected.add(Pack(0, 0, 9))
    played.pool.changed(suspect)
    assert played.pool.places == 3
    assert played.given() == ["t-2", "t-1", "t-2"]
    suspect.suspected.clear()
    played.pool.changed(suspect)
    assert played.given() == ["t-3", "t-3"]


def test_places_are_those_of_trusted_trainers_whatever_happens_to_them(played: Played) -> None:
    """What is counted step by step is what a look at all trainers would count."""
    random_ = random.Random(0)
    played.resize()
    for step in range(300):
        worker = random_.choice(list(played.pool.workers))
        match random_.randrange(5):
            case 0:
                worker.place = Place("a", "a")
            case 1 if worker.ready and len(worker.packs) < pools.PACKS_PER_TRAINER:
                worker.given(step, Pack(0, step, step))
            case 2 if worker.packs:
                worker.answered(random_.choice(list(worker.packs)))
            case 3:
                worker.suspected ^= {Pack(1, 0, 0)}
            case 4 if step % 10 == 0:
                played.pool.replace(worker)
                played.resize()
                continue
        played.pool.changed(worker)
        trusted = [worker for worker in played.pool.workers if worker.trusted]
        loads = [len(worker.packs) for worker in trusted]
        assert played.pool.places == sum(pools.PACKS_PER_TRAINER - load for load in loads)
        if played.pool.places:
            assert len(played.pool.next().packs) == min(loads)


def test_an_idle_trainer_is_offered_what_waits_elsewhere(played: Played) -> None:
    played.resize()
    played.place("a", "a", "a", "a")
    played.work(2, 1, 0, 2)
    pairs = played.pool.idle_and_full()
    idle, full = next(pairs)
    assert (idle.name, full.name) == ("t-2", "t-0")
    idle.given(5, full.packs.pop(1))
    played.pool.changed(idle)
    played.pool.changed(full)
    assert next(pairs, None) is None, "nobody is idle any more"


def test_what_was_before_a_silence_is_not_held_against_a_trainer(played: Played) -> None:
    played.resize()
    played.place("a")
    played.work(1)
    played.now += 100
    assert [seconds for _, seconds in played.pool.overdue(lambda pack: 50.0)] == [50.0]
    assert list(played.pool.overdue(lambda pack: 50.0, since=played.now - 40)) == []


def test_who_saves_a_checkpoint_is_not_silent(played: Played) -> None:
    played.resize()
    played.place("a", "b")
    played.work(2, 1)
    first, second = list(played.pool.workers)[:2]
    second.packs = {9: Pack(0, 9, 9)}

    def overdue() -> list[str]:
        return [worker.name for worker, _ in played.pool.overdue(lambda pack: 50.0)]

    played.now += 40
    played.pool.heard({Pack(0, 0, 0): 100, Pack(0, 1, 1): 100})  # that one only waits
    played.now += 40
    assert overdue() == [second.name]
    played.pool.heard({Pack(0, 0, 0): 100})  # nothing new
    played.now += 20
    assert overdue() == [first.name, second.name]
    played.pool.heard({Pack(0, 0, 0): 200, Pack(0, 9, 9): 100})
    assert overdue() == []
