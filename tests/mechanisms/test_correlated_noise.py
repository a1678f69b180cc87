"""Correlated noise: filters against dense solutions, claims against twins, and what is refused."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import dpaudit_ray as da
from dpaudit_ray import plugins
from dpaudit_ray.accounting import Training
from dpaudit_ray.errors import SpecError
from dpaudit_ray.mechanisms.dp_sgd.noise import Correlated, Independent, Noise
from dpaudit_ray.mechanisms.dp_sgd.updates import State
from dpaudit_ray.stats import TradeOff, gdp
from dpaudit_ray.sweep import spec
from tests.mechanisms.test_checkpointing import Cut, CutError
from tests.trainings import cell, opened

Matrix = npt.NDArray[np.float64]

BLT = {"name": "blt", "decays": [0.9, 0.5], "weights": [0.3, 0.2]}
KINDS: dict[str, dict[str, Any]] = {
    "one band": {"name": "banded", "bandwidth": 1},
    "banded": {"name": "banded", "bandwidth": 5},
    "coefficients": {"name": "banded", "coefficients": [2.0, 1.5, 0.5]},
    "blt": BLT,
    "tree": {"name": "tree"},
}


def noise_of(options: dict[str, Any], separation: int = 1) -> Correlated:
    noise = plugins.parse(Noise, {**options, "separation": separation}, "noise")
    assert isinstance(noise, Correlated)
    return noise


def dense(kind: str, steps: int) -> Matrix:
    """Writes C down by its definition, entry by entry."""
    strategy = np.zeros((steps, steps))
    for row, column in itertools.product(range(steps), repeat=2):
        lag = row - column
        if lag < 0:
            continue
        number = row + 1
        strategy[row, column] = {
            "one band": float(lag == 0),
            "banded": math.comb(2 * lag, lag) / 4**lag if lag < 5 else 0.0,
            "coefficients": (1.0, 0.75, 0.25)[lag] if lag < 3 else 0.0,
            "blt": 0.3 * 0.9 ** (lag - 1) + 0.2 * 0.5 ** (lag - 1) if lag else 1.0,
            "tree": float(lag < number & -number),
        }[kind]
    return strategy


def filtered(noise: Noise, normals: torch.Tensor) -> torch.Tensor:
    """Sends normals [steps, n, p] through the filter, step by step."""
    state: State = {}
    rows = normals.clone()
    for number, row in enumerate(rows, start=1):
        noise.correlate(row, number, state)
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_filters_solve_for_the_noise(kind, steps):
    noise = noise_of(KINDS[kind])
    strategy = dense(kind, steps)
    np.testing.assert_allclose(noise.strategy(steps), strategy, rtol=1e-12)
    normals = torch.from_numpy(np.random.default_rng(1).normal(size=(steps, 3, 4)))
    expected = np.linalg.solve(strategy, normals.numpy().reshape(steps, -1))
    found = filtered(noise, normals).numpy().reshape(steps, -1)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "tensors"), [("one band", 0), ("banded", 4), ("blt", 2), ("tree", 10)]
)
def test_memory_of_filters_is_bounded(kind, tensors):
    """A tree of 1000 steps has ten positions of a lowest set bit: 1000 < 2^10."""
    noise, state = noise_of(KINDS[kind]), State()
    for number in range(1, 1001):
        noise.correlate(torch.zeros(1, 1), number, state)
    assert len(state) == tensors


@pytest.mark.parametrize("kind", KINDS)
def test_covariance_of_noise(kind):
    """20,000 draws of eight steps: entries of the covariance, five standard errors at most."""
    normals = torch.from_numpy(np.random.default_rng(2).normal(size=(8, 20_000, 1)))
    rows = filtered(noise_of(KINDS[kind]), normals).numpy()[:, :, 0]
    inverse = np.linalg.inv(dense(kind, 8))
    expected = inverse @ inverse.T
    variances = np.diag(expected)
    errors = np.sqrt((np.outer(variances, variances) + expected**2) / 20_000)
    assert (np.abs(rows @ rows.T / 20_000 - expected) < 5 * errors).all()


def worst(strategy: Matrix, patterns: list[list[int]]) -> float:
    """Returns the largest root of Σ |CᵀC| over the pairs of a pattern's steps."""
    gram = np.abs(strategy.T @ strategy)
    return max(math.sqrt(gram[np.ix_(steps, steps)].sum()) for steps in patterns)


def regular(steps: int, separation: int) -> list[list[int]]:
    return [list(range(first, steps, separation)) for first in range(min(separation, steps))]


