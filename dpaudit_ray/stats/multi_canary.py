"""Several canaries per training, and pairs of trainings that share their noise.

In both cases the unit is a training run (or a pair), its outcome A lies in [0, 1], and its mean
is at most the best guessing accuracy, Φ(μ/2) for a Gaussian trade-off curve, whatever the
dependence inside the run or between the worlds. Pooling the canaries of a run as if they were
trials of their own is not valid: its error was measured at 0.3 to 0.5 for dependent canaries.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from . import e_process
from .base import Estimator, Members, Scores, check_level
from .guess_count_bound import GuessCounter, read_rate
from .lower_bound import Estimate, Status

WARMUP = 20  # scores that only set the first threshold


class RunAccuracies:
    """Share of each run's canaries that were guessed, as runs come in.

    The threshold of a run is the midpoint of the class means of the runs before it; runs before
    `WARMUP` scores of both worlds were seen are left out, which is decided by the past alone. A
    run that gave no output guessed none of them.
    """

    def __init__(self, canaries: int) -> None:
        if canaries < 1:
            raise ValueError(f"canaries must be at least 1, got {canaries}")
        self.canaries = canaries
        self.counter = GuessCounter(WARMUP)
        self.skipped = 0  # runs before the first that is judged
        self._shares: list[Scores] = []
        self._rest = (np.empty(0), np.empty(0, np.bool_), np.empty(0, np.bool_))

    def fold(self, scores: Scores, members: Members, ran: bool = True) -> None:
        """Adds scores in order, run after run; one that is not whole yet is kept back."""
        came = (scores, members, np.full(len(scores), ran))
        values, bits, lived = (
            np.concatenate([old, new]) for old, new in zip(self._rest, came, strict=True)
        )
        whole = len(values) // self.canaries * self.canaries
        self._rest = (values[whole:], bits[whole:], lived[whole:])
        alive = np.asarray(lived[:whole].reshape(-1, self.canaries).all(axis=1))
        for stretch in np.split(np.arange(len(alive)), np.flatnonzero(np.diff(alive)) + 1):
            if len(stretch):
                trials = slice(stretch[0] * self.canaries, (stretch[-1] + 1) * self.canaries)
                self._add(values[trials], bits[trials], bool(alive[stretch[0]]))

    def _add(self, scores: Scores, members: Members, ran: bool) -> None:
        """Adds whole runs, all of which gave an output, or none."""
        starts = self.counter.trials + np.arange(0, len(scores), self.canaries)
        judged, shares = starts >= WARMUP, np.zeros(len(starts))
        if ran:
            guessed, right = self.counter.fold(scores, members, self.canaries)
            judged = guessed[:: self.canaries]
            shares = right.reshape(-1, self.canaries).mean(axis=1)
        else:
            self.counter.miss(len(members))
        self.skipped += int((~judged).sum())
        self._shares.append(shares[judged])

    @property
    def trials(self) -> int:
        """Scores folded so far."""
        return self.counter.trials + len(self._rest[0])

    def outcomes(self) -> e_process.Outcomes:
        """The shares so far, float64 [runs that are judged]."""
        self._shares = [np.concatenate([*self._shares, np.empty(0)])]
        return self._shares[0]


@dataclasses.dataclass
class SeveralCanaries(Estimator):
    """Trainings of `canaries` canaries each, a coin for each: one outcome for every training.

    `curve: gaussian` reads the mean accuracy as μ = 2 Φ⁻¹(rate); `any` assumes no trade-off curve.
    Trainings may be looked at one by one, and stopped.
    """

    canaries: int = 1
    curve: Literal["gaussian", "any"] = "gaussian"  # how a hit rate is read as ε
    name: ClassVar[str] = "several-canaries"
    status: ClassVar[Status] = Status.IF_GAUSSIAN
    interim_valid: ClassVar[bool] = True
    by_run: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.curve not in ("gaussian", "any"):
            raise ValueError(f"curve must be gaussian or any, got {self.curve!r}")
        self._runs = RunAccuracies(self.canaries)
        self._known: tuple[int, float, float] = (0, 0.0, 0.5)  # of so many trials, at alpha

    def _fold(self, scores: Scores, members: Members) -> None:
        self._runs.fold(scores, members)

    def _miss(self, members: Members) -> None:
        self._runs.fold(np.full(len(members), math.nan), members, ran=False)

    def bound(self, delta: float, confidence: float) -> Estimate:
        runs, alpha = self._runs, 1 - confidence
        if self._known[:2] != (runs.trials, alpha):
            self._known = (runs.trials, alpha, e_process.mean_lower(runs.outcomes(), alpha))
        shown = read_rate(self._known[2], delta, self.curve)
        return self._estimate(*shown, (delta, confidence), runs.trials, runs.counter.threshold)


def coupled_worlds(
    outside: npt.ArrayLike,
    inside: npt.ArrayLike,
    delta: float,
    confidence: float,
    width: float = 1.0,
) -> Estimate:
    """Bound from pairs of trainings, one per world, that used the same noise.

    The shared noise cancels in the pair, so far fewer trainings show a small ε (R = 1000, ε = 1:
    0.81 instead of 0.47); above ε = 4 nothing is gained. Any coupling is valid, independence
    included.

    Args:
        outside: float [n], scores without the canary, in order; what is not finite has diverged.
        inside: float [n], scores of the same pairs with the canary.
        delta: δ of the bound, in (0, 1).
        confidence: level of the bound, in (0, 1); it holds at every earlier stop as well.
        width: width of the ramp from "out" to "in", in standard deviations of a world's scores.

    Raises ValueError for an argument outside its bounds.
    """
    check_level(delta, confidence)
    pair = np.array([outside, inside], dtype=np.float64)
    if pair.ndim != 2:
        raise ValueError(f"outside and inside must be two 1-D arrays, got shape {pair.shape}")
    if not width > 0:
        raise ValueError(f"width must be positive, got {width}")
    outcomes = pair_outcomes(pair[0], pair[1], width)
    shown = read_rate(e_process.mean_lower(outcomes, 1 - confidence), delta, "gaussian")
    return Estimate(
        "coupled-worlds", Status.IF_GAUSSIAN, *shown, delta, confidence, 2 * pair.shape[1]
    )


def pair_outcomes(outside: Scores, inside: Scores, width: float) -> e_process.Outcomes:
    """(1 - φ(out) + φ(in)) / 2 of each pair, φ a ramp placed by the pairs before it."""
    usable = np.isfinite(outside) & np.isfinite(inside)
    origin = float(outside[usable][0]) if usable.any() else 0.0
    shifted = [np.where(usable, s - origin, 0.0) for s in (outside, inside)]
    seen = np.concatenate([[0], np.cumsum(usable)[:-1]])
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        means = [np.concatenate([[0.0], np.cumsum(s)[:-1]]) / seen for s in shifted]
        squares = [np.concatenate([[0.0], np.cumsum(s**2)[:-1]]) / seen for s in shifted]
        spread = [np.sqrt(np.maximum(q - m**2, 0)) for q, m in zip(squares, means, strict=True)]
        ramp = np.maximum(width * (spread[0] + spread[1]) / 2, np.finfo(np.float64).tiny)
        middle = (means[0] + means[1]) / 2 + origin
        phi = [np.clip((s - middle) / ramp + 0.5, 0.0, 1.0) for s in (outside, inside)]
    lost = [~np.isfinite(s) for s in (outside, inside)]
    before = [np.concatenate([[0], np.cumsum(gone)[:-1]]) for gone in lost]
    diverged = np.where(before[1] >= before[0], 1.0, 0.0)  # "in" where more of them have diverged
    phi = [np.where(gone, diverged, value) for gone, value in zip(lost, phi, strict=True)]
    return np.asarray(((1 - phi[0] + phi[1]) / 2)[seen >= 2])
