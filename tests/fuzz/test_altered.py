"""Files of others, altered at random: one line and exit 2, or the right answer; nothing else.

The same alterations on every run of the suite; `make long` draws others, and more of them.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit_ray import plan as planning
from dpaudit_ray.plan import outcomes
from dpaudit_ray.plan.model import Pack
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.storage import lease
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from tests.command import Outcome, dpaudit, inline, write_sweep
from tests.fuzz.altering import EVIL, RANDOM, Draw, altered, snapshot, tree
from tests.long import LONG

SMALL: dict[str, Any] = {
    "name": "small",
    "seed": 1,
    "mechanism": {"name": "landscape", "steps": 2, "batch_size": 1, "noise_multiplier": 5.0},
    "adversary": {"name": "landscape"},
    "audit": {
        "trials": 32, "delta": 1e-5, "record_every": 1, "estimators": ["accuracy", "eps-delta"],
    },
    "grid": {"mechanism.noise_multiplier": [5, 2]},
    "resources": {"pack_size": 8},
}  # fmt: skip
DP_SGD = {
    "name": "small",
    "mechanism": {
        "name": "dp-sgd", "data": {"name": "npz", "path": "data.npz"}, "model": {"name": "fcnn"},
        "steps": 2, "batch_size": 4, "learning_rate": 0.1, "clip_norm": 1.0, "noise_multiplier": 4,
    },
    "adversary": {"name": "biased-dimension", "choice": "random", "period": 1},
    "audit": SMALL["audit"] | {"estimators": [{"name": "eps-delta", "threshold": "holdout"}]},
    "resources": {"pack_size": 8, "num_gpus": 0, "memory": "1GiB", "label_selector": {"a": "b"}},
}  # fmt: skip
FUNCTION = {
    "name": "small",
    "mechanism": {
        "name": "function", "path": "own_good:train", "options": {"noise": 2.0}, "steps": 2,
        "noise_multiplier": 2.0, "sample_rate": 0.5, "curve": "gaussian",
    },
    "adversary": "own",
    "audit": SMALL["audit"] | {"accountants": ["rdp"], "stop_when": {"within": 0.1}},
}  # fmt: skip
GOOD = "def train(member, seed, noise=2.0):\n    return float(member) + seed % 7 * noise / 50\n"


READS = [
    ("status",), ("status", "--json"), ("verify",), ("verify", "--json"),
    ("report", "--format", "table"), ("report", "--format", "csv"), ("report", "--format", "json"),
    ("check",), ("check", "--json"), ("report",),
]  # fmt: skip
FILES = [
    *("plan.json", "sweep.yaml", "estimates.parquet", "outcomes.json", "driver.json"),
    *("machines.json", "scores/*/0-7.parquet", "scores/*/24-31.parquet"),
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a lease is watched is not what is asked here."""
    holder = lease.holder
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.01)
    monkeypatch.setattr(lease, "holder", lambda run: holder(run, 0.01))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """A run whose claims are true, and one of whose claims the first is refuted.

    The last pack of the second audit was given up.
    """
    made = {}
    for violating in (False, True):
        folder = tmp_path_factory.mktemp("violating" if violating else "honest")
        file = write_sweep(folder, SMALL)
        assert inline(file, folder).code == 0
        run = RunDirectory(str(folder / "small"))
        sweep, plan = planning.read(run)
        first, second = plan.audits
        if violating:
            for pack in first.packs:
                scores = run.read_scores(first.id, *pack)
                told = np.repeat(scores.members[:, None] * 2.0, 2, axis=1)
                os.unlink(f"{run.location}/scores/{first.id}/{pack[0]}-{pack[1]}.parquet")
                run.write_scores(first.id, PackScores(pack[0], scores.members, scores.steps, told))
        Path(f"{run.location}/scores/{second.id}/24-31.parquet").unlink()
        record = outcomes.Record(run, plan)
        record.set_failed([Failure(Pack(1, 24, 31), "ValueError", "no", "Traceback")])
        run.write_json("driver.json", {"owner": "ab", "host": "h", "pid": 1, "started": "2"})
        record.set_derived(sweep, (), {0: 16})
        run.set_complete(False)
        (folder / "small/driver.json").rename(folder / "driver.json")
        assert inline(file, folder).code == 3
        (folder / "driver.json").rename(folder / "small/driver.json")
        missed = outcomes.MissedTrials(first.id, "ValueError", 2, 3, "ValueError: no")
        outcomes.Record(run, plan).set_derived(sweep, [missed], {})
        assert dpaudit("verify", folder / "small").code == (1 if violating else 5)
        made[violating] = folder / "small"
    return made


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where one works; runs lie two folders below."""
    folder = tmp_path_factory.mktemp("here")
    before = os.getcwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def fresh(place: Path, run: Path | None = None) -> Path:
    """The place without what was there before, with a copy of a run to alter."""
    for old in place.iterdir():
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    (place / "outside").mkdir()
    (place / "outside/precious").write_text("precious")
    (place / "own_evil.py").write_text(EVIL)
    return place if run is None else Path(shutil.copytree(run, place / "a/runs/small"))


def alter(run: Path, name: str, draw: Draw) -> None:
    """Alters one of the files of a run that have such a name."""
    file = draw(st.sampled_from(sorted(run.glob(name)) or [run / "plan.json"]))
    file.write_bytes(altered(file.read_bytes(), file.name, draw))


def sound(outcome: Outcome, codes: set[int]) -> None:
    """A line for each mistake where it is refused; no traceback, and no command to the terminal."""
    said = outcome.out + outcome.err
    assert outcome.code in codes, outcome
    assert "Traceback" not in outcome.err, outcome.err
    assert "\x1b" not in said
    assert "\u202e" not in said
    if outcome.code == 2:
        for line in outcome.err.splitlines():
            assert line.startswith("dpaudit: "), outcome
            assert len(line) < 2000, outcome.err


def others(files: dict[str, bytes | None], *written: str) -> dict[str, bytes | None]:
    """What no reader may touch: all but `written` and the answer that it keeps."""
    kept = "a/runs/small/verdict.json"
    return {name: content for name, content in files.items() if name not in (kept, *written)}


@RANDOM
@given(st.data(), st.booleans(), st.sampled_from(FILES), st.sampled_from(READS))
def test_a_run_that_is_read(runs, place, data, violating, name, verb):
    run = fresh(place, runs[violating])
    alter(run, name, data.draw)
    before, page = snapshot(place), "a/runs/small/report.html"
    outcome = dpaudit(verb[0], run, *verb[1:])
    shutil.rmtree(run / "figures", ignore_errors=True)
    assert others(snapshot(place), page) == others(before)
    scored = name.startswith("scores")
    verdicts = {1} if violating and not scored else {1, 5} if violating or scored else {5}
    # A shorter declaration, failures and decisions are statements that nothing can be held against.
    stated = {1, 5} if violating else {5}
    allowed = stated if name in ("plan.json", "outcomes.json") else verdicts
    sound(outcome, {2, *(allowed if verb[0] == "verify" else {0})})
    if verb == ("check",):
        if outcome.code == 0:
            assert "in order as far as it goes" in outcome.out
        else:
            assert outcome.out.startswith("differs in ") != outcome.err.startswith("dpaudit: ")
    if verb == ("verify", "--json") and outcome.code != 2:
        again = dpaudit("verify", runs[violating], "--json")
        claims = [[a["claim"] for a in json.loads(o.out)["audits"]] for o in (outcome, again)]
        assert claims[0] == claims[1]


@settings(RANDOM, max_examples=1200 if LONG else 15)
@given(st.data(), st.sampled_from(FILES))
def test_a_run_that_is_resumed(runs, place, data, name):
    run = fresh(place, runs[False])
    if name != "driver.json":
        (run / "driver.json").unlink()
    alter(run, name, data.draw)
    sweep = write_sweep(place, SMALL)
    before, outcome, now = snapshot(place), inline(sweep, run.parent), snapshot(place)
    for name in {name for name in before | now if not name.startswith("a/runs/small/")}:
        assert now.get(name) == before.get(name)
    sound(outcome, {0, 2, 3, 4})


@settings(RANDOM, max_examples=1200 if LONG else 40)
@given(st.data())
def test_a_sweep_file(place, data):
    fresh(place)
    (place / "own_good.py").write_text(GOOD)
    x = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    np.savez(place / "data.npz", x=x, y=np.arange(12) % 2)
    whole = raw = data.draw(st.sampled_from([SMALL, FUNCTION, DP_SGD]))
    for _ in range(data.draw(st.integers(1, 3))):
        raw = tree(raw, data.draw) if isinstance(raw, dict) else raw
    file = place / "sweep.yaml"
    if data.draw(st.booleans()):
        file.write_bytes(altered(write_sweep(place, whole).read_bytes(), "sweep.yaml", data.draw))
    else:
        file.write_text(json.dumps(raw))
    before = snapshot(place)
    outcome = dpaudit("plan", file, "--trust", "own_good", "--storage-path", place / "runs")
    sound(outcome, {0, 2})
    assert snapshot(place) == before
    assert "own_evil" not in sys.modules
