"""Claims of DP-SGD by any accountant, noise for a target ε, and Opacus' approximation."""

import collections
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from ..errors import plain
from ..stats import Status, gdp
from ..stats.error_rates import Floats, in_unit, nonnegative, root
from .accountant import Accountant, UnansweredError, find
from .claim import STATED, Claim
from .training import UNAMPLIFIED, Adjacency, Sampling, Training, UpperBound

_FIRST_NOISE = 20.0  # noise multiplier from which Opacus bisects downwards
_LARGEST_NOISE = 1e6  # largest noise multiplier that is tried


def epsilon(
    noise_multiplier: float,
    steps: int,
    delta: float,
    sample_rate: float = 1.0,
    accountant: str = "gaussian",
    adjacency: str = Adjacency.ADD_REMOVE,
    sampling: str = Sampling.POISSON,
) -> float:
    """Returns an upper bound on ε of DP-SGD at δ.

    If the accountant has no answer, its fallback answers: `epsilon_of` also returns which one did.

    Args:
        noise_multiplier: standard deviation of the noise over the clipping norm.
        steps: number of noisy sums.
        delta: δ, in (0, 1).
        sample_rate: probability that a record takes part in a step; 1 if batches are known.
        accountant: one of `accountants()` or an import path; may refuse a `sample_rate` below 1.
        adjacency: `add-remove` or `replace`.
        sampling: `poisson`, `shuffle` or `balls-and-bins`. For the last two, accountants without a
            proof bound `Training.unamplified`.
    """
    training = Training(noise_multiplier, steps, sample_rate, adjacency, sampling)
    return epsilon_of(training, delta, accountant).upper


def epsilon_of(training: Claim, delta: float, accountant: str = "gaussian") -> UpperBound:
    """Returns ε of a claim at δ, with the accountant that answered and why.

    Args:
        training: the claim. If it is not a `Training`, its own `epsilon_at` answers.
        delta: δ, in (0, 1).
        accountant: one of `accountants()` or an import path.
    """
    if not isinstance(training, Training):
        return UpperBound(training.epsilon_at(delta), STATED)
    in_unit("delta", delta)
    return _answer(training, find(accountant), "epsilon", delta)


def delta_of(training: Claim, epsilon: float, accountant: str = "gaussian") -> UpperBound:
    """Returns δ of a claim at ε, with the accountant that answered and why; 1 without noise.

    Args:
        training: the claim. If it is not a `Training`, its own `delta_at` answers.
        epsilon: ε, at least 0.
        accountant: one of `accountants()` or an import path.
    """
    nonnegative("epsilon", epsilon)
    if not isinstance(training, Training):
        return UpperBound(training.delta_at(epsilon), STATED)
    return _answer(training, find(accountant), "delta", epsilon)


def curve(
    training: Training, steps: Sequence[int], delta: float, accountant: str = "gaussian"
) -> Floats:
    """Returns upper bounds on ε of a training run after each of `steps`, float64 [len(steps)].

    Args:
        training: the training run, whose own number of steps is ignored.
        steps: numbers of steps.
        delta: δ, in (0, 1).
        accountant: one of `accountants()` or an import path.
    """
    in_unit("delta", delta)
    named = find(accountant)
    prefixes = [training.after(int(count)) for count in steps]
    proven = [_with_proof(named, prefix)[0] for prefix in prefixes]
    counts = [prefix.steps for prefix in proven if prefix.known is None]
    if counts:
        longest = max(proven, key=lambda prefix: prefix.steps)
        try:
            bounds = iter(named.epsilons(longest, counts, delta))  # all counts in one computation
            return np.array([next(bounds) if t.known is None else t.known for t in proven])
        except UnansweredError:
            pass  # each count may still be answered separately, or by the fallback
    return np.array([_answer(prefix, named, "epsilon", delta).upper for prefix in prefixes])


