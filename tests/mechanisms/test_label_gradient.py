"""Labels from gradients: against torch, against the noisy attack itself, and as a sweep."""

import itertools
import shutil
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import special
from torch import nn

import dpaudit_ray as da
from dpaudit_ray.adversaries.label import Label, crafted_records
from dpaudit_ray.errors import SpecError
from dpaudit_ray.mechanisms.dp_sgd.sampling import Fixed, Indices, Shuffle, Sizes
from dpaudit_ray.mechanisms.label_gradient import (
    LabelGradient,
    Noise,
    Shape,
    Target,
    Trials,
)
from dpaudit_ray.stats import gdp
from dpaudit_ray.stats import label as bounds
from dpaudit_ray.sweep import spec
from tests.command import changed, completed, dpaudit, inline, refused, write_sweep

EXACT = ("exact", "closed-form", "complement", "extrapolated")
BATCH = 20


def sweep(**changes: Any) -> dict[str, Any]:
    """Two layers, sampled and exact, of a small network on bundled data."""
    raw: dict[str, Any] = {
        "name": "labels",
        "seed": 5,
        "mechanism": {
            "name": "label-gradient",
            "training": {
                "name": "dp-sgd",
                "data": {"name": "breast_cancer", "records": 100},
                "model": {"name": "mlp3", "width": 40},
                "steps": 8, "batch_size": BATCH, "sampling": "shuffle",
                "learning_rate": 0.5, "clip_norm": 1.0, "noise_multiplier": 1.0,
            },
        },
        "adversary": {"name": "label"},
        "audit": {
            "trials": 200, "delta": 1e-5, "estimators": ["accuracy"], "accountants": ["gaussian"],
        },
        "grid": {
            "mechanism.backend": ["sampled", "exact"],
            "adversary.layer": ["last", "second-last"],
        },
    }  # fmt: skip
    for key, value in changes.items():
        changed(raw, key.replace("__", "."), value)
    return raw


def target(**changes: Any) -> tuple[LabelGradient, Label, Target]:
    """The first audit of such a sweep, and its trained target."""
    cell = spec.from_raw(sweep(grid={}, **changes)).cells[0]
    mechanism, adversary = cell.mechanism, cell.adversary
    assert isinstance(mechanism, LabelGradient)
    assert isinstance(adversary, Label)
    training = mechanism.target.training(5, gpu=False)
    kept = Target.trained(training, mechanism.shape, mechanism.steps, 7)
    return mechanism, adversary, kept


@pytest.mark.parametrize("between", [nn.ReLU, nn.Tanh, nn.Sigmoid])
def test_derivatives_are_those_of_autograd(between):
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(6, 5), between(), nn.Linear(5, 4), between(), nn.Linear(4, 1)
    ).double()
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    shape = Shape.from_module(module)
    assert shape.sizes == (6, 5, 4, 1)
    theta = nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    passed = shape.run(theta, x.numpy())
    logits = module(x)[:, 0]
    np.testing.assert_allclose(passed.probabilities, special.expit(logits.detach().numpy()))
    parameters = list(module.parameters())
    for i in range(7):
        own = torch.autograd.grad(logits[i], parameters, retain_graph=True)
        np.testing.assert_allclose(passed.norms[i], sum((g**2).sum() for g in own) ** 0.5)
        for layer in range(3):
            expected = own[2 * layer].numpy()
            np.testing.assert_allclose(passed.columns(layer, None)[:, i], expected.ravel())
            np.testing.assert_allclose(passed.columns(layer, 0)[:, i], expected[0])


