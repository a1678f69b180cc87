"""Every planted bug is found by one run looked into; its twin raises no alarm.

Whatever the seed, a twin may raise an alarm in one run of a hundred (the share of this layer); the
seeds here are fixed, so a test that passes goes on passing.
"""

import pytest

from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.scripts import canary_trials
from dpaudit_ray.scripts.script_audit import Audit, Options
from dpaudit_ray.scripts.script_findings import ScriptVerdict, Weight
from dpaudit_ray.scripts.script_runs import LocalRunner
from jobs.zoo.table import BUGS, Bug
from tests.long import long

FOUND_BY = {
    "adaclip_batch": "scale",
    "batchnorm": "records apart",
    "clip_after_mean": "clipping",
    "closure_recomputes": "noise",
    "constant_seed": "seeds",
    "constant_seed:global_seed": "seeds",
    "fixed_size": "sampling",
    "ghost_bias_norm": "clipping",
    "ghost_without_clip": "clipping",
    "ghost_without_clip:scheduled": "clipping",
    "half_noise": "noise",
    "hard_examples": "sampling",
    "memory_manager_break": "accumulation",
    "microbatch_mean": "noise",
    "no_noise": "noise",
    "no_noise:forgotten": "noise",
    "noise_after_lr": "noise",
    "noise_clip_squared": "noise",
    "noise_over_batch": "clipping",
    "noise_reused": "noise",
    "noise_without_clip": "noise",
    "nonprivate_model_trained": "updates",
    "one_key_for_all": "correlation of tensors",
    "own_head_optimizer": "updates",
    "raw_gradients_left": "noise",
    "raw_gradients_left:left_behind": "release",
    "raw_momentum": "state",
    "returned_beside": "release",
    "returned_beside:prototypes": "release",
    "secret_size": "secret size",
    "shuffled": "sampling",
    "skips_empty": "sampling",
    "step_hook": "accounting",
    "true_batch_size": "scale",
    "warm_up": "updates",
    "wrong_rate": "sampling",
    "wrong_steps": "accounting",
}
# One for each look. The others are found by the same looks.
QUICK = {
    *("batchnorm", "clip_after_mean", "constant_seed", "half_noise", "memory_manager_break"),
    *("nonprivate_model_trained", "one_key_for_all", "raw_gradients_left:left_behind"),
    *("warm_up", "hard_examples", "raw_momentum", "returned_beside", "returned_beside:prototypes"),
    *("secret_size", "true_batch_size", "wrong_rate", "wrong_steps"),
}
pytestmark = pytest.mark.slow


def audited(bug: Bug, twin: bool, layers: tuple[int, ...] = (0,)) -> ScriptVerdict:
    target = bug.target(twin)
    options = Options(120.0, layers, seed=1, secret_size=bug.secret_size)
    return Audit(target, LocalRunner(target), options, lambda _: None).verdict()


def test_all_bugs_are_named():
    assert {bug.name for bug in BUGS if bug.weight} == set(FOUND_BY)
    assert {FOUND_BY[name] for name in QUICK} == set(FOUND_BY.values()), "every look finds one"


@pytest.mark.usefixtures("one_room")
@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, id=bug.name, marks=() if bug.name in QUICK else long("by the same looks"))
        for bug in BUGS
        if bug.weight
    ],
)
def test_a_bug_is_found(bug, monkeypatch):
    # Whether two runs seed their noise alike, the second run tells: it is one of layer 1.
    monkeypatch.setattr(canary_trials, "steps_needed", lambda noise: 60)
    found = audited(bug, twin=False, layers=(0, 1) if bug.name == "constant_seed" else (0,))
    looks = {finding.look for finding in found.findings if finding.weight is bug.weight}
    assert FOUND_BY[bug.name] in looks, found
    if bug.weight is Weight.VIOLATION:
        assert found.verdict is Verdict.VIOLATION


def no_alarm(bug: Bug, twin: bool = True) -> None:
    found = audited(bug, twin)
    assert found.verdict is not Verdict.VIOLATION, found.violations
    done = {look.name for look in found.looks if look.done}
    assert {"noise and clipping", "sampling", "accounting"} <= done


# Some bugs have their twin in common.
TWINS = {(bug.script, bug.twin): bug for bug in BUGS}.values()


@long("as healthy scripts, of which some are always run")
@pytest.mark.usefixtures("one_room")
@pytest.mark.parametrize("bug", TWINS, ids=lambda bug: bug.name)
def test_a_twin_raises_no_alarm(bug):
    no_alarm(bug)


@pytest.mark.usefixtures("one_room")
@pytest.mark.parametrize(
    ("name", "look", "said"),
    [
        ("returned_beside:prototypes", "release", "records went into prototypes"),
        ("hard_examples", "sampling", "how records were chosen"),
        ("raw_momentum", "state", "whether momentum"),
    ],
)
def test_what_may_be_private_but_was_not_seen_is_named_and_its_twin_is_consistent(name, look, said):
    bug = next(bug for bug in BUGS if bug.name == name)
    found, twin = audited(bug, twin=False), audited(bug, twin=True)
    (unseen,) = [entry for entry in found.looks if entry.name == look]
    assert (found.verdict, unseen.done) == (Verdict.INCONCLUSIVE, False)
    assert said in unseen.said
    assert twin.verdict is Verdict.CONSISTENT


@pytest.mark.usefixtures("one_room")
def test_too_much_noise_is_no_violation():
    no_alarm(next(bug for bug in BUGS if bug.weight is None), twin=False)


@pytest.mark.usefixtures("one_room")
def test_steps_as_trials_find_half_the_noise(monkeypatch):
    """Without looking into a step: the two worlds of a step are twice as far apart as promised."""
    monkeypatch.setattr(canary_trials, "steps_needed", lambda noise: 338)
    found = audited(next(bug for bug in BUGS if bug.name == "half_noise"), False, layers=(1,))
    assert [(finding.layer, finding.weight) for finding in found.findings] == [
        (1, Weight.VIOLATION)
    ]
    assert 0 < found.step_trials <= 400
