"""Noise and clipping: the distance that one example moves a release, in units of its noise."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import special

from ...errors import percent
from ..canary_trials import ALTERNATIVE
from ..claims import events_of
from ..preparation import Numbers
from ..protocol import (
    EMPTY,
    WILD,
    ArraysGiven,
    GhostInspection,
    Made,
    Shift,
    StepInspection,
    entries_of,
)
from ..script_findings import Finding, Judgement, finding
from .check import LEVEL_SHARE, Check, Inspection, at_entry, find_uneven, listed

# Probability of missing a shortfall that the verdict's sentence says would have been found.
_MISSED = 0.05
_SLACK = 1.01  # shortfalls of noise below a hundredth are not reported
_FULL_SHARE = 0.8  # share of the accounted squared distance that a tensor alone seems to use up
_FAR = 20.0  # times the accounted distance, beyond which there seems to be no clipping at all


@dataclass(frozen=True)
class _Distance:
    """Distance that one example moves a step's release, where 1 is what was accounted.

    Attributes:
        estimate: estimate of the distance; 0 if no example changed anything.
        detectable: share of the accounted noise. If the step had only this share, the shortfall
            would have been found with 95 % probability.
    """

    estimate: float
    detectable: float


class Noise(Check):
    """Replays steps with other noise and with changed examples."""

    name = "noise and clipping"
    question = "Is the noise of each step as large as accounted, relative to one record's change?"

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Compares noise and clipping of each replayed step with what was accounted."""
        if not inspection.replayed:
            return judgement.miss(_why_not_replayed(inspection))
        distances = _compare_steps(inspection, judgement)
        _judge_ghosts(inspection, judgement)
        diverged = [step for step in inspection.replayed if not _is_finite(step)]
        if diverged:
            judgement.find(
                "not finite",
                at_entry(diverged[0]),
                count=len(diverged),
                steps=len(inspection.replayed),
            )
        _summarise(inspection, judgement, distances)
        _judge_arrays(inspection, judgement)
        return judgement


def _compare_steps(inspection: Inspection, judgement: Judgement) -> dict[int, _Distance]:
    """Compares the noise of each replayed step with the claimed noise; adds findings.

    Only the first finding of each kind is added.

    Returns:
        Distances by the index of the step. Steps that diverged, or have no noise, have none.
    """
    accounted = {(item.optimizer, item.step): item.noise for item in inspection.result.accounted}
    usual_noise = _usual_noise(inspection)
    steps = inspection.replayed
    distances = {}
    is_bounded = _arrays(inspection)["bounded"] > 0
    may_be_longer = False  # whether only a longer record moves a step too far
    for index, step in enumerate(steps):
        # The noise multiplier that the step states, else its accountant's, else the usual one.
        noise = step.noise or accounted.get((step.optimizer, step.step), usual_noise)
        share = LEVEL_SHARE / len(steps)
        distance, shortfall = _compare(step, noise, share)
        # Rows seem to be bounded before the step, so a record may never be as long as a WILD one.
        if shortfall is not None and is_bounded:
            possible = tuple(shift for shift in step.shifts if not shift.change.startswith(WILD))
            distance, shortfall = _compare(replace(step, shifts=possible), noise, share)
            may_be_longer |= shortfall is None
        if distance is not None and math.isfinite(distance.estimate):
            distances[index] = distance
        reported = {item.look for item in judgement.findings}
        if shortfall is not None and shortfall.look not in reported:
            judgement.findings.append(shortfall)
    if may_be_longer:
        judgement.miss(
            "the marked function does not clip, and records seem to be shortened or cut before; "
            "do so inside it",
            name="clipping",
        )
    return distances


def _summarise(
    inspection: Inspection,
    judgement: Judgement,
    distances: dict[int, _Distance],
) -> None:
    """Adds the outcome: the median ratio, and the smallest shortfall that would have been found.

    Args:
        inspection: inspection of the script.
        judgement: takes the outcome, and whether the inspection is `enough` without step trials.
        distances: distance of each replayed step, by its index.
    """
    steps = inspection.replayed
    summary = f"{len(steps)} of {inspection.taken} steps replayed"
    changed = {index: distance for index, distance in distances.items() if distance.estimate > 0}
    if changed:
        ratios = [1 / distance.estimate for distance in changed.values()]
        median = float(np.median(ratios))
        summary += f"; noise-to-sensitivity ratio {median:.3f} of the accounted one (median)"
        step_numbers = [steps[index].step + 1 for index in changed]
        judgement.ratios = tuple(zip(step_numbers, ratios, strict=True))
        detectable = [distance.detectable for distance in changed.values()]
        # A shortfall in all steps is found in the most sensitive step. A shortfall in a single step
        # may be in the least sensitive one.
        in_all = math.ceil(100 * (1 - max(detectable)))
        in_one = math.ceil(100 * (1 - min(detectable)))
        is_whole = len(steps) >= inspection.taken and not inspection.cut
        which = "all" if is_whole else f"{len(steps)} inspected of {inspection.taken}"
        judgement.sentence = (
            f"noise {in_all} % too small in {which} steps, or {in_one} % too small in one of "
            "them, would have been found with 95 % probability"
        )
        is_sensitive = max(detectable) >= ALTERNATIVE
        # Trials would find no more if each step of the script was compared, and was sensitive.
        judgement.enough = is_whole and len(distances) == len(steps) and is_sensitive
    judgement.observe(summary)