@pytest.mark.parametrize("layer", ["last", "input"])
def test_a_release_is_the_sum_that_training_clips(layer):
    """Against DP-SGD's own engine, at the target's last step, for labels as they are and turned."""
    mechanism, _, kept = target()
    adversary = Label(layer=layer, neuron=0)
    training = mechanism.target.training(5, gpu=False)
    step = kept.steps - 1
    theta = torch.from_numpy(kept.arrays["theta"][step])[None]
    release, columns = kept.release(step, adversary, mechanism.noise)
    for y in (release.y, np.where(np.arange(BATCH) == 3, 1 - release.y, release.y)):
        x = torch.from_numpy(kept.arrays["x"][step])
        whole = training.sums(theta, x, torch.from_numpy(y), 1.0)[0].numpy()
        sizes, at = kept.shape.sizes, 0
        for into, out in list(itertools.pairwise(sizes))[: adversary.layer_index(3)]:
            at += (into + 1) * out
        mine = columns @ release.coefficients(y)
        np.testing.assert_allclose(mine, whole[at : at + len(mine)], atol=2e-6)


@pytest.mark.parametrize("layer", ["last", "second-last"])
@pytest.mark.parametrize("whole", [True, False])
def test_closed_forms_are_what_trials_give(layer, whole):
    """400,000 trials of one record: rates to 4e-3 (standard error 8e-4), its distance to .01."""
    _, _, kept = target(mechanism__training__noise_multiplier=0.5)
    adversary = Label(layer=layer, neuron="all", record="largest")
    noise = Noise(1.0, 0.5, whole)
    trials = Trials.from_target(kept.arrays, adversary, noise)
    b, record = np.unravel_index(np.nanargmax(trials.distances), trials.distances.shape)
    found = trials.releases[b].bounds(1e-5)
    members = np.random.default_rng(1).random(400_000) < 0.5
    scores = trials.run(members, 2, (8,)).scores[:, 0]
    # A score below 0 names the label as it is.
    assert np.mean(scores[~members] < 0) == pytest.approx(found.hit[record], abs=0.004)
    assert np.mean(scores[members] < 0) == pytest.approx(found.false_hit[record], abs=0.004)
    apart = (scores[members].mean() - scores[~members].mean()) / scores[members].std()
    assert apart == pytest.approx(found.mu_direction[record], abs=0.01)
    assert scores[~members].std() == pytest.approx(1, abs=0.01)


def test_the_noise_in_the_span_is_that_of_the_whole_gradient():
    """A hundred thousand noisy gradients of all attacked weights, solved by least squares."""
    mechanism, _, kept = target()
    adversary = Label(layer="second-last", neuron="all")
    release, columns = kept.release(2, adversary, mechanism.noise)
    rng, y = np.random.default_rng(3), np.tile(release.y, (4000, 1))
    few = release.solutions(release.sums(y, rng))
    known = np.isfinite(few[0])
    assert known.sum() > 10
    exact = columns @ release.coefficients(release.y)
    gradients = exact + mechanism.noise.multiplier * rng.normal(size=(4000, len(exact)))
    slow = gradients @ np.linalg.pinv(columns).T
    np.testing.assert_allclose(slow.mean(0)[known], few.mean(0)[known], atol=6 * slow.std() / 60)
    np.testing.assert_allclose(slow.std(0)[known], few.std(0)[known], rtol=0.07)


def test_scores_order_worlds_as_far_as_they_are_apart():
    """The share of pairs in order is Φ(μ / √2); 4000 trials a world, flakes in 1 of 10,000."""
    _, _, kept = target()
    adversary = Label(statistic="gradient", record="largest")
    trials = Trials.from_target(kept.arrays, adversary, Noise(1.0, 1.0, True))
    members = np.arange(8000) % 2 == 0
    scores = trials.run(members, 4, (8,)).scores[:, 0]
    ordered = np.mean(scores[members][:, None] > scores[~members][None])
    expected = special.ndtr(np.nanmax(trials.distances) / np.sqrt(2))
    assert ordered == pytest.approx(expected, abs=0.025)


