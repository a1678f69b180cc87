"""One training, many canaries: what is inserted, what is scored, and what is refused."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import dpaudit_ray as da
from dpaudit_ray import accounting
from dpaudit_ray.adversaries.base import (
    Adversary,
    GradientCanary,
    SampleCanary,
    TrajectoryAdversary,
)
from dpaudit_ray.errors import SpecError
from dpaudit_ray.mechanisms.dp_sgd.sampling import Fixed
from dpaudit_ray.mechanisms.dp_sgd.steps import check_apart
from dpaudit_ray.plugins import parse
from dpaudit_ray.sweep import spec
from tests.command import refused, write_sweep
from tests.trainings import PRECISE, opened, shown

CANARIES = 6
WHITE, BLACK = ("dirac", "random"), ("natural", "mislabelled")


def attack(kind: str, canaries: int = CANARIES) -> dict[str, Any]:
    return {"name": "one-run", "canaries": canaries, "kind": kind}


@pytest.fixture(autouse=True)
def for_canaries(tiny: dict) -> None:
    """Only some methods take several canaries of a training."""
    tiny["audit"] |= {"estimators": ["one-run"], "trials": 9 * CANARIES}


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("kind", WHITE)
def test_a_score_is_what_updates_show_along_a_canary(kind, sampling, tiny):
    """Two models with six canaries each, against loops over steps, models and canaries."""
    session = opened(tiny, attack(kind), PRECISE, sampling=sampling, clip_norm=0.7)
    bits = np.random.default_rng(0).random(2 * CANARIES) < 0.5
    directions = session.canary.direction.to_dense()
    np.testing.assert_allclose(directions.norm(dim=1), 0.7, rtol=1e-12)
    if kind == "dirac":
        assert (directions != 0).sum(0).max() == 1
    updates = [update for *_, update in shown(session, bits.reshape(2, CANARIES))]
    expected = [
        sum(float(update[i] @ directions[j]) * 64 / 0.7**2 for update in updates)
        for i in range(2)
        for j in range(CANARIES)
    ]
    np.testing.assert_allclose(session.run(bits, 5, (6,))[:, 0], expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("kind", "adjacency", "sampling"),
    [
        ("dirac", "add-remove", "fixed"),
        ("random", "replace", "fixed"),
        ("dirac", "replace", "poisson"),
        ("natural", "add-remove", "poisson"),
        ("mislabelled", "replace", "fixed"),
    ],
)
def test_one_canary_is_as_many_as_any(kind, adjacency, sampling, tiny):
    """Three trainings of one each, beside what each of them scores alone."""
    one = attack(kind, 1) | {"adjacency": adjacency}
    session = opened(tiny, one, PRECISE, sampling=sampling, noise_multiplier=1e-6)
    found = session.run(np.array([True, False, True]), 5, (6,))[:, 0]
    assert found.shape == (3,)
    if kind in WHITE and sampling == "fixed":
        gained = 12.0 if adjacency == "replace" else 6.0
        np.testing.assert_allclose(found[[0, 2]] - found[1], gained, atol=0.5)


@pytest.mark.parametrize("models", [1, 2, 9])
@pytest.mark.parametrize("kind", BLACK)
def test_records_score_by_their_loss(kind, models, tiny):
    """However the passes over models and canaries are nested; against one model after another."""
    session = opened(tiny, attack(kind), PRECISE, model={"name": "mlp3", "width": 8})
    training, (x, y) = session.training, (session.canary.x, session.canary.y)
    others, labels = training.reserved
    for record, label in zip(x, y, strict=True):
        (place,) = (others == record).all(1).nonzero()[:, 0]
        assert (labels[place] == label) == (kind == "natural")
        assert not (training.x == record).all(1).any()
    bits = np.random.default_rng(0).random(models * CANARIES) < 0.5
    found = session.run(bits, 5, (6,))[:, 0].reshape(models, CANARIES)
    inside = torch.from_numpy(bits).view(models, CANARIES).to(training.initial)
    *_, theta = training.run(inside, 5, session.canary, 1)
    np.testing.assert_allclose(found, -training.model.losses(theta, x, y), rtol=1e-12)
    first: list[Tensor] = []
    path = training.run(inside, 5, session.canary, 1, lambda *one: first.append(one[2].clone()))
    next(path), next(path)
    nobody = training.run(0 * inside, 5, None, 1, lambda *one: first.append(one[2].clone()))
    next(nobody), next(nobody)
    for i in range(models):
        own = inside[i].bool()
        row = training.initial[None]
        added = training.sums(row, x[own], y[own], training.clip_norm)[0]
        torch.testing.assert_close((first[0][i] - first[1][i]) * 64, added)


@pytest.mark.parametrize("engine", ["packed", "opacus"])
@pytest.mark.parametrize("kind", WHITE + BLACK)
def test_a_coin_may_pick_one_of_two(kind, engine, tiny):
    """A gradient or its opposite, one record or another: one of each pair is always there."""
    replaced = attack(kind, 3) | {"adjacency": "replace"}
    session = opened(
        tiny, replaced, PRECISE if engine == "packed" else torch.float32, engine=engine
    )
    training, canary = session.training, session.canary
    bits = np.array([True, False, True, False, False, True])
    if kind in WHITE:
        given = canary.direction.to_dense()
        np.testing.assert_allclose(given[3:], -given[:3])
    else:
        row = training.initial[None]
        each = zip(torch.split(canary.x, 1), torch.split(canary.y, 1), strict=True)
        given = torch.cat([training.sums(row, x, y, training.clip_norm) for x, y in each])
        assert len(np.unique(canary.x.numpy(), axis=0)) == 6
    shown: list[Tensor] = []
    inside = torch.from_numpy(np.c_[bits.reshape(2, 3), ~bits.reshape(2, 3)]).to(training.initial)
    for coins in (inside, 0 * inside):
        path = training.run(coins, 5, canary, 1, lambda *one: shown.append(one[2].clone()))
        next(path), next(path)
    loose = {} if engine == "packed" else {"rtol": 1e-3, "atol": 2e-5}
    torch.testing.assert_close((shown[0] - shown[1]) * 64, inside @ given, **loose)
    scores = session.run(bits, 5, (6,))
    assert scores.shape == (6, 1)
    *_, theta = training.run(inside, 5, canary, 1)
    if kind in BLACK:
        losses = training.model.losses(theta, canary.x, canary.y)
        np.testing.assert_allclose(
            scores.reshape(2, 3), losses[:, 3:] - losses[:, :3], rtol=1e-4, atol=1e-5
        )


def test_replacing_claims_more_than_adding(tiny):
    claims = []
    for adjacency in ("add-remove", "replace"):
        raw = tiny | {"grid": {}, "adversary": attack("dirac") | {"adjacency": adjacency}}
        (cell,) = spec.from_raw(raw).cells
        claimed = cell.mechanism.claimed(cell.adversary, 6)
        claims.append(accounting.epsilon_of(claimed, 1e-5, "gaussian").upper)
    assert claims[0] == pytest.approx(accounting.epsilon(2.0, 6, 1e-5))
    assert claims[1] == pytest.approx(accounting.epsilon(1.0, 6, 1e-5))


@pytest.mark.parametrize("kind", ["dirac", "natural"])
def test_both_engines_insert_the_same(kind, tiny):
    bits = np.random.default_rng(0).random(CANARIES) < 0.5
    quiet = {"noise_multiplier": 1e-6, "sampling": "poisson"}
    scores = [
        opened(tiny, attack(kind), engine=engine, **quiet).run(bits, 5, (6,))[:, 0]
        for engine in ("packed", "opacus")
    ]
    np.testing.assert_allclose(*scores, rtol=2e-4, atol=2e-4)


class Overlapping(TrajectoryAdversary[GradientCanary]):
    """Says of two canaries that they share no parameter, which is wrong."""

    name: str = f"{__name__}:Overlapping"
    canaries: ClassVar[int] = 2
    apart: ClassVar[bool] = True

    def craft(self, public, rng):
        return GradientCanary(torch.eye(2, len(public.initial)) + 1e-9)

    def observer(self, canary, public, models):
        raise NotImplementedError


class TogetherInOrOut(Fixed):
    """A scheme of somebody's own, whose coins are known to nobody, and may hang together."""

    name: str = f"{__name__}:TogetherInOrOut"
    in_known_steps: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("adversary", "changes", "status"),
    [
        (attack("dirac"), {}, "certified"),
        (attack("dirac") | {"adjacency": "replace"}, {"optimizer": "momentum"}, "certified"),
        (attack("dirac"), {"sampling": "poisson"}, "if-gaussian"),
        (attack("dirac") | {"period": 2}, {}, "if-gaussian"),
        (attack("dirac"), {"sampling": f"{__name__}:TogetherInOrOut"}, "if-independent"),
        (attack("random"), {}, "if-independent"),
        (attack("natural"), {}, "if-independent"),
        ({"name": "biased-dimension", "count": CANARIES}, {}, "if-independent"),
    ],
)
def test_independence_is_certified_where_it_is_proved(adversary, changes, status, tiny, tmp_path):
    tiny["mechanism"] |= changes
    tiny["audit"] |= {"estimators": ["order-statistics"], "record_every": None}
    tiny["audit"] |= {"accountants": ["pld"]}
    tiny |= {"grid": {}, "adversary": adversary, "resources": {}}
    result = da.run(tiny, storage_path=str(tmp_path), executor="inline")
    assert set(result.estimates["status"]) == {status}


