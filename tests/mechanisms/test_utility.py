"""What trained models are worth, measured beside their scores on examples held out."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import dpaudit_ray as da
from dpaudit_ray.data.tabular import BreastCancer
from dpaudit_ray.mechanisms.base import Measured
from tests.command import dpaudit, inline, refused, write_sweep
from tests.trainings import opened

HORIZONS = (2, 4)


def by_hand(training: Any, theta: torch.Tensor) -> list[list[float]]:
    """The twin: one model at a time, through the module itself, one example at a time."""
    found = []
    for row in theta:
        torch.nn.utils.vector_to_parameters(row, training.module.parameters())
        right, total = 0, 0.0
        for x, y in zip(*training.held_out, strict=True):
            with torch.no_grad():
                outputs = training.module(x[None])[0].double()
            if len(outputs) == 1:
                outputs = torch.cat([torch.zeros(1, dtype=torch.float64), outputs])
            right += int(outputs.argmax() == y)
            total -= float(outputs.log_softmax(0)[y])
        found.append([right / len(training.held_out[1]), total / len(training.held_out[1])])
    return found


@pytest.mark.parametrize(("model", "engine"), [("fcnn", "packed"), ("mlp3", "opacus")])
def test_accuracy_and_loss_are_those_of_the_module(model, engine, tiny):
    attack = opened(tiny, "biased-dimension", steps=4, model=model, engine=engine, held_out=0.5)
    training = attack.training
    members = np.arange(5) % 2 == 0
    outcome = attack.run(members, 7, HORIZONS)
    assert isinstance(outcome, Measured)
    path = training.run(torch.from_numpy(members).float(), 7, attack.canary, 1)
    wanted = dict(enumerate(theta.clone() for theta in path))
    for column, step in enumerate(HORIZONS):
        twin = np.array(by_hand(training, wanted[step]))
        assert np.array_equal(outcome.utility["accuracy"][:, column], twin[:, 0])
        np.testing.assert_allclose(outcome.utility["loss"][:, column], twin[:, 1], rtol=1e-5)


def test_a_model_that_diverged_has_no_accuracy(tiny):
    training = opened(tiny, "biased-dimension", steps=4, held_out=0.5).training
    theta = torch.stack([training.initial, torch.full_like(training.initial, torch.nan)])
    found = training.measured(theta)
    assert np.isfinite(found[:, 0]).all()
    assert np.isnan(found[:, 1]).all()


def test_other_data_change_no_score(tiny, tmp_path):
    """A test set of one's own is only looked at."""
    data = BreastCancer().load()
    np.savez(tmp_path / "test.npz", x=data.x[:40], y=data.y[:40])
    other = {"name": "npz", "path": str(tmp_path / "test.npz")}
    members = np.arange(6) % 2 == 0
    plain, measured = (
        opened(tiny, "biased-dimension", steps=4, **held_out).run(members, 7, HORIZONS)
        for held_out in ({}, {"held_out": other})
    )
    assert plain.tobytes() == measured.scores.tobytes()
    assert measured.utility["accuracy"].shape == (6, 2)


def test_canaries_of_one_training_share_what_it_is_worth(tiny):
    tiny["audit"]["estimators"] = ["several-canaries"]
    three = opened(tiny, {"name": "biased-dimension", "count": 3}, steps=4, held_out=0.3)
    outcome = three.run(np.arange(12) % 2 == 0, 7, HORIZONS)
    rows = outcome.utility["loss"].reshape(4, 3, 2)
    assert (rows == rows[:, :1]).all()
    assert len(np.unique(rows[:, 0, 1])) == 4


def test_scores_and_every_view_show_it(tiny, tmp_path):
    tiny["mechanism"] |= {"held_out": 0.3}
    tiny["audit"] |= {"record_every": 5}
    assert inline(write_sweep(tmp_path, tiny), tmp_path).code == 0
    done = tmp_path / "tiny"
    files = sorted((done / "scores").glob("*/*.parquet"))
    scores = pd.concat(map(pd.read_parquet, files))
    assert list(scores)[5:] == ["accuracy", "loss"]
    assert scores.groupby("step")["loss"].mean().is_monotonic_decreasing  # it learns
    result = da.api.Result(str(done), True)
    row = result.overview.iloc[0]
    last = result.scores.query("audit == @row.audit and step == step.max()")
    assert row["accuracy"] == pytest.approx(last["accuracy"].mean())
    assert f"{row['accuracy']:.3f}" in dpaudit("status", done).out
    assert dpaudit("report", done).code == 0
    html = (done / "report.html").read_text()
    assert f"accuracy {row['accuracy']:.4f} ±" in html
    assert "with the canary in" in html


@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        (0.0, "above 0, below 1"),
        (0.0001, "0 of 569 examples"),
        (0.95, "to train on, of 569; use at most"),
        ({"name": "npz", "path": "none.npz"}, "no file"),
        ({"name": "npz", "path": "wide.npz"}, "same features"),
        ({"name": "npz", "path": "many.npz"}, "3 classes"),
    ],
)
def test_bad_input_is_one_line(held_out, said, tiny, tmp_path):
    shape = BreastCancer().load().x.shape[1:]
    wide = np.zeros((4, shape[0] + 1), np.float32)
    np.savez(tmp_path / "wide.npz", x=wide, y=np.array([0, 1, 0, 1]))
    many = np.zeros((4, *shape), np.float32)
    np.savez(tmp_path / "many.npz", x=many, y=np.array([0, 1, 2, 1]))
    tiny["mechanism"]["held_out"] = held_out
    assert said in refused("run", write_sweep(tmp_path, tiny), "--executor", "inline")
