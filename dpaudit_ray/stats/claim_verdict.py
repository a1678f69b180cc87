"""The tests of one claim on the trials of one audit, together under one error.

On independent trainings (`ClaimTest`) the e-process of `claim` may be looked at for ever and never
gives up; the fixed-horizon test (`fixed_horizon`) is sharper while the declared number of trials
lasts. Each has a share of the error, so a true claim is refuted with probability alpha at most,
whenever and however often it is asked.

Trainings of several canaries each (`RunTest`) have scores that are not independent. Under a claim
(ε, δ) no guess of a canary is right with more than (e^ε + δ)/(e^ε + 1) (Kairouz, Oh, Viswanath
2015), so neither is the mean share of a run, however its canaries hang together. Bets on these
shares are an e-process, which may be looked at after every run, for ever.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from scipy import special

from . import e_process
from .base import Members, Scores
from .claim import Claim
from .curve import Curve
from .fixed_horizon import DeclaredTest
from .growth import shares
from .guess_count_bound import GuessCounter
from .multi_canary import RunAccuracies

EVIDENCE_SHARE = 0.3  # of the error, for the e-process
_RATIO, _STEPS = 1.02, 170  # noise multipliers that are tried: up to 29 times more or less
_LOOK = 1.02  # ratio of trials between looks at the evidence
_LOPSIDED = 1e-3  # chance from which diverging by the bit is no accident


class _Test(ABC):
    """What tests of a claim share: how much noise is refuted, and whether failures tell the bit."""

    @property
    @abstractmethod
    def diverged(self) -> tuple[int, int]:
        """Diverged scores per world, (out, in)."""

    @property
    def lopsided(self) -> bool:
        """Whether diverging depends on the bit: by chance once in a thousand.

        That is no violation by itself, since a claim allows some; but where it was not refuted,
        something was seen that cannot be called consistent either. Coins are fair inside a run
        that diverged, too.
        """
        both = sum(self.diverged)
        rarer = special.bdtr(min(self.diverged), both, 0.5)
        return both > 0 and 2 * float(rarer) < _LOPSIDED

    @abstractmethod
    def _refutes(self, alpha: float) -> Callable[[Curve], bool]:
        """The test at level `alpha` of any claim, on the trials so far."""

    def effective_noise(
        self, family: Callable[[float], Curve], claimed: float, alpha: float
    ) -> float | None:
        """The run is no more private than this noise multiplier, at level `alpha`.

        Noise multipliers around the claimed one are tried, 2 % apart; all above the result are
        refuted, with one error for all of them, since their claims (`family`) are nested. None
        where even 29 times the noise is not.
        """
        refutes, low, high = self._refutes(alpha), -_STEPS, _STEPS
        if not refutes(family(claimed * _RATIO**high)):
            return None
        if refutes(family(claimed * _RATIO**low)):
            return claimed * _RATIO**low
        while high - low > 1:
            middle = (low + high) // 2
            refuted = refutes(family(claimed * _RATIO**middle))
            low, high = (low, middle) if refuted else (middle, high)
        return claimed * _RATIO**high


@dataclasses.dataclass
class ClaimTest(_Test):
    """Fold trials in order, `look` as often as wanted.

    `best` is the largest evidence that any look saw, a natural logarithm: once refuted, a claim
    stays refuted. `latest` is that of the last look: averages of e-values are e-values, averages
    of their largest are not. `later` are further numbers of trials, declared with `planned`: each
    has a sharp test of its own, at its share of the error.
    """

    curve: Curve
    planned: int
    best: float = 0.0
    latest: float = 0.0
    _reached: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    due: int = 0  # trials at the next look; one before it is none
    later: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.process = Claim(planned=self.planned)
        self.hits = GuessCounter()
        self._declared = [DeclaredTest(number) for number in (self.planned, *self.later)]

    @property
    def trials(self) -> int:
        """Trials folded so far."""
        return self.process.trials

    @property
    def diverged(self) -> tuple[int, int]:
        """Diverged trials per world, (out, in)."""
        return self.hits.diverged

    @property
    def horizon(self) -> int:
        """The next of the declared numbers that is reached, or is by now; then the last."""
        numbers = (self.planned, *self.later)
        return next((number for number in numbers if number >= self.trials), numbers[-1])

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials; `scores` float64 [n], not finite where diverged, `members` bool [n]."""
        self.process.fold(scores, members)
        self.hits.fold(scores, members)
        for declared in self._declared:
            declared.fold(scores, members)

    def miss(self, members: Members) -> None:
        """Adds trials that gave no output."""
        self.process.miss(members)
        self.hits.miss(len(members))
        for declared in self._declared:
            declared.miss(members)

    def look(self, now: bool = False) -> None:
        """Takes the evidence into account, if there are 2 % more trials than at the last look.

        That depends on the trials alone, and keeps the effort of 50,000 packs in bounds. `now`
        looks in any case.
        """
        if self.trials < self.due and not now:
            return
        self.due = math.ceil(_LOOK * self.trials)
        self.latest = self.process.evidence(self.curve)
        if self.latest > self.best:
            self.best = self.latest
            self._reached.append((self.trials, self.best))

    def refuted_after(self, alpha: float) -> int | None:
        """Trials after which the claim was refuted at level `alpha`; None while it is not."""
        limit = -math.log(EVIDENCE_SHARE * alpha)
        reached = next((trials for trials, best in self._reached if best >= limit), None)
        crossings = [reached, self._refuted_by_then(self.curve, (1 - EVIDENCE_SHARE) * alpha)]
        return min((trials for trials in crossings if trials is not None), default=None)

    def _refutes(self, alpha: float) -> Callable[[Curve], bool]:
        limit, level = -math.log(EVIDENCE_SHARE * alpha), (1 - EVIDENCE_SHARE) * alpha
        return lambda curve: (
            self.process.evidence(curve) >= limit or self._refuted_by_then(curve, level) is not None
        )

    def _refuted_by_then(self, curve: Curve, level: float) -> int | None:
        """Trials after which a test for a declared number refuted `curve`; None: none did."""
        split = zip(self._declared, shares(len(self._declared)), strict=True)
        crossings = (test.refuted_after(curve, share * level) for test, share in split)
        return min((trials for trials in crossings if trials is not None), default=None)


@dataclasses.dataclass
class RunTest(_Test):
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

    def _refutes(self, alpha: float) -> Callable[[Curve], bool]:
        mean = e_process.mean_lower(self._runs.outcomes(), EVIDENCE_SHARE * alpha)
        return lambda curve: mean > largest_accuracy(curve)

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
        refuted = [bool(e_process.evidence(outcomes, claimed).max() >= limit) for outcomes in drawn]
        return sum(refuted) / audits

    def _wealth(self, curve: Curve) -> e_process.Outcomes:
        return e_process.evidence(self._runs.outcomes(), largest_accuracy(curve))


def largest_accuracy(curve: Curve) -> float:
    """The largest rate of right guesses of a fair coin that the claim allows."""
    odds = np.exp(-curve.epsilons)
    return float(np.min((1 + curve.deltas * odds) / (1 + odds)))
