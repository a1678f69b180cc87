"""Would a broken promise have been found? Simulated audits with less noise than is claimed.

What tells CONSISTENT from INCONCLUSIVE is this chance, the power of an audit.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from ..stats import gdp
from ..stats.claim_verdict import ClaimTest, RunTest, largest_accuracy
from ..stats.curve import Curve

# Noise this much smaller than claimed would have been found ...
ALTERNATIVE = 0.7
REQUIRED_POWER = 0.8  # ... with at least this probability
SIMULATIONS = 50
_AGREE = 20  # are enough where all end alike: at a power of 0.8, once in a hundred
_SHORTER = (2_000, 20_000)  # trials: a longer audit is imagined as long as these first
_MORE = (2, 4, 8, 16)  # times the trials, that are tried
_MOST = 200_000
Test = ClaimTest | RunTest


def chance_to_refute(test: Test, alpha: float) -> float:
    """Chance that this adversary would have refuted the claim, had the noise been less.

    Simulated at a fixed seed with Gaussian scores, as far apart as the adversary's hit rate says
    they would be with ALTERNATIVE times the noise. Each takes as long as the audit's own test.
    0 where the claim allows scores as far apart: it is refuted with probability alpha at most.
    """
    if isinstance(test, RunTest):
        return test.share_found(ALTERNATIVE, alpha, SIMULATIONS)
    mu = _imagined(test)
    if mu is None:
        return 0.0
    for trials in () if test.later else _SHORTER:
        if trials < test.planned and _share_found(test, mu, trials, alpha, required=1.0) == 1:
            return 1.0  # so few trials would have done
    return _share_found(test, mu, test.horizon, alpha)


def trials_needed(test: Test, alpha: float) -> int | None:
    """A number of trials that would give this adversary the required power; None: none tried did.

    Doubled until it does, so up to twice as many as are needed; of an audit that may still grow,
    one of the numbers that were declared for it.
    """
    if isinstance(test, RunTest) or (mu := _imagined(test)) is None:
        return None
    declared = [number for number in test.later if number > test.horizon]
    for size in declared or [more * test.horizon for more in _MORE]:
        if size <= _MOST and _share_found(test, mu, size, alpha, REQUIRED_POWER) >= REQUIRED_POWER:
            return size
    return None


def ideal_test(curve: Curve, trials: int) -> ClaimTest:
    """A test of so many trials by an adversary who is right as often as the claim allows."""
    test = ClaimTest(curve, trials)
    test.hits.guesses, test.hits.hits = trials, round(trials * largest_accuracy(curve))
    return test


def _imagined(test: ClaimTest) -> float | None:
    """μ of the scores with ALTERNATIVE times the noise; None where that keeps the claim."""
    hits = test.hits
    if hits.guesses == 0:
        return None
    rate = min(hits.hits / hits.guesses, 1 - 0.5 / hits.guesses)
    mu = 2 * float(special.ndtri(max(rate, 0.5))) / ALTERNATIVE
    kept = np.asarray(gdp.delta(test.curve.epsilons, mu)) <= test.curve.deltas
    return None if kept.all() else mu


def _share_found(
    test: ClaimTest, mu: float, trials: int, alpha: float, required: float = 0.0
) -> float:
    """Share of simulated audits of so many trials that refute the claim.

    No more of them are simulated than show that it is below `required`, where it is.
    """
    rng = np.random.default_rng(0)
    refuted = 0
    for tried in range(1, SIMULATIONS + 1):
        members = rng.random(trials) < 0.5
        if test.later:
            imagined = ClaimTest(test.curve, test.planned, later=test.later)
        else:
            imagined = ClaimTest(test.curve, trials)
        imagined.fold(rng.normal(size=trials) + mu * members, members)
        imagined.look(now=True)
        refuted += imagined.refuted_after(alpha) is not None
        hopeless = (SIMULATIONS - (tried - refuted)) / SIMULATIONS < required
        if hopeless or (tried == _AGREE and refuted in (0, tried)):
            break
    return refuted / tried
