"""What every executor does: one suite for all of them, on a cluster of their own or on none.

Another executor is added to `EXECUTORS`, by its name.
"""

import contextlib
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.errors import SpecError, StorageError
from dpaudit_ray.orchestration import ray_executor
from dpaudit_ray.orchestration.executors import Done, Executor, Work, WorkerDiedError
from dpaudit_ray.orchestration.inline_executor import InlineExecutor
from dpaudit_ray.orchestration.progress import Activity
from dpaudit_ray.orchestration.ray_executor import RayExecutor
from dpaudit_ray.orchestration.workers import ResourceRequest
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec
from tests.head import Head
from tests.orchestration.test_faults import assert_same

Start = Callable[[Work], Executor]


@pytest.fixture
def ray(shared_head: Head) -> Iterator[Any]:
    """The module `ray`, connected to the head of the session."""
    with ray_executor.connected(shared_head.gcs) as connected:
        yield connected


def on_ray(request: pytest.FixtureRequest) -> Start:
    ray = request.getfixturevalue("ray")
    resources = ResourceRequest({"CPU": 1.0})
    return lambda work: RayExecutor(ray, work, resources)


EXECUTORS: dict[str, Callable[[pytest.FixtureRequest], Start]] = {
    "inline": lambda _: InlineExecutor,
    "ray": on_ray,
}
each = pytest.mark.parametrize("start", EXECUTORS, indirect=True)


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Start:
    return EXECUTORS[request.param](request)


class Running:
    """One trainer and the aggregator of a planned sweep."""

    def __init__(self, start: Start, raw: dict[str, Any], storage: Path) -> None:
        sweep = spec.from_raw(raw)
        self.run = RunDirectory.under(str(storage), sweep.name)
        self.plan = planning.open_run(sweep, self.run)
        self.packs = list(self.plan.remaining(self.run))
        self.executor = start(Work(sweep, self.plan, self.run, len(self.packs)))
        self.aggregator = self.executor.start("Aggregator", "x-aggregator")
        self.trainer = self.executor.start("Trainer", "x-trainer-0")

    def ask(self, method: str, *arguments: Any) -> Any:
        """What a method of the aggregator returns."""
        return self.executor.call(self.aggregator, method, *arguments).result(300)

    def answer(self, method: str, *arguments: Any) -> Any:
        """What a method of the trainer returns, when it is waited for as the dispatcher does."""
        asked = self.executor.call(self.trainer, method, *arguments, label="x")
        deadline = time.monotonic() + 300
        arrived: list[Future[Any]] = []
        while asked not in arrived and time.monotonic() < deadline:
            arrived = self.executor.wait(1.0)
        return asked.result(0)

    @property
    def done(self) -> int:
        """Trials that the aggregator has."""
        return int(self.ask("progress", Activity()).done)


@contextlib.contextmanager
def running(start: Start, raw: dict[str, Any], storage: Path) -> Iterator[Running]:
    opened = Running(start, raw, storage)
    try:
        yield opened
    finally:
        opened.executor.kill(opened.trainer)
        opened.executor.kill(opened.aggregator)


@each
def test_a_pack_goes_from_a_trainer_to_the_aggregator(start, light, tmp_path):
    with running(start, light, tmp_path) as opened:
        node, _, machine = opened.answer("ready", ())
        assert node in {known.id for known in opened.executor.nodes().nodes}
        assert machine.versions["dpaudit"] == da.__version__
        pack = opened.packs[0]
        done = opened.answer("run_pack", pack)
        assert isinstance(done, Done)
        assert (done.pack, done.whole, done.missed) == (pack, True, 0)
        assert opened.done == pack.size
        assert opened.answer("run_pack", pack).pack == pack
        assert opened.done == pack.size, "twice is once"
        opened.ask("flush")
        assert set(opened.run.estimates()["trials"]) == {0, pack.size}
        assert opened.executor.wait(0.0) == []
        an_error_of_ours_arrives_as_itself(opened)
        if opened.executor.isolates:
            a_worker_that_is_killed_answers_no_more(opened)


