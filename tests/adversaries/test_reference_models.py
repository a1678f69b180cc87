"""Reference models: who is trained on, what is claimed, and what a run of them tells."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import dpaudit_ray as da
from dpaudit_ray.errors import SpecError
from dpaudit_ray.report.membership_rates import Reading
from tests.command import dpaudit, inline, write_sweep
from tests.orchestration.test_faults import assert_same
from tests.trainings import PRECISE, cell, opened

RECORDS = 40
ATTACK = {"name": "reference-models", "records": RECORDS, "period": 8}
KILLED = """if True:
    import json, os, signal, sys
    import dpaudit_ray as da
    from dpaudit_ray.mechanisms.dp_sgd import session  # loaded once for all
    from dpaudit_ray.storage.run_directory import RunDirectory
    write = RunDirectory.write_scores
    for files in (1, 3):  # that are stored before it is killed
        if (child := os.fork()) == 0:
            left = [None] * files
            def dies(*given):
                write(*given)
                if left.pop() is None and not left:
                    os.kill(os.getpid(), signal.SIGKILL)
            RunDirectory.write_scores = dies
            da.run(json.loads(sys.argv[1]), sys.argv[2], executor="inline")
        assert os.waitpid(child, 0)[1] == signal.SIGKILL"""


@pytest.fixture
def many(tiny: dict) -> dict:
    tiny["audit"] |= {
        "estimators": ["several-canaries"],
        "trials": 120 * RECORDS,
        "record_every": 8,
    }
    tiny["mechanism"] |= {"steps": 16, "noise_multiplier": 1e-9}
    return tiny | {"resources": {"pack_size": 20 * RECORDS}}


@pytest.mark.parametrize("clip_norm", [0.5, None])
@pytest.mark.parametrize("engine", ["packed", "opacus"])
def test_each_model_is_trained_on_its_own_records(engine, clip_norm, many):
    """Against steps of one model at a time on the records that it has, clipped by hand or not."""
    many["mechanism"] |= {"noise_multiplier": 1e-9 if clip_norm else 0}
    options = {"clip_norm": clip_norm, "engine": engine, "physical_batch_size": 30, "steps": 8}
    session = opened(many, ATTACK, PRECISE, **options)
    training, places = session.training, session.canary.indices
    bits = np.random.default_rng(0).random((2, RECORDS)) < 0.5
    scores = session.run(bits.ravel(), 5, (8,)).reshape(2, RECORDS)
    for row, inside in enumerate(bits):
        out, theta = {*places[~torch.from_numpy(inside)].tolist()}, training.initial.clone()[None]
        for batch in training.batches:
            total = torch.zeros_like(theta)
            for index in {*batch.tolist()} - out:
                gradient = training.sums(theta, *training.example(index))
                total += gradient / max(1.0, float(gradient.norm()) / (clip_norm or math.inf))
            theta -= 0.1 * total / 64
        losses = training.model.losses(theta, training.x[places], training.y[places])[0]
        logits = torch.logit((-losses).exp())
        np.testing.assert_allclose(scores[row], logits, rtol=1e-5, atol=1e-5)


def test_a_record_counts_once_an_epoch_and_what_cannot_be_is_one_line(many):
    mechanism, adversary = cell(many, ATTACK, noise_multiplier=1.0)
    assert [mechanism.claimed(adversary, step).steps for step in (8, 9, 16)] == [1, 2, 2]
    for changes, options, problem in (
        ({"period": 4}, {}, "adversary.period: is 4; .* takes 8"),
        ({"records": 600}, {}, "adversary.records: is 600; .* takes 569"),
        ({}, {"sampling": "poisson"}, "mechanism.sampling: is poisson; .* takes fixed"),
    ):
        wrong, against = cell(many, ATTACK | changes, **options)
        with pytest.raises(SpecError, match=problem):
            wrong.check_records(against)


def test_a_run_gives_its_matrix_and_the_attack_of_its_second_half(many, tmp_path):
    many |= {"adversary": ATTACK, "grid": {}}
    result = da.run(many, str(tmp_path), executor="inline")
    logits, members = result.matrix()
    assert members.shape == (120, RECORDS)
    np.testing.assert_array_equal(logits.ravel(), result.scores.query("step == 16")["score"])
    shown = Reading.of_audit(result.run, 0).rates
    np.testing.assert_array_equal(shown.scores, da.membership(logits, members).scores)
    command = [sys.executable, "-c", KILLED, json.dumps(many), tmp_path / "killed"]
    subprocess.run(command, check=True)
    resumed = da.run(many, str(tmp_path / "killed"), executor="inline")
    assert_same(resumed.location, result.location)


def test_without_noise_nothing_is_claimed_wherever_one_looks(many, tmp_path):
    """Beside a training with DP, whose claim alone is judged."""
    keys = "mechanism.clip_norm, mechanism.noise_multiplier"
    many |= {"adversary": ATTACK, "grid": {keys: [[None, 0], [1.0, 3.0]]}}
    many["audit"]["trials"] = 30 * RECORDS
    file, place = write_sweep(tmp_path, many), tmp_path / "tiny"
    told = [dpaudit("plan", file), inline(file, tmp_path)]
    told += [dpaudit(verb, place) for verb in ("status", "verify", "check")]
    assert [outcome.code for outcome in told] == [0, 0, 0, 5, 0]
    page = Path(dpaudit("report", place).out.strip()).read_text()
    for text in (*(outcome.out for outcome in told), re.sub('"data:.*?"', "", page)):
        assert not re.search(r"(claim|≤|of) inf|\bnan\b|e\+", text)
    for text in (*(outcome.out for outcome in told[:4]), page):
        assert re.search(r"noise_multiplier=0.*\bnothing\b", text)
        reason = "but clip_norm=1.0, noise_multiplier=3.0: the test of the entire claim counts"
        assert reason in " ".join(text.split()) or "max" in text
    without, with_dp = json.loads(dpaudit("status", place, "--json").out)["verdict"]["audits"]
    assert without["reason"] == "it claims nothing, so there is nothing to refute"
    assert without["quote"]["claim"] == "inf" != with_dp["quote"]["claim"]
    reading = Reading.of_audit(da.open(place).run, 0)
    assert {point["claim"] for point in reading.entry["points"]} == {1.0}
    assert next(reading.sentences).endswith("the claim excludes no number")
    refused = dpaudit("plan", file, "--set", "grid={}", "--set", "mechanism.clip_norm=null")
    assert "mechanism.clip_norm: is required where there is noise" in refused.err
    with pytest.raises(SpecError, match="noise_multiplier: is 0, of which nothing is claimed"):
        cell(many, "loss", noise_multiplier=0)
