"""Shared fixtures: small sweeps, real data where it is at hand, a home that stays clean."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

import dpaudit_ray as da
from dpaudit_ray.mechanisms.base import Mechanism
from dpaudit_ray.mechanisms.dp_sgd import DpSgd
from dpaudit_ray.orchestration import interruption
from dpaudit_ray.plugins import parse
from dpaudit_ray.report import detection
from tests import watchdog
from tests.command import changed, write_sweep
from tests.head import Head, head, wait_for
from tests.pace import Pace

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("DPAUDIT_SHARED", ROOT.parent / "shared"))

# As `make test` sets it for numpy, too; torch reads it later. Tests of threads set their number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Ray starts its workers with niceness 15. Where as many tests run as there are cores, or more, the
# actors of one get a thirtieth of what the processes of another do: minutes in place of seconds.
os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(autouse=True, scope="session")
def clean_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ray, matplotlib and scikit-learn must not write into the developer's home."""
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True, scope="module")
def one_imagined_audit(request: pytest.FixtureRequest) -> Iterator[None]:
    """Verdicts imagine one audit in place of 50, but where what they say is what is tested."""
    judging = ("test_answer.py", "test_hints.py", "test_quote.py")
    with pytest.MonkeyPatch.context() as patch:
        if request.path.name not in judging and "verdict" not in request.path.name:
            patch.setattr(detection, "SIMULATIONS", 1)
        yield


@pytest.fixture(autouse=True)
def no_head_lost() -> Iterator[None]:
    """A lost head is forgotten after the test: the next command would end this process."""
    yield
    interruption.head_lost.clear()


@pytest.fixture(scope="session")
def session_head() -> Iterator[Head]:
    """A Ray head of two CPUs for all tests of this process that leave it as it was."""
    with head(cpus=2, dashboard=False) as started:
        yield started


@pytest.fixture
def shared_head(session_head: Head, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    """The head of the session, which sweeps of this test join, here and in its processes.

    What its workers read from their environment was set when it started: tests give it by files.
    """
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, session_head.environment[name])
    monkeypatch.setenv("RAY_ADDRESS", session_head.gcs)
    yield session_head
    wait_for(lambda: not session_head.processes("Trainer", "Aggregator"), 60)


@pytest.fixture
def tiny() -> dict:
    """A sweep of two audits that trains in a second or two: real data, real DP-SGD."""
    return {
        "name": "tiny",
        "seed": 3,
        "mechanism": {
            "name": "dp-sgd",
            "data": {"name": "breast_cancer"},
            "model": {"name": "fcnn"},
            "steps": 6,
            "batch_size": 64,
            "learning_rate": 0.1,
            "clip_norm": 1.0,
            "noise_multiplier": 2.0,
        },
        "adversary": {"name": "loss"},
        "audit": {
            "trials": 90,
            "delta": 1e-5,
            "record_every": 3,
            "estimators": ["accuracy", "paper-gdp", "eps-delta", "anytime"],
        },
        "grid": {"adversary": [{"name": "biased-dimension"}, {"name": "loss"}]},
        "resources": {"pack_size": 10, "num_cpus": 1},
    }


@pytest.fixture
def light(tiny: dict) -> dict:
    """The tiny sweep on what trains nothing: its processes wait for no torch."""
    mechanism = {"name": "landscape", "steps": 6, "batch_size": 2, "noise_multiplier": 2.0}
    grid = {"mechanism.gradient": ["threshold", "constant"]}
    return tiny | {"mechanism": mechanism, "adversary": {"name": "landscape"}, "grid": grid}


@pytest.fixture
def pace(tmp_path: Path) -> Pace:
    """Decides how long the packs of sweeps `of` it last: no time, until it is `slow`."""
    return Pace(tmp_path)


@pytest.fixture
def options(tiny: dict) -> DpSgd:
    """The mechanism of the tiny sweep."""
    mechanism = parse(Mechanism, tiny["mechanism"], "mechanism")
    assert isinstance(mechanism, DpSgd)
    return mechanism


@pytest.fixture
def sweep_of_400(light: dict, pace: Pace, tmp_path: Path) -> Path:
    """The light sweep with 80 packs, as a file, in no hurry where `pace` says so."""
    return write_sweep(tmp_path, pace.of(changed(light, "audit.trials", 400)))


@pytest.fixture
def quiet_400(sweep_of_400: Path, tmp_path: Path) -> str:
    """Returns the directory of an undisturbed run of the sweep, to compare with."""
    return da.run(sweep_of_400, storage_path=str(tmp_path / "quiet"), executor="inline").location


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real data sets that do not belong to the project."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"real data sets are not at {folder}; set DPAUDIT_SHARED to their parent")
    return folder


_LONGEST = (
    *("test_submission.py", "test_elastic.py", "test_slurm.py", "test_prometheus.py"),
    *("test_chaos.py", "test_readme.py", "test_zoo_bugs.py", "test_frameworks.py"),
    *("test_faults.py", "test_convpool.py", "test_gpu_step.py", "test_family.py"),
    *("test_digests.py", "test_bench.py", "test_zoo_healthy.py", "test_coverage.py"),
    *("test_function.py", "test_yuan2021.py", "test_live_view.py", "test_gpu.py"),
    *("test_answer.py", "test_altered.py", "test_imports.py"),
)


def pytest_configure() -> None:
    """Has the processes of tests end with this process, however it ends."""
    watchdog.start()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take minutes come first: at the end, all other processes wait for them."""
    items.sort(key=lambda item: ((*_LONGEST, item.path.name)).index(item.path.name))


class _Scheduling(LoadFileScheduling):
    """Runs tests of one file in one process, and all tests of scripts in two processes."""

    def _split_scope(self, nodeid: str) -> str:
        # Each process that audits scripts imports for ten seconds what they need; one process for
        # all of them ends minutes after the others.
        file = super()._split_scope(nodeid)
        if not file.startswith("tests/scripts/"):
            return file
        of_collections = ("test_zoo_", "test_public_threads", "test_frameworks", "test_checks")
        name = file.removeprefix("tests/scripts/")
        return f"tests/scripts/{name.startswith(of_collections)}"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Returns the scheduler of the processes that xdist starts."""
    return _Scheduling(config, log)
