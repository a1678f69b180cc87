"""Shadow models as a preparation that attacks share, and what of these attacks is refused."""

import signal
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.data.tabular import BreastCancer
from dpaudit_ray.mechanisms.dp_sgd import session as sessions
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec
from tests.adversaries import networks
from tests.command import changed, refused, write_sweep
from tests.orchestration.test_faults import assert_same, start
from tests.orchestration.test_preparation import parts_of

ROOT = Path(__file__).parents[2]


def sweep(tiny: dict[str, Any], *adversaries: Any) -> dict[str, Any]:
    """Audits of 8 trials of a linear model against each of them."""
    tiny["mechanism"] |= {"steps": 2, "model": networks.Slowly.model_fields["name"].default}
    tiny["audit"] |= {"trials": 8, "record_every": 2, "estimators": ["accuracy"]}
    return tiny | {"grid": {"adversary": list(adversaries)}}


STATIC = {"name": "static-poison", "shadows": 40, "ascent": 1}
ADAPTIVE = {"name": "adaptive-poison", "shadows": 40, "ascent": 2, "inner": 1}


def test_audits_share_the_shadows_they_ask_for(tiny, tmp_path, monkeypatch):
    """40 shadows are three parts, trained once for two attacks; 5 are others, and one part."""
    few = STATIC | {"shadows": 5}
    asked = sweep(tiny, STATIC, ADAPTIVE, few, "gradient")
    ids = [audit.preparation and audit.preparation.id for audit in plan_of(asked).audits]
    assert ids[0] == ids[1] != ids[2]
    assert ids[3] is None
    trained: list[int] = []
    part = sessions.train_shadows

    def counted(training: Any, adversary: Any, number: int, seed: int) -> Any:
        made = part(training, adversary, number, seed)
        trained.append(len(made["theta"]))
        return made

    monkeypatch.setattr(sessions, "train_shadows", counted)
    result = da.run(asked, storage_path=str(tmp_path), executor="inline")
    assert result.complete
    assert sorted(trained) == [5, 8, 16, 16]
    run = RunDirectory(result.location)
    made = [run.read_part(ids[0], number)["theta"] for number in range(3)]
    assert len({row.tobytes() for row in np.concatenate(made)}) == 40


def plan_of(raw: dict[str, Any]) -> Any:
    return planning.make(spec.from_raw(raw))


@pytest.mark.parametrize(
    ("key", "value"),
    [("mechanism.noise_multiplier", 3.0), ("mechanism.reserved", 0.4), ("seed", 4)],
)
def test_what_shadows_depend_on_names_them(key, value, tiny):
    asked = sweep(tiny, STATIC)
    before = plan_of(asked).audits[0].preparation.id
    assert plan_of(changed(asked, "audit.trials", 9)).audits[0].preparation.id == before
    assert plan_of(changed(asked, key, value)).audits[0].preparation.id != before


@pytest.mark.slow
def test_killed_while_shadows_are_trained_it_ends_the_same(tiny, tmp_path, monkeypatch):
    asked = sweep(tiny, STATIC, ADAPTIVE)
    quiet = da.run(asked, storage_path=str(tmp_path / "quiet"), executor="inline").location
    monkeypatch.setenv(networks.SECONDS, "0.3")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    process = start(asked, tmp_path / "killed", "--executor", "inline")
    location = tmp_path / "killed/tiny"
    deadline = time.monotonic() + 300
    while not parts_of(location):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert len(parts_of(location)) < 3
    assert not (location / "scores").exists()
    first = parts_of(location)[0]
    written = first.stat().st_mtime_ns
    monkeypatch.setenv(networks.SECONDS, "0")
    assert da.run(asked, storage_path=str(tmp_path / "killed"), executor="inline").complete
    assert first.stat().st_mtime_ns == written, "what was stored is not made again"
    assert_same(location, quiet)
    pairs = zip(parts_of(location), parts_of(Path(quiet)), strict=True)
    assert [one.read_bytes() == other.read_bytes() for one, other in pairs] == [True] * 3


@pytest.fixture
def files(tmp_path: Path) -> dict[str, dict[str, str]]:
    """Data sets: 100 records, and 25 of which 5 are private ones."""
    private, rng = BreastCancer().load(), np.random.default_rng(0)
    drawn = rng.normal(size=(95, 30)).astype(np.float32)
    made = {
        "small": (np.concatenate([drawn, private.x[:5]]), rng.integers(0, 2, 100)),
        "tiny": (drawn[:25], rng.integers(0, 2, 25)),
        "wide": (np.zeros((100, 31), np.float32), rng.integers(0, 2, 100)),
    }
    for name, (x, y) in made.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    return {name: {"name": "npz", "path": str(tmp_path / f"{name}.npz")} for name in made}


LANDSCAPE = {"name": "landscape", "steps": 6, "batch_size": 8, "noise_multiplier": 2.0}
PRETRAINED = {"name": "api-access", "start": "pretrained"}

REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"adversary": {"name": "gradient", "parameters": 9}},
        "adversary.parameters: is 9, but the model has 134 and half of them go up, half down; use "
        "an even number of at most 134",
    ),
    (
        {"adversary": STATIC, "adversary.shadow_data": "small"},
        "adversary.shadow_data: 5 of the 100 records of npz are private ones too; give others",
    ),
    (
        {"adversary": STATIC, "adversary.shadow_data": "tiny"},
        "adversary.shadow_data: gives shadow models 25 records, fewer than a batch of 64",
    ),
    (
        {"adversary": STATIC, "adversary.shadow_data": "wide"},
        "adversary.shadow_data: npz has examples of shape (31,) in 2 classes, the data of (30,)",
    ),
    (
        {"adversary": STATIC, "mechanism.reserved": 0.1},
        "mechanism.reserved: gives shadow models 57 records, fewer than a batch of 64; give more, "
        "or lower mechanism.batch_size",
    ),
    (
        {"adversary": PRETRAINED, "mechanism.model.initialization": "random"},
        "mechanism.model.initialization: is random, but the adversary chooses one "
        "start for all trials; use fixed",
    ),
    (
        {"adversary": "gradient", "mechanism": LANDSCAPE},
        "adversary.name: gradient cannot attack landscape; use landscape",
    ),
]


@pytest.mark.parametrize(("changes", "line"), REFUSED, ids=[line[:60] for _, line in REFUSED])
def test_bad_input_is_one_line(changes, line, tiny, files, tmp_path):
    for key, value in changes.items():
        changed(tiny, key, files.get(value, value) if isinstance(value, str) else deepcopy(value))
    file = write_sweep(tmp_path, tiny | {"grid": {}})
    told = refused("run", file, "--storage-path", tmp_path, "--executor", "inline")
    assert told.startswith(line)
    assert not (tmp_path / "tiny/scores").exists()