def test_exact_bounds_are_in_order_and_below_the_claim(tmp_path):
    """Where a small C clips everything, a turned label moves the sum by 2 C: the claim itself."""
    file = write_sweep(tmp_path, sweep(mechanism__training__clip_norm=0.25))
    completed(inline(file, tmp_path))
    found = pd.read_parquet(tmp_path / "labels/estimates.parquet")
    assert set(found["estimator"]) == {"accuracy", *EXACT}
    exact = found[found["estimator"].isin(EXACT)]
    assert sorted(set(exact["step"])) == list(range(1, 9))
    for _, rows in exact.groupby(["audit", "step"]):
        values = rows.set_index("estimator")["epsilon_lower"]
        assert 0 < values["closed-form"] <= values["complement"] <= values["exact"]
        assert values["exact"] <= rows["epsilon_upper"].iloc[0] * (1 + 1e-9)
    series = exact[exact["estimator"] == "exact"].sort_values("step").groupby("audit")
    for _, rows in series:
        # One epoch is five batches; then a record may be in a second one, and claims allow it.
        claims = rows["epsilon_upper"].to_numpy()
        assert claims[0] == claims[4] == pytest.approx(float(gdp.epsilon(2.0, 1e-5)))
        assert claims[5] == claims[7] == pytest.approx(float(gdp.epsilon(2 * 2**0.5, 1e-5)))
        bounded = rows["epsilon_lower"].to_numpy()
        assert bounded[4] == pytest.approx(claims[4])
        assert bounded[7] == pytest.approx(claims[7])
    verdict = dpaudit("verify", tmp_path / "labels")
    assert verdict.code in (0, 5), verdict.err
    assert dpaudit("check", tmp_path / "labels").code == 0
    assert dpaudit("report", tmp_path / "labels").code == 0


def test_one_target_serves_all_audits_and_is_made_again_when_lost(tmp_path):
    file = write_sweep(tmp_path, sweep(mechanism__backend="exact", grid={}))
    told = dpaudit("plan", file, "--storage-path", tmp_path)
    assert ": 0 of 1 parts done, " in told.out + told.err
    file = write_sweep(tmp_path, sweep())
    assert inline(file, tmp_path).code == 0
    run = tmp_path / "labels"
    (prepared,) = (run / "preparations").iterdir()
    stored = {f.relative_to(run): f.read_bytes() for f in run.rglob("*") if f.suffix == ".parquet"}
    shutil.rmtree(run / "preparations")
    (run / "_SUCCESS").unlink()
    (run / "estimates.parquet").unlink()
    for file in (run / "scores").rglob("*.parquet"):
        file.unlink()
    completed(inline(tmp_path / "sweep.yaml", tmp_path))
    assert (run / "preparations" / prepared.name).exists()
    for name, content in stored.items():
        assert (run / name).read_bytes() == content, name


@pytest.mark.cluster
@pytest.mark.usefixtures("shared_head")
def test_exact_audits_alone_wait_for_their_target_on_ray(tmp_path):
    raw = sweep(grid={"adversary.layer": ["last", "second-last"]}, mechanism__backend="exact")
    here = da.run(raw, storage_path=str(tmp_path / "here"), executor="inline")
    there = da.run(raw, storage_path=str(tmp_path / "there"))
    assert here.complete
    assert there.complete
    pd.testing.assert_frame_equal(here.estimates, there.estimates, check_exact=True)


@pytest.mark.parametrize(
    ("layer", "neuron"), [("last", 0), ("second-last", "all"), ("second-last", 1)]
)
def test_labels_are_rebuilt_without_noise(layer, neuron):
    """All that the system determines; Algorithm 4's sign is settled by what is rarer."""
    _, _, kept = target()
    for step, often in enumerate(kept.arrays["y"].mean(axis=1) > 0.5):
        adversary = Label(layer=layer, neuron=neuron, positives="majority" if often else "minority")
        release, columns = kept.release(step, adversary, Noise(1.0, 1e-9, True))
        solved = release.solutions(release.sums(release.y[None], np.random.default_rng(1)))
        named = adversary.labels(solved)[0]
        if neuron == 1:
            share = release.y[named >= 0].mean()
            if abs(share - 0.5) < 0.01 or (share > 0.5) != often:
                continue  # the prior is of the batch, and does not hold of those it can tell
            assert (named[(columns == 0).all(axis=0)] == -1).all(), "a dead neuron"
        np.testing.assert_array_equal(named[named >= 0], release.y[named >= 0])
        assert (named >= 0).sum() > 0


