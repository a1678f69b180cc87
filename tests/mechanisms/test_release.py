"""Releases for pairs of inputs: healthy and broken mechanisms, kinds of outputs, errors."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpaudit_ray.adversaries import learned as learned_adversary
from dpaudit_ray.adversaries.learned import Learned
from dpaudit_ray.adversaries.outputs import Encoder, Raised
from dpaudit_ray.mechanisms.release import pairs as of_pairs
from tests.command import completed, dpaudit, inline, refused, write_sweep

HERE = "tests.mechanisms.test_release"


def numbers() -> list[tuple[float, float]]:
    return [(0.0, 1.0)]


def count(data, rng, n, scale=1.0):
    """A count with Laplace noise, or the counts of several queries."""
    data = np.asarray(data, dtype=float)
    return data + rng.laplace(0, scale, (n, *data.shape))


def answers() -> list[tuple[str, str]]:
    return [("yes", "no")]


def response(data, rng, n):
    """A randomised response of ε = 1, in words."""
    lies = rng.random(n) < 1 / (1 + np.e)
    other = {"yes": "no", "no": "yes"}[data]
    return [other if lie else data for lie in lies]


def votes(data, rng, n):
    """Lists of as many numbers as there are votes for "yes", which a record more makes longer."""
    return [[1] * int(data + rng.geometric(0.5)) for _ in range(n)]


def without_noise(data, rng, n):
    return np.full(n, float(data)) + 0.25


def noise_once(data, rng, n):
    return np.full(n, data + rng.laplace())


def always_raises(data, rng, n):
    raise KeyError(data)


def too_few(data, rng, n):
    return np.zeros(n - 1)


def running_sums(data, rng, n):
    """Releases prefix sums as if one record moved one of them only: the truth is 10 times ε."""
    return np.cumsum(data + rng.laplace(0, 10, (n, len(data))), axis=1)


def noisy_max_value(data, rng, n):
    """Releases the largest value, where only its position costs ε = .1: the truth is .25."""
    return (data + rng.laplace(0, 20, (n, len(data)))).max(axis=1)


def records() -> np.ndarray:
    return np.linspace(0, 1, 50)


def clipped_mean(data, rng, n):
    """A mean of values in [0, 1] that trusts `clip` with NaN: which then is all that it gives."""
    total = np.clip(data, 0, 1).sum()
    return (total + rng.laplace(size=n)) / len(data)


def strict_sum(data, rng, n):
    """A sum that refuses missing values, and shows by that whether there are any."""
    if np.isnan(data).any():
        raise ValueError("missing values")
    return np.clip(data, 0, 1).sum() + rng.laplace(size=n)


def sure_sum(data, rng, n):
    """A sum of values in [0, 1], of which missing ones count as 0."""
    return np.clip(np.nan_to_num(data, nan=0.0), 0, 1).sum() + rng.laplace(size=n)


def log_ratio(outputs, pair):
    """Log of the likelihood ratio of Laplace noise."""
    return np.abs(outputs - pair[0]) - np.abs(outputs - pair[1])


def sweep(
    path: str = "count",
    pairs: Any = f"{HERE}:numbers",
    epsilon: float = 1.0,
    trials: int = 20_000,
    adversary: dict[str, Any] | None = None,
    **mechanism: Any,
) -> dict[str, Any]:
    learned = {"name": "learned", "fit": 20_000, "search": 2000}
    stated = {"name": "release", "path": f"{HERE}:{path}", "pairs": pairs}
    return {
        "name": "released",
        "seed": 1,
        "mechanism": {**stated, "claim": {"epsilon": epsilon}, **mechanism},
        "adversary": adversary or learned,
        "audit": {"trials": trials, "delta": 0},
    }


def run(tmp_path, *args, **kwargs) -> str:
    done = inline(write_sweep(tmp_path, sweep(*args, **kwargs)), tmp_path / "runs")
    completed(done)
    return " ".join(done.out.split())


def bound_of(words: str) -> float:
    return float(words.split("Measured ε ≥ ")[1].split()[0])


HEALTHY = {
    "laplace": {},
    "words": {"path": "response", "pairs": f"{HERE}:answers"},
    "log-ratio": {"adversary": {"name": "log-ratio", "path": f"{HERE}:log_ratio"}},
}


@pytest.mark.parametrize("changes", HEALTHY.values(), ids=HEALTHY)
def test_a_kept_promise_is_nearly_reached_and_not_refuted(tmp_path, changes):
    """ε = 1 in truth. A false VIOLATION in 5 % of seeds at most; this seed gives none."""
    words = run(tmp_path, **changes)
    assert "CONSISTENT: no violation found" in words
    assert 0.85 < bound_of(words) < 1


BROKEN = {
    "too little noise": {"options": {"scale": 0.6}},
    "lists of other lengths": {"path": "votes"},
    "no noise": {"path": "without_noise"},
    "running sums": {
        "path": "running_sums", "pairs": {"vectors": 10}, "epsilon": 0.1, "trials": 100_000,
    },
    "value of the maximum": {
        "path": "noisy_max_value", "pairs": {"vectors": 5}, "epsilon": 0.1, "trials": 500_000,
        "adversary": {"name": "learned"},
    },
    "missing values": {"path": "clipped_mean", "pairs": {"table": f"{HERE}:records"}},
    "raises": {"path": "strict_sum", "pairs": {"table": f"{HERE}:records"}},
}  # fmt: skip


@pytest.mark.parametrize("changes", BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_a_violation(tmp_path, changes):
    words = run(tmp_path, **changes)
    assert "VIOLATION: the claim is refuted after" in words
    assert dpaudit("verify", tmp_path / "runs" / "released").code == 1


def test_sum_that_keeps_its_promise_on_every_strange_record_is_consistent(tmp_path):
    words = run(tmp_path, path="sure_sum", pairs={"table": f"{HERE}:records"})
    assert "CONSISTENT" in words


def test_a_run_is_the_same_twice_and_can_be_checked(tmp_path):
    raw = sweep(pairs={"vectors": 2}, epsilon=2.0)
    for folder in ("one", "two"):
        completed(inline(write_sweep(tmp_path, raw), tmp_path / folder))
    files = [
        next((tmp_path / folder / "released" / "scores").rglob("*.parquet"))
        for folder in ("one", "two")
    ]
    one, two = map(pd.read_parquet, files)
    assert one.equals(two)
    assert dpaudit("check", tmp_path / "one" / "released").code == 0


def test_a_trial_is_stored_in_less_than_8_bytes(tmp_path):
    run(tmp_path, trials=200_000)
    scores = (tmp_path / "runs" / "released" / "scores").rglob("*.parquet")
    assert sum(file.stat().st_size for file in scores) < 8 * 200_000


REFUSED = {
    "noise once": ({"path": "noise_once"}, "16 equal outputs in each call"),
    "raises": ({"path": "always_raises"}, "raises KeyError for the first input of the pairs ("),
    "too few": ({"path": "too_few"}, "must return n = 16 outputs, got (15,)"),
    "options": ({"options": {"sigma": 1}}, "does not take (data, rng, n, sigma)"),
    "pairs": ({"pairs": f"{HERE}:records"}, "must return a list of pairs of inputs"),
    "no pairs": ({"pairs": {"vectors": 0}}, "mechanism.pairs.vectors: must be at least 1"),
    "model": ({"adversary": {"name": "learned", "model": "Oracle"}}, "unknown model 'Oracle'"),
    "table": ({"pairs": {"table": f"{HERE}:answers"}}, "must return numbers of two records"),
    "adversary": ({"adversary": {"name": "own"}}, "use learned, log-ratio"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_release_is_refused_before_it_runs(tmp_path, changes, message):
    refused(inline(write_sweep(tmp_path, sweep(**changes)), tmp_path / "runs"), message)


@pytest.mark.parametrize(
    "outputs",
    [
        np.arange(6.0),
        np.arange(6) % 2 == 0,
        [1.5, None, 2.5, np.nan, np.inf, -np.inf],
        ["yes", "no", "yes", "maybe", b"raw", "yes"],
        [Raised("ValueError"), 1.0, 2.0, "⊥", (1, 2), [3.0]],
        [{"a": 1, "b": "x"}] * 6,
        [pd.DataFrame({"a": [1, 2]})] * 6,
        [1 + 2j] * 6,
        np.zeros((6, 2, 3), np.float32),
    ],
    ids=lambda outputs: str(type(outputs[0]).__name__),
)
def test_outputs_of_every_kind_become_columns_without_infinite_numbers(outputs):
    encoder = Encoder(outputs, bits=True)
    columns = encoder.columns(outputs)
    assert len(columns) == 6
    assert not np.isinf(columns).any()
    later = encoder.columns(list(outputs[:2]))
    assert later.shape == (2, columns.shape[1]), "of outputs that are shorter, too"


def test_an_output_of_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="got object; release what an attacker sees"):
        Encoder([object()])
    with pytest.raises(ValueError, match="4096 numbers, got 5000"):
        Encoder(np.zeros((2, 5000)))


def test_patterns_are_neighbours():
    patterns = [pair for _, pair in of_pairs.VectorPairs(vectors=5, change=2.0).pairs()]
    assert len(patterns) == 7
    for one, other in patterns:
        assert np.abs(one - other).max() == 2
    tables = dict(of_pairs.TablePairs(table=f"{HERE}:records", units=["remove"]).pairs())
    assert [len(b) for _, b in tables.values()] == [49, 49, 49]
    assert "without the largest record" in tables
    everything = list(of_pairs.TablePairs(table=f"{HERE}:records").pairs())
    changes = [abs(len(b) - len(a)) for _, (a, b) in everything]
    assert max(changes) == 1
    assert len({name for name, _ in everything}) == len(everything)


def frame() -> pd.DataFrame:
    return pd.DataFrame({"age": [20, 30, 40], "pay": [1.0, 2.0, 3.0]})


def test_neighbours_of_a_frame_are_frames():
    for _, tables in of_pairs.TablePairs(table=f"{HERE}:frame").pairs():
        assert [list(table.columns) for table in tables] == [["age", "pay"]] * 2


@pytest.mark.parametrize("model", ["auto", "cells", "GaussianNB"])
def test_a_learned_score_ranks_outputs_by_their_likelihood(model):
    def draw(member, runs, rng):
        return rng.integers(0, 4, runs) // (1 + member)

    score = Learned(fit=4000, model=model).scorer(draw, (0, 1), np.random.default_rng(0))
    scores = score(np.array([0, 1, 2, 3]))
    assert scores[0] > scores[3]
    assert scores[1] > scores[2]


def test_closer_look_at_the_surest_runs_tells_rarer_events(monkeypatch):
    """Of the smaller ten-thousandth of outputs, one world has ever more the smaller they are."""

    def draw(inside, n, rng):
        return rng.random(n) ** (1.5 if inside else 1.0)  # log odds log(2/3) - log(x) / 3

    monkeypatch.setattr(learned_adversary, "CLOSER_RUNS", 10_000)
    outputs = np.geomspace(1e-6, 1e-4, 5)
    truth = np.log(2 / 3) - np.log(outputs) / 3
    errors = {}
    for zoom in (0, 1):
        learned = Learned(fit=20_000, zoom=zoom, model="HistGradientBoostingClassifier")
        score = learned.scorer(draw, (0, 1), np.random.default_rng(0))
        errors[zoom] = np.abs(score(outputs) - truth).max()
    assert errors[1] < 0.75 * errors[0]


def test_depth_without_gain_is_passed_on_the_way_to_rarer_events(monkeypatch):
    """Nothing is learned from the surest sixteenth, but from the surest sixteenth of these."""
    smallest = []

    def draw(inside, n, rng):
        outputs = rng.random(n)  # the smaller, the likelier of the second input
        return outputs**2 if inside else outputs

    def reject_the_first(self, stages, x, y, rng, delta):
        smallest.append(float(np.quantile(x, 0.99)))
        return None if len(smallest) == 1 else (lambda columns: np.full(len(columns), 7.0))

    monkeypatch.setattr(Learned, "_fit_to_surest", reject_the_first)
    learned = Learned(fit=20_000, zoom=2, model="HistGradientBoostingClassifier")
    score = learned.scorer(draw, (0, 1), np.random.default_rng(0))
    rare, common = score(np.array([1e-6, 0.5]))
    assert len(smallest) == 2
    assert smallest[1] < smallest[0]
    assert rare == 7.0
    assert common != 7.0


def test_closer_look_needs_both_worlds():
    """All surest runs are of one world, which leaves nothing to learn."""

    def draw(inside, n, rng):
        return np.full(n, float(inside))

    score = Learned(fit=1000, zoom=2, model="cells").scorer(draw, (0, 1), np.random.default_rng(0))
    low, high = score(np.array([0.0, 1.0]))
    assert low < 0 < high


def test_luck_promises_nothing():
    """Scores say nothing of the world. At an error of .001 for each number, 1.9 % promised an ε."""
    rng = np.random.default_rng(3)
    promises = []
    for _ in range(400):
        scores = rng.normal(size=5000)
        members = rng.random(5000) < 0.5
        promises.append(learned_adversary._best_bound(scores, members, delta=0.0))
    assert max(promises) == 0


def test_a_pair_is_chosen_at_the_delta_of_the_claim():
    """An event of .005 shows more than ε = .5 at δ = 0, and nothing at δ = .01."""

    def rare(member, runs, rng):
        return 1 * (member & (rng.random(runs) < 0.005))

    def half(member, runs, rng):
        return 1 * (member ^ (rng.random(runs) < 1 / (1 + np.exp(0.5))))

    learned = Learned(search=20_000)
    promises = {}
    for delta in (0.0, 0.01):
        promises[delta] = [
            learned.promise(draw, np.random.default_rng(0), delta) for draw in (rare, half)
        ]
    assert promises[0.0][0] > promises[0.0][1]
    assert promises[0.01][0] < promises[0.01][1]
