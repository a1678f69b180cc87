"""Growth that was planned: `audit.up_to` keeps bounds certified, and never lowers one."""

import itertools
import json
from typing import Any

import numpy as np
import pytest

from dpaudit_ray import stats
from dpaudit_ray.stats import growth
from tests.command import dpaudit, write_sweep
from tests.long import long
from tests.plan.test_extending import by_hand, grown, scores_in, sweep

DELTA, CONFIDENCE = 1e-5, 0.95


@pytest.mark.parametrize(
    ("trials", "up_to", "looks"),
    [
        (2000, None, (2000,)),
        (100, 799, (100, 799)),
        (2000, 16_000, (2000, 8000, 16_000)),
        (1000, 100_000, (1000, 4000, 16_000, 100_000)),
    ],
)
def test_looks_and_their_shares(trials, up_to, looks):
    assert growth.looks(trials, up_to) == looks
    given = {1: (1,), 2: (0.75, 0.25), 3: (0.75, 0.125, 0.125), 4: (0.75, 0.125, 0.0625, 0.0625)}
    assert growth.shares(len(looks)) == given[len(looks)]


MANY = pytest.param("accuracy", 1000, marks=long("as 400 audits"))
SLOW = pytest.param("group-sequential", 400, marks=long("as the other, in 20 seconds"))


@pytest.mark.parametrize(("method", "audits"), [("accuracy", 400), MANY, SLOW])
def test_all_looks_hold_together(method, audits):
    """The largest of the bounds after 100, 400 and 1000 trials exceeds a true μ of 1 in 5 % of
    audits at most: three standard deviations above that come once in a thousand seeds."""
    rng, wrong, numbers = np.random.default_rng(7), 0, growth.looks(100, 1000)
    for _ in range(audits):
        states = [stats.make(method, planned=number) for number in numbers]
        state = growth.Growing(states, growth.shares(len(numbers)))
        members = rng.random(1000) < 0.5
        state.fold(rng.normal(size=1000) + members, members)
        wrong += state.bound(DELTA, CONFIDENCE).mu_lower > 1
    assert 0 < wrong / audits < 0.05 + 3 * (0.05 * 0.95 / audits) ** 0.5


@pytest.mark.parametrize("cuts", [(), (50, 100, 130, 700), (1, 399, 401)])
def test_any_split_of_the_stream_gives_the_same_bounds(cuts):
    """Each look's is that of its own estimator after so many trials, at its share; some missed."""
    rng = np.random.default_rng(1)
    members = rng.random(1000) < 0.5
    scores = rng.normal(size=1000) + 2 * members

    def bound(state: Any, end: int, *cuts: int, share: float = 1.0) -> stats.Estimate:
        for a, b in itertools.pairwise(sorted({0, 80, 110, end, *cuts} - {*range(end + 1, 1000)})):
            if a < 80 or a >= 110:
                state.fold(scores[a:b], members[a:b])
            else:
                state.miss(members[a:b])
        return state.bound(DELTA, 1 - share * (1 - CONFIDENCE))

    first, last = (stats.make("one-run", planned=n, independent=True) for n in (100, 400))
    whole = bound(growth.Growing((first, last), (0.75, 0.125)), 1000, *cuts)
    first, last = (stats.make("one-run", planned=n, independent=True) for n in (100, 400))
    alone = [bound(first, 100, share=0.75), bound(last, 400, share=0.125)]
    assert whole.epsilon_lower == max(each.epsilon_lower for each in alone) > 0
    assert (whole.confidence, whole.trials) == (CONFIDENCE, 400)


def test_growth_to_what_was_declared_stays_certified_and_never_lowers_a_bound(tmp_path):
    raw = sweep("accuracy", "eps-delta", "paper-gdp", "anytime", up_to=800)
    before = None
    for number in (100, 250, 400, 800):
        table = grown(raw, tmp_path, number)
        holding = table.drop("paper-gdp")
        assert set(holding["status"]) == {"certified"}, number
        assert list(table.index) == ["accuracy", "eps-delta", "paper-gdp", "anytime"]
        columns = ["epsilon_lower", "epsilon_lower_together", "epsilon_lower_free"]
        # `anytime` keeps its best look, but for what its approximate search for it leaves.
        fixed = holding.drop("anytime")[columns]
        assert before is None or (fixed >= before).all(axis=None), number
        before = fixed
        reached = 100 if number == 250 else number
        assert table.loc["accuracy", "trials"] == reached
    stored = json.loads((tmp_path / "longer/plan.json").read_text())["audits"][0]
    assert (stored["declared"], stored["up_to"]) == ([100, 250, 400, 800], 800)
    assert dpaudit("check", tmp_path / "longer").code == 0

    shares = {100: 0.75, 400: 0.125, 800: 0.125}
    looked = by_hand("accuracy", shares, *scores_in(tmp_path))
    assert table.loc["accuracy", "epsilon_lower"] == pytest.approx(looked)


def test_a_ceiling_is_declared_before_the_first_trial(tmp_path):
    """It is in the fingerprint: added to a run that is there, it is another sweep's."""
    grown(sweep("accuracy"), tmp_path, 100)
    file = write_sweep(tmp_path, sweep("accuracy", up_to=400))
    outcome = dpaudit("run", file, "--storage-path", tmp_path, "--executor", "inline")
    assert outcome.code == 2
    assert "audit.up_to" in outcome.err.replace("\n", "")
