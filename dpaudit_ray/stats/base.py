"""What an estimator is: a state that folds scores in trial order and gives a lower bound on demand.

An estimator is one dataclass in one file of this package. Its fields are its options, `name` is
what a sweep file calls it, and subclassing `Estimator` is all the registration it needs.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]
Members = npt.NDArray[np.bool_]


class Status(StrEnum):
    """How far an estimate can be trusted."""

    CERTIFIED = "certified"  # exceeds the truth with probability at most 1 - confidence
    APPROXIMATE = "approximate"  # the same, in the limit of many trials
    CREDIBLE = "credible"  # a Bayesian posterior quantile
    PAPER = "paper"  # as a paper published it; not valid at its level
    INTERIM = "interim"  # holds for a number of trials declared beforehand; these are fewer
    EXTENDED = "extended"  # the same; that number was raised after looking


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A lower bound on the privacy loss.

    `epsilon_lower` holds at `delta` and is 0 when nothing was shown. `mu_lower` is the bound on
    the Gaussian-DP parameter it was converted from, NaN for a bound that assumes no trade-off
    curve. `trials` counts the trials folded; `threshold` is the score from which on a trial is
    guessed "in", NaN where there is none (yet).
    """

    method: str
    status: Status
    epsilon_lower: float
    mu_lower: float
    delta: float
    confidence: float
    trials: int
    threshold: float = math.nan


@dataclasses.dataclass
class Estimator(ABC):
    """Streaming state of one method. Fold trials in id order; any split gives the same bound.

    `planned` is the number of trials the audit declared; methods that look at the horizon (a
    calibration share, an alpha-spending plan) read it, others ignore it.
    """

    planned: int

    name: ClassVar[str]
    status: ClassVar[Status]
    interim_valid: ClassVar[bool] = False  # may be read at any time, and may stop a run
    within_planned: ClassVar[bool] = False  # ... but up to the planned number of trials only
    one_run: ClassVar[bool] = False  # scores are canaries of one training, not trainings

    @classmethod
    def time_uniform(cls) -> bool:
        """Whether its bound holds at every number of trials, declared or not."""
        return cls.interim_valid and not cls.within_planned

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials. `scores` float64 [n], higher = more "in"; `members` bool [n]."""
        self._fold(*checked(scores, members))

    @abstractmethod
    def _fold(self, scores: Scores, members: Members) -> None: ...

    def miss(self, members: Members) -> None:
        """Adds trials that were run and gave no output: each counts as a wrong guess.

        `members` bool [n]. A trial whose training raised is one: its bit was drawn, so it may not
        be left out, and nothing is known that could be bet on.
        """
        self._miss(checked(np.full(len(members), math.nan), members)[1])

    def _miss(self, members: Members) -> None:
        """A method that learns from diverged trials must tell them from these."""
        self._fold(np.full(len(members), math.nan), members)

    @abstractmethod
    def bound(self, delta: float, confidence: float) -> Estimate:
        """The lower bound that the folded trials support at (`delta`, `confidence`)."""

    def _estimate(
        self, epsilon: float, mu: float, level: tuple[float, float], trials: int,
        threshold: float = math.nan,
    ) -> Estimate:  # fmt: skip
        return Estimate(self.name, self.status, epsilon, mu, *level, trials, threshold)


def estimators() -> dict[str, type[Estimator]]:
    """Every known estimator by the name that sweep files use."""
    return {cls.name: cls for cls in Estimator.__subclasses__()}


def make(method: str, planned: int, **options: Any) -> Estimator:
    """Builds the streaming state of `method`.

    Raises:
        ValueError: unknown method or option, or an option outside its bounds.
    """
    known = estimators()
    if method not in known:
        raise ValueError(f"unknown method {method!r}; known: {', '.join(sorted(known))}")
    fields = {f.name for f in dataclasses.fields(known[method]) if f.init} - {"planned"}
    unknown = set(options) - fields
    if unknown:
        takes = ", ".join(sorted(fields)) or "no options"
        raise ValueError(f"{method} does not take {', '.join(sorted(unknown))}; it takes {takes}")
    return known[method](planned=planned, **options)


def estimate(
    scores: npt.ArrayLike,
    members: npt.ArrayLike,
    delta: float,
    confidence: float,
    method: str = "accuracy",
    *,
    runs: npt.ArrayLike | None = None,
    **options: Any,
) -> Estimate:
    """Lower bound from one score per independently trained model, or per canary of one model.

    Args:
        scores: float [R], in trial order, higher = more "in". NaN and ±inf mark diverged
            trainings, which count against the adversary.
        members: bool [R], the secret bits; must be fair and independent coin flips.
        delta: δ of the bound, in (0, 1).
        confidence: level of the bound, in (0, 1).
        method: one of `estimators()`.
        runs: [R], which training each score came from. When given, scores of one training are
            refused by methods for many, and the other way round.
        options: options of the method.

    Raises:
        ValueError: an argument outside its bounds; the message names value and bound.
    """
    values, bits = checked(scores, members)
    state = make(method, planned=len(values), **options)
    check_level(delta, confidence)
    if runs is not None:
        check_runs(runs, len(values), type(state))
    state.fold(values, bits)
    return state.bound(delta, confidence)


def checked(scores: npt.ArrayLike, members: npt.ArrayLike) -> tuple[Scores, Members]:
    """Returns float64 scores and boolean members of one length, or raises ValueError."""
    values = np.asarray(scores, dtype=np.float64)
    bits = np.asarray(members)
    if values.ndim != 1 or bits.shape != values.shape:
        raise ValueError(
            f"scores and members must be two 1-D arrays of one length, "
            f"got shapes {values.shape} and {bits.shape}"
        )
    if bits.dtype != np.bool_:
        if not np.all((bits == 0) | (bits == 1)):
            raise ValueError("members must be 0 or 1 (or booleans)")
        bits = bits.astype(np.bool_)
    return values, bits


def check_runs(runs: npt.ArrayLike, scores: int, method: type[Estimator]) -> None:
    """Raises ValueError unless `method` may be used on scores that came from these trainings.

    Canaries of one training are not independent trials, however many they are; trainings of
    their own have no joint output that a one-run bound could speak about.
    """
    trainings = len(np.unique(np.asarray(runs)))
    if np.shape(runs) != (scores,):
        raise ValueError(f"runs must name one training per score, got shape {np.shape(runs)}")
    if method.one_run and trainings > 1:
        raise ValueError(
            f"{method.name} takes the canaries of 1 training, got {scores} scores "
            f"from {trainings}; use a method for many trainings"
        )
    if not method.one_run and trainings < scores:
        raise ValueError(
            f"{method.name} takes independent trainings, got {scores} scores "
            f"from {trainings}; use one-run, or several.several_canaries"
        )


def check_level(delta: float, confidence: float) -> None:
    """Raises ValueError unless 0 < delta < 1 and 0 < confidence < 1."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie in (0, 1), got {delta}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie in (0, 1), got {confidence}")
