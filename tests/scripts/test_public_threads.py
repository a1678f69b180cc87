"""Scripts after public threads: each docstring has the thread, and whether the script is broken.

Facts are of the threads, code is not. A script that keeps its promise is never a violation.
"""

import functools
from typing import Any

import pytest

from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.scripts.script_audit import Audit, Options
from dpaudit_ray.scripts.script_findings import ScriptVerdict, Weight
from dpaudit_ray.scripts.script_runs import LocalRunner, Target
from tests.conftest import ROOT
from tests.long import long

BROKEN = {
    "accumulated_draws": "DPA051",
    "adaptive_server": "DPA034",
    "attends_to_others": "DPA011",
    "best_of_search": "DPA017",
    "history_kept": "DPA034",
    "losses_saved": "DPA034",
    "packed_texts": "DPA032",
    "reseeded_each_epoch": "DPA001",
    "seeded_by_step": "DPA001",
    "shards_divide": "DPA003",
}
HEALTHY = {
    "attends_to_itself",
    "baskets",
    "bfloat_weights",
    "cached_features",
    "clipped_after_noise",
    "diffusion_drawn_before",
    "few_alphas",
    "fixed_fakes",
    "fixed_server",
    "one_cycle",
    "rows_added",
    "shards_root",
    "two_views",
    "urandom_generator",
    "whole_graphs",
    "wrapped_each_epoch",
}
# What is said of scripts that cannot be judged: words of what is missing.
UNDECIDED = {
    "diffusion": "draw those of records before the call",
    "dropout_by_vmap": "draw those of records before the call",
    "fakes_follow_batch": "how batches were made",
    "information_loss": "updates",
}
# What no check covers: the line of "Not checked in this script" that names it.
UNSEEN = {
    "fitted_axes": "constants computed from the records",
    "neighbours_looked_up": "records that a network looks up by index",
    "oversampled": "duplicates",
    "sum_for_mean": "the size of a batch",
    "training_by_sampling": "which records it draws",
    "wrong_delta": "whether δ is small enough",
}
QUICK = {
    "accumulated_draws",
    "dropout_by_vmap",
    "fixed_fakes",
}


@functools.cache
def scripts() -> dict[str, Any]:
    """Functions that train, by name; they are imported by the process that runs these tests."""
    from tests.scripts.threads import engines, generators_and_graphs, loops

    found = {}
    for module in (engines, generators_and_graphs, loops):
        for name, value in vars(module).items():
            is_own = getattr(value, "__module__", "") == module.__name__
            text = getattr(value, "__doc__", None) or ""
            if is_own and ("Broken" in text or "Healthy" in text):
                found[name] = value
    return found


pytestmark = pytest.mark.slow


def cases(names) -> list:
    return [
        pytest.param(name, marks=() if name in QUICK else long("as the others"))
        for name in sorted(names)
    ]


def audited(name: str) -> ScriptVerdict:
    file = scripts()[name].__module__.replace(".", "/")
    target = Target(ROOT / f"{file}.py", name)
    return Audit(target, LocalRunner(target), Options(300.0, (0,)), lambda _: None).verdict()


@pytest.mark.usefixtures("one_room")
@pytest.mark.parametrize("name", cases(BROKEN))
def test_a_broken_script_is_told(name):
    found = audited(name)
    assert found.verdict is Verdict.VIOLATION
    assert BROKEN[name] in {item.code for item in found.violations}


@pytest.mark.usefixtures("one_room")
@pytest.mark.parametrize("name", cases(HEALTHY))
def test_a_healthy_script_is_consistent(name):
    found = audited(name)
    assert found.verdict is Verdict.CONSISTENT, (found.violations, found.help)


@pytest.mark.usefixtures("one_room")
@pytest.mark.parametrize("name", cases(UNDECIDED))
def test_what_cannot_be_judged_is_named(name):
    found = audited(name)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert not [item for item in found.findings if item.weight is Weight.VIOLATION]
    assert any(UNDECIDED[name] in line for line in found.help)


@pytest.mark.usefixtures("one_room")
@pytest.mark.parametrize("name", cases(UNSEEN))
def test_what_no_check_covers_is_named_beside_the_verdict(name):
    found = audited(name)
    assert found.verdict is Verdict.CONSISTENT
    assert any(UNSEEN[name] in line for line in found.unchecked)


def test_each_thread_has_an_expected_answer():
    named = [*BROKEN, *HEALTHY, *UNDECIDED, *UNSEEN]
    assert sorted(named) == sorted(scripts())
