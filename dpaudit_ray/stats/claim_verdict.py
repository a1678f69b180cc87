"""The tests of one claim on the trials of one audit, together under one error.

On independent trainings (`ClaimTest`) the e-process of `claim` may be looked at for ever; tests for
declared numbers of trials (`DeclaredTest`) are sharper while these last. Each has a share of the
error, so a true claim is refuted with probability alpha at most, at any look.

There, the order of mistakes (`ranking`) is looked at sixteen times, at fixed shares of the declared
trials; the boundary is computed under the claim's worst mechanism, and each look spends what is due
by then. Diverged trials are judged once, at the end: those after the first eight
are all guessed the way that these taught. Of trials that diverge with probability q, the claim
forces a share of mistakes that grows with q, so q is bounded from below first, at a tenth of the
error; given their number, mistakes are binomial (Berger, Boos 1994 for such p-values).

Trainings of several canaries each (`RunTest`) have scores that are not independent. Under a claim
(ε, δ) no guess of a canary is right with more than (e^ε + δ)/(e^ε + 1) (Kairouz, Oh, Viswanath
2015), so neither is the mean share of a run, however its canaries hang together. Bets on these
shares are an e-process, which may be looked at after every run. Such an audit has no other test, so
the e-process has all of the error.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from scipy import special

from . import cut, e_process
from .base import Members, Scores
from .claim import Claim
from .curve import Curve, Responses
from .error_rates import Counts, Floats, clopper_pearson_lower, first_where
from .growth import shares
from .guess_count_bound import GuessCounter
from .multi_canary import RunAccuracies
from .paired import PairOutcomes
from .ranking import Costs, Weights, distribution, ranked_mistakes, two_means
from .trial_log import Diverged, TrialLog

EVIDENCE_SHARE = 0.3  # of the error, for the e-process of `ClaimTest`
_RATIO, _STEPS = 1.02, 170  # of noise multipliers that are tried: up to 29 times more or less
_TESTS = 9  # of a search by halves: at its end, and 8 among 170 noise multipliers
_LOOK = 1.02  # ratio of trials between looks at the evidence
_LOPSIDED = 1e-3  # chance from which diverging by the bit is no accident
LOOKS = 16  # more would find little earlier, and each costs a distribution
_FEWEST = 8  # trials between two looks
_SHARE = 0.7  # of the error, for the order of mistakes; the rest is for diverged trials
_SHAPE = 0.8  # boundary ~ share of the trials to the power of -0.8: nearly all is kept for the end
_LESSONS = 8  # diverged trials that teach how later ones are guessed
_RARE = 0.1  # share of the error of diverged trials, for how many of them there are


class DeclaredTest:
    """Folds trials up to `planned`; later ones are another test's."""

    def __init__(self, planned: int) -> None:
        if planned < 1:
            raise ValueError(f"planned must be at least 1, got {planned}")
        looks = max(min(LOOKS, planned // _FEWEST), 1)
        self._ends = tuple(math.ceil(planned * (i + 1) / looks) for i in range(looks))
        self._log = TrialLog()
        self._groups: list[Members] = []  # mistakes between two looks, the surest guess first
        self._diverged = Diverged()

    @property
    def trials(self) -> int:
        """Trials that count: no more than were declared."""
        return min(len(self._log), self._ends[-1])

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials in order; `scores` float64 [n], not finite where diverged."""
        if self.trials < self._ends[-1]:
            self._log.append(scores, members)
            self._rank()

    def miss(self, members: Members) -> None:
        if self.trials < self._ends[-1]:
            self._log.miss(members)
            self._rank()

    def refuted_after(self, curve: Curve, alpha: float) -> int | None:
        """Trials after which `curve` was refuted, or None; a true one has chance `alpha`."""
        weights_of_looks, limits = boundary(curve, self._ends, alpha * _SHARE)
        weighed = zip(weights_of_looks, self._groups, strict=False)
        costs = np.cumsum([weights.cost(mistakes) for weights, mistakes in weighed])
        if len(over := np.flatnonzero(costs <= limits[: len(costs)])):
            return self._ends[int(over[0])]
        rest = (1 - _SHARE) * alpha
        complete = self.trials == self._ends[-1]
        return self.trials if complete and self._diverging(curve, rest) <= rest else None

    def _rank(self) -> None:
        """Ranks the trials before each look that is due, around the midpoint of all outputs.

        Where earlier bits show that means do not tell the worlds apart, by their `cut`.
        """
        scores, members = self._log.arrays()
        first = self._ends[len(self._groups) - 1] if self._groups else 0
        for end in self._ends[len(self._groups) :]:
            if end > len(scores):
                break
            group = scores[first:end], members[first:end]
            learnt = cut.learnt(scores[:first], members[:first])
            if learnt is None:
                ranked = ranked_mistakes(*group, two_means(scores[:end]), self._diverged)
            else:
                away = np.where(np.isfinite(group[0]), learnt.position(group[0]), group[0])
                ranked = ranked_mistakes(away, group[1], 0.0, self._diverged)
            self._groups.append(ranked)
            self._diverged.fold(*group)
            first = end

    def _diverging(self, curve: Curve, alpha: float) -> float:
        """p-value, for a test at `alpha`, of the diverged trials after those that taught."""
        scores, members = self._log.arrays()
        lost = np.flatnonzero(np.isinf(scores[: self.trials]))
        if len(lost) <= _LESSONS:
            return 1.0
        taught, judged = members[lost[:_LESSONS]], members[lost[_LESSONS:]]
        mistakes = int((judged != (2 * taught.sum() >= _LESSONS)).sum())
        counts = (mistakes, len(judged), self.trials - int(lost[_LESSONS - 1]) - 1)
        return one_sided_p_value(Responses.from_curve(curve), counts, _RARE * alpha)


@functools.lru_cache(maxsize=1024)
def boundary(
    claim: Curve, ends: tuple[int, ...], alpha: float
) -> tuple[tuple[Weights, ...], Counts]:
    """Weights at each look, and costs, int64 [looks], that refute the claim at `alpha`, or -1."""
    parts = [distribution(int(size), claim) for size in np.diff([0, *ends])]
    shares = np.array(ends) / ends[-1]
    due = special.ndtr(special.ndtri(alpha) * shares**-_SHAPE)
    path, spent, limits = Costs(0, np.ones(1)), 0.0, []
    for (_, costs), allowed in zip(parts, due, strict=True):
        path = path.plus(costs)
        over = int(np.searchsorted(spent + path.below, allowed, side="right"))
        limits.append(path.first + over - 1 if over else -1)
        spent += float(path.chances[:over].sum())
        path = path.above(over)
    return tuple(weights for weights, _ in parts), np.array(limits)


def one_sided_p_value(responses: Responses, counts: tuple[int, int, int], rare: float) -> float:
    """Largest chance of so few mistakes among guesses of one kind, all for the same world.

    `responses` is the claim's worst mechanism; `counts` are mistakes, guesses, and trials of which
    any could have been guessed; `rare` is the error of a bound on the chance of a guess.
    """
    mistakes, guesses, trials = counts
    q = clopper_pearson_lower(guesses, trials, rare)
    sides = responses.one_sided
    ends, errors = sides.cumulated(sides.mistakes)
    rate = float(np.interp(q, ends, errors)) / q if q > 0 else 0.0
    return min(1.0, rare + float(special.bdtr(mistakes, guesses, rate)))


@dataclasses.dataclass
class _Test(ABC):
    """What tests of a claim share: how much noise is refuted, and whether failures tell the bit.

    `best` is the largest evidence that any look saw, a natural logarithm: once refuted, a claim
    stays refuted. `latest` is that of the last look: averages of e-values are e-values, averages of
    their largest are not.
    """

    curve: Curve
    planned: int
    evidence_share: ClassVar[float] = EVIDENCE_SHARE  # of the error, for the e-process
    best: float = dataclasses.field(default=0.0, init=False)
    latest: float = dataclasses.field(default=0.0, init=False)
    due: int = dataclasses.field(default=0, init=False)  # trials at the next look
    hits: GuessCounter = dataclasses.field(init=False)

    @property
    def diverged(self) -> tuple[int, int]:
        """Diverged scores per world, (out, in)."""
        return self.hits.diverged

    @property
    def lopsided(self) -> bool:
        """Whether diverging tells the bit, not by chance: no violation, but not consistent."""
        both = sum(self.diverged)
        rarer = special.bdtr(min(self.diverged), both, 0.5)
        return both > 0 and 2 * float(rarer) < _LOPSIDED

    @abstractmethod
    def _refutes(self, alpha: float) -> Callable[[Curve], bool]:
        """The test at level `alpha` of any claim, on the trials so far."""

    def effective_noise(
        self, family: Callable[[float], Curve], claimed: float, alpha: float, gaussian: bool = True
    ) -> float | None:
        """Returns the least noise multiplier that is refuted, on a grid of 2 %; None if none is.

        The claimed noise is tested first. If it is refuted, less noise is searched by halves, else
        more. Claims are nested: if one holds, so do all of less noise. If `gaussian`, a trial that
        refutes one also refutes all of more noise, so the search errs only if the largest true
        claim is refuted. Otherwise each of its tests gets an equal share of `alpha`. Which true
        claims it may test is fixed beforehand: the path down to the first is the one on which all
        false claims are refuted, so these shares add up (Bonferroni).

        Args:
            family: claimed curve by noise multiplier.
            claimed: noise multiplier of the claim.
            alpha: largest probability that the answer is below the true noise multiplier, for
                answers up to `claimed` and for larger ones.
            gaussian: whether all curves of the family are Gaussian.
        """
        refutes_claimed = self._refutes(alpha)
        refutes = refutes_claimed if gaussian else self._refutes(alpha / _TESTS)

        def is_refuted(step: int) -> bool:
            return refutes(family(claimed * _RATIO**step))

        if refutes_claimed(family(claimed)):
            first = -_STEPS
        elif is_refuted(_STEPS):
            first = 1
        else:
            return None
        least = first + first_where(lambda step: is_refuted(first + step), _STEPS)
        return float(claimed * _RATIO ** min(least, _STEPS))


@dataclasses.dataclass
class ClaimTest(_Test):
    """Fold trials in order, `look` as often as wanted: it asks `process` alone.

    What is `between_looks` takes the same trials, and may do so later, many at once.
    """

    later: tuple[int, ...] = ()  # declared with `planned`: each has a sharp test of its own
    _reached: list[tuple[int, float]] = dataclasses.field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.process, self.hits = Claim(planned=self.planned), GuessCounter()
        self.declared = [DeclaredTest(number) for number in (self.planned, *self.later)]
        self.between_looks: tuple[GuessCounter | DeclaredTest, ...] = (self.hits, *self.declared)

    @property
    def trials(self) -> int:
        return self.process.trials

    @property
    def horizon(self) -> int:
        """The next of the declared numbers that is reached, or is by now; then the last."""
        numbers = (self.planned, *self.later)
        return next((number for number in numbers if number >= self.trials), numbers[-1])

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials; `scores` float64 [n], not finite where diverged, `members` bool [n]."""
        for part in (self.process, *self.between_looks):
            part.fold(scores, members)

    def miss(self, members: Members) -> None:
        for part in (self.process, *self.between_looks):
            part.miss(members)

    def look(self, now: bool = False) -> None:
        """Takes in the evidence, if there are 2 % more trials than at the last look, or `now`."""
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
        reached = [trials for trials, best in self._reached if best >= limit][:1]
        return min([*reached, *self._crossings(self.curve, alpha)], default=None)

    def _refutes(self, alpha: float) -> Callable[[Curve], bool]:
        limit = -math.log(EVIDENCE_SHARE * alpha)
        return lambda curve: (
            self.process.evidence(curve) >= limit or any(self._crossings(curve, alpha))
        )

    def _crossings(self, curve: Curve, alpha: float) -> list[int]:
        """Trials after which each test for a declared number refuted `curve`, if it did."""
        level = (1 - EVIDENCE_SHARE) * alpha
        split = zip(self.declared, shares(len(self.declared)), strict=True)
        crossings = (test.refuted_after(curve, share * level) for test, share in split)
        return [trials for trials in crossings if trials is not None]


@dataclasses.dataclass
class RunTest(_Test):
    """Fold scores in order, run after run; the e-process refutes with all of the error."""

    canaries: int
    in_pairs: bool = False
    evidence_share: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        self._runs = (PairOutcomes if self.in_pairs else RunAccuracies)(self.canaries)
        self.hits = self._runs.counter

    @property
    def trials(self) -> int:
        return self._runs.trials

    def fold(self, scores: Scores, members: Members) -> None:
        self._runs.fold(scores, members)

    def miss(self, members: Members) -> None:
        self._runs.fold(np.full(len(members), math.nan), members, ran=False)

    def look(self, now: bool = False) -> None:
        """Takes the evidence into account."""
        wealth = self._wealth(self.curve)
        if len(wealth):
            self.latest = float(wealth[-1])
            self.best = max(self.best, float(wealth.max()))

    def refuted_after(self, alpha: float) -> int | None:
        """Trials after which the claim was refuted at level `alpha`; None while it is not."""
        over = np.flatnonzero(self._wealth(self.curve) >= -math.log(alpha))
        return None if len(over) == 0 else (self._runs.skipped + int(over[0]) + 1) * self.canaries

    def _refutes(self, alpha: float) -> Callable[[Curve], bool]:
        mean = e_process.mean_lower(self._runs.outcomes(), alpha)
        return lambda curve: mean > largest_accuracy(curve)

    def share_found(self, alternative: float, alpha: float, audits: int) -> float:
        """Share of simulated audits, with `alternative` times the noise, that refute the claim."""
        seen = self._runs.outcomes()
        if len(seen) == 0:
            return 0.0
        rng, mean = np.random.default_rng(0), float(seen.mean())
        mu = 2 * float(special.ndtri(min(max(mean, 0.5), 1 - 0.5 / len(seen)))) / alternative
        moved = np.clip(seen - mean + float(special.ndtr(mu / 2)), 0.0, 1.0)
        limit, claimed = -math.log(alpha), largest_accuracy(self.curve)
        runs = max(self.planned // self.canaries - self._runs.skipped, 1)
        drawn = (rng.choice(moved, runs) for _ in range(audits))
        refuted = [bool(e_process.evidence(outcomes, claimed).max() >= limit) for outcomes in drawn]
        return sum(refuted) / audits

    def _wealth(self, curve: Curve) -> Floats:
        return e_process.evidence(self._runs.outcomes(), largest_accuracy(curve))


def largest_accuracy(curve: Curve) -> float:
    """The largest rate of right guesses of a fair coin that the claim allows."""
    odds = np.exp(-curve.epsilons)
    return float(np.min((1 + curve.deltas * odds) / (1 + odds)))
