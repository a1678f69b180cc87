"""The attacks of Nasr et al.: what they insert, where training begins, and what they score."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from dpaudit_ray.adversaries.likelihood import Reading
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
from tests.trainings import PRECISE, gradient, loss, opened, path, shown

MLP = {"name": "mlp3", "width": 8}


@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.3), (0.4, 0.01), (3.0, 0.999), (2.0, 1.0)])
def test_the_score_of_a_step_is_its_log_likelihood_ratio(sigma, q):
    """One step shows s ~ N(0, σ²), or (1-q) N(0, σ²) + q N(1, σ²): both densities are known."""
    shown = np.concatenate([np.linspace(-6, 7, 40), np.random.default_rng(0).normal(size=20)])
    known = SimpleNamespace(noise_multiplier=sigma, sample_rate=q)
    found = Reading(period=1).score(torch.tensor(shown), known)
    absent, present = stats.norm.logpdf(shown, 0, sigma), stats.norm.logpdf(shown, 1, sigma)
    with np.errstate(divide="ignore"):
        mixture = np.logaddexp(np.log1p(-q) + absent, np.log(q) + present)
    np.testing.assert_allclose(found, mixture - absent, rtol=0, atol=1e-10)


def clipped(training: DpSgdTraining, row: Tensor, step: int) -> Tensor:
    """The others' clipped sum, one example after another."""
    total = torch.zeros_like(row)
    for index in training.batches[step - 1]:
        found = gradient(training, row, training.x[index][None], training.y[index][None])
        total += found * min(1.0, training.clip_norm / float(found.norm()))
    return total


@pytest.mark.parametrize("statistic", ["likelihood-ratio", "sum"])
def test_the_gradient_attack_adds_up_what_steps_show(statistic, tiny):
    """Against loops over models, steps and examples; the sum is the paper's, less the others."""
    attack = {"name": "gradient", "parameters": 8, "statistic": statistic}
    small = {"sampling": "poisson", "batch_size": 16, "steps": 3, "noise_multiplier": 1.0}
    session = opened(tiny, attack, PRECISE, **small)
    training, members = session.training, np.array([True, False, True])
    along, q = session.canary.direction / training.clip_norm**2, 16 / 569
    expected = np.zeros(3)
    for step, before, update in shown(session, members):
        for i, row in enumerate(before):
            s = float((update[i] * 16 - clipped(training, row, step)) @ along)
            ratio = np.log(1 - q + q * np.exp(s - 0.5))
            expected[i] += s if statistic == "sum" else ratio
    np.testing.assert_allclose(session.run(members, 5, (3,))[:, 0], expected, rtol=1e-8)


def test_the_watermark_is_on_what_training_moves_least(tiny):
    """Of the first four steps of a plain training without noise; up and down by turns."""
    attack = {"name": "gradient", "parameters": 6, "observe": 4}
    session = opened(tiny, attack, PRECISE, clip_norm=0.7, model=MLP)
    training, direction = session.training, session.canary.direction
    row, moved = training.initial.clone(), torch.zeros_like(training.initial)
    for batch in training.batches[:4]:
        step = 0.1 / 64 * gradient(training, row, training.x[batch], training.y[batch])
        row, moved = row - step, moved + step.abs()
    places = np.argsort(moved.numpy(), kind="stable")[:6]
    assert set(direction.nonzero()[:, 0].tolist()) == set(places.tolist())
    each = 0.7 / np.sqrt(6)
    np.testing.assert_allclose(direction[places], each * np.array([1, -1] * 3), rtol=1e-12)
    assert float(direction.norm()) == pytest.approx(0.7, rel=1e-12)
    small = opened(tiny, "gradient", model={"name": "mlp3", "width": 1}).canary.direction
    assert (len(small), len(small.nonzero())) == (35, 34), "as many as a small model allows"


STATIC = {"name": "static-poison", "shadows": 3}


def test_poison_makes_shadows_lose_and_stays_in_range(tiny):
    means = []
    for ascent in (0, 3, 30):
        session = opened(tiny, STATIC | {"ascent": ascent})
        theta, canary = session.training.shadows, session.canary
        means.append(np.mean([float(loss(session.training, r, canary.x, canary.y)) for r in theta]))
    assert means[0] < means[1] < means[2]
    others = session.training.reserved[0]
    assert (canary.x >= others.amin(0)).all()
    assert (canary.x <= others.amax(0)).all()
    assert len(theta) == 3
    assert len({tuple(row.tolist()) for row in theta}) == 3, "each shadow has its own noise"


