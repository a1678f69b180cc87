"""Reference models: who is trained on, what is claimed, and what a run of them tells."""

import numpy as np
import pytest
import torch

import dpaudit_ray as da
from dpaudit_ray.errors import SpecError
from dpaudit_ray.report.membership_rates import Reading
from tests.trainings import PRECISE, cell, opened

RECORDS = 40
ATTACK = {"name": "reference-models", "records": RECORDS, "period": 8}


@pytest.fixture
def many(tiny: dict) -> dict:
    tiny["audit"] |= {
        "estimators": ["several-canaries"],
        "trials": 120 * RECORDS,
        "record_every": 8,
    }
    tiny["mechanism"] |= {"steps": 16, "noise_multiplier": 1e-9}
    return tiny | {"resources": {"pack_size": 20 * RECORDS}}


@pytest.mark.parametrize("engine", ["packed", "opacus"])
def test_each_model_is_trained_on_its_own_records(engine, many):
    """Against steps of one model at a time on the records that it has, clipped by hand."""
    options = {"clip_norm": 0.5, "engine": engine, "physical_batch_size": 30, "steps": 8}
    session = opened(many, ATTACK, PRECISE, **options)
    training, places = session.training, session.canary.places
    bits = np.random.default_rng(0).random((2, RECORDS)) < 0.5
    scores = session.run(bits.ravel(), 5, (8,)).reshape(2, RECORDS)
    for row, inside in enumerate(bits):
        out, theta = {*places[~torch.from_numpy(inside)].tolist()}, training.initial.clone()[None]
        for batch in training.batches:
            total = torch.zeros_like(theta)
            for index in {*batch.tolist()} - out:
                gradient = training.sums(theta, *training.example(index))
                total += gradient / max(1.0, float(gradient.norm()) / 0.5)
            theta -= 0.1 * total / 64
        losses = training.model.losses(theta, training.x[places], training.y[places])[0]
        logits = torch.logit((-losses).exp())
        np.testing.assert_allclose(scores[row], logits, rtol=1e-5, atol=1e-5)


def test_a_record_counts_once_an_epoch_and_what_cannot_be_is_one_line(many):
    mechanism, adversary = cell(many, ATTACK, noise_multiplier=1.0)
    assert [mechanism.claimed(adversary, step).releases for step in (8, 9, 16)] == [1, 2, 2]
    for changes, options, problem in (
        ({"period": 4}, {}, "adversary.period: is 4; .* takes 8"),
        ({"records": 600}, {}, "adversary.records: is 600; .* takes 569"),
        ({}, {"sampling": "poisson"}, "mechanism.sampling: is poisson; .* takes fixed"),
    ):
        wrong, against = cell(many, ATTACK | changes, **options)
        with pytest.raises(SpecError, match=problem):
            wrong.check_records(against)


def test_a_run_gives_its_matrix_and_the_attack_of_its_second_half(many, tmp_path):
    del many["grid"]
    result = da.run(many | {"adversary": ATTACK}, str(tmp_path), executor="inline")
    logits, members = result.matrix()
    assert members.shape == (120, RECORDS)
    np.testing.assert_array_equal(logits.ravel(), result.scores.query("step == 16")["score"])
    shown = Reading.of_audit(result.run, 0).shown
    np.testing.assert_array_equal(shown.scores, da.membership(logits, members).scores)
