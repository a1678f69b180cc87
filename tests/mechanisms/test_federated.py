"""Users, clients and rounds of federated averaging: slow twins, claims, broken servers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dpaudit_ray as da
from dpaudit_ray.accounting import Sampling, Training
from dpaudit_ray.errors import SpecError
from dpaudit_ray.stats import TradeOff, gdp
from tests.long import long
from tests.mechanisms.test_checkpointing import Cut, CutError
from tests.trainings import PRECISE, cell, gradient, opened

USER = {"name": "user", "records": 5}
CLIENT = {"name": "client", "records": 5, "steps": 3, "learning_rate": 0.2, "batch_size": 2}
ADAPTIVE = {**CLIENT, "quantile": 0.4, "clip_rate": 0.3, "count_noise": 3.0}
FEDERATED = {"name": "federated", "batch_size": 8, "clip_norm": 0.05}
TWINS = "tests.mechanisms.federated_twins"


def federated(tiny: dict[str, Any], adversary: Any, unit: Any = CLIENT, **changes: Any) -> Any:
    """Opens rounds of eight clients, in float64."""
    options = {**FEDERATED, "unit": unit, **changes}
    return opened(tiny, adversary, PRECISE, **options)


def sent(training: Any, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Computes what a unit sends to one model [p], step by step, by plain autograd."""
    unit = training.recipe.unit
    if unit.name == "user":
        return gradient(training, theta, x, y) / len(y)
    local = theta.clone()
    rows = [[0, 1], [2, 3], [4]]
    for step in range(3):
        part = rows[step]
        local = local - 0.2 * gradient(training, local, x[part], y[part]) / len(part)
    return theta - local


@pytest.mark.parametrize("unit", [USER, CLIENT], ids=["user", "client"])
def test_sums_of_units(unit, tiny):
    session = federated(tiny, "watched-dimension", unit)
    training = session.training
    theta = training.initial + 0.1 * torch.randn(3, len(training.initial), dtype=PRECISE)
    x, y = training.batch(2)
    assert y.shape == (8, 5)
    found = training.sums(theta, x, y, 0.05)
    for row, total in zip(theta, found, strict=True):
        expected = torch.zeros_like(row)
        for j in range(8):
            update = sent(training, row, x[j], y[j])
            expected += update * min(1.0, 0.05 / float(update.norm()))
        torch.testing.assert_close(total, expected, rtol=1e-9, atol=1e-12)


def test_records_of_a_user_are_neighbours(tiny):
    mechanism, _ = cell(tiny, "loss", unit={"name": "user", "records": 100})
    with pytest.raises(SpecError, match="is 64, but breast_cancer has 5 users to train on, of 569"):
        _ = mechanism.sizes
    training = federated(tiny, "loss", USER).training
    data = training.recipe.data.load()
    np.testing.assert_allclose(training.x[7], data.x[35:40], rtol=1e-6)
    assert len(training.x) == 113