def apart(steps: int, separation: int) -> list[list[int]]:
    """Lists all sets of steps that are at least so far apart."""
    patterns: list[list[int]] = [[]]
    for step in range(steps):
        free = [p for p in patterns if not p or step - p[-1] >= separation]
        patterns += [[*pattern, step] for pattern in free]
    return patterns[1:]


@pytest.mark.parametrize("separation", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("kind", KINDS)
def test_sensitivities_against_all_patterns(kind, separation):
    noise, strategy = noise_of(KINDS[kind], separation), dense(kind, 11)
    found = noise.sensitivity(11, 11, separation)
    assert found == pytest.approx(worst(strategy, regular(11, separation)), rel=1e-12)
    earlier = worst(strategy[:7, :7], regular(7, separation))
    assert noise.sensitivity(11, 7, separation) == pytest.approx(earlier, rel=1e-12)
    if kind != "tree" or separation == 1:
        assert found == pytest.approx(worst(strategy, apart(11, separation)), rel=1e-12)


def test_a_tree_covers_regular_participation_only():
    """Of 16 steps, 1 and 13 are in more nodes of the tree than 1 and 12, eleven steps apart."""
    strategy = dense("tree", 16)
    regular_norm = noise_of({"name": "tree"}, separation=11).sensitivity(16, 16, 11)
    assert regular_norm == pytest.approx(worst(strategy, [[0, 11]]))
    assert worst(strategy, [[0, 12]]) > 1.05 * regular_norm


@pytest.mark.parametrize("kind", ["banded", "blt", "tree"])
@pytest.mark.parametrize(("steps", "separation"), [(40, 10), (64, 1), (100, 25), (33, 40)])
def test_claims_are_those_of_one_gaussian_release(kind, steps, separation, tiny):
    """μ = |Cπ| C / (deviation of z), by numbers of a dense matrix."""
    options = {**KINDS[kind], "separation": separation}
    adversary = {"name": "watched-dimension", "period": separation}
    mechanism, against = cell(tiny, adversary, noise=options, steps=steps)
    strategy = dense(kind, steps)
    deviation = mechanism.multiplier * worst(strategy, regular(steps, separation))
    assert mechanism.deviation == pytest.approx(deviation, rel=1e-12)
    assert mechanism.claimed(against, steps) == Training(2.0, 1)
    half = steps // 2
    mu = worst(strategy[:half, :half], regular(half, separation)) / deviation
    claimed = mechanism.claimed(against, half)
    assert 1 / claimed.unit_noise == pytest.approx(mu, rel=1e-12)
    assert mechanism.trade_off(against, steps) is TradeOff.GAUSSIAN


def test_a_canary_in_fewer_steps_has_a_smaller_claim(tiny):
    options = {"name": "banded", "bandwidth": 4, "separation": 5}
    rare = {"name": "watched-dimension", "period": 20}
    mechanism, against = cell(tiny, rare, noise=options, steps=40)
    strategy = noise_of(options).strategy(40)
    expected = worst(strategy, regular(40, 5)) / worst(strategy, regular(40, 20))
    assert mechanism.claimed(against, 40).unit_noise == pytest.approx(2 * expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["banded", "coefficients", "blt", "tree"])
@pytest.mark.parametrize(("steps", "separation"), [(40, 10), (36, 1), (60, 12), (50, 25), (32, 32)])
def test_sensitivities_of_jax_privacy(kind, steps, separation):
    """Twenty settings: by their fixed epochs, and if C is Toeplitz also by their separation."""
    jax = pytest.importorskip("jax", reason="jax_privacy is an independent implementation")
    sensitivity = pytest.importorskip("jax_privacy.matrix_factorization.sensitivity")
    toeplitz = pytest.importorskip("jax_privacy.matrix_factorization.toeplitz")
    noise = noise_of(KINDS[kind], separation)
    found = noise.sensitivity(steps, steps, separation)
    strategy = noise.strategy(steps)
    with jax.enable_x64(True):
        theirs = sensitivity.fixed_epoch_sensitivity(jax.numpy.array(strategy), steps // separation)
        assert found == pytest.approx(float(theirs), rel=1e-9)
        if kind != "tree":
            column = jax.numpy.array(strategy[:, 0])
            squared = toeplitz.minsep_sensitivity_squared(column, separation)
            assert found == pytest.approx(math.sqrt(squared), rel=1e-9)


def test_coefficients_of_jax_privacy():
    toeplitz = pytest.importorskip(
        "jax_privacy.matrix_factorization.toeplitz", reason="an independent implementation"
    )
    noise = noise_of({"name": "banded", "bandwidth": 9})
    theirs = toeplitz.optimal_max_error_strategy_coefs(9)
    np.testing.assert_allclose(noise.strategy(9)[:, 0], theirs, rtol=1e-6)


def test_a_run_has_the_claim_of_each_recorded_step(tiny, tmp_path):
    """The claim of an earlier step has more noise, not fewer releases."""
    mechanism = tiny["mechanism"] | {"noise": KINDS["banded"] | {"separation": 3}}
    adversary = {"name": "watched-dimension", "period": 3}
    raw = {**tiny, "mechanism": mechanism, "adversary": adversary, "grid": {}}
    raw["audit"] |= {"record_every": 2, "trials": 20, "estimators": ["eps-delta"]}
    result = da.run(raw, storage_path=str(tmp_path), executor="inline")
    (only,) = spec.from_raw(raw).cells
    expected = [gdp.epsilon(1 / only.claimed(step).noise_multiplier, 1e-5) for step in (2, 4, 6)]
    estimates = da.open(result.location).estimates
    assert estimates["step"].tolist() == [2, 4, 6]
    np.testing.assert_allclose(estimates["epsilon_upper"], expected, rtol=1e-9)
    assert expected[0] < expected[1] < expected[2]


@pytest.mark.parametrize("factor", [1e-300, 3.0, 1e300])
def test_only_ratios_of_coefficients_matter(factor, tiny):
    """Noise is C⁻¹ z, and the deviation of z is proportional to C."""
    options = {"name": "banded", "coefficients": [factor, 0.75 * factor, 0.25 * factor]}
    mechanism, against = cell(tiny, "watched-dimension", noise=options)
    usual, _ = cell(tiny, "watched-dimension", noise=KINDS["coefficients"])
    assert mechanism.deviation == pytest.approx(usual.deviation, rel=1e-12)
    assert mechanism.claimed(against, 6) == Training(2.0, 1)


def test_epsilon_is_calibrated_for_one_release(tiny):
    options = {"name": "banded", "bandwidth": 4, "separation": 3}
    mechanism, against = cell(
        tiny,
        {"name": "watched-dimension", "period": 3},
        noise=options,
        noise_multiplier=None,
        epsilon=2.0,
    )
    tiny["audit"]["record_every"] = 1
    single, _ = cell(tiny, "watched-dimension", noise_multiplier=None, epsilon=2.0, steps=1)
    assert mechanism.multiplier == single.multiplier
    assert mechanism.claimed(against, 6).steps == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_has_correlated_noise(kind, tiny):
    """Differences of releases from known sums have the covariance of C⁻¹, and deviation σ sens."""
    options = KINDS[kind] | {"separation": 2}
    session = opened(tiny, {"name": "watched-dimension", "period": 2}, noise=options)
    training = session.training
    parts: list[torch.Tensor] = []
    path = training.run(
        torch.zeros(8), 9, None, 1,
        lambda step, before, update: parts.append(
            update * 64 - training.sums(before, *training.batch(step), 1.0)
        ),
    )  # fmt: skip
    list(path)
    releases = torch.stack(parts).flatten(1).double().numpy()
    white = dense(kind, 6) @ releases / training.recipe.deviation
    count = white.shape[1]
    covariance = white @ white.T / count
    assert np.abs(covariance - np.eye(6)).max() < 5 * math.sqrt(2 / count)


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_that_is_cut_off_continues_with_the_same_bits(kind, tiny):
    def session() -> Any:
        adversary = {"name": "watched-dimension", "period": 3}
        options = KINDS[kind] | {"separation": 3}
        return opened(tiny, adversary, noise=options, steps=12)

    members, horizons = np.arange(8) % 3 == 0, (6, 12)
    complete = session().run(members, 5, horizons)
    found = None
    for after in (1, 4, 3):
        cut = Cut(after, found)
        with pytest.raises(CutError):
            session().run(members, 5, horizons, cut)
        found = cut.found
    assert session().run(members, 5, horizons, Cut(-1, found)).tobytes() == complete.tobytes()


def shares(kind: str, steps: int, separation: int) -> dict[str, float]:
    """Returns the exact share of the claimed μ of each score, by dense matrices."""
    strategy = dense(kind, steps)
    covariance = np.linalg.inv(strategy.T @ strategy)
    pattern = (np.arange(steps) % separation == 0).astype(float)
    best = np.linalg.norm(strategy @ pattern)
    weights = {"own steps": pattern, "final model": np.ones(steps)}
    shares = {"whitened": best}
    for name, row in weights.items():
        shares[name] = row @ pattern / math.sqrt(row @ covariance @ row)
    return {
        name: mean / worst(strategy, regular(steps, separation)) for name, mean in shares.items()
    }


ADVERSARIES: dict[str, dict[str, Any]] = {
    "whitened": {"name": "watched-dimension"},
    "own steps": {"name": "gradient", "statistic": "sum"},
    "final model": {"name": "biased-dimension"},
}


@pytest.mark.parametrize("score", ADVERSARIES)
@pytest.mark.parametrize("kind", ["banded", "blt", "tree"])
def test_scores_have_their_exact_share_of_the_claim(kind, score, tiny):
    """800 trainings of 40 steps, σ = 1: within 3.5 standard errors, which are 0.075.

    At a learning rate of almost zero, other records add the same number to all final models.
    """
    changes: dict[str, Any] = {"steps": 40, "batch_size": 4, "noise_multiplier": 1.0}
    if score == "final model":
        changes |= {"learning_rate": 1e-4}
    options = KINDS[kind] | {"separation": 10}
    adversary = ADVERSARIES[score] | {"period": 10}
    session = opened(tiny, adversary, noise=options, **changes)
    members = np.arange(800) % 2 == 0
    scores = session.run(members, 5, (40,))[:, 0]
    inside, outside = scores[members], scores[~members]
    deviation = math.sqrt((inside.var() + outside.var()) / 2)
    found = (inside.mean() - outside.mean()) / deviation
    expected = shares(kind, 40, 10)[score]
    assert found == pytest.approx(expected, abs=3.5 * math.sqrt(4 / 800 + expected**2 / 1600))
    if score == "whitened":  # a log likelihood ratio: its means are ±μ²/2, its variance is μ²
        assert inside.mean() + outside.mean() == pytest.approx(0, abs=3.5 * 2 / math.sqrt(800))
        assert deviation == pytest.approx(1, abs=3.5 / math.sqrt(1600))


def test_scores_of_an_earlier_step_are_those_of_a_training_that_ends_there(tiny):
    """At step 7 of 12 the score is w y - w π / 2 with w = CᵀCπ, all of the first seven steps."""
    adversary = {"name": "watched-dimension", "period": 3}
    session = opened(tiny, adversary, noise=BLT | {"separation": 3}, steps=12)
    training = session.training
    dimension = int(session.canary.direction.argmax())
    rows: list[torch.Tensor] = []
    bits = np.array([True, False, True])
    path = training.run(
        torch.from_numpy(bits).to(training.initial), 5, session.canary, 3,
        lambda step, before, update: rows.append(
            (update * 64 - training.sums(before, *training.batch(step), 1.0))[:, dimension]
        ),
    )  # fmt: skip
    list(path)
    strategy = dense("blt", 7)
    pattern = (np.arange(7) % 3 == 0).astype(float)
    weights = strategy.T @ strategy @ pattern
    releases = torch.stack(rows[:7]).double().numpy()
    expected = (weights @ releases - weights @ pattern / 2) / training.recipe.deviation**2
    found = session.run(bits, 5, (7, 12))[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_many_canaries_of_one_training_reach_the_claim(tiny):
    """1600 bits of 40 canaries in each of 40 trainings, 0.05 a standard error."""
    tiny["audit"] |= {"estimators": ["order-statistics"], "trials": 1600}
    tiny["resources"] |= {"pack_size": 1600}
    adversary = {"name": "one-run", "kind": "dirac", "canaries": 40, "period": 10}
    options = KINDS["banded"] | {"separation": 10}
    changes = {"steps": 40, "noise_multiplier": 1.0}
    session = opened(tiny, adversary, noise=options, **changes)
    members = np.random.default_rng(3).random(1600) < 0.5
    scores = session.run(members, 5, (40,))[:, 0]
    inside, outside = scores[members], scores[~members]
    deviation = math.sqrt((inside.var() + outside.var()) / 2)
    assert (inside.mean() - outside.mean()) / deviation == pytest.approx(1, abs=0.18)


def test_independent_noise_is_in_no_fingerprint(tiny):
    named, _ = cell(tiny, "loss", noise="independent")
    default, _ = cell(tiny, "loss")
    assert named.noise == Independent()
    assert named.identity() == default.identity()
    correlated, _ = cell(tiny, "loss", noise="tree")
    assert correlated.identity()["noise"] == {"name": "tree"}


@pytest.mark.parametrize(
    ("adversary", "mechanism", "message"),
    [
        ("loss", {"noise": "banded"}, "noise.bandwidth: is required"),
        (
            "loss",
            {"noise": {"name": "banded", "bandwidth": 7}},
            "noise: has a band of 7",
        ),
        (
            "loss",
            {"noise": {"name": "banded", "bandwidth": 2, "coefficients": [1.0]}},
            "noise.bandwidth: is 2, next to coefficients",
        ),
        (
            "loss",
            {"noise": {"name": "banded", "coefficients": [0.0, 0.0]}},
            "noise.coefficients: are [0.0, 0.0]; begin above 0",
        ),
        (
            "loss",
            {"noise": {"name": "banded", "coefficients": [1.0, 0.2, 0.3]}},
            "noise.coefficients: are [1.0, 0.2, 0.3]; begin above 0, then never rise",
        ),
        (
            "loss",
            {"noise": {"name": "banded", "coefficients": []}},
            "noise.coefficients: are []; begin above 0",
        ),
        (
            "loss",
            {"noise": {"name": "banded", "coefficients": 1.0}},
            "noise.coefficients: must be a list, got 1.0",
        ),
        (
            "loss",
            {"noise": BLT | {"decays": [1.0, 0.5]}},
            "noise.decays.0: must be less than 1, got 1.0",
        ),
        (
            "loss",
            {"noise": BLT | {"weights": [0.5]}},
            "noise.weights: are 1 for 2 decays; give as many, and at least one",
        ),
        (
            "loss",
            {"noise": BLT | {"weights": [0.8, 0.7]}},
            "noise.weights: have the sum 1.5",
        ),
        ("loss", {"noise": "tree", "sampling": "poisson"}, "sampling: is poisson, but noise: tree"),
        ("loss", {"noise": "tree", "engine": "opacus"}, "engine: is opacus, but noise: tree"),
        ("loss", {"noise": "tree", "steps": 4097}, "steps: is 4097, but noise: tree takes at most"),
        (
            {"name": "loss", "period": 3},
            {"noise": {"name": "tree", "separation": 2}},
            "adversary.period: is 3, but mechanism.noise.separation is 2, for which",
        ),
        (
            "malicious-dataset",
            {"noise": "tree"},
            "noise: is tree, but malicious-dataset is for independent noise",
        ),
        (
            {"name": "reference-models", "records": 4},
            {"noise": "tree"},
            "noise: is tree, but reference-models is for independent noise",
        ),
    ],
)
def test_what_is_refused(adversary, mechanism, message, tiny):
    if "records" in adversary:
        tiny["audit"] |= {"estimators": ["several-canaries"], "trials": 80}
    with pytest.raises(SpecError) as error:
        cell(tiny, adversary, **mechanism)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


class Repeating(Correlated):
    """Adds half of the noise of the step before: C has entries of both signs."""

    name: str = f"{__name__}:Repeating"

    def strategy(self, steps: int) -> Matrix:
        return np.linalg.inv(np.eye(steps) + np.eye(steps, k=-1) / 2)

    def correlate(self, normals: torch.Tensor, number: int, state: State) -> None:
        white = normals.clone()
        if number > 1:
            normals.add_(state["white"], alpha=0.5)
        state["white"] = white


def test_a_user_defined_kind_gets_an_upper_bound(tiny):
    options = {"name": Repeating.model_fields["name"].default}
    mechanism, against = cell(tiny, "watched-dimension", noise=options)
    strategy = mechanism.noise.strategy(6)
    normals = torch.from_numpy(np.random.default_rng(1).normal(size=(6, 1, 4)))
    found = strategy @ filtered(mechanism.noise, normals).numpy()[:, 0]
    np.testing.assert_allclose(found, normals[:, 0])
    assert strategy.min() < 0
    assert mechanism.noise.scale(6) >= worst(strategy, apart(6, 1))
    assert mechanism.claimed(against, 6) == Training(2.0, 1)
    assert mechanism.identity()["noise"] == options


def test_label_attacks_take_independent_noise(tiny):
    mechanism, _ = cell(tiny, "loss", noise="tree")
    labels = {"name": "label-gradient", "training": tiny["mechanism"] | {"noise": "tree"}}
    raw = tiny | {"mechanism": labels, "adversary": "label", "grid": {}}
    assert mechanism.noise.name == "tree"
    with pytest.raises(SpecError, match=r"training\.noise: must be independent"):
        spec.from_raw(raw)