def test_canaries_apart_share_no_parameter(tiny):
    apart = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0]])
    check_apart(GradientCanary(apart), 2)
    check_apart(GradientCanary(torch.cat([apart, -apart]).to_sparse()), 2)
    check_apart(GradientCanary(apart[0]), 1)
    example = SampleCanary(torch.zeros(2, 3), torch.zeros(2))
    for canary in (GradientCanary(apart + torch.eye(2, 4)[:, [1, 0, 2, 3]]), example):
        with pytest.raises(SpecError, match="share parameters, or no gradients"):
            check_apart(canary, 2)
    with pytest.raises(SpecError, match="share parameters"):
        opened(tiny, {"name": f"{__name__}:Overlapping"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"adversary": attack("dirac", 5000)}, "adversary.canaries: is 5000, but the model has"),
        (
            {"adversary": attack("natural", 400)},
            "adversary.canaries: is 400, which takes 400 records, but only",
        ),
        (
            {"adversary": attack("natural", 150) | {"adjacency": "replace"}},
            "adversary.canaries: is 150, which takes 300 records, but only",
        ),
        (
            {"adversary": {"name": "one-run", "canaries": 3}},
            "adversary.kind: is required: dirac or",
        ),
        ({"adversary": attack("glass")}, "adversary.kind: must be"),
        ({"estimators": ["accuracy"]}, "takes scores of many training runs"),
        ({"estimators": [{"name": "one-run", "guesses": 7000}]}, "guesses must be at most"),
        ({"trials": CANARIES + 1}, "each training run has 6 canaries"),
    ],
)
def test_bad_input_is_one_line(changes, words, tiny, tmp_path):
    adversary = changes.get("adversary", attack("dirac"))
    trials = adversary.get("canaries", CANARIES)
    tiny["audit"] |= {"trials": trials, "estimators": ["one-run"]}
    tiny["audit"] |= {k: v for k, v in changes.items() if k != "adversary"}
    tiny |= {"grid": {}, "adversary": adversary, "resources": {}}
    assert words in refused("plan", write_sweep(tmp_path, tiny))
    many = parse(Adversary, attack("random", 20_000), "adversary")
    with pytest.raises(SpecError, match="GiB, of which 4 are allowed; use at most"):
        many.check_size(62_006)
