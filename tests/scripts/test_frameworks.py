"""Scripts of the frameworks that people train with, looked into once each.

A healthy one may raise an alarm in one run of a hundred; the seeds here are fixed.
"""

import importlib.util
from pathlib import Path

import pytest

from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.scripts.script_audit import Audit, Options
from dpaudit_ray.scripts.script_findings import Weight
from dpaudit_ray.scripts.script_runs import LocalRunner, Target
from tests.long import LONG, long

FOLDER = Path(__file__).parents[2] / "jobs/frameworks"
# Script, function, packages that it needs, and what the audit warns of.
HEALTHY = [
    ("command_line", "main", "click", ()),
    ("generator", "main", "opacus", ("release",)),
    ("hugging_face", "bert", "transformers peft", ()),
    ("hugging_face", "gpt2", "transformers peft", ()),
    ("hugging_face_trainer", "main", "transformers accelerate", ("seeds",)),
    ("jax_loop", "main", "jax", ()),
    ("jax_optax", "main", "jax optax", ()),
    ("jax_privacy_loop", "main", "jax_privacy", ()),
    ("lightning_module", "main", "pytorch_lightning", ()),
    ("opacus_cnn", "main", "opacus", ()),
    ("opacus_lstm", "main", "opacus", ()),
    ("opacus_variants", "one_process_of_many", "opacus", ()),
    ("opacus_variants", "per_layer", "opacus", ()),
    ("opacus_variants", "unwrapped", "opacus", ()),
    ("plain_torch", "main", "torch", ()),
    ("tensorflow_loop", "main", "tensorflow", ()),
]
# As each takes ten seconds and more; `make long` has all of them.
QUICK = ("command_line", "main")
pytestmark = pytest.mark.slow


def audited(script, function):
    target = Target(FOLDER / f"{script}.py", function)
    options = Options(300.0, (0,), seed=1)
    return Audit(target, LocalRunner(target), options, lambda _: None).verdict()


@pytest.mark.parametrize(("script", "function", "needs", "warned"), HEALTHY)
def test_a_healthy_script_is_consistent(script, function, needs, warned, request):
    for package in needs.split():
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if not LONG and (script, function) != QUICK:
        pytest.skip("a second healthy script; set DPAUDIT_LONG=1")
    if (script, function) == QUICK:
        request.getfixturevalue("one_room")  # the others import what it has not
    verdict = audited(script, function)
    assert verdict.verdict is Verdict.CONSISTENT
    warnings = [finding.look for finding in verdict.findings if finding.weight is not Weight.NOTE]
    assert sorted(warnings) == sorted(warned)


@long("the zoo has shuffled batches, and Lightning trains twenty seconds")
def test_batches_that_lightning_shuffles_are_not_poisson():
    """The loader of `make_private` rests, and the plain one is drawn from."""
    pytest.importorskip("pytorch_lightning")
    verdict = audited("lightning_module", "shuffled")
    assert verdict.verdict is Verdict.VIOLATION
    assert [finding.look for finding in verdict.violations] == ["sampling"]


@long("a jax training of 25 s; what it shows does not depend on the framework")
def test_noise_that_goes_on_from_step_to_step_is_not_judged():
    pytest.importorskip("jax")
    verdict = audited("jax_correlated_noise", "main")
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert not verdict.findings
    assert any("the noise cannot be drawn again" in line for line in verdict.help)
