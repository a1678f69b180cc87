"""One `epsilon` and one `delta` over all accountants, with error bounds and named fallbacks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..stats import Status
from .accountant import Accountant, Ends, UnansweredError, find
from .training import (
    UNAMPLIFIED,
    Adjacency,
    Bounds,
    Sampling,
    Training,
    check_delta,
    check_epsilon,
)


def epsilon(
    noise_multiplier: float,
    steps: int,
    delta: float,
    sample_rate: float = 1.0,
    accountant: str = "gaussian",
    adjacency: str = Adjacency.ADD_REMOVE,
    sampling: str = Sampling.POISSON,
) -> float:
    """Upper bound on ε of DP-SGD at δ: no larger ε is needed, whatever the accountant's error.

    Args:
        noise_multiplier: noise standard deviation over the clipping norm; 0 gives infinity.
        steps: number of noisy sums; 0 gives 0.
        delta: δ of the claim, in (0, 1).
        sample_rate: chance that a record takes part in a step; 1 when batches are known.
        accountant: `gaussian` (exact, sample_rate 1 only), `prv`, `pld`, `rdp`, or one of your own
            by its import path.
        adjacency: `add-remove` or `replace`.
        sampling: `poisson`, `shuffle` or `balls-and-bins`; of the last two what is proven.

    Raises:
        ValueError: a value outside its bounds, or an accountant that cannot give a bound.
    """
    training = Training(noise_multiplier, steps, sample_rate, adjacency, sampling)
    return epsilon_of(training, delta, accountant).upper


def delta(
    noise_multiplier: float,
    steps: int,
    epsilon: float,
    sample_rate: float = 1.0,
    accountant: str = "gaussian",
    adjacency: str = Adjacency.ADD_REMOVE,
    sampling: str = Sampling.POISSON,
) -> float:
    """Upper bound on δ of DP-SGD at ε; arguments as for `epsilon`. Without noise it is 1."""
    training = Training(noise_multiplier, steps, sample_rate, adjacency, sampling)
    return delta_of(training, epsilon, accountant).upper


def bounds(
    noise_multiplier: float,
    steps: int,
    delta: float,
    sample_rate: float = 1.0,
    accountant: str = "gaussian",
    adjacency: str = Adjacency.ADD_REMOVE,
    sampling: str = Sampling.POISSON,
) -> Bounds:
    """ε at δ as an interval, with who answered and why; arguments as for `epsilon`."""
    training = Training(noise_multiplier, steps, sample_rate, adjacency, sampling)
    return epsilon_of(training, delta, accountant, True)


def delta_bounds(
    noise_multiplier: float,
    steps: int,
    epsilon: float,
    sample_rate: float = 1.0,
    accountant: str = "gaussian",
    adjacency: str = Adjacency.ADD_REMOVE,
    sampling: str = Sampling.POISSON,
) -> Bounds:
    """δ at ε as an interval, with who answered and why; arguments as for `epsilon`."""
    training = Training(noise_multiplier, steps, sample_rate, adjacency, sampling)
    return delta_of(training, epsilon, accountant, True)


def curve(
    noise_multiplier: float,
    steps: Sequence[int],
    delta: float,
    sample_rate: float = 1.0,
    accountant: str = "gaussian",
    adjacency: str = Adjacency.ADD_REMOVE,
    sampling: str = Sampling.POISSON,
) -> npt.NDArray[np.float64]:
    """Upper bounds on ε after each of `steps`, float64 [len(steps)]; else as `epsilon`.

    PRV builds its grid once, for the largest step count; the others cost one call each.
    """
    last = max((int(n) for n in steps), default=0)
    training = Training(noise_multiplier, last, sample_rate, adjacency, sampling)
    return _curve([training.after(n) for n in map(int, steps)], delta, accountant)


def delta_curve(
    noise_multiplier: float,
    steps: int,
    epsilons: npt.ArrayLike,
    sample_rate: float = 1.0,
    accountant: str = "gaussian",
    adjacency: str = Adjacency.ADD_REMOVE,
    sampling: str = Sampling.POISSON,
) -> npt.NDArray[np.float64]:
    """Upper bounds on δ at each ε, float64 [len(epsilons)]: the claim as a curve; else as `delta`.

    PLD and PRV compose once; each further ε costs little.
    """
    training = Training(noise_multiplier, steps, sample_rate, adjacency, sampling)
    grid = np.atleast_1d(np.asarray(epsilons, np.float64))
    return np.array([delta_of(training, float(e), accountant).upper for e in grid])


def epsilon_of(
    training: Training, delta: float, accountant: str, both_ends: bool = False
) -> Bounds:
    """ε of a training at δ; the lower end may be 0 unless `both_ends`. Raises as `epsilon`."""
    check_delta(delta)
    return _epsilon_bounds(training, delta, find(accountant), both_ends)


def delta_of(
    training: Training, epsilon: float, accountant: str, both_ends: bool = False
) -> Bounds:
    """δ of a training at ε; the lower end may be 0 unless `both_ends`. Raises as `delta`."""
    check_epsilon(epsilon)
    return _delta_bounds(training, epsilon, find(accountant), both_ends)


def remark(training: Training, accountant: str) -> str:
    """What the answer of an accountant takes for granted, before it is asked; mostly nothing."""
    one = find(accountant)
    asked, note = _asked(one, training)
    return "; ".join(filter(None, [note, _assumed(one, asked)]))


def _curve(trainings: Sequence[Training], delta: float, accountant: str) -> npt.NDArray[np.float64]:
    check_delta(delta)
    one = find(accountant)
    asked = [_asked(one, training)[0] for training in trainings]
    counts = [training.steps for training in asked if training.known is None]
    if counts:
        longest = max(asked, key=lambda training: training.steps)
        try:
            found = iter(one.epsilons(longest, counts, delta))
            return np.array([next(found)[2] if t.known is None else t.known for t in asked])
        except UnansweredError:
            pass  # each count may still be answered on its own, or by the fallback
    return np.array([_epsilon_bounds(t, delta, one, False).upper for t in trainings])


@functools.lru_cache(maxsize=4096)
def _epsilon_bounds(
    training: Training, delta: float, accountant: Accountant, both_ends: bool
) -> Bounds:
    if training.known is not None:
        return Bounds(training.known, training.known, training.known, accountant.name)
    return _answered(training, accountant, lambda one, t: one.epsilon(t, delta, both_ends))


@functools.lru_cache(maxsize=4096)
def _delta_bounds(
    training: Training, epsilon: float, accountant: Accountant, both_ends: bool
) -> Bounds:
    if training.known is not None:
        value = min(training.known, 1.0)
        return Bounds(value, value, value, accountant.name)
    return _answered(training, accountant, lambda one, t: one.delta(t, epsilon, both_ends))


def _answered(
    training: Training, accountant: Accountant, ask: Callable[[Accountant, Training], Ends]
) -> Bounds:
    asked, note = _asked(accountant, training)
    try:
        ends = ask(accountant, asked)
    except UnansweredError as reason:
        instead = accountant.fallback(asked)
        notes = [note, f"{reason}; {instead} instead"]
        accountant = find(instead)
        ends = ask(accountant, asked)
    else:
        notes = [note]
    assumed = _assumed(accountant, asked)
    lower = ends[0] if asked == training else 0.0  # of what was proven, not of what is
    status = Status.IF_ASSUMED if assumed else Status.CERTIFIED
    note = "; ".join(filter(None, [*notes, assumed]))
    return Bounds(lower, *ends[1:], accountant.name, note, status)


def _assumed(accountant: Accountant, asked: Training) -> str:
    """What an answer takes for granted, under its status."""
    remark = accountant.remark(asked)
    return remark and f"{Status.IF_ASSUMED}: {remark}"


def _asked(accountant: Accountant, training: Training) -> tuple[Training, str]:
    """What an accountant is asked about in place of `training`, and what is to be said of it."""
    if training.sampling in accountant.samplings:
        return training, ""
    return training.unamplified, UNAMPLIFIED
