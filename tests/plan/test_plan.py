"""From a sweep to packs, and back from a run directory to what remains."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit_ray import plan as planning
from dpaudit_ray import seeds
from dpaudit_ray.errors import RunDirectoryError, SpecError
from dpaudit_ray.mechanisms.dp_sgd import DpSgd
from dpaudit_ray.models.base import Model
from dpaudit_ray.models.fcnn import Fcnn
from dpaudit_ray.plan import claims, outcomes
from dpaudit_ray.plan.model import Pack, Plan
from dpaudit_ray.plugins import parse
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from dpaudit_ray.sweep import spec
from dpaudit_ray.sweep.spec import Sweep
from tests.command import changed, contents


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(str(tmp_path / "tiny"))


def with_trials(tiny: dict[str, Any], trials: int, pack_size: int | str = 10) -> Sweep:
    changed(tiny, "audit.trials", trials)
    return spec.from_raw(changed(tiny, "resources.pack_size", pack_size))


def store(run: RunDirectory, plan: Plan, pack: Pack) -> None:
    """A finished pack, without training."""
    audit = plan.audits[pack.audit]
    members = seeds.bits(plan.seed, audit.fingerprint, pack.first, pack.last)
    scores = np.zeros((pack.size, len(audit.horizons)))
    run.write_scores(audit.id, PackScores(pack.first, members, audit.horizons, scores))


@pytest.mark.parametrize("size", [1, 7, 10, 89, 90, 91, 1000, "auto"])
@pytest.mark.parametrize("trials", [1, 90])
def test_packs_tile_the_trials(size, trials, tiny):
    for audit in planning.make(with_trials(tiny, trials, size)).audits:
        covered = [t for first, last in audit.packs for t in range(first, last + 1)]
        assert covered == list(range(trials))
        limit = 256 if size == "auto" else int(size)
        assert max(last - first + 1 for first, last in audit.packs) == min(limit, trials)


def test_pack_bounds_come_from_the_sweep_alone(tiny):
    before = planning.make(with_trials(tiny, 1000, "auto"))
    tiny["resources"] |= {"num_cpus": 2, "num_gpus": 0.25, "max_concurrent_trainers": 3}
    after = planning.make(with_trials(tiny, 1000, "auto"))
    assert after == before


def test_every_audit_has_its_own_bits_and_folder(tiny):
    tiny["grid"]["mechanism.steps"] = [5, 6]
    tiny["grid"]["audit.delta"] = [1e-5, 1e-6]
    plan = planning.make(spec.from_raw(tiny))
    assert len({audit.id for audit in plan.audits}) == len(plan.audits) == 8
    assert len({audit.fingerprint for audit in plan.audits}) == 4, "the level changes no bits"
    assert len({audit.commitment(seed) for audit in plan.audits for seed in (3, 4)}) == 8
    assert planning.to_json(plan)["audits"][0]["bits_sha256"] == plan.audits[0].commitment(3)


def test_claims_are_given_for_every_accountant_and_horizon(tiny):
    changed(tiny, "audit.accountants", ["rdp", "gaussian"])
    (audit, *_) = planning.make(spec.from_raw(tiny)).audits
    assert audit.horizons == (3, 6)
    assert list(audit.claims) == ["rdp", "gaussian"]
    assert audit.claim == audit.claims["rdp"][-1]
    assert audit.claims["gaussian"] == pytest.approx((3.7086349305, 5.5448309227))
    assert all(r > g for r, g in zip(audit.claims["rdp"], audit.claims["gaussian"], strict=True))


@pytest.mark.parametrize("error", [ValueError("too small"), OverflowError("math range error")])
def test_an_accountant_without_an_answer_is_told(error, tiny, monkeypatch):
    def unanswered(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(claims.accounting, "curve", unanswered)
    with pytest.raises(SpecError) as told:
        planning.make(spec.from_raw(tiny))
    assert str(told.value) == (
        "audit.accountants: gaussian gives no claim for a noise multiplier of 2 and a sample rate "
        f"of 1 ({error}); choose another accountant"
    )


def test_opening_again_changes_no_file(tiny, run):
    plan = planning.open_run(spec.from_raw(tiny), run)
    for pack in planning.remaining(run, plan):
        store(run, plan, pack)
    run.set_complete(True)
    before = contents(run.location)
    assert planning.open_run(spec.from_raw(tiny), run) == plan
    assert contents(run.location) == before
    assert run.complete
    assert planning.load(run) == planning.require(run) == plan
    assert planning.read(run) == (spec.from_raw(tiny), plan)


def test_settings_that_change_no_result_are_taken_over(tiny, run):
    planning.open_run(spec.from_raw(tiny), run)
    tiny["resources"]["num_cpus"] = 2
    planning.open_run(spec.from_raw(tiny), run)
    sweep, _ = planning.read(run)
    assert sweep.resources.num_cpus == 2


def test_success_is_withdrawn_while_a_pack_is_missing(tiny, run):
    """A damaged score file was deleted, as the error message says."""
    plan = planning.open_run(spec.from_raw(tiny), run)
    for pack in list(planning.remaining(run, plan))[1:]:
        store(run, plan, pack)
    run.set_complete(True)
    planning.open_run(spec.from_raw(tiny), run)
    assert not run.complete


def test_networks_that_may_pool_convolutions_are_computed_otherwise_than_before():
    """Their last bits changed: a run of before has another identity, and is refused."""
    for model in ("convnet", "cnn4", {"name": "module", "path": "torch.nn:Identity"}):
        assert parse(Model, model, "model").identity()["revision"] == 3
    assert "revision" not in parse(Model, "fcnn", "model").identity()


def test_a_run_of_another_computation_is_refused_with_what_differs(tiny, run, monkeypatch):
    """Before revision 2, dp-sgd rounded θ before the canary joined it: scores must not mix."""
    with monkeypatch.context() as before:
        before.setattr(DpSgd, "revision", 1)
        planning.open_run(spec.from_raw(tiny), run)
    kept = contents(run.location)
    for act in (planning.open_run, planning.preview):
        with pytest.raises(RunDirectoryError) as error:
            act(spec.from_raw(tiny), run)
        said = str(error.value)
        assert "written by a version whose scores do not mix with this one's" in said
        assert "\n" not in said
    with pytest.raises(RunDirectoryError, match="is damaged"):
        planning.read(run)
    assert contents(run.location) == kept


@pytest.mark.parametrize("trials", [91, 95, 100, 130])
def test_raising_trials_keeps_old_packs_and_bits(trials, tiny, run):
    old = planning.open_run(with_trials(tiny, 90, 20), run)
    for pack in planning.remaining(run, old):
        store(run, old, pack)
    run.set_complete(True)
    scores = contents(Path(run.location) / "scores")
    told: list[str] = []
    new = planning.open_run(with_trials(tiny, trials, 20), run, told.append)
    assert told == [
        "trials raised after a look: ε allows for it, and may fall; `up_to` plans growth"
    ]
    assert not run.complete
    assert scores.items() <= contents(Path(run.location) / "scores").items()
    for before, after in zip(old.audits, new.audits, strict=True):
        assert after.packs[: len(before.packs)] == before.packs
        assert after.packs[len(before.packs)][0] == 90
        assert after.packs[-1][1] == trials - 1
        assert (after.id, after.claims) == (before.id, before.claims)
        bits = [seeds.bits(3, audit.fingerprint, 0, 89) for audit in (before, after)]
        assert np.array_equal(*bits)
    assert {pack.first >= 90 for pack in planning.remaining(run, new)} == {True}
    assert planning.read(run)[0].trials == 2 * trials


def test_a_grid_over_trials_is_extended_cell_by_cell(tiny, run):
    tiny["grid"] = {"audit.trials": [20, 30]}
    old = planning.open_run(spec.from_raw(tiny), run)
    assert [audit.trials for audit in old.audits] == [20, 30]
    tiny["grid"] = {"audit.trials": [20, 45]}
    new = planning.open_run(spec.from_raw(tiny), run)
    assert [audit.trials for audit in new.audits] == [20, 45]
    assert new.audits[0] == old.audits[0]
    assert new.audits[1].packs == (*old.audits[1].packs, (30, 39), (40, 44))
    tiny["grid"] = {"audit.trials": [25, 60]}
    bounds = [audit.packs[-2:] for audit in planning.open_run(spec.from_raw(tiny), run).audits]
    assert bounds == [((10, 19), (20, 24)), ((45, 54), (55, 59))], "extended twice"


def test_numbers_of_trials_are_declared_in_turn(tiny, run):
    """Raised before any trial was seen is declared for the first time."""
    for trials in (30, 40):
        plan = planning.open_run(with_trials(tiny, trials), run)
    assert [audit.declared for audit in plan.audits] == [(40,), (40,)]
    store(run, plan, Pack(1, 0, 9))
    for trials in (40, 50, 50, 70):
        plan = planning.open_run(with_trials(tiny, trials), run)
    assert [audit.declared for audit in plan.audits] == [(40, 50, 70), (40, 50, 70)]
    assert planning.read(run)[1] == plan
    entry = run.read_json("plan.json")["audits"][0]
    assert entry["declared"] == [40, 50, 70]


def test_trials_that_failed_were_seen(tiny, run):
    plan = planning.open_run(with_trials(tiny, 30), run)
    outcomes.Record(run, plan).set_failed(
        [outcomes.Failure(Pack(0, 0, 9), "ValueError", "boom", "")]
    )
    plan = planning.open_run(with_trials(tiny, 40), run)
    assert plan.audits[0].declared == (30, 40)


def test_a_kill_between_the_two_files_of_an_extension_is_harmless(tiny, run, monkeypatch):
    old = planning.open_run(with_trials(tiny, 90), run)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    for written in ("write_text", "write_json"):
        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, written, dies)
            with pytest.raises(KeyboardInterrupt):
                planning.open_run(with_trials(tiny, 120), run)
        assert planning.read(run)[1] == old
    planning.open_run(with_trials(tiny, 90), run)
    assert planning.read(run)[0].trials == planning.read(run)[1].trials == 180, "taken back"
    assert planning.open_run(with_trials(tiny, 120), run).trials == 240
    assert planning.read(run)[0].trials == planning.read(run)[1].trials == 240


def refusal(sweep: Sweep, run: RunDirectory) -> str:
    """Both entrances refuse with the same words and change nothing."""
    before = contents(run.location)
    messages = []
    for entrance in (planning.open_run, planning.preview):
        with pytest.raises(RunDirectoryError) as error:
            entrance(sweep, run)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert contents(run.location) == before
    return messages[0]


def test_lowered_trials_are_refused(tiny, run):
    planning.open_run(spec.from_raw(tiny), run)
    assert refusal(with_trials(tiny, 89), run) == (
        f"{run.location} was planned with audit.trials = 90, this sweep has 89; trials can be "
        "raised, not lowered: continue with 90, or use a new name and a new seed"
    )


@pytest.mark.parametrize(
    ("key", "value", "difference"),
    [
        ("mechanism.clip_norm", 2.0, "audits.000.mechanism.clip_norm: 1.0 there, 2.0 here; audi"),
        ("mechanism.sampling", "poisson", "mechanism.sampling: not set there, 'poisson' here"),
        ("mechanism.seed", 1, "audits.000.mechanism.seed: not set there, 1 here"),
        ("seed", 4, "seed: 3 there, 4 here)"),
        ("resources.pack_size", 20, "pack_size: 10 there, 20 here)"),
        ("audit.estimators", ["accuracy"], "audits.000.audit.estimators: [{'name': 'accuracy'}, "),
        ("grid.adversary", ["biased-dimension"], "audits.001: set there, not set here)"),
        ("grid.adversary", ["loss", "biased-dimension"], "audits.000.adversary.name: 'biased-dime"),
    ],
)
def test_another_sweep_is_refused_with_the_difference(key, value, difference, tiny, run):
    planning.open_run(spec.from_raw(tiny), run)
    message = refusal(spec.from_raw(tiny, overrides={key: value}), run)
    assert message.startswith(f"{run.location} holds another sweep (")
    assert difference in message
    # Bits depend on seed, mechanism and adversary: where these stay, a new name repeats the trials.
    repeats = key not in ("seed", "mechanism.clip_norm", "mechanism.sampling", "mechanism.seed")
    seed = " and a new seed" if repeats else ""
    assert message.endswith(f"use a new name{seed}, or the old settings to resume")


NAN = {"noise_multiplier": float("nan"), "releases": 7}  # that accountants were asked for


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda p: p.update(seed=9), "bits_sha256"),
        (lambda p: p["audits"][0].update(fingerprint="abc"), "audits.0.fingerprint: String should"),
        (lambda p: p["audits"][0].update(id="000-../../x-28b2e936"), "is not the id of audit 0"),
        (lambda p: p["audits"][0].update(packs=[[0, -1], [0, 89]]), "do not make up its 90 trials"),
        (lambda p: p["audits"][0].update(claims={"gaussian": [1.0, 2.0]}), "after step 6 by gauss"),
        (lambda p: p["audits"][0]["packs"].append([85, 99]), "do not make up its 90 trials"),
        (lambda p: p["audits"][0].update(claims={}), "do not fit its 2 steps"),
        (
            lambda p: p["audits"][0].update(claimed=[NAN, NAN]),
            "noise_multiplier must be at least 0",
        ),
        (lambda p: p["audits"][0].update(horizons=[2, 6]), "is the plan of another sweep"),
        (lambda p: p["audits"][0].update(declared=[100, 90]), "which do not rise to its trials"),
        (lambda p: p["audits"].pop(), "is the plan of another sweep"),
        (lambda p: p.update(fingerprint="abc"), "is the plan of another sweep"),
    ],
)
def test_a_tampered_plan_is_refused(change, problem, tiny, run):
    planning.open_run(spec.from_raw(tiny), run)
    change(raw := run.read_json("plan.json"))
    run.write_json("plan.json", raw)
    message = refusal(spec.from_raw(tiny), run)
    assert message.startswith(f"{run.location}/plan.json ")
    assert problem in message
    assert message.endswith("restore it, or use a new name and a new seed")
    with pytest.raises(RunDirectoryError, match=r"plan\.json"):
        planning.read(run)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null!", b"\xff\xfe", b'{"audits": {}}'])
def test_a_plan_that_is_none_is_refused(content, tiny, run):
    planning.open_run(spec.from_raw(tiny), run)
    (Path(run.location) / "plan.json").write_bytes(content)
    assert "plan.json is " in refusal(spec.from_raw(tiny), run)


@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace("steps: 6", "steps: 9"),
        lambda text: text[:100],
        lambda text: text + ": :",
        lambda text: "",
    ],
)
def test_an_edited_recording_is_refused(edit, tiny, run):
    planning.open_run(spec.from_raw(tiny), run)
    file = Path(run.location) / "sweep.yaml"
    file.write_text(edit(file.read_text()))
    message = refusal(spec.from_raw(tiny), run)
    assert message.startswith(f"{file} is damaged (")
    assert message.endswith("); restore it, or use a new name and a new seed")
    with pytest.raises(RunDirectoryError, match=r"sweep\.yaml is damaged"):
        planning.read(run)


def test_a_lost_recording_is_written_again(tiny, run):
    """plan.json says which sweep it was, so only that sweep can restore the file."""
    planning.open_run(spec.from_raw(tiny), run)
    before = contents(run.location)
    (Path(run.location) / "sweep.yaml").unlink()
    with pytest.raises(RunDirectoryError, match=r"is no run directory \(it has no sweep\.yaml"):
        planning.read(run)
    other = spec.from_raw(tiny, overrides={"mechanism.clip_norm": 2.0})
    assert "is the plan of another sweep" in refusal(other, run)
    planning.open_run(spec.from_raw(tiny), run)
    assert contents(run.location) == before


def test_a_lost_plan_is_made_again_unless_there_are_scores(tiny, run):
    """An extended run was packed by its history, which nothing else records."""
    plan = planning.open_run(spec.from_raw(tiny), run)
    (Path(run.location) / "plan.json").unlink()
    assert planning.open_run(spec.from_raw(tiny), run) == plan
    store(run, plan, Pack(0, 0, 9))
    (Path(run.location) / "plan.json").unlink()
    assert "holds scores but no plan.json" in refusal(spec.from_raw(tiny), run)


def test_packs_are_limited_to_what_a_disk_can_hold(tiny):
    with pytest.raises(SpecError, match=r"^resources\.pack_size: is 3, which cuts 90000000 trials"):
        planning.make(with_trials(tiny, 90_000_000, 3))


@pytest.mark.parametrize(("model", "models"), [("fcnn", 256), ("wrn16", 48), ("resnet18", 12)])
def test_large_models_come_in_smaller_packs(model, models, tiny):
    changed(tiny, "mechanism.model", model)
    for audit in planning.make(with_trials(tiny, 600, "auto")).audits:
        assert audit.packs[:2] == ((0, models - 1), (models, 2 * models - 1))


def test_a_plan_of_before_keeps_its_packs(tiny, monkeypatch):
    old = planning.make(with_trials(tiny, 600, "auto"))
    # As if `fcnn` were so large that a pack has room for 40.
    monkeypatch.setattr(Fcnn, "parameters", property(lambda _: (1 << 27) // 40))
    more = planning.make(with_trials(tiny, 700, "auto"), old)
    assert [audit.packs[:3] for audit in more.audits] == [audit.packs for audit in old.audits]
    assert more.audits[0].packs[3:] == ((600, 639), (640, 679), (680, 699))
    assert [a.fingerprint for a in more.audits] == [a.fingerprint for a in old.audits]