def test_crafted_records_tell_all_labels_of_the_first_layer():
    """Algorithm 5: a narrow first layer that answers to all records alike."""
    _, _, kept = target(
        mechanism__training__model={"name": "mlp3", "width": 8},
        mechanism__training__batch_size=15,
        adversary={"name": "label", "layer": "input", "neuron": "all", "crafts": True},
    )
    adversary = Label(layer="input", neuron="all", crafts=True)
    for step, theta in enumerate(kept.arrays["theta"]):
        weights, _ = kept.shape.layers(theta)[0]
        made = crafted_records(weights, 15, np.random.default_rng(0))
        answers = kept.shape.run(theta, made).inputs[1]
        np.testing.assert_allclose(answers, np.tile(answers[0], (15, 1)), atol=1e-9)
        release, _ = kept.release(step, adversary, Noise(1.0, 1e-9, True))
        solved = release.solutions(release.sums(release.y[None], np.random.default_rng(1)))
        np.testing.assert_array_equal(adversary.labels(solved)[0], release.y)


def test_a_neuron_that_is_dead_everywhere_is_refused():
    _, _, kept = target()
    dead = dict(kept.arrays)
    dead["theta"] = dead["theta"].copy()
    sizes = kept.shape.sizes
    second = (sizes[0] + 1) * sizes[1]
    biases = second + sizes[1] * sizes[2]
    dead["theta"][:, second : second + sizes[1]] = 0  # weights into neuron 0 of the second layer
    dead["theta"][:, biases] = -1
    attacked = Label(layer="second-last", neuron=0)
    with pytest.raises(SpecError, match="neuron: is 0, which determines no label of any batch"):
        Trials.from_target(dead, attacked, Noise(1.0, 1.0, True))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mechanism__training__batch_size": 50}, "training.batch_size: is 50, but there are 40"),
        ({"adversary__neuron": 40, "adversary__layer": "second-last"}, "has 40 neurons, from 0"),
        ({"adversary__crafts": True}, "crafts: needs layer: input, not last"),
        (
            {"adversary__crafts": True, "adversary__layer": "input"},
            "is 20, but there are 0 features",
        ),
        ({"adversary__name": "loss"}, "loss cannot attack label-gradient; use label; loss is for"),
        ({"mechanism__training__sampling": "poisson"}, "sampling: must be fixed or shuffle"),
        ({"mechanism__training__held_out": 0.2}, "training.held_out: must be nothing"),
        ({"mechanism__batches": 9}, "is 9, but the training has 8 steps"),
        ({"mechanism__training__data": {"name": "npz", "path": "three.npz"}}, "npz has 3 classes"),
        ({"mechanism__backend": "exact", "mechanism__seed": 1}, "mechanism.seed: is for sampled"),
    ],
)
def test_bad_input_is_told_in_a_line(changes, words, tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 5))
    np.savez(tmp_path / "three.npz", x=x, y=np.arange(60) % 3)
    file = write_sweep(tmp_path, sweep(grid={}, **changes))
    assert words in refused("run", file, "--executor", "inline")


@pytest.mark.parametrize("sigma", [0.03, 0.1215])
def test_closed_forms_stay_below_the_exact_bound_with_little_noise(sigma):
    """Answers rarer than any float: none of it may become infinite."""
    _, _, kept = target()
    attacked = Label(layer="second-last", neuron="all")
    release, _ = kept.release(0, attacked, Noise(1, sigma, True))
    found = release.bounds(1e-5)
    exact = bounds.epsilon(found.mu, 1e-5)
    for each in (found.epsilon, found.epsilon_complement):
        assert np.isfinite(each[np.isfinite(found.mu_direction)]).all()
        assert (each <= exact * (1 + 1e-9))[np.isfinite(each)].all()


