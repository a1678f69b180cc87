"""The exact score where nobody knows the batches, and a query that is crafted for its loss."""

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

import dpaudit_ray as da
from dpaudit_ray.adversaries.crafted_query import gap
from dpaudit_ray.adversaries.hidden import Others
from dpaudit_ray.mechanisms.dp_sgd import session as sessions
from dpaudit_ray.storage import arrays
from tests.trainings import PRECISE, opened, shown

Floats = npt.NDArray[np.float64]


def slow_log_density(parts: Floats, q: float, sigma: float, shown: float) -> float:
    """Of one model: a sum over all batches of the others."""
    found = -np.inf
    for batch in itertools.product((0, 1), repeat=len(parts)):
        size = sum(batch)
        chance = size * np.log(q) + (len(parts) - size) * np.log1p(-q)
        density = stats.norm.logpdf(shown, np.dot(batch, parts), sigma)
        found = np.logaddexp(found, chance + density)
    return float(found)


def slow_ratio(parts: Floats, q: float, sigma: float, shown: float) -> float:
    """log of (1 - q) f(s) + q f(s - 1) over f(s)."""
    without = slow_log_density(parts, q, sigma, shown)
    within = slow_log_density(parts, q, sigma, shown - 1)
    return float(np.logaddexp(np.log1p(-q) + without, np.log(q) + within) - without)


@pytest.mark.parametrize(
    ("q", "sigma", "scale"),
    [(0.1, 0.7, 1.0), (0.5, 1.6, 1.0), (0.02, 0.4, 0.3), (0.9, 0.3, 1.0), (0.1, 1.0, 0.0)],
)
def test_the_density_is_the_sum_over_all_batches(q, sigma, scale):
    """Also six standard deviations out, where f is 1e-8 of its peak and less."""
    rng = np.random.default_rng(0)
    parts = scale * rng.uniform(-1, 1, (7, 9))
    shown = q * parts.sum(1) + np.array([-6, -2, -0.5, 0, 1, 3, 6]) * sigma
    others = Others(parts, q, sigma)
    slow = [slow_log_density(a, q, sigma, s) for a, s in zip(parts, shown, strict=True)]
    np.testing.assert_allclose(others.log_density(shown), slow, rtol=0, atol=1e-10)


def test_many_records_are_taken_in_blocks(monkeypatch):
    parts = np.random.default_rng(0).uniform(-0.3, 0.3, (3, 50))
    others, shown = Others(parts, 0.06, 1.1), np.array([-1.0, 0.0, 2.0])
    whole = others.ratio(shown)
    monkeypatch.setattr("dpaudit_ray.adversaries.hidden._BLOCK", 600)
    np.testing.assert_allclose(others.ratio(shown), whole, rtol=0, atol=1e-12)


def table(folder: Path, records: int) -> dict[str, str]:
    """As many records of five features, in two classes."""
    x = np.random.default_rng(0).normal(size=(records, 5)).astype(np.float32)
    np.savez(folder / "table.npz", x=x, y=np.arange(records) % 2)
    return {"name": "npz", "path": str(folder / "table.npz")}


@pytest.mark.parametrize("attack", ["gradient", "watched-dimension"])
def test_secret_batches_are_scored_by_all_that_they_may_be(attack, tiny, tmp_path):
    """Two steps of Opacus on eight records, against the sum over 2^8 batches of every step."""
    tiny["mechanism"]["data"] = table(tmp_path, 8)
    del tiny["audit"]["record_every"]
    small = {"sampling": "poisson", "batch_size": 2, "steps": 2, "noise_multiplier": 0.8}
    session = opened(tiny, attack, PRECISE, engine="opacus", batches="secret", **small)
    training, members = session.training, np.array([True, False, True])
    unit, q = session.canary.direction / training.clip_norm**2, 2 / 8
    expected = np.zeros(3)
    for _, before, update in shown(session, members):
        for i, row in enumerate(before):
            each = [
                training.sums(row[None], *training.example(j), training.clip_norm)[0]
                for j in range(8)
            ]
            parts = np.array([float(one @ unit) for one in each])
            expected[i] += slow_ratio(parts, q, 0.8, float(update[i] @ unit) * 2)
    np.testing.assert_allclose(session.run(members, 5, (2,))[:, 0], expected, rtol=0, atol=1e-9)


