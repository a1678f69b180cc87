"""Draws of records against what was accounted, and what one record more does to a scale."""

import math

import numpy as np
import pytest
from scipy import stats

from dpaudit_ray.scripts import single_run
from dpaudit_ray.scripts.script_findings import Finding, Judgement, Weight
from dpaudit_ray.scripts.watch.run_state import draw_counts

RECORDS, RATE, DRAWS = 500, 0.05, 60


def poisson(rng: np.random.Generator, rate: float = RATE) -> list[np.ndarray]:
    return [np.flatnonzero(rng.random(RECORDS) < rate) for _ in range(DRAWS)]


def shuffled(rng: np.random.Generator) -> list[np.ndarray]:
    passes = int(DRAWS * RATE)
    return [part for _ in range(passes) for part in np.split(rng.permutation(RECORDS), 1 / RATE)]


def fixed(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.permutation(RECORDS)[: int(RATE * RECORDS)] for _ in range(DRAWS)]


def told(taken: list[np.ndarray], noise: float = 1.0, epsilon: float = 1.0) -> dict:
    """What a run returns of its draws."""
    history = [[noise, RATE, len(taken)]]
    claim = {"history": history, "epsilons": [epsilon], "deltas": [1e-5]}
    drawn = [draw_counts(taken, RECORDS, RATE)]
    return {"claims": [claim], "draws": drawn, "unused": [], "steps": [len(taken)]}


def judged(result: dict) -> Judgement:
    return single_run.judge_sampling(result, single_run.SHARE, 1e-5)


def found(*arguments, **options) -> list[Finding]:
    return judged(told(*arguments, **options)).findings


def test_poisson_draws_raise_no_alarm():
    """200 runs: at a level of 0.004, five alarms or more come once in 700 such tests."""
    alarms = sum(bool(found(poisson(np.random.default_rng(seed)))) for seed in range(200))
    assert alarms <= 4


@pytest.mark.parametrize("seed", range(10))
def test_a_higher_rate_is_found_and_a_lower_one_is_none_of_ours(seed):
    """At 0.065, 1,950 records are drawn where 1,500 are expected: 12 deviations."""
    (one,) = found(poisson(np.random.default_rng(seed), 0.065))
    assert one.weight is Weight.VIOLATION
    assert "a rate of 0.05" in one.expected
    assert not found(poisson(np.random.default_rng(seed), 0.049))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("draw", "said", "epsilon"), [(shuffled, "shuffled", 2.0), (fixed, "of a fixed size", 0.5)]
)
def test_draws_that_are_not_poisson_are_found(draw, said, epsilon, seed):
    """Whether the promise is broken, or only not proven, depends on the noise."""
    draws = draw(np.random.default_rng(seed))
    (broken,), (unproven,) = found(draws, 0.5, epsilon), found(draws, 5.0, 2.0)
    assert (broken.weight, unproven.weight) == (Weight.VIOLATION, Weight.WARNING)
    assert said in broken.seen
    assert said in unproven.seen


def test_draws_that_hang_together_and_a_record_twice_in_a_batch():
    """The same records all the time, as many as Poisson sampling would draw."""
    rng = np.random.default_rng(0)
    (one,) = found([np.arange(size) for size in rng.binomial(RECORDS, RATE, DRAWS)])
    assert one.weight is Weight.VIOLATION
    assert "hang together" in one.seen
    draws = poisson(np.random.default_rng(0))
    draws[3] = np.concatenate([draws[3][1:], draws[3][-1:]])
    (one,) = found(draws)
    assert "twice" in one.seen


def test_empty_draws_that_are_left_out():
    """At ten records and a rate of 0.05, three draws of five are empty."""
    rng = np.random.default_rng(0)
    draws = [np.flatnonzero(rng.random(10) < RATE) for _ in range(200)]
    full = told(draws) | {"draws": [draw_counts(draws, 10, RATE)]}
    assert not judged(full).findings
    lost, empty = judged(full | {"unused": [0, 0, 3]}).findings
    assert "2 empty draws" in empty.seen
    assert empty.weight is Weight.VIOLATION
    # That a loop passed a draw over that was not empty may have a good reason.
    assert "1 draws that led to no step" in lost.seen
    assert lost.weight is Weight.WARNING


def test_every_record_in_every_step():
    draws = [np.arange(RECORDS)] * 5
    claim = {"history": [[4.0, 1.0, 5]], "epsilons": [1.0], "deltas": [1e-5]}
    whole = told(draws) | {"claims": [claim], "draws": [draw_counts(draws, RECORDS, 1.0)]}
    assert not judged(whole).findings
    short = whole | {"claims": [claim | {"history": [[4.0, 1.0, 3]]}]}
    (one,) = judged(short).findings
    assert one.weight is Weight.VIOLATION


def test_a_loader_that_was_not_seen_says_nothing():
    nothing = judged(told([]) | {"draws": []})
    assert not nothing.complete
    assert not nothing.findings


@pytest.mark.parametrize(
    ("group", "rate", "times", "noise", "epsilon"),
    [(5, 0.2, 1, 1.0, 0.5), (5, 0.2, 3, 1.0, 1.0), (1, 0.3, 4, 0.7, 0.5), (20, 0.05, 2, 0.5, 2.0)],
)
def test_what_draws_reach_against_simulation(group, rate, times, noise, epsilon):
    """60,000 runs of both worlds: each share is known to 0.002, the largest of 40 to 0.008."""
    rng = np.random.default_rng(3)
    shape = (60_000, times)

    def exceeding(shift: float) -> np.ndarray:
        """For each h, how many groups of a run have a step above h."""
        own = rng.normal(size=shape) * noise
        own += shift if group > 1 else shift * (rng.random(shape) < rate)
        # The largest of the steps without the record, by its law.
        rest = stats.norm.ppf(rng.random(shape) ** (1 / (group - 1))) * noise if group > 1 else own
        largest = np.maximum(own, rest)
        return np.stack([(largest > h).sum(1) for h in heights])

    heights = np.linspace(-2, 10, 40) * noise
    first, second = exceeding(2.0), exceeding(1.0)
    reached = max(
        float(np.max((first >= k).mean(1) - math.exp(epsilon) * (second >= k).mean(1)))
        for k in range(1, times + 1)
    )
    expected = single_run.delta_without_poisson(epsilon, noise, rate, group, times)
    assert expected > 0.01
    assert reached == pytest.approx(expected, abs=0.008 * (1 + math.exp(epsilon)))


def test_one_record_more():
    def made(records: int, batch: float, batches: int) -> list[dict]:
        entry = {"kind": "made", "records": records, "batch": batch, "batches": batches}
        return [entry | {"noise": 1.0}]

    (one,) = single_run.judge_size([made(4000, 50, 80), made(4001, 49, 81)]).findings
    assert one.weight is Weight.VIOLATION
    assert "number of batches 80 to 81" in one.seen
    same = single_run.judge_size([made(4000, 50, 80), made(4001, 50, 80)])
    assert not same.findings
    assert same.complete
    assert not single_run.judge_size([made(4000, 50, 80), made(4000, 50, 80)]).complete
    assert not single_run.judge_size([[], made(4000, 50, 80)]).complete
