"""A training of one's own, audited: claims, trials that fail and are listed, processes, options."""

import gc
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

import dpaudit_ray as da
from dpaudit_ray import stats
from dpaudit_ray.errors import RunDirectoryError
from dpaudit_ray.isolation import Limits
from dpaudit_ray.mechanisms.base import Measured
from dpaudit_ray.mechanisms.function import IsolatedTrials, TrialByTrial, preloaded
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.plan import outcomes, score_stream
from dpaudit_ray.report import page, verdict
from dpaudit_ray.report.tables import Run
from dpaudit_ray.stats import gdp
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec
from tests.command import completed, dpaudit, inline, refused, write_sweep
from tests.mechanisms import failing_trials, torch_trials
from tests.plan.failing import of_function
from tests.plan.test_failed_trials import opened

TRAININGS = failing_trials.__name__
LEVEL = {"delta": 1e-5, "confidence": 0.95}
ESTIMATORS = ["accuracy", "eps-delta", "anytime", "eps-delta-anytime"]


def sweep(name: str, trials: int = 60, pack_size: int = 10, **mechanism: Any) -> dict[str, Any]:
    # Computed without torch, as no trainer of these need wait for it.
    stated = {"name": "tests.pace:WithoutTorch", "path": f"{TRAININGS}:{name}", "isolated": True}
    audit = {"trials": trials, "estimators": ESTIMATORS, "accountants": ["gaussian"]}
    return of_function("own", audit, pack_size, **stated | mechanism) | {"seed": 4}