def an_error_of_ours_arrives_as_itself(opened: Running) -> None:
    """From the aggregator, through a trainer."""
    scores = Path(opened.run.location) / "scores"
    scores.rename(scores.with_name("moved"))
    scores.write_text("no folder: nothing can be stored here")
    with pytest.raises(StorageError):
        opened.answer("run_pack", opened.packs[1])
    scores.unlink()
    scores.with_name("moved").rename(scores)


def a_worker_that_is_killed_answers_no_more(opened: Running) -> None:
    before = opened.done
    opened.executor.kill(opened.trainer)
    with pytest.raises(WorkerDiedError) as died:
        opened.answer("run_pack", opened.packs[0])
    assert not died.value.preempted
    opened.executor.kill(opened.aggregator, restart=True)
    assert opened.done == before, "it is started again"


@each
def test_a_failure_of_the_users_code_is_an_answer(start, light, tmp_path):
    light["mechanism"]["name"] = "tests.orchestration.broken:Broken"
    with running(start, light, tmp_path) as opened:
        opened.answer("ready", ())
        failure = opened.answer("run_pack", opened.packs[0])
        assert isinstance(failure, Failure)
        assert failure.message.startswith("RuntimeError: CUDA error")
        again = opened.answer("run_pack", opened.packs[0], failure)
        assert isinstance(again, Failure)
        opened.ask("give_up", [again])
        opened.ask("flush")
        misses = opened.packs[0].size
        assert set(opened.run.estimates()["trials"]) == {0, misses}


@each
@pytest.mark.usefixtures("start")
def test_all_executors_give_the_same_scores_and_estimates(light, tmp_path, request):
    name = request.node.callspec.params["start"]
    for _ in range(2):  # nothing is left to run the second time
        result = da.run(light, storage_path=str(tmp_path / name), executor=name)
        assert result.complete
    twin = da.run(light, storage_path=str(tmp_path / "twin"), executor="inline")
    assert_same(result.location, twin.location)


def test_no_other_executor_is_taken_for_ray(light):
    with pytest.raises(SpecError, match="executor: must be ray or "):
        da.run(light, executor="inlin")


def test_a_request_is_rays_options():
    resources = {"CPU": 1.0, "GPU": 0.5, "memory": float(2 * 2**30), "tape": 1.0}
    request = ResourceRequest(resources, {"kind": "old"})
    assert ray_executor.trainer_options(request, {"b", "a"}) == {
        "num_cpus": 1,
        "num_gpus": 0.5,
        "memory": 2 * 2**30,
        "resources": {"tape": 1},
        "label_selector": {"kind": "old", "ray.io/node-id": "!in(a,b)"},
    }


OLD = "0123456789abcdef"


@pytest.mark.parametrize(("owner", "ended"), [(OLD, 3), ("", 0), ("0", 0), ("*" * 16, 0)])
def test_only_actors_of_the_driver_that_had_the_run_are_ended(owner, ended, light, tmp_path):
    """What a run directory says of its driver may be anybody's writing."""
    killed: list[str] = []
    before = "dpaudit-01234567-89abcdef"
    counts = {before: 3, "dpaudit-fedcba98-89abcdef": 2, "dpaudit-0123456-789abcde": 1}

    actors = [
        {"name": f"x-trainer-{number}", "namespace": namespace}
        for namespace, count in counts.items()
        for number in range(count)
    ]
    played = types.SimpleNamespace(
        util=types.SimpleNamespace(list_named_actors=lambda all_namespaces: actors),
        get_actor=lambda name, namespace: namespace,
        kill=killed.append,
    )
    sweep = spec.from_raw(light)
    run = RunDirectory.under(str(tmp_path), sweep.name)
    executor = RayExecutor(played, Work(sweep, planning.make(sweep), run, 0), ResourceRequest({}))
    assert executor.end_actors_of(owner) == ended
    assert killed == [before] * ended
