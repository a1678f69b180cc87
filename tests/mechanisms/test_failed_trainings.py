"""Trainings that end in NaN or infinity: found before training, or named by the answer."""

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)

import dpaudit_ray as da
from dpaudit_ray.errors import SpecError
from dpaudit_ray.report import verdict
from tests.command import dpaudit

HERE = f"{__name__}:"
ROWS = 200
SPECIAL = 150  # a row beyond those that are tried before training


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def root_of_a_class(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Has a finite loss, and no gradient where the target is 1: the root's slope at 0."""
    return cross_entropy(outputs, targets) + ((targets != 1) * outputs[:, 0] ** 2).sqrt()


def not_a_number(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs, targets) * torch.where(targets > 0, math.nan, 1.0)


def too_large(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return 1e25 * cross_entropy(outputs, targets)


def until_sure(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Is finite until an output exceeds 5."""
    return cross_entropy(outputs, targets) + (5 - outputs.abs().amax(1)).sqrt()


class Rooted(torch.nn.Module):
    """Takes the root of a feature where it is positive; its gradient is NaN where that is 0."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.linear = torch.nn.Linear(2, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = self.scale * x
        return self.linear(torch.where(x > 0, scaled.sqrt(), scaled))


def rooted() -> torch.nn.Module:
    return Rooted(classes=3)


@pytest.fixture
def sweep(tmp_path):
    """A sweep of 20 trials on 200 rows of two features and two classes."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 1.5, (ROWS, 2))
    y = np.arange(ROWS) % 3
    np.savez(tmp_path / "usual.npz", x=x, y=y)
    x[SPECIAL, 1] = 0
    np.savez(tmp_path / "special.npz", x=x, y=y)
    return {
        "name": "failed",
        "mechanism": {
            "name": "dp-sgd",
            "data": {"name": "npz", "path": str(tmp_path / "usual.npz")},
            "model": {"name": "mlp", "hidden": [3]},
            "steps": 10,
            "batch_size": ROWS,
            "physical_batch_size": 32,
            "learning_rate": 0.1,
            "clip_norm": 1.0,
            "noise_multiplier": 1.0,
        },
        "adversary": {"name": "biased-dimension"},
        "audit": {"trials": 20, "delta": 1e-5, "estimators": ["eps-delta"]},
        "resources": {"pack_size": 10},
    }


def answer(sweep: dict, tmp_path) -> verdict.Answer:
    result = da.run(sweep, storage_path=tmp_path / "runs", executor="inline")
    assert result.answer.failed_trials > 0
    assert result.answer.verdict is not verdict.Verdict.CONSISTENT
    return result.answer


@pytest.mark.parametrize(
    ("loss", "problem"),
    [
        (root_of_a_class, "the gradient of .* is not finite for example 1 before training"),
        (not_a_number, "is not finite before training"),
        (too_large, "the norm of the gradient is more than torch.float32 holds for example 0"),
    ],
)
def test_gradients_are_checked_before_training(loss, problem, sweep, tmp_path):
    sweep["mechanism"]["loss"] = HERE + loss.__name__
    with pytest.raises(SpecError, match=problem):
        da.run(sweep, storage_path=tmp_path / "runs", executor="inline")


def test_example_with_an_infinite_gradient_is_named(sweep, tmp_path):
    sweep["mechanism"]["model"] = {"name": "module", "path": HERE + "rooted"}
    sweep["mechanism"]["data"]["path"] = str(tmp_path / "special.npz")
    sentence = answer(sweep, tmp_path).sentence
    assert sentence.startswith(
        "INCONCLUSIVE: nothing was audited: all 20 trials ended in NaN or infinity, trial 0 at "
        f"step 1: the gradient of scale is not finite for example {SPECIAL}."
    )
    assert "weak" not in sentence


def test_step_of_a_late_failure_is_named(sweep, tmp_path):
    sweep["mechanism"] |= {"loss": HERE + "until_sure", "learning_rate": 100.0, "steps": 40}
    sentence = answer(sweep, tmp_path).sentence
    assert "trial 0 at step " in sentence
    assert "trial 0 at step 1:" not in sentence


def test_failures_end_the_command_with_3_and_give_no_advice(sweep, tmp_path):
    sweep["mechanism"]["learning_rate"] = 1e38
    found = answer(sweep, tmp_path)
    assert re.search(
        r"trial 0 at step \d: .* for example \d+, with parameters of up to \de\+", found.sentence
    )
    assert not found.help
    done = dpaudit("verify", tmp_path / "runs" / "failed")
    assert done.code == 3
    assert "nothing was audited: all 20 trials ended in NaN or infinity" in " ".join(
        done.out.split()
    )


def test_share_of_failures_is_in_the_first_sentence(sweep, tmp_path):
    """With so much noise some of the models exceed 5, others do not."""
    noisy = {"noise_multiplier": 100.0, "learning_rate": 1.0, "steps": 20}
    sweep["mechanism"] |= noisy | {"loss": HERE + "until_sure"}
    found = answer(sweep, tmp_path)
    share = re.match(
        r"INCONCLUSIVE: no violation found, but (\d+) of 20 trials ended in NaN or infinity, "
        r"trial \d+ at step \d+: the gradient of .* is not finite for example \d+\. ",
        found.sentence,
    )
    assert share, found.sentence
    assert int(share[1]) == found.failed_trials < 20
    assert not found.help


def test_failure_by_the_canary_alone_names_it(sweep, tmp_path):
    """A blank record, whose features are 0, in the world with the canary only."""
    sweep["mechanism"]["model"] = {"name": "module", "path": HERE + "rooted"}
    sweep["mechanism"]["batch_size"] = 50
    sweep["adversary"] = {"name": "api-access", "canary": "blank"}
    result = da.run(sweep, tmp_path / "runs", executor="inline")
    assert "is not finite for the canary" in result.answer.sentence
    inside = result.scores.query("member")
    assert result.answer.failed_trials == len(inside)


def test_reasons_are_stored_with_scores(sweep, tmp_path):
    sweep["mechanism"]["learning_rate"] = 1e38
    result = da.run(sweep, tmp_path / "runs", executor="inline")
    explained = result.scores.query("diverged != ''")
    assert list(explained["trial"]) == [0, 10], "one trial of each pack of 10"
    assert explained["diverged"].str.contains("at step").all()
    assert da.open(result.location).answer == result.answer