def contents(location: Path) -> dict[str, bytes]:
    """Scores, estimates and all that is kept of missed trials."""
    files = [*location.glob("scores/*/*"), *location.glob("missed/*/*")]
    files += [location / "estimates.parquet", location / "outcomes.json"]
    return {str(file.relative_to(location)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 60 trials, some of which raised and some of which diverged."""
    folder = tmp_path_factory.mktemp("failed")
    done = inline(write_sweep(folder, sweep("some_raise")), folder)
    assert done.code == 3, done.err
    return folder / "own"


def drawn(location: Path) -> Iterator[tuple[int, bool, int]]:
    """Number, bit and seed of each trial, as a session draws them."""
    from dpaudit_ray import seeds

    _, plan, _ = opened(location)
    (audit,) = plan.audits
    for first, last in audit.packs:
        bits = seeds.bits(plan.seed, audit.fingerprint, first, last)
        noise = seeds.noise_seed(plan.seed, audit.fingerprint, first)
        children = np.random.SeedSequence(noise).spawn(len(bits))
        for place, child in enumerate(children):
            seed = int(child.generate_state(1, np.uint64)[0] >> 1)
            yield first + place, bool(bits[place]), seed


def ended(member: bool, seed: int) -> tuple[float, str]:
    """The score of `some_raise`, or NaN and why there is none."""
    try:
        return failing_trials.some_raise(member, seed), ""
    except (ValueError, RuntimeError) as error:
        return math.nan, f"{type(error).__name__}: {error}"


def together(name: str = "release", **mechanism: Any) -> dict[str, Any]:
    """2000 trials of microseconds in this process; their claim is μ = 1."""
    raw = sweep(name, 2000, 100, **{"isolated": False, "noise_multiplier": 2.0, **mechanism})
    raw["audit"]["estimators"] = ["accuracy"]
    return raw


def test_a_true_claim_is_approached_and_not_refuted(tmp_path):
    completed(inline(write_sweep(tmp_path, together()), tmp_path / "runs"))
    estimates = pd.read_parquet(tmp_path / "runs" / "own" / "estimates.parquet")
    (row,) = estimates.itertuples()
    claim = gdp.epsilon(1.0, 1e-5)
    assert row.epsilon_upper == pytest.approx(claim)
    assert 0.7 * claim < row.epsilon_lower < claim
    folders = [tmp_path / "runs", tmp_path / "again"]
    assert inline(tmp_path / "sweep.yaml", folders[1]).code == 0
    first, second = (
        pd.concat(map(pd.read_parquet, sorted(folder.rglob("scores/*/*.parquet"))))
        for folder in folders
    )
    assert first["score"].nunique() == len(first) == 2000
    pd.testing.assert_frame_equal(first, second)
    assert dpaudit("verify", tmp_path / "runs" / "own").code in (0, 5)
    less = write_sweep(tmp_path, together(options={"noise": 1.0}))
    assert inline(less, tmp_path / "less").code == 0
    assert dpaudit("verify", tmp_path / "less" / "own").code == 1, "less noise than claimed"


def test_what_is_no_score_fails_its_pack(tmp_path):
    done = inline(write_sweep(tmp_path, together("broken")), tmp_path / "runs")
    assert done.code == 3
    assert "'a score', no number" in done.err


def test_a_trial_that_raises_is_a_miss_and_its_pack_goes_on(failed):
    """The slow twin calls the training for each trial, by hand, and folds one after another."""
    stored = da.api.Result(str(failed), True).scores.set_index("trial")
    twins = [stats.make(name, planned=60, independent=True) for name in ESTIMATORS]
    lost = diverged = 0
    for trial, member, seed in drawn(failed):
        score, said = ended(member, seed)
        assert stored.loc[trial, "missed"] == said
        assert np.array_equal(stored.loc[trial, "score"], score, equal_nan=True)
        lost += said != ""
        diverged += math.isnan(score) and said == ""
        for twin in twins:
            if said:
                twin.miss(np.array([member]))
            else:
                twin.fold(np.array([score]), np.array([member]))
    assert lost >= 5
    assert diverged >= 3, "NaN is an outcome"
    found = pd.read_parquet(failed / "estimates.parquet").set_index("estimator")
    assert set(found["trials"]) == {60}
    for name, twin in zip(ESTIMATORS, twins, strict=True):
        assert found.loc[name, "epsilon_lower"] == twin.bound(**LEVEL).epsilon_lower, name
    assert found["epsilon_lower"].max() > 0
    assert (failed / "_SUCCESS").exists()


def test_they_are_listed_by_kind_with_their_output(failed):
    scores = da.api.Result(str(failed), True).scores
    lost, diverged = scores.query("missed != ''"), scores.query("missed == '' and score.isna()")
    told = json.loads(dpaudit("status", failed, "--json").out)
    assert told["complete"]
    assert told["failures"] == []
    for kind in told["missed"]:
        mine = lost[lost["missed"].str.startswith(kind["kind"])]
        assert kind["trials"] == len(mine)
        assert kind["first"] == mine["trial"].min()
        assert kind["message"] == mine["missed"].iloc[0]
    assert {kind["kind"] for kind in told["missed"]} == {"ValueError", "RuntimeError"}
    assert sum(kind["trials"] for kind in told["missed"]) == len(lost)
    seeds = {trial: seed for trial, _, seed in drawn(failed)}
    for trial in lost["trial"]:
        text = (Path(told["missed"][0]["outputs"]) / f"{trial}.txt").read_text()
        assert f"trains with seed {seeds[trial]}" in text
        assert "in some_raise" in text
    assert len(list(failed.glob("missed/*/*"))) == len(lost)
    kind = told["missed"][0]
    line = (
        f"own: {kind['trials']} trials failed and counted as missed: {kind['message']}, "
        f"trial {kind['first']} first; output in {kind['outputs']}"
    )
    assert line in dpaudit("status", failed).out
    assert line in inline(failed.parent / "sweep.yaml", failed.parent).err, "run says so, again"
    html = Path(page.write(Run.open(str(failed)))).read_text()
    assert line in html
    assert f"failed, counted as misses: {len(lost)}" in html
    (judged,) = verdict.judge(Run.open(str(failed))).audits
    assert (judged.trials, sum(judged.diverged)) == (60, len(diverged))
    assert Aggregation.rebuild(opened(failed)[2]).progress().audits[0].failed == len(lost)


def test_a_run_that_is_resumed_has_the_same_bytes(failed, tmp_path):
    file = write_sweep(tmp_path, sweep("some_raise"))
    assert inline(file, tmp_path).code == 3
    _, plan, _ = opened(tmp_path / "own")
    for first, last in plan.audits[0].packs[2:4]:
        (tmp_path / f"own/scores/{plan.audits[0].id}/{first}-{last}.parquet").unlink()
    for name in ("estimates.parquet", "outcomes.json", "_SUCCESS"):
        (tmp_path / "own" / name).unlink()
    assert inline(file, tmp_path).code == 3
    assert contents(tmp_path / "own") == contents(failed)


@pytest.mark.cluster
@pytest.mark.usefixtures("shared_head")
def test_isolated_trials_on_ray_are_those_of_inline(failed, tmp_path):
    file = write_sweep(tmp_path, sweep("some_raise"))
    done = dpaudit("run", file, "--storage-path", tmp_path)
    assert done.code == 3, done.err
    assert "trials failed and counted as missed: " in done.err
    assert contents(tmp_path / "own") == contents(failed)


def test_whatever_a_trial_does_it_does_to_itself(tmp_path):
    limits = {"trial_seconds": 3, "trial_gib": 0.5}
    file = write_sweep(tmp_path, sweep("all_kinds", trials=8, pack_size=4, **limits))
    assert inline(file, tmp_path).code == 3
    scores = da.api.Result(str(tmp_path / "own"), True).scores.set_index("trial")
    said = {0: "took more than 3 s", 1: "took more than 0.5 GiB", 2: "ended with exit status 5"}
    for trial, _, seed in drawn(tmp_path / "own"):
        assert scores.loc[trial, "missed"] == said.get(seed % 6, ""), trial
    assert set(said.values()) < set(scores["missed"])


def test_a_pack_that_misses_all_has_failed(tmp_path):
    file = write_sweep(tmp_path, sweep("raising", trials=20, pack_size=5))
    done = inline(file, tmp_path)
    assert done.code == 3
    assert "3 packs in a row failed the same way (ValueError: boom" in done.err
    _, plan, run = opened(tmp_path / "own")
    known = outcomes.failed(run, plan)
    assert len(known) == 3
    assert {failure.kind for failure in known} == {"ValueError"}
    assert "about to fail" in known[0].traceback
    assert "in raising" in known[0].traceback
    assert outcomes.read(run, plan).missed == ()


def test_failed_packs_and_missed_trials_go_together(tmp_path):
    """Done packs are run again first; what they miss is the same, so failed ones may follow."""
    options = {"options": {"first": 0}}
    file = write_sweep(tmp_path, sweep("raising_in_a_pack", trials=40, pack_size=2, **options))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpaudit_ray.orchestration.driver.SAME_FAILURES", 10**6)
        assert inline(file, tmp_path).code == 3
        before = contents(tmp_path / "own")
        again = inline(file, tmp_path, "--retry-failed")
    assert "run again" not in again.err
    assert contents(tmp_path / "own") == before
    settings, plan, run = opened(tmp_path / "own")
    packs = list(outcomes.failed(run, plan))
    alone = sum(each.trials for each in outcomes.read(run, plan).missed)
    assert len(packs) >= 3
    assert alone >= 3
    finished = outcomes.finished_trials(run, settings, plan, 0).packs()
    trials = score_stream.Trials.joined(plan.audits[0], finished)
    assert int(trials.missed.sum()) == alone + 2 * len(packs)
    assert len(trials.missed) == 40


def test_too_many_of_them_stop_the_sweep_and_of_outputs_the_first_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(outcomes, "MOST_OUTPUTS", 3)
    few = sweep("some_raise")
    few["resources"]["max_trial_failures"] = 1
    done = inline(write_sweep(tmp_path, few), tmp_path)
    assert "2 packs failed (2 of them in some trials only), more than resources." in done.err
    assert done.code == 3
    assert not (tmp_path / "own/_SUCCESS").exists()
    content = json.loads((tmp_path / "own/outcomes.json").read_text())
    assert sum(kind["trials"] for kind in content["missed"]) > 3
    assert len(list(tmp_path.glob("own/missed/*/*.txt"))) == 3


def run(session: Any, trials: int = 4) -> np.ndarray:
    found = session.run(np.arange(trials) % 2 == 0, 7, (1,))
    return found.scores if isinstance(found, Measured) else found


def apart(path: str, **options: Any) -> TrialByTrial:
    return TrialByTrial(IsolatedTrials(path, options, None, Limits(), gpu=False))


def test_apart_or_together_the_scores_are_the_same():
    together = TrialByTrial(failing_trials.scored)
    assert run(apart(f"{TRAININGS}:scored"), 20).tobytes() == run(together, 20).tobytes()


def test_trials_share_no_state_and_have_the_trainers_threads():
    import torch

    assert run(apart(f"{TRAININGS}:counted")).tolist() == [[1.0]] * 4
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert run(apart(f"{torch_trials.__name__}:threads"), 1).tolist() == [[1.0]]
    finally:
        torch.set_num_threads(before)


def test_what_was_prepared_arrives(tmp_path):
    stated = {"prepare": f"{TRAININGS}:arrays", "parts": 2}
    found = []
    for isolated in (True, False):
        place = tmp_path / str(isolated)
        made = sweep("shadowed", trials=20, isolated=isolated, **stated)
        assert da.run(made, storage_path=str(place), executor="inline").complete
        found.append(da.api.Result(str(place / "own"), True).scores)
    pd.testing.assert_frame_equal(*found, check_exact=True)


def test_a_zygote_that_dies_costs_nobody_a_trial(tmp_path):
    session = apart(f"{TRAININGS}:ends_zygote", flag=str(tmp_path / "flag"))
    assert run(session).tobytes() == run(TrialByTrial(failing_trials.scored)).tobytes()
    assert (tmp_path / "flag").exists()


def test_a_session_that_is_dropped_leaves_no_process():
    session = apart(f"{TRAININGS}:scored")
    before = {process.pid for process in psutil.Process().children()}
    run(session)
    (zygote,) = [one for one in psutil.Process().children() if one.pid not in before]
    folder = session.trial._sandbox.folder
    del session
    gc.collect()
    assert not zygote.is_running()
    assert not folder.exists()


def test_what_is_preloaded_is_installed():
    later = preloaded(torch_trials.__name__)
    assert "torch" in later, "it imports that later"
    assert not any(name.startswith("tests") for name in later)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"isolated": False, "trial_gib": 0.5}, "mechanism.trial_gib: is 0.5, but isolated"),
        ({"path": "nowhere"}, "mechanism.path"),
        ({"path": "nowhere:train"}, "cannot import 'nowhere:train'"),
        ({"path": f"{TRAININGS}:GIB"}, "cannot be called"),
        ({"adversary": "loss"}, "loss cannot attack tests.pace:WithoutTorch; use own"),
        ({"record_every": 2}, "scored at its end"),
    ],
)
def test_bad_input_is_one_line(change, said, tmp_path):
    raw = sweep("scored")
    for key, value in change.items():
        place = (
            raw if key == "adversary" else raw["audit" if key == "record_every" else "mechanism"]
        )
        place[key] = value
    assert said in refused("run", write_sweep(tmp_path, raw))


def test_none_of_the_options_is_in_the_fingerprint():
    limits = ({"trial_seconds": 5.0, "trial_gib": 2.0}, {"isolated": False})
    plain, *others = (spec.from_raw(sweep("scored", **options)) for options in ({}, *limits))
    assert {other.fingerprint for other in others} == {plain.fingerprint}
    stated = plain.cells[0].mechanism.identity().keys()
    assert not {"isolated", "trial_seconds", "trial_gib"} & stated


@pytest.mark.parametrize("text", ["no json", '{"missed": [{"audit": "x"}]}'])
def test_a_damaged_record_is_told(text, failed, tmp_path):
    _, plan, _ = opened(failed)
    (tmp_path / "outcomes.json").write_text(text)
    with pytest.raises(RunDirectoryError, match=r"outcomes.json is damaged"):
        outcomes.read(RunDirectory(str(tmp_path)), plan)
