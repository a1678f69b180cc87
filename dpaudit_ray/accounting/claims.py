"""One `epsilon` and one `delta` over all accountants, with error bounds and named fallbacks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import assert_never

import numpy as np
import numpy.typing as npt

from . import gaussian, pld, prv, rdp
from .training import (
    Accountant,
    Adjacency,
    Bounds,
    Training,
    check_delta,
    check_epsilon,
    parse_accountant,
)


def epsilon(
    noise_multiplier: float,
    steps: int,
    delta: float,
    sample_rate: float = 1.0,
    accountant: str = Accountant.GAUSSIAN,
    adjacency: str = Adjacency.ADD_REMOVE,
) -> float:
    """Upper bound on ε of DP-SGD at δ: no larger ε is needed, whatever the accountant's error.

    Args:
        noise_multiplier: noise standard deviation over the clipping norm; 0 gives infinity.
        steps: number of noisy sums; 0 gives 0.
        delta: δ of the claim, in (0, 1).
        sample_rate: chance that a record takes part in a step; 1 when batches are known.
        accountant: `gaussian` (exact, sample_rate 1 only), `prv`, `pld` or `rdp`.
        adjacency: `add-remove` or `replace`.

    Raises:
        ValueError: a value outside its bounds, or an accountant that cannot give a bound.
    """
    training = Training(noise_multiplier, steps, sample_rate, adjacency)
    return _epsilon_bounds(training, delta, parse_accountant(accountant), False).upper


def delta(
    noise_multiplier: float,
    steps: int,
    epsilon: float,
    sample_rate: float = 1.0,
    accountant: str = Accountant.GAUSSIAN,
    adjacency: str = Adjacency.ADD_REMOVE,
) -> float:
    """Upper bound on δ of DP-SGD at ε; arguments as for `epsilon`. Without noise it is 1."""
    training = Training(noise_multiplier, steps, sample_rate, adjacency)
    return _delta_bounds(training, epsilon, parse_accountant(accountant), False).upper


def bounds(
    noise_multiplier: float,
    steps: int,
    delta: float,
    sample_rate: float = 1.0,
    accountant: str = Accountant.GAUSSIAN,
    adjacency: str = Adjacency.ADD_REMOVE,
) -> Bounds:
    """ε at δ as an interval, with who answered and why; arguments as for `epsilon`."""
    training = Training(noise_multiplier, steps, sample_rate, adjacency)
    return _epsilon_bounds(training, delta, parse_accountant(accountant), True)


def delta_bounds(
    noise_multiplier: float,
    steps: int,
    epsilon: float,
    sample_rate: float = 1.0,
    accountant: str = Accountant.GAUSSIAN,
    adjacency: str = Adjacency.ADD_REMOVE,
) -> Bounds:
    """δ at ε as an interval, with who answered and why; arguments as for `epsilon`."""
    training = Training(noise_multiplier, steps, sample_rate, adjacency)
    return _delta_bounds(training, epsilon, parse_accountant(accountant), True)


def curve(
    noise_multiplier: float,
    steps: Sequence[int],
    delta: float,
    sample_rate: float = 1.0,
    accountant: str = Accountant.GAUSSIAN,
    adjacency: str = Adjacency.ADD_REMOVE,
) -> npt.NDArray[np.float64]:
    """Upper bounds on ε after each of `steps`, float64 [len(steps)]; else as `epsilon`.

    PRV builds its grid once, for the largest step count; the others cost one call each.
    """
    counts = [int(n) for n in steps]
    name = parse_accountant(accountant)
    check_delta(delta)
    if name is Accountant.PRV and noise_multiplier > 0 and max(counts, default=0) > 0:
        longest = Training(noise_multiplier, max(counts), sample_rate, adjacency)
        try:
            found = iter(prv.epsilons(longest, [n for n in counts if n > 0], delta))
            return np.array([next(found)[2] if n > 0 else 0.0 for n in counts])
        except prv.UnansweredError:
            pass  # each count may still be answered on its own, or by the fallback
    each = [Training(noise_multiplier, n, sample_rate, adjacency) for n in counts]
    return np.array([_epsilon_bounds(one, delta, name, False).upper for one in each])


def delta_curve(
    noise_multiplier: float,
    steps: int,
    epsilons: npt.ArrayLike,
    sample_rate: float = 1.0,
    accountant: str = Accountant.GAUSSIAN,
    adjacency: str = Adjacency.ADD_REMOVE,
) -> npt.NDArray[np.float64]:
    """Upper bounds on δ at each ε, float64 [len(epsilons)]: the claim as a curve; else as `delta`.

    PLD and PRV compose once; each further ε costs little.
    """
    training = Training(noise_multiplier, steps, sample_rate, adjacency)
    name, grid = parse_accountant(accountant), np.atleast_1d(np.asarray(epsilons, np.float64))
    return np.array([_delta_bounds(training, float(e), name, False).upper for e in grid])


@functools.lru_cache(maxsize=4096)
def _epsilon_bounds(
    training: Training, delta: float, accountant: Accountant, both_ends: bool
) -> Bounds:
    check_delta(delta)
    if training.known is not None:
        return Bounds(training.known, training.known, training.known, accountant)
    match accountant:
        case Accountant.GAUSSIAN:
            return Bounds(*gaussian.epsilon(training, delta), accountant)
        case Accountant.RDP:
            return Bounds(*rdp.epsilon(training, delta), accountant)
        case Accountant.PLD:
            return Bounds(*pld.epsilon(training, delta, both_ends), accountant, _remark(training))
        case Accountant.PRV:
            try:
                return Bounds(*prv.epsilon(training, delta), accountant)
            except prv.UnansweredError as reason:
                fallback = _fallback(training)
                answer = _epsilon_bounds(training, delta, fallback, both_ends)
                return _noted(answer, f"{reason}; {fallback} instead")
        case _:  # one that was added without a case here must not answer by another's numbers
            assert_never(accountant)


@functools.lru_cache(maxsize=4096)
def _delta_bounds(
    training: Training, epsilon: float, accountant: Accountant, both_ends: bool
) -> Bounds:
    check_epsilon(epsilon)
    if training.known is not None:
        value = min(training.known, 1.0)
        return Bounds(value, value, value, accountant)
    match accountant:
        case Accountant.GAUSSIAN:
            return Bounds(*gaussian.delta(training, epsilon), accountant)
        case Accountant.RDP:
            return Bounds(*rdp.delta(training, epsilon), accountant)
        case Accountant.PLD:
            return Bounds(*pld.delta(training, epsilon, both_ends), accountant, _remark(training))
        case Accountant.PRV:
            try:
                return Bounds(*prv.delta(training, epsilon), accountant)
            except prv.UnansweredError as reason:
                fallback = _fallback(training)
                answer = _delta_bounds(training, epsilon, fallback, both_ends)
                return _noted(answer, f"{reason}; {fallback} instead")
        case _:
            assert_never(accountant)


def _fallback(training: Training) -> Accountant:
    """PRV's stand-in: the exact formula where there is one, else the PLD, which does not fail."""
    return Accountant.GAUSSIAN if training.sample_rate == 1 else Accountant.PLD


def _remark(training: Training) -> str:
    sampled = training.sample_rate < 1 and training.adjacency is Adjacency.REPLACE
    return pld.NOTE if sampled else ""


def _noted(answer: Bounds, note: str) -> Bounds:
    return dataclasses.replace(answer, note="; ".join(filter(None, [note, answer.note])))
