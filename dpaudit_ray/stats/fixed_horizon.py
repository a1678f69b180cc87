"""Claims against a declared number of trials: sharper than any test that never has to end.

Two tests share the error. The order of mistakes (`ranking`) is looked at sixteen times, at fixed
shares of the declared trials; the boundary is computed under the claim's worst mechanism, and each
look spends what is due by then. Diverged trials are judged once, at the end: those after the first
eight are all guessed the way that these taught.

Of trials that diverge with probability q, the claim forces a share of mistakes that grows with q:
its worst mechanism diverges where it is surest of one side. How many diverge is the mechanism's
choice, so q is bounded from below first, at a tenth of the error; given their number, mistakes are
binomial, because trainings are alike and independent (Berger, Boos 1994 for such p-values).
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
from scipy import special

from .base import Members, Scores
from .curve import Curve, Responses
from .error_rates import clopper_pearson_lower
from .ranking import Costs, Weights, distribution, ranked_mistakes, two_means
from .trial_log import Diverged, TrialLog

Floats = npt.NDArray[np.float64]
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
        """Adds trials that count as misses."""
        if self.trials < self._ends[-1]:
            self._log.miss(members)
            self._rank()

    def refuted_after(self, curve: Curve, alpha: float) -> int | None:
        """Trials after which `curve` was refuted, None while it is not.

        A true claim is ever refuted with probability `alpha` at most.
        """
        weights_of_looks, limits = boundary(curve, self._ends, alpha * _SHARE)
        weighed = zip(weights_of_looks, self._groups, strict=False)
        costs = np.cumsum([weights.cost(mistakes) for weights, mistakes in weighed])
        over = np.flatnonzero(costs <= limits[: len(costs)])
        if len(over):
            return self._ends[int(over[0])]
        rest = (1 - _SHARE) * alpha
        complete = self.trials == self._ends[-1]
        return self.trials if complete and self._diverging(curve, rest) <= rest else None

    def _rank(self) -> None:
        """Ranks the trials before each look that is due, around the midpoint of all outputs."""
        first = self._ends[len(self._groups) - 1] if self._groups else 0
        for end in self._ends[len(self._groups) :]:
            if end > len(self._log):
                break
            scores, members = self._log.arrays()
            group = scores[first:end], members[first:end]
            centre = two_means(scores[:end])
            self._groups.append(ranked_mistakes(*group, centre, self._diverged))
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
        after = self.trials - int(lost[_LESSONS - 1]) - 1
        counts = (mistakes, len(judged), after)
        return one_sided_p_value(Responses.from_curve(curve), counts, _RARE * alpha)


@functools.lru_cache(maxsize=1024)
def boundary(
    claim: Curve, ends: tuple[int, ...], alpha: float
) -> tuple[tuple[Weights, ...], npt.NDArray[np.int64]]:
    """Weights of mistakes at each look, and costs, int64 [looks], that refute the claim; -1: none.

    The claim's worst mechanism ever has costs that low with probability alpha at most. By each look
    as much is spent as a single look there would with a boundary of this shape.
    """
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
    any could have been guessed; `rare` is the chance with which the probability of a guess may be
    bounded wrongly.
    """
    mistakes, guesses, trials = counts
    q = clopper_pearson_lower(guesses, trials, rare)
    sides = responses.one_sided
    ends = np.concatenate([[0.0], np.cumsum(sides.shares)])
    errors = np.concatenate([[0.0], np.cumsum(sides.shares * sides.mistakes)])
    rate = float(np.interp(q, ends, errors)) / q if q > 0 else 0.0
    return min(1.0, rare + float(special.bdtr(mistakes, guesses, rate)))