def test_secret_batches_run_from_a_sweep(tiny, tmp_path):
    tiny["mechanism"] |= {"data": table(tmp_path, 16), "engine": "opacus"}
    tiny["mechanism"] |= {"batches": "secret", "sampling": "poisson", "batch_size": 4, "steps": 2}
    tiny["audit"] |= {"trials": 6, "record_every": 2, "estimators": ["accuracy"]}
    tiny["audit"]["accountants"] = ["rdp"]
    tiny["grid"] = {"adversary": ["gradient"]}
    result = da.run(tiny, storage_path=str(tmp_path), executor="inline")
    assert result.complete
    assert np.isfinite(result.scores["score"]).all()


SMALL = {"name": "crafted-query", "rehearsals": 8, "ascent": 5, "rate": 0.1}


def test_the_gap_is_that_of_means_in_spreads():
    rng = np.random.default_rng(0)
    absent, present = rng.normal(3, 2, 40), rng.normal(1, 1, 40)
    want = (absent.mean() - present.mean()) / np.sqrt(absent.var(ddof=1) + present.var(ddof=1))
    assert float(gap(torch.tensor(absent), torch.tensor(present))) == pytest.approx(want)


def test_rehearsals_have_the_record_or_have_it_not(tiny):
    """With the same noise: what they differ by is what the record makes of it."""
    session = opened(tiny, SMALL, PRECISE, model={"name": "mlp3", "width": 8})
    training, canary = session.training, session.canary
    paths = {
        inside: list(training.simulate(3, True, 5, canary if inside else None))
        for inside in (True, False)
    }
    for inside, path in paths.items():
        coins = torch.full((3,), float(inside), dtype=PRECISE)
        for found, want in zip(path, training.run(coins, 5, canary, 1), strict=True):
            assert torch.equal(found, want)
    assert not torch.equal(paths[True][-1], paths[False][-1])


def test_a_query_is_asked_for_that_tells_more_than_the_record(tiny):
    """Here by a wide margin, on trainings that are not rehearsals: 400 of them."""
    recipe = {"model": {"name": "mlp3", "width": 8}, "noise_multiplier": 1.0, "steps": 40}
    recipe |= {"learning_rate": 0.5, "batch_size": 16}
    crafted = {"name": "crafted-query", "canary": "record", "rehearsals": 64, "ascent": 30}
    session = opened(tiny, crafted | {"rate": 0.05}, **recipe)
    canary, training = session.canary, session.training
    assert not torch.equal(canary.query_x, canary.x)
    low, high = (getattr(training.reserved[0], end)(0) for end in ("amin", "amax"))
    assert (canary.query_x[0] >= low.minimum(canary.x[0])).all()
    assert (canary.query_x[0] <= high.maximum(canary.x[0])).all()
    members = np.arange(400) % 2 == 0
    *_, last = training.run(torch.from_numpy(members).to(training.initial), 5, canary, 1)
    inside = torch.from_numpy(members)
    gaps = [
        float(gap(found[~inside], found[inside]))
        for x, y in ((canary.query_x, canary.query_y), (canary.x, canary.y))
        for found in [training.model.losses(last, x, y)[:, 0]]
    ]
    assert gaps[0] > gaps[1]
    np.testing.assert_allclose(
        session.run(members, 5, (40,))[:, 0],
        -training.model.losses(last, canary.query_x, canary.query_y)[:, 0],
    )


@pytest.mark.parametrize("start", ["drawn", "pretrained"])
def test_what_is_stored_of_it_scores_the_same(start, tiny):
    """The query is stored with the record, and the start where the adversary chooses it."""
    session = opened(tiny, SMALL | {"start": start, "start_steps": 30})
    plain = opened(tiny, "api-access").training
    stored = arrays.encoded(sessions.craft_canary(plain, session.adversary, 4))
    again = sessions.open_session(plain, session.adversary, 9, (arrays.decoded(stored),))
    assert torch.equal(again.training.initial, session.training.initial)
    assert torch.equal(again.training.initial, plain.initial) == (start == "drawn")
    members = np.arange(10) % 2 == 0
    assert again.run(members, 5, (6,)).tobytes() == session.run(members, 5, (6,)).tobytes()


def test_it_is_crafted_once_and_runs_with_its_defaults(tiny, tmp_path):
    tiny["audit"] |= {"trials": 20, "estimators": ["accuracy"]}
    tiny["grid"] = {"adversary": ["crafted-query", SMALL | {"start": "pretrained"}]}
    result = da.run(tiny, storage_path=str(tmp_path), executor="inline")
    assert result.complete
    assert len(list(Path(result.location).glob("preparations/*/*.parquet"))) == 2
    assert np.isfinite(result.scores["score"]).all()