def _judge_arrays(inspection: Inspection, judgement: Judgement) -> None:
    """Judges what limits the checks of a custom loop, such as noise that was passed as arrays."""
    arrays = _arrays(inspection)
    if arrays["again"]:  # the noise of these steps follows from generators, which are the same
        judgement.find("no noise", f"{arrays['again']} steps with earlier random numbers")
    if arrays["sum"]:
        judgement.miss(
            "sums were passed as arrays; pass audited_step a clipping function, and per_example",
            name="clipping",
        )
    if arrays["noise"]:
        judgement.miss(
            f"at {arrays['noise']} steps, noise was passed as arrays; "
            "pass a function that draws it",
            name="noise given",
        )
    if arrays["numbers"] >= inspection.taken > 0:  # a few steps may have no number twice by chance
        judgement.miss(
            "records are numbers of rows, and another row may change with one; "
            "pass the rows themselves, in records=",
            name="records by number",
        )
    if any(step.has_gaps for step in inspection.replayed):
        judgement.miss(
            "parts of a release are zero in some draws; remove them after the call",
            name="zeros",
        )


def _usual_noise(inspection: Inspection) -> float | None:
    """Returns the multiplier of steps whose own is not recorded; None if it is unknown."""
    multipliers = {noise for noise, _, _ in events_of(inspection.result)}
    if len(multipliers) == 1:
        return multipliers.pop()
    made = entries_of(inspection.record, Made)
    return made[0].noise if made else None


def _why_not_replayed(inspection: Inspection) -> str:
    """Returns why no step could be replayed, and what to do."""
    if entries_of(inspection.record, StepInspection):
        why = "a step repeated with the same generators gave a different result"
        if not inspection.uses_opacus:
            why += "; name the argument with its random numbers by key= and reseed="
        return why
    arrays = _arrays(inspection)
    if arrays["draws"]:
        return (
            "leaving out a record changes all later random numbers, including the noise; draw the "
            "numbers of records before the call, and pass them in records="
        )
    if arrays["noise"]:
        return (
            "the noise cannot be drawn again: pass audited_step a function that draws it, or "
            "name its random key with key= of audited_release"
        )
    return "no step of a private optimizer was observed"


def _arrays(inspection: Inspection) -> Counter[str]:
    """Counts entries of `ArraysGiven` by their kind."""
    return Counter(entry.kind for entry in entries_of(inspection.record, ArraysGiven))


def _judge_ghosts(inspection: Inspection, judgement: Judgement) -> None:
    """Judges ghost clipping, and steps whose gradients are not of one record and one pass each."""
    ghosts = entries_of(inspection.record, GhostInspection)
    longer = [ghost for ghost in ghosts if ghost.longest > ghost.bound * _SLACK]
    for ghost in longer[:1]:
        judgement.find(
            "ghost",
            at_entry(ghost),
            change=ghost.change,
            bound=ghost.bound,
            longest=ghost.longest,
        )
    steps = [step for step in entries_of(inspection.record, StepInspection) if step.ghost]
    if steps and not inspection.result.has_norms:
        judgement.find("no ghost", at_entry(steps[0]))
    elif steps and not ghosts:
        judgement.miss("ghost clipping: its backward pass was not observed", name="clipping")
    uneven = inspection.result.uneven
    find_uneven(judgement, "passes", [step for step in uneven if step.passes > 1])
    find_uneven(judgement, "micro-batches", [step for step in uneven if step.records_each > 1])


def _is_finite(step: StepInspection) -> bool:
    """Returns whether a step's release has finite numbers only."""
    return all(math.isfinite(norm) for norm in step.norms)