class Scaled(nn.Sequential):
    """Not a chain: what its layers give is scaled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 0.01


def _tied() -> nn.Module:
    same = nn.Linear(4, 4)
    return nn.Sequential(same, nn.ReLU(), same, nn.ReLU(), nn.Linear(4, 1))


@pytest.mark.parametrize(
    "made",
    [
        lambda: Scaled(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)),
        _tied,
        lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)),
        lambda: nn.Sequential(nn.Linear(4, 1)),
    ],
)
def test_networks_that_are_no_chain_are_refused(made):
    with pytest.raises(SpecError, match="is not a chain of fully connected layers"):
        Shape.from_module(made())
    tanh = nn.Tanh()  # used twice, which is a chain
    module = nn.Sequential(nn.Linear(4, 3), tanh, nn.Linear(3, 2), tanh, nn.Linear(2, 1))
    assert Shape.from_module(module).sizes == (4, 3, 2, 1)


def test_a_target_that_diverges_fails_its_preparation(tmp_path):
    """The other audit has its bounds; nothing is said of the one without a target."""
    raw = sweep(mechanism__backend="exact")
    raw["grid"] = {"mechanism.training.learning_rate": [0.1, 1e30]}
    done = inline(write_sweep(tmp_path, raw), tmp_path)
    assert done.code == 3, done.err
    assert "with which the target has diverged before step" in done.err
    assert "Traceback" not in done.err
    found = pd.read_parquet(tmp_path / "labels/estimates.parquet")
    assert found["audit"].nunique() == 1
    assert dpaudit("report", tmp_path / "labels").code == 0


def test_a_claim_in_the_millions_is_not_violated_by_rounding(tmp_path):
    raw = sweep(
        grid={}, mechanism__backend="exact", mechanism__training__clip_norm=0.1,
        mechanism__training__noise_multiplier=1e-6,
    )  # fmt: skip
    assert inline(write_sweep(tmp_path, raw), tmp_path).code == 0
    assert dpaudit("verify", tmp_path / "labels").code == 0


class OwnShuffle(Shuffle):
    """A sampler of the user's: what reads a run does not import it."""

    name: Literal["shuffle"] = "shuffle"


class Same(Fixed):
    """Always the first record: it is no sampler."""

    name: Literal["fixed"] = "fixed"

    def batches(self, sizes: Sizes, rng: np.random.Generator) -> Iterator[Indices]:
        """One record, as often as the batch is long."""
        while True:
            yield np.zeros(sizes.batch_size, dtype=np.int64)


def test_a_record_that_is_twice_in_a_batch_is_refused(tmp_path):
    """Its label would move the sum by more than claims allow."""
    own = {"name": f"{__name__}:Same"}
    raw = sweep(grid={}, mechanism__backend="exact", mechanism__training__sampling=own)
    done = inline(write_sweep(tmp_path, raw), tmp_path)
    assert done.code == 3
    assert "which has batches with a record twice" in done.err


def test_a_sampler_of_ones_own_is_read_as_recorded(tmp_path):
    own = {"name": f"{__name__}:OwnShuffle"}
    raw = sweep(grid={}, mechanism__backend="exact", mechanism__training__sampling=own)
    assert inline(write_sweep(tmp_path, raw), tmp_path).code == 0
    found = pd.read_parquet(tmp_path / "labels/estimates.parquet")
    claim = found[found["step"] == 8]["epsilon_upper"].iloc[0]
    assert claim == pytest.approx(float(gdp.epsilon(2 * 8**0.5, 1e-5))), "in every batch, perhaps"
    for verb in ("status", "verify", "report"):
        completed(dpaudit(verb, tmp_path / "labels"))
