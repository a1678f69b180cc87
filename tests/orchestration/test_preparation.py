"""Preparations: made once, stored, waited for, and the same after any number of kills."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray import seeds
from dpaudit_ray.adversaries.base import ChangingCanary
from dpaudit_ray.adversaries.biased_dimension import BiasedDimension
from dpaudit_ray.errors import RunDirectoryError, SpecError
from dpaudit_ray.mechanisms.dp_sgd import session as sessions
from dpaudit_ray.orchestration.driver import PackQueue
from dpaudit_ray.orchestration.trainer import Brief, PackTrainer
from dpaudit_ray.plan import outcomes, preparing
from dpaudit_ray.plan.model import Pack, Part
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.plan.preparing import Prepared
from dpaudit_ray.storage import arrays
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec
from tests.command import changed, dpaudit, inline, write_sweep
from tests.head import wait_for
from tests.orchestration import shadows
from tests.orchestration.test_faults import assert_same, start
from tests.plan.failing import of_function

HERE = Path(__file__).parent
PARTS = 4


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the preparation leaves its traces; it can be imported here and in other processes."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parents[1]}")
    monkeypatch.syspath_prepend(str(HERE))
    folder = tmp_path / "log"
    folder.mkdir()
    monkeypatch.setenv(shadows.LOG, str(folder))
    return folder


def sweep(**mechanism: Any) -> dict[str, Any]:
    """Two audits that share a preparation of four parts."""
    stated = {"name": "tests.pace:WithoutTorch", "path": "shadows:train"}
    stated |= {"prepare": "shadows:shadow", "parts": PARTS}
    audit = {"trials": 40, "accountants": ["gaussian"]}
    grid = {"mechanism.options": [{"noise": 1.0}, {"noise": 2.0}]}
    return of_function("prepared", audit, 10, **stated | mechanism) | {"grid": grid}


def made(log: Path) -> list[int]:
    """The parts that were begun, in their order."""
    files = sorted(log.iterdir(), key=lambda file: file.name.partition("-")[2])
    return [int(file.name.partition("-")[0]) for file in files]


@pytest.fixture
def quiet(tmp_path: Path, log: Path) -> Path:
    """Where an undisturbed run is; its traces are gone."""
    result = da.run(sweep(), storage_path=str(tmp_path / "quiet"), executor="inline")
    assert result.complete
    for file in log.iterdir():
        file.unlink()
    return Path(result.location)


def parts_of(location: Path) -> list[Path]:
    return sorted(location.glob("preparations/*/*.parquet"))


def test_parts_are_made_once_for_all_audits_and_reach_every_training(tmp_path, log):
    result = da.run(sweep(), storage_path=str(tmp_path), executor="inline")
    assert result.complete
    assert made(log) == [0, 1, 2, 3]
    files = parts_of(Path(result.location))
    assert [file.name for file in files] == [f"{i}.parquet" for i in range(PARTS)]
    assert len({file.parent for file in files}) == 1
    run = RunDirectory(result.location)
    plan = planning.require(run)
    found = [run.read_part(plan.audits[0].preparation.id, part) for part in range(PARTS)]
    assert found[2]["none"].shape == (0, 2)
    moved = sum(float(each["weights"].sum()) for each in found)
    scores = result.scores.groupby(["audit", "member"])["score"].mean().to_numpy()
    assert np.allclose(scores - moved, [0, 2, 0, 2], atol=1.0)
    assert da.run(sweep(), storage_path=str(tmp_path), executor="inline").complete
    assert made(log) == [0, 1, 2, 3]


def test_what_determines_a_preparation_names_it():
    def named(raw: dict[str, Any]) -> str:
        return planning.make(spec.from_raw(raw)).audits[0].preparation.id

    assert named(sweep()) == named(sweep(steps=5)), "no part of what is prepared"
    others = (sweep() | {"seed": 6}, sweep(parts=3), sweep(prepare="shadows:listing"))
    assert len({named(raw) for raw in (sweep(), *others)}) == 4


def test_a_plan_that_leads_elsewhere_is_refused():
    raw = planning.to_json(planning.make(spec.from_raw(sweep())))
    assert planning.from_json(raw).audits[0].preparation.parts == PARTS
    for altered in ({"id": "../../scores", "parts": 4}, {"id": "0" * 32, "parts": 0}):
        raw["audits"][0]["preparation"] = altered
        with pytest.raises(ValueError, match=r"audits\.0\.preparation"):
            planning.from_json(raw)


def test_no_secret_bit_is_drawn_for_a_preparation(monkeypatch):
    prepared = spec.from_raw(sweep())
    plan = planning.make(prepared)
    trainer = PackTrainer(prepared.raw, Brief.from_plan(plan, prepared))

    def refused(*_: Any) -> Any:
        raise AssertionError("a bit was asked for")

    for name in ("bits", "noise_seed"):
        monkeypatch.setattr(seeds, name, refused)
    first, second = (trainer.prepare(part) for part in preparing.all_parts(plan, [0, 1])[:2])
    assert not np.array_equal(first["weights"], second["weights"])


def test_packs_wait_for_their_parts_and_others_do_not():
    parts = [Part(0, part, part, (0, 2), "id") for part in range(2)]
    packs = [Pack(audit, first, first) for audit in range(3) for first in range(2)]
    over: set[int] = set()
    order = PackQueue([*parts, *packs], over.__contains__)
    assert [order.next() for _ in range(5)] == [*parts, *packs[2:4], None]
    order.put_back(parts[1])  # lost
    order.done(parts[0])
    assert order.next() == parts[1]
    assert order.next() is None
    assert order.backlog == 4
    order.done(parts[1])
    order.done(parts[1])  # stored twice
    over.add(2)  # as where a part failed
    assert [order.next() for _ in range(3)] == [*packs[:2], None]
    assert order.backlog == 0


def test_a_preparation_that_fails_holds_up_its_audits_only(tmp_path, log, monkeypatch, quiet):
    monkeypatch.setenv(shadows.FAILS, "2")
    own = sweep()
    other = of_function("", {}, 10, path="tests.plan.failing:steady")["mechanism"]
    waiting = [own["mechanism"] | {"options": {"noise": noise}} for noise in (1.0, 2.0)]
    file = write_sweep(tmp_path, own | {"grid": {"mechanism": [*waiting, other]}})
    failed = inline(file, tmp_path)
    assert failed.code == 3
    (line,) = failed.err.splitlines()
    assert "and 1 more: not started, part 3 of its preparation failed (ValueError: no mem" in line
    assert "run --retry-failed" in line
    location = tmp_path / "prepared"
    assert [int(folder.name[:3]) for folder in location.glob("scores/*")] == [2]
    assert made(log) == [0, 1, 2]
    monkeypatch.delenv(shadows.FAILS)
    again = inline(file, tmp_path)
    assert (again.code, again.err) == (3, failed.err), "not tried again unless asked"
    shown = dpaudit("status", location, "--trust", "shadows").out
    assert "not started, part 3 of its preparation failed" in shown
    assert "2 of 4 parts prepared" in shown
    assert made(log) == [0, 1, 2]
    retried = inline(file, tmp_path, "--retry-failed")
    assert (retried.code, retried.err) == (0, "")
    assert made(log) == [0, 1, 2, 2, 3]
    assert same_scores(location, quiet, audits=2)


def test_a_record_of_parts_is_read_whoever_waits_for_them(tmp_path):
    run = RunDirectory(str(tmp_path / "run"))
    plan = planning.open_run(spec.from_raw(sweep()), run)
    name, told = plan.audits[1].preparation.id, ("ValueError", "ValueError: boom", "")
    first, second = (Failure(Part(1, part, part, (1,), name), *told) for part in (0, 2))
    prepared, record = Prepared(run, plan), outcomes.Record(run, plan)
    for failed in ([first], [first, second], [second]):
        record.add_parts(failed)
    found = outcomes.failed_parts(run, plan)
    assert [each.pack for each in found] == [Part(0, part, part, (0, 1), name) for part in (0, 2)]
    prepared.keep(found[0].pack, {"made": np.ones(1)})
    done_after_all = [each.pack.first for each in outcomes.failed_parts(run, plan)]
    assert done_after_all == [2]
    assert prepared.progress(1) == (1, PARTS)
    raw = run.read_json(outcomes.FILE)
    raw["failed_parts"][1]["preparation"] = "0" * 32
    run.write_json(outcomes.FILE, raw)
    assert outcomes.failed_parts(run, plan) == []
    run.write_json(outcomes.FILE, {"failed_parts": [{"part": 0}]})
    with pytest.raises(RunDirectoryError, match=r"is damaged .* what failed is then run again"):
        outcomes.failed_parts(run, plan)


def same_scores(one: Path, other: Path, audits: int) -> bool:
    """Whether the first audits have the same scores, bit for bit."""
    found = [da.Result(str(place), complete=True).scores for place in (one, other)]
    first = [each[each["audit"].str[:3].astype(int) < audits]["score"] for each in found]
    return first[0].to_numpy().tobytes() == first[1].to_numpy().tobytes()


def test_what_is_no_array_is_a_failure_with_its_reason(tmp_path):
    raw, tell = sweep(prepare="shadows:listing"), (told := []).append
    result = da.run(raw, storage_path=str(tmp_path), executor="inline", tell=tell)
    assert not result.complete
    (line,) = told
    assert "gave weights of type object; it must hold numbers" in line
    assert parts_of(Path(result.location)) == []


@pytest.mark.parametrize("damage", ["short", "flipped", "gone"])
def test_a_damaged_part_is_set_aside_and_made_again(damage, tmp_path, log, quiet):
    half = changed(sweep(), "audit.trials", 20)
    result = da.run(half, storage_path=str(tmp_path), executor="inline")
    part = parts_of(Path(result.location))[1]
    content = bytearray(part.read_bytes())
    content[len(content) // 4] ^= 1
    part.unlink()
    if damage != "gone":
        part.write_bytes(content[:7] if damage == "short" else content)
    tell = (told := []).append
    again = da.run(sweep(), storage_path=str(tmp_path), executor="inline", tell=tell)
    assert again.complete
    assert made(log) == [0, 1, 2, 3, 1]
    assert same_scores(Path(again.location), quiet, audits=2)
    if damage != "gone":
        assert any("/1.parquet is damaged: set aside as 1.parquet" in line for line in told)


def test_a_plan_shows_what_is_prepared_and_what_it_costs(tmp_path, log):
    file = write_sweep(tmp_path, sweep())
    shown = dpaudit("plan", file, "--storage-path", tmp_path).out
    assert "a preparation for noise=1.0 and 1 more: 0 of 4 parts done, " in shown
    assert "packs can be timed once their preparations are done" in shown
    assert made(log) == [0]
    assert not (tmp_path / "prepared").exists()
    assert inline(file, tmp_path).code == 0
    shown = dpaudit("plan", file, "--storage-path", tmp_path, "--set", "audit.trials=60").out
    assert "4 of 4 parts done, 0s" in shown
    assert "packs can be timed" not in shown
    entries = json.loads(dpaudit("status", tmp_path / "prepared", "--json").out)["preparations"]
    assert [(each["parts"], each["done"]) for each in entries] == [(4, 4)]


class Once(BiasedDimension):
    name: str = "test_preparation:Once"
    crafted_once: ClassVar[bool] = True

    def craft(self, known: Any, rng: Any) -> Any:
        (Path(os.environ[shadows.LOG]) / f"0-{time.time_ns()}").touch()
        return super().craft(known, np.random.default_rng(1))


class Often(Once):
    name: str = "test_preparation:Often"
    crafted_once: ClassVar[bool] = False


def test_an_expensive_canary_is_crafted_once_for_all_trainers(tiny, tmp_path, log):
    results = {}
    for name in ("Once", "Often"):
        tiny |= {"grid": {"adversary": [f"test_preparation:{name}", "loss"]}, "name": name}
        for trials in (60, 90):  # two runs, of a trainer each
            changed(tiny, "audit.trials", trials)
            results[name] = da.run(tiny, storage_path=str(tmp_path), executor="inline")
        assert results[name].complete
        assert len(made(log)) == {"Once": 1, "Often": 3}[name]
    assert len(parts_of(Path(results["Once"].location))) == 1


def recipe(tiny: dict, adversary: str) -> Any:
    cell = spec.from_raw(tiny | {"grid": {"adversary": [adversary]}}).cells[0]
    return cell.mechanism.training(seed=3, gpu=False), cell.adversary


@pytest.mark.parametrize("name", ["loss", "biased-dimension"])
def test_what_was_stored_is_the_canary_that_was_crafted(name, tiny):
    training, adversary = recipe(tiny, name)
    fresh = sessions.open_session(training, adversary, 7)
    stored = arrays.decoded(arrays.encoded(sessions.craft_canary(training, adversary, 7)))
    again = sessions.open_session(training, adversary, 8, (stored,))
    members, seed, horizons = np.arange(10) % 2 == 0, 11, (3, 6)
    want = fresh.run(members, seed, horizons)
    assert want.tobytes() == again.run(members, seed, horizons).tobytes()


def test_a_canary_that_changes_is_not_crafted_once(tiny, monkeypatch):
    class Changing(ChangingCanary):
        def at(self, step: int, theta: Any) -> Any: ...

    training, adversary = recipe(tiny, "loss")
    monkeypatch.setattr(type(adversary), "craft", lambda *_: Changing())
    with pytest.raises(SpecError, match="a Changing, which is more than tensors"):
        sessions.craft_canary(training, adversary, 7)


@pytest.mark.cluster
def test_trainers_of_a_cluster_share_what_was_prepared(tmp_path, log, quiet, monkeypatch):
    """One is killed while it prepares: its part is made again, and nothing else."""
    monkeypatch.setenv(shadows.SECONDS, "1.0")
    process = start(sweep(), tmp_path / "ray")
    wait_for(lambda: made(log) or process.poll() is not None)
    time.sleep(0.3)  # a file is there before it is written
    os.kill(int(next(log.iterdir()).read_text()), signal.SIGKILL)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert "worker lost" in output
    again = sorted(made(log))
    assert len(again) == PARTS + 1
    assert set(again) == set(range(PARTS))
    assert_same(tmp_path / "ray/prepared", quiet)