def remark(training: Claim, accountant: str) -> str:
    """Returns a note on what an accountant's answer will assume; "" if it assumes nothing.

    Args:
        training: the claim.
        accountant: one of `accountants()` or an import path.
    """
    if not isinstance(training, Training):
        return ""
    if training.known == math.inf:
        return "without noise nothing is claimed"
    named = find(accountant)
    proven, note = _with_proof(named, training)
    return "; ".join(filter(None, [note, _assumption(named, proven)]))


def events_epsilon(
    events: Iterable[tuple[float, float, int]],
    delta: float,
    accountant: str = "pld",
    adjacency: str = Adjacency.ADD_REMOVE,
) -> float:
    """Returns an upper bound on ε at δ of Poisson-sampled steps with different noise or rates.

    If the accountant has no answer, `pld` answers. The bound is infinite if a step has no noise.

    Args:
        events: (noise multiplier, sample rate, steps) each, in any order, as in the `history` of
            an Opacus accountant.
        delta: δ, in (0, 1).
        accountant: one of `accountants()` or an import path.
        adjacency: `add-remove` or `replace`.

    Raises:
        ValueError: Neither the accountant nor `pld` defines `composed` at these rates.
    """
    in_unit("delta", delta)
    counts = collections.Counter[Training]()
    for noise, rate, steps in events:
        # The key is one step, so that equal steps of all events add up.
        counts[Training(noise, steps, rate, adjacency).after(1)] += steps
    parts = tuple(step.after(steps) for step, steps in counts.items() if steps)
    if any(part.noise_multiplier == 0 for part in parts):
        return math.inf
    if not parts:
        return 0.0
    if len(parts) == 1:
        return epsilon_of(parts[0], delta, accountant).upper
    try:
        return find(accountant).composed(parts, delta)
    except UnansweredError:
        return find("pld").composed(parts, delta)


def noise_multiplier(
    epsilon: float,
    steps: int,
    delta: float,
    sample_rate: float = 1.0,
    accountant: str = "gaussian",
    tolerance: float = 0.01,
    *,
    sampling: str = Sampling.POISSON,
) -> float:
    """Returns a noise multiplier with which ε lies in [epsilon - tolerance, epsilon].

    It has a closed form for `gaussian`; otherwise it is bisected from 20 downwards, as in Opacus.

    Args:
        epsilon: ε of the claim, above 0.
        steps: number of noisy sums.
        delta: δ, in (0, 1).
        sample_rate: probability that a record takes part in a step.
        accountant: one of `accountants()` or an import path.
        tolerance: error allowed for ε, above 0.
        sampling: `poisson`, `shuffle` or `balls-and-bins`.

    Raises:
        ValueError: More than 1e6 would be needed, or an argument is invalid.
    """
    in_unit("delta", delta)
    training = Training(1.0, steps, sample_rate, sampling=sampling)
    unamplified = training.unamplified
    if accountant == "gaussian" and unamplified.sample_rate == 1:
        _check_target(epsilon, tolerance)
        return math.sqrt(unamplified.steps) / float(gdp.mu(epsilon, delta))

    def claimed_epsilon(noise: float) -> float:
        """Returns ε of this training run with another noise multiplier."""
        with_noise = replace(training, noise_multiplier=noise)
        return epsilon_of(with_noise, delta, accountant).upper

    return _bisected_noise(claimed_epsilon, epsilon, tolerance)


def clt_epsilon(
    noise_multiplier: float, steps: int, delta: float, sample_rate: float = 1.0
) -> float:
    """Returns ε by the central limit theorem for GDP (Bu et al. 2020).

    It is NOT an upper bound, but some 3 % too small. The training run is taken as μ-GDP, with
    μ = q √(T (e^(1/σ²) - 1)) for rate q, T steps and noise σ. Arguments are those of `epsilon`.
    """
    training = Training(noise_multiplier, steps, sample_rate)
    in_unit("delta", delta)
    if training.known is not None:
        return training.known
    chi_square = math.expm1(min(1 / noise_multiplier**2, 700.0))  # e^709 would overflow
    mu = sample_rate * math.sqrt(steps * chi_square)
    return float(gdp.epsilon(mu, delta))