def _compare(
    step: StepInspection, noise: float | None, share: float
) -> tuple[_Distance | None, Finding | None]:
    """Compares the distance that one example moves a step with what was accounted.

    Args:
        step: an inspected step.
        noise: noise multiplier that the step was accounted with; None if it is unknown.
        share: probability of a false alarm, for all tensors of the step together.

    Returns:
        The distance, None if it is unknown; and a finding if the distance is longer than it may be.
    """
    where = at_entry(step)
    squares = np.array(step.squares)  # distances of the noise's draws from their mean, by tensor
    if not _is_finite(step):
        return None, None
    if not squares[: len(step.names)].any():
        # A release of zeros needs no noise.
        return None, finding("no noise", where) if any(step.norms) else None
    changes = [shift.squares for shift in step.shifts]
    shifted = np.array(changes or [(0.0,) * len(squares)])  # [changes, tensors]
    is_noisy = squares > 0
    names = [*step.names, "the clipping bound"]
    # Tensors that a change moves, though they have no noise.
    bare = listed(names[i] for i in np.flatnonzero(shifted.any(axis=0) & ~is_noisy))
    if step.without_noise and not bare:
        bare = "parts of " + listed(names[i] for i in step.without_noise)
    if bare:
        return None, finding("bare", where, bare=bare)
    if noise is None or step.has_gaps:
        return None, None
    # One record may move the release by the noise's standard deviation over σ: with the factor σ²,
    # the squared distance is at most the noise's variance.
    shifted = noise**2 * shifted[:, is_noisy]
    squares = squares[is_noisy]
    degrees_of_freedom = max(1, step.draws - 1) * np.array(step.sizes)[is_noisy]
    # Upper bounds on the variances of the noise, by the chi-squared law of `squares`. A distance in
    # units of such a bound is a lower bound on the true one.
    half_quantiles = special.gammaincinv(degrees_of_freedom / 2, share / len(step.sizes))
    variances = squares / (2 * half_quantiles)
    by_tensor = shifted / variances  # [changes, noisy tensors]
    worst = int(by_tensor.sum(axis=1).argmax())  # the change that moves the release furthest
    estimate = math.sqrt(np.sum(shifted[worst] * degrees_of_freedom / squares))
    # If the variances are as observed, other draws have squares below these quantiles, times the
    # variance, with 95 % probability.
    quantiles = 2 * special.gammaincinv(degrees_of_freedom / 2, 1 - _MISSED / len(squares))
    # The distance that these draws would show at least.
    least = math.sqrt(np.sum(by_tensor[worst] * degrees_of_freedom / quantiles))
    distance = _Distance(estimate, detectable=least / _SLACK / max(1.0, estimate))
    if math.sqrt(by_tensor[worst].sum()) <= _SLACK:
        return distance, None
    empty = by_tensor[[shift.change == EMPTY for shift in step.shifts]].sum(axis=0)
    return distance, _shortfall(step, noise, step.shifts[worst], by_tensor[worst], empty)


def _shortfall(
    step: StepInspection, noise: float, shift: Shift, by_tensor: Numbers, empty: Numbers
) -> Finding:
    """Returns the finding for a change that moves a release further than accounted.

    Args:
        step: the inspected step.
        noise: noise multiplier that the step was accounted with.
        shift: distance that the change moves the release.
        by_tensor: squared distance that the change moves each tensor with noise. A sum of 1 is what
            was accounted.
        empty: the same for a record without a gradient, which should move nothing.
    """
    where = at_entry(step)
    total = float(by_tensor.sum())
    ratio = math.sqrt(total)
    counted = 0.0  # squared distance of the count that sets the clipping bound
    if step.counts and step.squares[-1] > 0:
        counted = float(max(by_tensor[-1], empty[-1]))
    values: dict[str, Any] = {"effective": noise / ratio, "noise": noise}
    # The count is to blame if it is a large part, or if there is no shortfall without it.
    if counted > total / 4 or total - counted <= _SLACK**2:
        by_count = percent(round(min(1.0, counted / total), 2))
        return finding("counted", where, share=by_count, **values)
    if empty.sum() > total / 4:
        return finding("scale", where, **values)
    change = shift.change
    if ratio > _FAR:
        return finding("unclipped", where, change=change, ratio=ratio, noise=noise)
    length = math.sqrt(sum(shift.squares[: len(step.names)]))
    full_tensors = np.count_nonzero(by_tensor > _FULL_SHARE)
    if step.bound and length > _SLACK * step.bound:
        change += f", which changes the sum by {length / step.bound:.3g} clipping bounds"
    elif full_tensors > 1:
        # Each tensor seems to be clipped on its own.
        change += (
            f", which changes each of {full_tensors} tensors as far as all together may change"
        )
    return finding("short noise", where, change=change, **values)