def test_adaptive_clipping_follows_the_noisy_count(tiny):
    """Replays Algorithm 1 of Andrew et al. (2021) with the noise that was drawn."""
    session = federated(tiny, "watched-dimension", ADAPTIVE)
    training = session.training
    recipe = training.recipe
    sigma, deviation = 2.0, (2.0**-2 - 6.0**-2) ** -0.5
    models: list[Tensor] = []
    noises: list[Tensor] = []

    def watch(step: int, before: Tensor, mean: Tensor) -> None:
        models.append(before)
        noises.append(8 * mean - training.sums(before, *training.batch(step), 0.05))

    *_, last = training.run(torch.zeros(2), 5, None, 1, watch)
    norm = torch.full((2, 1), 0.05, dtype=PRECISE)
    theta = models[0][:, :-1]
    for step in range(1, recipe.steps + 1):
        x, y = training.batch(step)
        total, count = torch.zeros_like(theta), torch.zeros(2, 1, dtype=PRECISE)
        for model in range(2):
            for j in range(8):
                update = sent(training, theta[model], x[j], y[j])
                total[model] += update * min(1.0, float(norm[model] / update.norm()))
                count[model] += float(update.norm() <= norm[model])
        # The drawn noise has deviation σC; the paper's have s C_t and b.
        unit_noise = noises[step - 1] / (sigma * 0.05)
        total += deviation * norm * unit_noise[:, :-1]
        count += 3.0 * unit_noise[:, -1:]
        theta = theta - 0.1 / 8 * total
        norm = norm * torch.exp(-0.3 * (count / 8 - 0.4))
        after = last if step == recipe.steps else models[step]
        torch.testing.assert_close(after[:, :-1], theta, rtol=1e-7, atol=1e-10)
        torch.testing.assert_close(after[:, -1:].exp() * 0.05, norm, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("unit", [USER, CLIENT, ADAPTIVE], ids=["user", "client", "adaptive"])
def test_no_unit_adds_more_than_the_clipping_norm(unit, tiny):
    """Records times 1000, whatever the adapted norm; one that sends nothing is half a count."""
    training = federated(tiny, "watched-dimension", unit).training
    theta = training.initial.repeat(3, 1)
    theta[1:] += torch.tensor([[-2.0], [1.0]])
    x, y = training.batch(1)
    for factor in (0.0, 1e-3, 1.0, 1e3):
        for j in range(8):
            added = training.sums(theta, factor * x[j, None], y[j, None], 0.05)
            assert float(added.norm(dim=1).max()) <= 0.05 * (1 + 1e-9)


def test_claims_are_of_units(tiny):
    for unit, word in ((USER, "user"), (CLIENT, "client")):
        mechanism, against = cell(tiny, "watched-dimension", **FEDERATED, unit=unit)
        assert mechanism.claimed(against, 6) == Training(2.0, 6, unit=word)
        assert mechanism.private_records == 113
        assert mechanism.trade_off(against, 6) is TradeOff.GAUSSIAN
    tiny["audit"]["accountants"] = ["pld"]
    options = {**FEDERATED, "unit": CLIENT, "sampling": "poisson"}
    mechanism, against = cell(tiny, "watched-dimension", **options)
    expected = Training(2.0, 6, 8 / 113, sampling=Sampling.POISSON, unit="client")
    assert mechanism.claimed(against, 6) == expected
    assert mechanism.trade_off(against, 6) is TradeOff.CLAIMED
    default, against = cell(tiny, "watched-dimension")
    assert default.claimed(against, 6) == Training(2.0, 6, unit="record")
    assert "unit" not in default.identity()


def test_a_stated_claim_is_its_mu_where_the_curve_is_gaussian(tiny):
    """20 at 1e-5 by σ = √(2 ln 1.25/δ)/ε is 25.44: the formula holds up to 1 (Dwork, Roth 2014)."""
    for asked, true in ((1.0, None), (5.0, 4.54), (10.0, 10.39), (20.0, 25.44), (50.0, 96.4)):
        claim = {"epsilon": asked, "delta": 1e-5, "unit": "client"}
        options = {**FEDERATED, "unit": CLIENT, "claim": claim}
        mechanism, against = cell(tiny, "watched-dimension", **options)
        found = mechanism.claimed(against, 6)
        assert found.gaussian
        assert found.unit == "client"
        assert found.epsilon_at(1e-5) == pytest.approx(asked, rel=1e-6)
        if true is not None:
            noise = math.sqrt(2 * math.log(1.25e5)) / asked
            assert gdp.epsilon(1 / noise, 1e-5) == pytest.approx(true, abs=0.06)


@pytest.mark.parametrize(
    ("adversary", "options", "message"),
    [
        ("loss", {"engine": "opacus"}, "engine: is opacus, but unit: client takes packed"),
        ("loss", {"augmentations": 2}, "augmentations: is 2, but unit: client takes 1"),
        (
            "loss",
            {"unit": {**CLIENT, "quantile": 0.5, "count_noise": 1.0}},
            "count_noise: is 1, but a noise multiplier of 2 takes more than half of it",
        ),
        ("malicious-dataset", {}, "unit: is a client, but malicious-dataset attacks records"),
        ("loss", {"unit": {"name": "client"}}, "unit.records: is required"),
        ("loss", {"unit": None}, "unit"),
    ],
)
def test_refused_options(adversary, options, message, tiny):
    with pytest.raises(SpecError) as refused:
        cell(tiny, adversary, **{**FEDERATED, "unit": CLIENT, **options})
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_noise_of_an_epsilon_is_checked_before_anything_starts(tiny):
    unit = {
        **CLIENT,
        "quantile": 0.5,
    }  # 8 clients: noise of .4
    options = {**FEDERATED, "unit": unit, "noise_multiplier": None, "epsilon": 1.0, "delta": 1e-5}
    mechanism, _ = cell(tiny, "loss", **options, accountant="gaussian")
    with pytest.raises(SpecError, match=r"mechanism\.unit\.count_noise: is 0\.4, but a"):
        mechanism.check_inputs()


def test_watched_records_take_independent_noise(tiny):
    with pytest.raises(SpecError, match="is correlated; use adversary"):
        federated(tiny, "watched-records", noise="tree")


@pytest.mark.parametrize("adversary", ["api-access", "biased-dimension", "cosine", "loss"])
def test_adversaries_of_final_models(adversary, tiny):
    """With adaptive clipping; the scores of members differ from the others' by the canary alone."""
    session = federated(tiny, adversary, ADAPTIVE)
    inside = session.run(np.array([True, True]), 5, (6,))[:, 0]
    outside = session.run(np.array([False, False]), 5, (6,))[:, 0]
    assert np.isfinite(inside).all()
    assert (inside > outside).all()


@pytest.mark.parametrize("adversary", ["watched-dimension", "watched-records", "gradient"])
@pytest.mark.parametrize("unit", [USER, ADAPTIVE], ids=["user", "adaptive"])
def test_scores_reach_the_claim(unit, adversary, tiny):
    """300 trainings of six rounds with μ = √6 / 2: five standard errors, which are 0.13 each."""
    options: dict[str, Any] = {"name": adversary}
    if adversary == "watched-records":
        options |= {"scale": 100.0}
    session = federated(tiny, options, unit)
    members = np.arange(300) % 2 == 0
    scores = session.run(members, 5, (6,))[:, 0]
    inside, outside = scores[members], scores[~members]
    deviation = math.sqrt((inside.var() + outside.var()) / 2)
    mu = math.sqrt(6) / 2
    assert (inside.mean() - outside.mean()) / deviation == pytest.approx(mu, abs=0.65)
    assert deviation == pytest.approx(mu, abs=5 * mu / math.sqrt(600))  # a log likelihood ratio


@pytest.mark.parametrize("kind", ["natural", "mislabelled"])
def test_clients_in_reserve_are_canaries(kind, tiny):
    tiny["audit"] |= {"estimators": ["one-run"], "trials": 30}
    adversary = {"name": "one-run", "kind": kind, "canaries": 10}
    session = federated(tiny, adversary, reserved=0.3)
    assert session.canary.x.shape == (10, 5, 30)
    scores = session.run(np.arange(30) % 2 == 0, 5, (6,))
    assert np.isfinite(scores).all()


def test_a_cut_off_training_continues_with_the_same_bits(tiny):
    def session() -> Any:
        return federated(tiny, "watched-dimension", ADAPTIVE, optimizer="adam")

    members = np.arange(4) % 2 == 0
    complete = session().run(members, 5, (3, 6))
    cut = Cut(4)
    with pytest.raises(CutError):
        session().run(members, 5, (3, 6), cut)
    assert session().run(members, 5, (3, 6), Cut(-1, cut.found)).tobytes() == complete.tobytes()


def test_a_diverged_client_is_named(tiny):
    unit = {**CLIENT, "learning_rate": 1e300}
    measured = federated(tiny, "watched-dimension", unit).run(np.array([True, False]), 5, (6,))
    assert "an update of a client is not finite" in measured.diverged[0]


AUDITS = {
    "healthy": {},
    "adaptive": {"unit": {**CLIENT, "quantile": 0.5, "count_noise": 2.0}},
    "divided twice": {"noise": f"{TWINS}:DividedTwice"},
    "drawn twice": {"unit": {**CLIENT, "name": f"{TWINS}:DrawnTwice"}},
    "mean clipped": {"unit": {**CLIENT, "name": f"{TWINS}:MeanClipped"}},
}
QUICK = ("healthy", "divided twice", "mean clipped")


SERVERS = [
    pytest.param(server, marks=() if server in QUICK else long("a server of the same kind"))
    for server in AUDITS
]


@pytest.mark.parametrize("server", SERVERS)
def test_verdicts_on_servers(server, tiny, tmp_path):
    """400 trainings at level 0.95; a healthy one is refuted with probability 0.05 at most."""
    tiny["mechanism"] |= {**FEDERATED, "unit": CLIENT, "noise_multiplier": 1.0, **AUDITS[server]}
    tiny["adversary"] = {"name": "watched-records", "scale": 1000.0}
    tiny["audit"] = {"trials": 400, "delta": 1e-5}
    tiny["grid"] = {}
    tiny["resources"] |= {"pack_size": 200}
    result = da.run(tiny, storage_path=tmp_path, executor="inline")
    expected = "CONSISTENT" if server in ("healthy", "adaptive") else "VIOLATION"
    assert result.verdict() == expected


@pytest.mark.parametrize(("claimed", "verdict"), [(20.0, "VIOLATION"), (25.5, "CONSISTENT")])
def test_local_noise_by_the_classical_formula(claimed, verdict, tiny, tmp_path):
    """Flower's local noise for ε = 20, and two opposite updates: ε is 25.44; 2000 trials."""
    tiny["mechanism"] |= {
        **FEDERATED,
        "unit": CLIENT,
        "steps": 1,
        "noise_multiplier": 2 * math.sqrt(2 * math.log(1.25e5)) / 20,  # both of norm C: 2 C apart
        "claim": {"epsilon": claimed, "delta": 1e-5, "unit": "client"},
    }
    tiny["adversary"] = {
        "name": "one-run", "kind": "random", "canaries": 1, "adjacency": "replace",
    }  # fmt: skip
    tiny["audit"] = {"trials": 2000, "delta": 1e-5, "estimators": ["accuracy"]}
    tiny["grid"] = {}
    tiny["resources"] |= {"pack_size": 1000}
    result = da.run(tiny, storage_path=tmp_path, executor="inline")
    assert result.verdict() == verdict
