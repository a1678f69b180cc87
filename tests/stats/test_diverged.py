"""Diverged trials: a third outcome that may give the bit away, and never more than it does."""

import numpy as np
import pytest

from dpaudit_ray import stats
from dpaudit_ray.stats import guess_count_bound
from dpaudit_ray.stats.claim_verdict import ClaimTest
from dpaudit_ray.stats.curve import gaussian
from dpaudit_ray.stats.trial_log import Diverged, with_diverged_guessed
from tests.long import paired
from tests.stats.reference import SINGLE, gaussian_trials, several_canaries

LEVEL = {"delta": 1e-5, "confidence": 0.95}
MANY = sorted({name for name, cls in SINGLE.items() if not cls.one_run})
MANY += ["one-run", "one-run-fdp"]  # of independent trainings
CERTIFIED = [name for name in MANY if stats.estimators()[name].status.holds]


def shown(scores: np.ndarray, members: np.ndarray, method: str) -> float:
    """ε of independent trainings."""
    ask = {"method": method, "runs": np.arange(len(scores))}
    return stats.estimate(scores, members, **LEVEL, **ask).epsilon_lower


def diverging(
    rng: np.random.Generator, trials: int, inside: float, outside: float, mu: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian scores of which a share in each world is replaced by NaN."""
    scores, members = gaussian_trials(rng, trials, mu)
    scores[rng.random(trials) < np.where(members, inside, outside)] = np.nan
    return scores, members


@pytest.mark.parametrize("method", CERTIFIED)
@pytest.mark.parametrize("world", [True, False], ids=["in", "out"])
def test_a_world_that_always_diverges_is_an_infinite_leak(method, world):
    members = np.random.default_rng(1).random(1000) < 0.5
    scores = np.where(members == world, np.nan, 0.0)
    assert shown(scores, members, method) > 2.0


@pytest.mark.parametrize("method", MANY)
def test_diverging_alike_shows_nothing(method):
    """20 audits of nothing but diverged trials: more than 5 bounds above 0 have chance 3e-4 at 5 %;
    credible and published bounds are held to the same."""
    rng, above = np.random.default_rng(2), 0
    for _ in range(20):
        scores, members = diverging(rng, 300, 1.0, 1.0)
        above += shown(scores, members, method) > 0
    assert above <= 5


@pytest.mark.parametrize("method", MANY)
def test_trials_without_output_are_errors_whatever_their_bit(method):
    """Misses in either world lower the bound, and dropping them would report as much or more.

    Where thresholds are placed at certain trials, dropping moves these: .05 in ε is allowed.
    """
    scores, members = gaussian_trials(np.random.default_rng(3), 400, 2.0)
    clean = shown(scores, members, method)
    for world in (True, False):
        gone = np.flatnonzero(members == world)[:60]
        state = stats.make(method, 400, independent=True)
        for i in range(400):
            if i in gone:
                state.miss(members[i : i + 1])
            else:
                state.fold(scores[i : i + 1], members[i : i + 1])
        found = state.bound(**LEVEL)
        assert found.trials == 400
        assert found.epsilon_lower <= clean + 1e-12
        kept = np.setdiff1d(np.arange(400), gone)
        assert found.epsilon_lower <= shown(scores[kept], members[kept], method) + 0.05


def test_diverging_in_both_worlds_is_none():
    """100 audits, looked at twice, in which 5 % diverge in either world: none (300 had none)."""
    rng = np.random.default_rng(5)
    for _ in range(100):
        test = ClaimTest(gaussian(1.0), 5000)
        scores, members = diverging(rng, 5000, 0.05, 0.05)
        for part in np.array_split(np.arange(5000), 2):
            test.fold(scores[part], members[part])
            test.look(now=True)
        assert test.refuted_after(0.05) is None


def test_a_guess_by_what_diverged_before():
    """The counter against its loop, with a world that has no finite score for a while."""
    rng = np.random.default_rng(7)
    scores, members = diverging(rng, 300, 0.6, 0.1)
    scores[:60][members[:60]] = np.nan
    counter = guess_count_bound.GuessCounter(warmup=20)
    counter.fold(scores, members)
    hits = 0
    for i in range(20, 300):
        finite = np.isfinite(scores[:i])
        world = {b: scores[:i][finite & (members[:i] == b)] for b in (False, True)}
        lost = {b: np.sum(~finite & (members[:i] == b)) for b in (False, True)}
        if not np.isfinite(scores[i]):
            guess = lost[True] >= lost[False]
        elif len(world[True]) == 0:
            guess = False
        elif len(world[False]) == 0:
            guess = True
        else:
            guess = scores[i] > world[False].mean() / 2 + world[True].mean() / 2
        hits += guess == members[i]
    assert (counter.hits, counter.guesses) == (hits, 280)
    assert counter.diverged == tuple(np.sum(~np.isfinite(scores) & (members == b)) for b in (0, 1))


def test_what_teaches_is_not_judged():
    scores = np.array([np.inf, 1.0, np.inf, np.inf, 2.0, np.nan])
    members = np.array([False, True, False, True, True, False])
    found = with_diverged_guessed(scores, members, 2)
    np.testing.assert_array_equal(found, [np.nan, 1.0, -np.inf, -np.inf, 2.0, np.nan])
    np.testing.assert_array_equal(
        with_diverged_guessed(scores, members, 6)[[0, 2, 3]], [np.nan] * 3
    )
    assert Diverged(0, 5).sure
    assert not Diverged(3, 5).sure


@pytest.mark.parametrize(
    ("method", "share"), paired(CERTIFIED, [0.3, 0.05], "each is tested at one share")
)
def test_certified_bounds_keep_their_level_when_runs_diverge(method, share):
    """True μ at most 1. 60 audits: more than 10 have chance 2e-4 at 5 %."""
    rng, wrong = np.random.default_rng(8), 0
    epsilon = float(stats.gdp.epsilon(1.0, 1e-5))
    for _ in range(60):
        scores, members = diverging(rng, 300, share, share)
        wrong += shown(scores, members, method) > epsilon
    assert wrong <= 10


def test_several_canaries_learn_it_too():
    rng = np.random.default_rng(9)
    bits = rng.random((100, 8)) < 0.5
    scores = np.where(bits, np.nan, rng.normal(size=bits.shape))
    assert several_canaries(scores, bits).epsilon_lower > 2.0


def test_diverging_that_depends_on_the_bit_is_never_consistent():
    """Where a claim is too large to be refuted by it. 9 against 0 is chance once in 256, 12 against
    0 once in 2048."""
    for outside, inside, lopsided in ((0, 0, False), (0, 9, False), (0, 12, True), (40, 45, False)):
        test = ClaimTest(gaussian(4.0), 1000)
        members = np.repeat([False, True], [outside, inside])
        test.fold(np.full(outside + inside, np.nan), members)
        assert test.lopsided is lopsided, (outside, inside)
