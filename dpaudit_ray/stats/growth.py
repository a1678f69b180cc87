"""An audit that may grow: numbers of trials that were declared together, before the first trial.

A bound for a declared number of trials holds at that number alone. Where an audit may end at any of
several, the error α is split over them: the bound after n_k trials is taken at α s_k, with shares
s_1 + ... + s_K = 1 that were fixed, like the numbers, before any score was seen.

Each of these bounds is a function of the first n_k trials, whatever is decided after them. So the
chance that any one of them exceeds the truth is at most Σ α s_k = α, and that holds for the largest
of those that are there, at whichever number the audit ends and for whatever reason. More trials
never lower it. No independence and no curve is taken for granted, so it holds for every estimator.

At 2000 trials, the share that the later numbers take costs `accuracy` 2 % of its bound where the
truth is ε = 2, and 1 % where it is 4 (δ = 1e-5, confidence 95 %).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .base import Estimator, Members, Scores
from .lower_bound import Estimate

_FIRST = 0.75  # share of the first number: most audits end there
_FACTOR = 4  # between two numbers: with twice the trials, a share this small shows hardly more


def looks(trials: int, up_to: int | None) -> tuple[int, ...]:
    """Numbers of trials after which bounds are read: `trials`, four times that, ..., `up_to`.

    The last but one is at most half of `up_to`. `trials` alone where that is None, or not more.
    """
    numbers = [trials]
    if up_to is None or up_to <= trials:
        return (trials,)
    while 2 * _FACTOR * numbers[-1] <= up_to:
        numbers.append(_FACTOR * numbers[-1])
    return (*numbers, up_to)


def shares(numbers: int) -> tuple[float, ...]:
    """Each number's share of the error: 3/4, then half of what is left, and all of it at last."""
    split, rest = list[float](), 1.0
    for _ in range(numbers - 1):
        split.append(rest / 2 if split else _FIRST)
        rest -= split[-1]
    return (*split, rest)


class Growing:
    """The states of one estimator for several declared numbers of trials, under one error.

    `states` have their number in `planned`, the lowest first, and take no trial beyond it.
    """

    def __init__(self, states: Sequence[Estimator], shares: Sequence[float]) -> None:
        self._states = tuple(zip(states, shares, strict=True))
        self.trials = 0
        # Whether the first may be read before its trials are in.
        self.interim_valid = states[0].interim_valid

    @staticmethod
    def time_uniform() -> bool:
        """Never: one that holds at every number needs no share of each."""
        return False

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials in order; `scores` float64 [n], `members` bool [n]."""
        for state, _ in self._states:
            room = max(state.planned - self.trials, 0)
            state.fold(scores[:room], members[:room])
        self.trials += len(scores)

    def miss(self, members: Members) -> None:
        """Adds trials that were run and gave no output."""
        for state, _ in self._states:
            state.miss(members[: max(state.planned - self.trials, 0)])
        self.trials += len(members)

    def bound(self, delta: float, confidence: float) -> Estimate:
        """The largest bound of the numbers that were reached; all hold together at `confidence`.

        That of the first number before it is reached, for the trials so far.
        """
        reached = [entry for entry in self._states if entry[0].planned <= self.trials]
        bounds = [
            state.bound(delta, 1 - share * (1 - confidence))
            for state, share in reached or self._states[:1]
        ]
        best = max(bounds, key=lambda bound: bound.epsilon_lower)
        return dataclasses.replace(best, confidence=confidence, trials=bounds[-1].trials)
