"""What every executor does, on a cluster or on none, and how a cluster is joined."""

import contextlib
import os
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.errors import NoClusterError, SpecError, StorageError
from dpaudit_ray.orchestration import actors, ray_executor, ray_internals
from dpaudit_ray.orchestration.executors import Done, Executor, Work, WorkerDiedError
from dpaudit_ray.orchestration.inline_executor import InlineExecutor
from dpaudit_ray.orchestration.interruption import HeadLiveness, HealthChecks
from dpaudit_ray.orchestration.progress import Activity
from dpaudit_ray.orchestration.ray_executor import RayExecutor
from dpaudit_ray.orchestration.workers import ResourceRequest
from dpaudit_ray.plan.model import Pack
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec
from tests.command import refused, write_sweep
from tests.head import free_port, wait_for
from tests.orchestration.test_faults import assert_same

Start = Callable[[Work], Executor]


@pytest.fixture(params=["inline", pytest.param("ray", marks=pytest.mark.cluster)])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts an executor of each kind; another one is added here."""
    if request.param == "inline":
        yield InlineExecutor
        return
    with ray_executor.connected(request.getfixturevalue("shared_head").gcs) as ray:
        yield lambda work: RayExecutor(ray, work, ResourceRequest({"CPU": 1.0}))


class Running:
    """One trainer and the aggregator of a planned sweep."""

    def __init__(self, start: Start, raw: dict[str, Any], storage: Path) -> None:
        sweep = spec.from_raw(raw)
        self.run = RunDirectory.under(str(storage), sweep.name)
        self.plan = planning.open_run(sweep, self.run)
        self.packs = list(planning.remaining(self.run, self.plan))
        self.executor = start(Work(sweep, self.plan, self.run, len(self.packs)))
        self.aggregator = self.executor.start("Aggregator", "x-aggregator")
        self.trainer = self.executor.start("Trainer", "x-trainer-0")

    def ask(self, method: str, *arguments: Any) -> Any:
        return self.executor.call(self.aggregator, method, *arguments).result(300)

    def answer(self, method: str, *arguments: Any) -> Any:
        """What a method of the trainer returns, when it is waited for as the dispatcher does."""
        asked = self.executor.call(self.trainer, method, *arguments)
        wait_for(lambda: asked in self.executor.wait(1.0))
        return asked.result(0)

    @property
    def done(self) -> int:
        return int(self.ask("progress", Activity()).done)

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.kill(self.trainer)
        self.executor.kill(self.aggregator)


def test_packs_and_errors_go_through_trainer_and_aggregator(start, light, tmp_path):
    with Running(start, light, tmp_path) as opened:
        node, _, machine = opened.answer("set_up", ())
        assert node in {known.id for known in opened.executor.nodes().nodes}
        assert machine.versions["dpaudit"] == da.__version__
        pack = opened.packs[0]
        done = opened.answer("run_pack", pack)
        assert isinstance(done, Done)
        assert (done.pack, done.from_start, done.missed) == (pack, True, 0)
        assert 0 < done.opening < done.seconds
        assert opened.done == pack.size
        again = opened.answer("run_pack", pack)
        assert (again.pack, again.opening) == (pack, 0.0)
        assert opened.done == pack.size, "twice is once"
        opened.ask("flush")
        assert set(opened.run.estimates()["trials"]) == {0, pack.size}
        assert opened.executor.wait(0.0) == []
        scores = Path(opened.run.location) / "scores"
        scores.rename(scores.with_name("moved"))
        scores.write_text("no folder: nothing can be stored here")
        with pytest.raises(StorageError):  # from the aggregator, through a trainer
            opened.answer("run_pack", opened.packs[1])
        scores.unlink()
        scores.with_name("moved").rename(scores)
        if opened.executor.isolates:
            before = opened.done
            opened.executor.kill(opened.trainer)
            with pytest.raises(WorkerDiedError):
                opened.answer("run_pack", opened.packs[0])
            opened.executor.kill(opened.aggregator, restart=True)
            assert opened.done == before, "it is started again"


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


@pytest.mark.parametrize(
    ("owner", "ended"), [("0123456789abcdef", 3), ("", 0), ("0", 0), ("*" * 16, 0)]
)
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


@pytest.mark.cluster  # Ray tries for 20 seconds
def test_a_protected_cluster_keeps_out_who_has_another_token(light, tmp_path, shared_head):
    """A process: Ray keeps the token that it has read."""
    file = write_sweep(tmp_path, light)
    command = [sys.executable, "-m", "dpaudit_ray", "run", file, "--storage-path", tmp_path]
    done = subprocess.run(
        [*command, "--address", shared_head.gcs],
        env=shared_head.environment | {"RAY_AUTH_TOKEN": "wrong"},
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 2
    assert "RAY_AUTH_TOKEN" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("accepts", [False, True])
def test_a_head_that_does_not_answer_is_told_at_once(accepts, light, tmp_path, monkeypatch):
    """Also where the kernel accepts, as it does for a process that is stopped."""
    # Ray remembers that an earlier test of this process used tokens, and asks for one first.
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    if accepts:
        monkeypatch.setattr(ray_executor, "ANSWER_SECONDS", 0.5)
    file, port = write_sweep(tmp_path, light), free_port()
    address = f"127.0.0.1:{port}"
    with socket.create_server(("127.0.0.1", port)) if accepts else contextlib.nullcontext():
        told = refused("run", file, "--storage-path", tmp_path, "--address", address)
    # Ray itself would try for minutes, and give another reason.
    assert told.startswith(f"cannot reach a Ray cluster at {address} (nothing answers there)")


def test_ray_that_starts_slowly_is_tried_again_and_then_one_line(light, tmp_path, monkeypatch):
    """Ray gives its node 30 s, and raises a bare Exception."""
    import ray

    tried: list[dict[str, object]] = []

    def slow(**options: object) -> None:
        tried.append(options)
        raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.setattr(ray, "init", slow)
    told = refused("run", write_sweep(tmp_path, light), "--storage-path", tmp_path)
    assert told.startswith("Ray does not start on this machine (The current node timed out")
    assert "--executor inline" in told
    assert len(tried) == 2


def test_a_trainer_that_ray_ended_for_memory_is_told_with_a_remedy():
    told = "Task was killed due to the node running low on memory.\nMemory on the node was 61 GB."
    assert "its node ran out of memory; with" in ray_executor.last_line(Exception(told))
    assert ray_executor.last_line(Exception("first\nlast\n\n")) == "last"


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "http://127.0.0.1:8265"])
def test_an_address_of_another_kind_is_refused(address):
    with (
        pytest.raises(NoClusterError, match="is not the address of a cluster's head, which is HOS"),
        ray_executor.connected(address),
    ):
        pass


@pytest.mark.cluster
@pytest.mark.usefixtures("shared_head")
def test_what_ray_does_not_take_is_one_line(light, tmp_path):
    """Kinds of accelerators have rules of their own, which Ray knows."""
    light["resources"]["custom_resources"] = {"TPU": 3}
    told = refused("run", write_sweep(tmp_path, light), "--storage-path", tmp_path)
    assert told.startswith("Ray refuses the resources of a trainer (")


@pytest.mark.cluster
def test_a_user_may_import_ray_first(light, tmp_path):
    """Ray reads its authentication when it is imported; ours is decided after that."""
    script = tmp_path / "own.py"
    file = write_sweep(tmp_path, light)
    script.write_text(
        "import ray\nimport dpaudit_ray as da\n"
        "if __name__ == '__main__':\n"
        f"    assert da.run({str(file)!r}, storage_path={str(tmp_path)!r}).complete\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    subprocess.run([sys.executable, script], env=environment, check=True, timeout=400)


def test_without_private_names_each_has_its_fallback():
    bare = types.SimpleNamespace(__name__="no_such_ray")
    ray_internals.read_authentication_again(bare)
    ray_internals.leave_without_shutdown(bare)
    assert ray_internals.draining_nodes(bare) == frozenset()
    assert ray_internals.autoscales(bare) is False
    assert ray_internals.object_store_socket(bare) == ""
    assert ray_internals.dashboard(bare) == ""
    assert ray_internals.channel(bare, "127.0.0.1:1") is None
    checks = HealthChecks(lambda address: ray_internals.channel(bare, address))
    checks.ask({"127.0.0.1:1"}, 0.1)
    assert checks.silent == {}, "a server that cannot be asked is not silent"
    liveness = HeadLiveness("", grpc.insecure_channel)
    liveness.guard("127.0.0.1:1", "")
    assert liveness.answers
    liveness.require()


def test_this_ray_has_the_private_names():
    import ray

    assert ray_internals.channel(ray, "127.0.0.1:1") is not None
    assert ray._raylet.AuthenticationTokenLoader.instance().reset_cache
    assert ray._private.state.state.get_draining_nodes
    assert ray._private.state.state.get_cluster_config
    assert ray._private.worker.get_dashboard_url
    assert ray._private.worker.shutdown


def test_the_page_of_the_dashboard_is_told_where_there_is_one(monkeypatch):
    worker = types.SimpleNamespace(get_dashboard_url=lambda: "head:8265")
    ray = types.SimpleNamespace(_private=types.SimpleNamespace(worker=worker))
    assert ray_internals.dashboard(ray) == "http://head:8265"
    monkeypatch.setenv(ray_internals.JOB, "{}")
    assert ray_internals.dashboard(ray) == "", "whoever submitted the job has its page"
    monkeypatch.delenv(ray_internals.JOB)
    worker.get_dashboard_url = lambda: None
    assert ray_internals.dashboard(ray) == ""


def test_ray_shows_calls_with_their_audits():
    """Without numbers of trials: Ray keeps 15 kB for each name."""
    brief = types.SimpleNamespace(audits=[types.SimpleNamespace(label="sigma=4")])
    pack = Pack(0, 20, 30)
    assert (
        actors.task_name("Trainer", "run_pack", brief, (pack, None)) == "Trainer.run_pack sigma=4"
    )
    assert actors.task_name("Aggregator", "flush", brief, ()) == "Aggregator.flush()"
