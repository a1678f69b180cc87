"""One claim against trainings of several canaries each, whose scores are not independent.

Under a claim (ε, δ) no guess of a canary is right with more than (e^ε + δ)/(e^ε + 1) (Kairouz, Oh,
Viswanath 2015), so neither is the mean share of a run, however its canaries hang together. Bets on
these shares are an e-process: it may be looked at after every run, for ever.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from . import betting
from .base import Members, Scores
from .claim_test import EVIDENCE_SHARE, least_refuted, lopsided
from .curve import Curve
from .several import RunAccuracies


@dataclasses.dataclass
class RunTest:
    """Fold trials in order, run after run, `look` as often as wanted; see `ClaimTest`.

    It has the share of the error that `ClaimTest` gives to its e-process, so that evidence of
    audits of both kinds may be averaged and is held against one limit.
    """

    curve: Curve
    planned: int
    canaries: int
    best: float = 0.0
    latest: float = 0.0
    due: int = 0

    def __post_init__(self) -> None:
        self._runs = RunAccuracies(self.canaries)

    @property
    def trials(self) -> int:
        """Scores folded so far."""
        return self._runs.trials

    @property
    def diverged(self) -> tuple[int, int]:
        """Diverged scores per world, (out, in)."""
        return self._runs.counter.diverged

    @property
    def lopsided(self) -> bool:
        """Whether diverging depends on the bit: coins are fair inside a run that diverged too."""
        return lopsided(*self.diverged)

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds scores, float64 [n], and their bits, bool [n]."""
        self._runs.fold(scores, members)

    def miss(self, members: Members) -> None:
        """Adds canaries of runs that gave no output."""
        self._runs.fold(np.full(len(members), math.nan), members, ran=False)

    def look(self, now: bool = False) -> None:
        """Takes the evidence into account."""
        wealth = self._wealth(self.curve)
        if len(wealth):
            self.latest = float(wealth[-1])
            self.best = max(self.best, float(wealth.max()))

    def refuted_after(self, alpha: float) -> int | None:
        """Trials after which the claim was refuted at level `alpha`; None while it is not."""
        over = np.flatnonzero(self._wealth(self.curve) >= -math.log(EVIDENCE_SHARE * alpha))
        return None if len(over) == 0 else (self._runs.skipped + int(over[0]) + 1) * self.canaries

    def effective_noise(
        self, family: Callable[[float], Curve], claimed: float, alpha: float
    ) -> float | None:
        """The run is no more private than this noise multiplier; see `ClaimTest`."""
        mean = betting.mean_lower(self._runs.outcomes(), EVIDENCE_SHARE * alpha)

        return least_refuted(lambda noise: mean > largest_accuracy(family(noise)), claimed)

    def share_found(self, alternative: float, alpha: float, audits: int) -> float:
        """Share of imagined audits, whose noise is `alternative` times as much, that refute.

        Runs spread around their mean as those that were seen: how the canaries of a run hang
        together is not known otherwise.
        """
        seen = self._runs.outcomes()
        if len(seen) == 0:
            return 0.0
        rng, mean = np.random.default_rng(0), float(seen.mean())
        mu = 2 * float(special.ndtri(min(max(mean, 0.5), 1 - 0.5 / len(seen)))) / alternative
        moved = np.clip(seen - mean + float(special.ndtr(mu / 2)), 0.0, 1.0)
        limit, claimed = -math.log(EVIDENCE_SHARE * alpha), largest_accuracy(self.curve)
        runs = max(self.planned // self.canaries - self._runs.skipped, 1)
        drawn = (rng.choice(moved, runs) for _ in range(audits))
        found = [bool(betting.evidence(one, claimed).max() >= limit) for one in drawn]
        return sum(found) / audits

    def _wealth(self, curve: Curve) -> betting.Outcomes:
        outcomes = self._runs.outcomes()
        return betting.evidence(outcomes, largest_accuracy(curve)) if len(outcomes) else outcomes


def largest_accuracy(curve: Curve) -> float:
    """The largest rate of right guesses of a fair coin that the claim allows."""
    odds = np.exp(-curve.epsilons)
    return float(np.min((1 + curve.deltas * odds) / (1 + odds)))
