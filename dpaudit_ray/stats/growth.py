"""An audit that may grow: numbers of trials that were declared together, before the first trial.

A bound for a declared number of trials holds at that number alone. If an audit may end at any of
several, the error α is split over them: the bound after n_k trials has the error α s_k, with shares
s_1 + ... + s_K = 1 that were fixed before any score was observed. Each of these bounds is a
function of the first n_k trials, so the chance that any of them exceeds the truth is at most
Σ α s_k = α, at whichever number the audit ends and for whatever reason, for every estimator.
"""

from collections.abc import Sequence
from dataclasses import replace

from .base import Estimator, Members, Scores
from .lower_bound import Estimate

_FIRST = 0.75  # share of the first number: most audits end there
_FACTOR = 4  # ratio of two numbers: twice the trials hardly pay for a second, smaller share


def looks(
    trials: int,
    up_to: int | None,
) -> tuple[int, ...]:
    """Returns the numbers of trials after which bounds are computed.

    They are `trials`, 4 · `trials`, 16 · `trials` and so on up to half of `up_to`, and `up_to`
    itself. Without a larger `up_to`, `trials` is the only number.

    Args:
        trials: number of trials declared first.
        up_to: largest number to which the audit may grow; None if it may not.
    """
    if up_to is None or up_to <= trials:
        return (trials,)
    numbers = [trials]
    while 2 * _FACTOR * numbers[-1] <= up_to:
        numbers.append(_FACTOR * numbers[-1])
    return (*numbers, up_to)


def shares(numbers: int) -> tuple[float, ...]:
    """Returns each number's share of the error: 3/4, then half of the remainder, then all of it."""
    if numbers == 1:
        return (1.0,)
    split = [_FIRST]
    remainder = 1 - _FIRST
    for _ in range(numbers - 2):
        remainder /= 2
        split.append(remainder)
    return (*split, remainder)


class Growing:
    """States of one estimator for rising declared numbers of trials, under one error."""

    def __init__(
        self,
        states: Sequence[Estimator],
        shares: Sequence[float],
    ) -> None:
        """Begins without trials.

        Args:
            states: an estimator for each declared number of trials, in rising order.
            shares: share of the error for each of them.
        """
        self._states = tuple(zip(states, shares, strict=True))
        self.trials = 0
        self.interim_valid = states[0].interim_valid  # see `Estimator`

    @staticmethod
    def time_uniform() -> bool:
        """Returns False: a bound that holds at every number needs no share for each."""
        return False

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials in order; `scores` float64 [n], `members` bool [n]."""
        for state, _ in self._states:
            missing = max(state.planned - self.trials, 0)
            state.fold(scores[:missing], members[:missing])
        self.trials += len(scores)

    def miss(self, members: Members) -> None:
        """Adds trials without an output, with bits bool [n]."""
        for state, _ in self._states:
            state.miss(members[: max(state.planned - self.trials, 0)])
        self.trials += len(members)

    def bound(self, delta: float, confidence: float) -> Estimate:
        """Returns the largest bound of the declared numbers that were reached.

        Until the first one is reached, it is the bound for that. The confidence is that of all
        bounds together.
        """
        bounds: list[Estimate] = []
        for state, share in self._states:
            if state.planned <= self.trials or not bounds:
                bounds.append(state.bound(delta, 1 - share * (1 - confidence)))
        best = max(bounds, key=lambda bound: bound.epsilon_lower)
        return replace(best, confidence=confidence, trials=bounds[-1].trials)
