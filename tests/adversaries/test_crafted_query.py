"""A query that is crafted for its loss."""

from pathlib import Path

import numpy as np
import pytest
import torch

import dpaudit_ray as da
from dpaudit_ray.adversaries.crafted_query import gap
from dpaudit_ray.mechanisms.dp_sgd import session as sessions
from dpaudit_ray.storage import arrays
from tests.trainings import PRECISE, opened

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