@pytest.mark.parametrize("statistic", ["mean", "max"])
def test_intermediate_poison_goes_by_all_models(statistic, tiny):
    """Mean or largest loss of θ_1 to θ_t, against loops; static poison by that of the last."""
    attack = STATIC | {"name": "intermediate-poison", "statistic": statistic, "ascent": 5}
    session = opened(tiny, attack, PRECISE, model=MLP)
    training, members = session.training, np.array([True, False, False])
    canary = session.canary
    found = [
        [float(loss(training, row, canary.x, canary.y)) for row in theta]
        for theta in path(training, members, canary)[1:]
    ]
    scores = session.run(members, 5, (1, 3, 6))
    for column, steps in enumerate((1, 3, 6)):
        take = np.mean if statistic == "mean" else np.max
        np.testing.assert_allclose(scores[:, column], -take(found[:steps], axis=0), rtol=1e-9)
    static = opened(tiny, STATIC | {"ascent": 5}, PRECISE, model=MLP)
    last = static.run(members, 5, (6,))[:, 0]
    np.testing.assert_allclose(last, -np.array(found[5]), rtol=1e-9)


def test_training_begins_where_records_of_ones_own_lead(tiny):
    """Every trial does; who trains there leaves the private records as they were."""
    start = {"name": "api-access", "start": "pretrained", "start_steps": 30}
    session, drawn = opened(tiny, start), opened(tiny, "api-access").training
    training = session.training
    first = next(training.run(torch.zeros(3), 5, session.canary, 1))
    assert torch.equal(first, training.initial.repeat(3, 1))
    assert torch.equal(training.x, drawn.x)
    own = [float(loss(drawn, row, *drawn.reserved)) for row in (training.initial, drawn.initial)]
    assert own[0] < 0.8 * own[1]


def test_the_start_is_a_plain_training_on_the_reserve(tiny, monkeypatch):
    """No private record has a part in it: others of them lead to the same start."""
    start = {"name": "api-access", "start": "pretrained", "start_steps": 5}
    session = opened(tiny, start)
    x, y = session.training.reserved
    divide = DpSgdTraining.elsewhere
    asked: list[tuple[Tensor, Tensor]] = []

    def elsewhere(self: DpSgdTraining, x: Tensor, y: Tensor, seed: int) -> DpSgdTraining:
        asked.append((x, y))
        return divide(dataclasses.replace(self, x=self.x * torch.nan), x, y, seed)

    monkeypatch.setattr(DpSgdTraining, "elsewhere", elsewhere)
    again = opened(tiny, start)
    ((on_x, on_y),) = asked
    assert torch.equal(on_x, x)
    assert torch.equal(on_y, y)
    assert torch.equal(again.training.initial, session.training.initial)


@pytest.mark.parametrize("kind", ["record", "mislabelled", "blank"])
def test_canaries_of_api_access(kind, tiny):
    session = opened(tiny, {"name": "api-access", "canary": kind}, model={"name": "mlp3"})
    training, (x, y) = session.training, (session.canary.x, session.canary.y)
    others, labels = training.reserved
    place = (others == x).all(1).nonzero()[:, 0]
    if kind == "blank":
        assert (x == 0).all()
        return
    (place,) = place
    assert (labels[place] == y[0]) == (kind == "record")
    assert not (training.x == x).all(1).any()


def test_the_wrong_label_is_the_least_likely(tiny, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "five.npz", x=rng.normal(size=(60, 4)), y=np.arange(60) % 5)
    data = {"name": "npz", "path": str(tmp_path / "five.npz")}
    small = {"data": data, "batch_size": 8, "model": MLP}
    session = opened(tiny, {"name": "api-access", "canary": "mislabelled"}, **small)
    training, (x, y) = session.training, (session.canary.x, session.canary.y)
    place = int((training.reserved[0] == x).all(1).nonzero()[0, 0])
    right = int(training.reserved[1][place])
    found = [float(loss(training, training.initial, x, torch.tensor([c]))) for c in range(5)]
    found[right] = -np.inf
    assert int(y[0]) == int(np.argmax(found)) != right


def rows(x: Tensor) -> set[bytes]:
    return {row.numpy().tobytes() for row in x}


@pytest.mark.parametrize("seed", [0, 1])
def test_records_in_reserve_are_nobody_elses(seed, tiny):
    """All 569 are different; every one is private, held out, or the adversary's."""
    split = {"held_out": 0.2, "reserved": 0.3, "seed": seed}
    session = opened(tiny, STATIC | {"ascent": 0}, **split)
    training = session.training
    private, held, own = rows(training.x), rows(training.held_out[0]), rows(training.reserved[0])
    assert (len(private), len(held), len(own)) == (284, 114, 171)
    assert not private & held
    assert not private & own
    assert not held & own
    x, y = training.reserved
    (place,) = (x == session.canary.x).all(1).nonzero()[:, 0]
    assert y[place] == session.canary.y[0], "without ascent it is a record of the shadows"
    assert not rows(session.canary.x) & (private | held)