def clt_noise_multiplier(
    epsilon: float,
    steps: int,
    delta: float,
    sample_rate: float = 1.0,
    tolerance: float = 0.01,
) -> float:
    """Returns a noise multiplier by `clt_epsilon`: too small, since that is not an upper bound.

    Arguments are those of `noise_multiplier`.
    """
    return _bisected_noise(
        lambda noise: clt_epsilon(noise, steps, delta, sample_rate), epsilon, tolerance
    )


def _bisected_noise(
    claimed_epsilon: Callable[[float], float],
    epsilon: float,
    tolerance: float,
) -> float:
    """Returns a noise multiplier with which ε lies in [epsilon - tolerance, epsilon].

    It bisects as Opacus does, to 0.01 of ε; a finer tolerance is met by a root finder from there.

    Args:
        claimed_epsilon: ε by noise multiplier, falling.
        epsilon: the target.
        tolerance: error allowed for ε.

    Raises:
        ValueError: more noise than `_LARGEST_NOISE` would be needed, or an argument is invalid.
    """
    _check_target(epsilon, tolerance)
    coarse_tolerance = max(tolerance, 0.01)
    low, high = 0.0, _FIRST_NOISE
    while (bound := claimed_epsilon(high)) > epsilon:
        high *= 2
        if high > _LARGEST_NOISE:
            most = plain(_LARGEST_NOISE)
            raise ValueError(f"no noise_multiplier up to {most} reaches epsilon {epsilon}")
    while epsilon - bound > coarse_tolerance:
        middle = (low + high) / 2
        value = claimed_epsilon(middle)
        if value < epsilon:
            high = middle
            bound = value
        else:
            low = middle
    if epsilon - bound <= tolerance:
        return high
    target = epsilon - tolerance / 2
    # `low` is 0 if no noise was too small yet: ε has no value there.
    return root(lambda noise: claimed_epsilon(noise) - target, low or high / 2, high, xtol=1e-9)


def _check_target(epsilon: float, tolerance: float) -> None:
    """Raises ValueError unless ε is positive and finite, and the tolerance positive."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be positive and finite, got {epsilon}")
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")


@functools.cache
def _answer(
    training: Training,
    accountant: Accountant,
    bounded: str,
    at: float,
) -> UpperBound:
    """Returns the accountant's bound on ε or δ, or that of its fallback if it has none.

    Args:
        training: the claim.
        accountant: the accountant that is queried first.
        bounded: the method that is called: "epsilon" or "delta".
        at: the δ at which ε is bounded, or the ε at which δ is bounded.
    """
    if training.known is not None:
        value = training.known if bounded == "epsilon" else min(training.known, 1.0)
        return UpperBound(value, accountant.name)
    proven, note = _with_proof(accountant, training)
    notes = [note]
    try:
        upper = getattr(accountant, bounded)(proven, at)
    except UnansweredError as reason:
        fallback = accountant.fallback(proven)
        accountant = find(fallback)
        proven, note = _with_proof(accountant, training)
        notes += [f"{reason}; {fallback} instead", note]
        upper = getattr(accountant, bounded)(proven, at)
    assumption = _assumption(accountant, proven)
    status = Status.IF_ASSUMED if assumption else Status.CERTIFIED
    note = "; ".join(filter(None, [*notes, assumption]))
    return UpperBound(float(upper), accountant.name, note, status)


def _assumption(accountant: Accountant, proven: Training) -> str:
    """Returns the status and the assumption of an answer, as a note; "" if it assumes nothing."""
    remark = accountant.remark(proven)
    return remark and f"{Status.IF_ASSUMED}: {remark}"


def _with_proof(accountant: Accountant, training: Training) -> tuple[Training, str]:
    """Returns the training run for which an accountant has a proof, and a note on it.

    It is `training` itself, with the note "", or `training.unamplified`.
    """
    proven = training if training.sampling in accountant.samplings else training.unamplified
    return proven, UNAMPLIFIED if proven != training else ""
