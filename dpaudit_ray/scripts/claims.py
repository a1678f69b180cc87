"""The ε of a script: what its accountants state, and what its accounted steps compose to.

Steps on the same records compose, by all engines together; steps on disjoint records do not add
up. A history that was loaded from a checkpoint repeats steps, which are counted once.
"""

import collections
import functools
import math
from collections.abc import Sequence

from .. import accounting
from .protocol import Claim, History, Made, RunResult

TOLERANCE = 1e-3  # relative: bounds of accountants differ by less
_MOST_KINDS = 16  # kinds of steps that are composed one by one
_COMPOSED_HERE = "pld"  # name of the claim of a loop without Opacus
Counts = collections.Counter[tuple[float, float]]  # steps by noise multiplier and sampling rate


def events_of(result: RunResult) -> History:
    """Returns (σ, q, steps) of all accountants whose claim is the script's."""
    events: History = ()
    for claim in result.claims:
        events += claim.history
    return events


def only_target(made_private: Sequence[Made], result: RunResult) -> float | None:
    """Returns the target ε of a script that got no ε from an accountant; None without a target.

    Args:
        made_private: networks that were made private. The targets of several do not add up.
        result: result of the run.
    """
    if result.reported or len(made_private) != 1:
        return None
    return made_private[0].target_epsilon


def accounted_steps(result: RunResult) -> int:
    """Returns how many steps of this process the accountants counted: not those they loaded."""
    count = 0
    for claim in result.claims:
        count += _counts(claim.history).total() - _counts(claim.loaded).total()
    return count


def groups_of(claims: Sequence[Claim]) -> list[list[Claim]]:
    """Groups the claims with a history: those of a group are about the same records."""
    groups: dict[int, list[Claim]] = {}
    for claim in claims:
        if claim.history:
            groups.setdefault(claim.data, []).append(claim)
    return list(groups.values())


def steps_on_same_records(claims: Sequence[Claim]) -> History:
    """Returns the steps of claims on the same records, each step once.

    The loaded part of a history repeats steps of earlier engines of this process, which are counted
    with their engines, and steps of an earlier process. Several claims may load the same steps of
    an earlier process, so these are not added up: the largest count in any claim is taken.

    Args:
        claims: the claims, in the order in which their engines were made.
    """
    # Of counts, `|` takes the larger one of each kind, and `-` leaves out what is not positive.
    of_this_process = Counts()
    of_earlier_process = Counts()
    for claim in claims:
        loaded = _counts(claim.loaded)
        of_earlier_process |= loaded - of_this_process
        of_this_process += _counts(claim.history) - loaded
    total = of_this_process + of_earlier_process
    return tuple((noise, rate, steps) for (noise, rate), steps in sorted(total.items()))


def _counts(history: History) -> Counts:
    """Counts the steps of a history by noise and sampling rate; a rate above 1 counts as 1."""
    counts = Counts()
    for noise, rate, steps in history:
        counts[noise, min(rate, 1.0)] += int(steps)
    return counts


@functools.lru_cache(maxsize=64)
def composed_epsilon(history: History, delta: float) -> float:
    """Returns ε at δ of these steps by PLD; infinite if a step has no noise.

    Composing takes half a second for each kind of step. A history of more than _MOST_KINDS kinds is
    therefore bundled into fewer, and ε is then too small by some thousandths.
    """
    if len(history) > _MOST_KINDS and all(noise > 0 for noise, _, _ in history):
        history = _bundled(history)
    return accounting.events_epsilon(history, delta)


def _bundled(history: History) -> History:
    """Replaces neighbouring noise multipliers of one rate by one σ that has their mean of 1 / σ².

    Divergences of sampled steps are convex in 1 / σ², so a step with the mean has a smaller one.
    Steps with the least noise, which matter most, stay as they are.
    """
    by_noise = sorted(history)
    events = by_noise[: _MOST_KINDS // 2]
    by_rate: dict[float, list[tuple[float, int]]] = {}
    for noise, rate, steps in by_noise[_MOST_KINDS // 2 :]:
        by_rate.setdefault(rate, []).append((noise, steps))
    for rate, kinds in by_rate.items():
        # So many kinds to a bundle that all rates together have _MOST_KINDS / 2 bundles.
        size = math.ceil(2 * len(kinds) * len(by_rate) / _MOST_KINDS)
        for start in range(0, len(kinds), size):
            bundle = kinds[start : start + size]
            total = sum(steps for _, steps in bundle)
            precision = sum(steps / noise**2 for noise, steps in bundle) / total
            events.append((1 / math.sqrt(precision), rate, total))
    return tuple(events)


def composed(result: RunResult, delta: float) -> float:
    """Returns ε at δ of the records with the most steps; NaN if nothing was accounted."""
    steps_by_group = map(steps_on_same_records, groups_of(result.claims))
    epsilons = [composed_epsilon(steps, delta) for steps in steps_by_group]
    return max(epsilons, default=math.nan)


def stated(result: RunResult, delta: float) -> float:
    """Returns ε at δ as the script's accountants state it; NaN if nothing was accounted.

    If none of the accountants of the same records has all their steps, these are composed.
    """
    epsilons = []
    for claims in groups_of(result.claims):
        epsilon = _stated_by_one(claims, delta)
        if epsilon is None:
            epsilon = composed_epsilon(steps_on_same_records(claims), delta)
        epsilons.append(epsilon)
    return max(epsilons, default=math.nan)


def stated_curve(claims: Sequence[Claim]) -> list[tuple[float, float]]:
    """Returns (ε, δ) that the accountants' values imply for every record; ε may be infinite.

    Within a group of the same records ε and δ add up; of several groups the largest ε counts.
    """
    groups = groups_of(claims)
    if not groups:
        return []
    largest_group = max(map(len, groups))
    points = []
    for index, delta in enumerate(groups[0][0].deltas):  # all claims have the same δ
        sums = []
        for group in groups:
            sums.append(sum(_stated_at(claim, index) for claim in group))
        points.append((max(sums), min(1.0, largest_group * delta)))
    return points


def _stated_at(claim: Claim, index: int) -> float:
    """Returns ε of a claim at a δ by its index; infinite if its accountant states none.

    A loop without Opacus has no accountant in the script's environment: its steps are composed.
    """
    epsilon = claim.epsilons[index]
    if epsilon is None and claim.name == _COMPOSED_HERE:
        epsilon = composed_epsilon(claim.history, claim.deltas[index])
    return math.inf if epsilon is None else max(epsilon, 0.0)


def _stated_by_one(claims: Sequence[Claim], delta: float) -> float | None:
    """Returns ε at δ by the last accountant that has all steps of these claims.

    Args:
        claims: claims about the same records.
        delta: δ of the claim.

    Returns:
        The ε; None if no accountant has all the steps, or if that accountant states none.
    """
    all_steps = _counts(steps_on_same_records(claims))
    for claim in reversed(claims):
        if _counts(claim.history) == all_steps:
            return dict(zip(claim.deltas, claim.epsilons, strict=True)).get(delta)
    return None


def stated_by(result: RunResult, delta: float) -> str:
    """Returns in words who states the ε of `stated`, or from what it is composed."""
    names = "+".join(dict.fromkeys(claim.name for claim in result.claims)) or "none"
    if names == _COMPOSED_HERE:
        return "from the noise and rates that the script states"
    for claims in groups_of(result.claims):
        if _stated_by_one(claims, delta) is None:
            return (
                "from the steps of all engines" if len(claims) > 1 else "from the accounted steps"
            )
    return f"by the script's accountant ({names})"
