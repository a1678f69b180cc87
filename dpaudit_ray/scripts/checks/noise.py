"""Noise and clipping: the distance that one example moves a release, in units of its noise."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from ...errors import percent
from ..canary_trials import ALTERNATIVE
from ..claims import events_of
from ..protocol import ArraysGiven, GhostInspection, Made, Shift, StepInspection, entries_of
from ..script_findings import Finding, Judgement, finding
from .check import SHARE, Check, Inspection, at_step, find_uneven, listed

_MISSED = 0.05  # probability that a shortfall is not found which the sentence states as found
_SLACK = 1.01  # shortfalls of noise below a hundredth are not reported
_FULL_SHARE = 0.8  # of the squared distance that is promised, for one tensor alone
_FAR = 20.0  # times the promised distance: there is no clipping at all
_EMPTY = "a record without a gradient"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Distance:
    """Distance that one example moves a step, in units of what was accounted.

    Attributes:
        estimate: of the distance; 0 if no example changed anything.
        detectable: share of the noise; less would have been found with 95 % probability.
    """

    estimate: float
    detectable: float


@dataclass(frozen=True)
class _Change:
    """Squared distance of one change: from above, estimated and from below, and its parts.

    Attributes:
        length: distance of the tensors in the release's own unit, without a count.
        count: squared distance of the count in units of its noise.
        full: tensors that each move as far as all together may.
    """

    text: str = ""
    upper: float = 0.0
    estimate: float = 0.0
    detectable: float = 0.0
    length: float = 0.0
    count: float = 0.0
    full: int = 0


class Noise(Check):
    """Replays steps with other noise and with changed examples."""

    name = "noise and clipping"
    question = "Is the noise of each step as large as accounted, relative to one record's change?"

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        record = inspection.record
        steps = [step for step in entries_of(record, StepInspection) if step.replays]
        if not steps:
            return judgement.miss(_why_not_replayed(inspection))
        accounted = {
            (item.optimizer, item.step): item.noise for item in inspection.result.accounted
        }
        usual_noise = _usual_noise(inspection)
        distances: list[_Distance] = []
        for step in steps:
            noise = step.noise or accounted.get((step.optimizer, step.step), usual_noise)
            distance, shortfall = _compare(step, noise, SHARE / len(steps))
            if distance is not None:
                distances.append(distance)
            checks = {item.look for item in judgement.findings}
            if shortfall is not None and shortfall.look not in checks:
                judgement.findings.append(shortfall)  # the other steps would repeat it
        _judge_ghosts(inspection, judgement)
        diverged = [step for step in steps if not _is_finite(step)]
        if diverged:
            where = at_step(diverged[0].step, diverged[0].line)
            judgement.find("not finite", where, count=len(diverged), steps=len(steps))
        self._summarise(inspection, judgement, steps, distances)
        _name_arrays(inspection, judgement)
        return judgement

    def _summarise(
        self,
        inspection: Inspection,
        judgement: Judgement,
        steps: list[StepInspection],
        distances: list[_Distance],
    ) -> None:
        """States the median ratio, and the smallest shortfall that would have been found."""
        summary = f"{len(steps)} of {inspection.taken} steps replayed"
        changed = [distance for distance in distances if distance.estimate > 0]
        if changed:
            ratio = 1 / float(np.median([distance.estimate for distance in changed]))
            summary += f"; noise-to-sensitivity ratio {ratio:.3f} of the accounted one (median)"
            powers = [distance.detectable for distance in changed]
            in_all = math.ceil(100 * (1 - max(powers)))
            in_one = math.ceil(100 * (1 - min(powers)))
            is_whole = len(steps) >= inspection.taken and not inspection.cut
            which = "all" if is_whole else f"{len(steps)} inspected of {inspection.taken}"
            judgement.sentence = (
                f"noise {in_all} % too small in {which} steps, or {in_one} % too small in one of "
                "them, would have been found with 95 % probability"
            )
            is_sensitive = max(powers) >= ALTERNATIVE
            judgement.enough = is_whole and len(distances) == len(steps) and is_sensitive
        judgement.observe(summary)


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
        why = "a step repeated with the same generators gave another result"
        if not inspection.uses_opacus:
            why += "; name the argument with its random numbers by key= and reseed="
        return why
    if _given(inspection, "noise"):
        return (
            "noise that cannot be drawn again: pass audited_step a function that draws it, or "
            "name the argument of audited_release that it depends on by key="
        )
    return "no step of a private optimizer was observed"


def _given(inspection: Inspection, kind: str) -> list[ArraysGiven]:
    return [entry for entry in entries_of(inspection.record, ArraysGiven) if entry.kind == kind]


def _name_arrays(inspection: Inspection, judgement: Judgement) -> None:
    """Names parts of steps that were passed as arrays, and so cannot be computed again."""
    if _given(inspection, "sum"):
        why = "sums were given as arrays; pass audited_step what clips and sums, and per_example"
        judgement.miss(why, name="clipping")
    if arrays := _given(inspection, "noise"):
        why = f"at {len(arrays)} steps noise was given as arrays; pass a function that draws it"
        judgement.miss(why, name="noise given")


def _judge_ghosts(inspection: Inspection, judgement: Judgement) -> None:
    """Judges backward passes of ghost clipping, and steps whose gradients came in two passes."""
    ghosts = entries_of(inspection.record, GhostInspection)
    longer = [ghost for ghost in ghosts if ghost.longest > ghost.bound * _SLACK]
    for ghost in longer[:1]:
        where = at_step(ghost.step, ghost.line)
        values: dict[str, Any] = {"bound": ghost.bound, "longest": ghost.longest}
        judgement.find("ghost", where, change=ghost.change, **values)
    steps = entries_of(inspection.record, StepInspection)
    if not ghosts and any(step.ghost for step in steps):
        judgement.miss("ghost clipping: its backward pass was not observed", name="clipping")
    uneven = inspection.result.uneven
    find_uneven(judgement, "passes", [step for step in uneven if step.passes > 1])
    find_uneven(judgement, "micro-batches", [step for step in uneven if step.records_each > 1])


def _is_finite(step: StepInspection) -> bool:
    return all(math.isfinite(norm) for norm in step.norms)


def _compare(
    step: StepInspection, noise: float | None, share: float
) -> tuple[_Distance | None, Finding | None]:
    """Compares the distance that one example moves a step with what was accounted.

    Args:
        step: an inspected step.
        noise: multiplier that it was accounted with; None if it is unknown.
        share: probability of a false alarm, for all of its tensors.

    Returns:
        The distance, None if it is unknown; and a finding if it is longer than it may be.
    """
    where = at_step(step.step, step.line)
    squares = np.array(step.squares)
    if not _is_finite(step):
        return None, None
    if not squares[: len(step.names)].any():
        return None, finding("no noise", where) if any(step.norms) else None
    variances = _Variances(step, squares, share)
    unprotected = variances.without_noise()
    if unprotected:
        return None, finding("bare", where, bare=unprotected)
    if noise is None:
        return None, None
    changes = [variances.change(shift, noise) for shift in step.shifts]
    empty = variances.change(Shift(_EMPTY, step.empty or (0.0,) * len(squares)), noise)
    worst = max([_Change(), *changes, empty], key=lambda change: change.upper)
    ratio = math.sqrt(worst.upper) * noise
    estimate = math.sqrt(worst.estimate) * noise
    detectable = math.sqrt(worst.detectable) * noise / _SLACK / max(1.0, estimate)
    distance = _Distance(estimate, detectable)
    if ratio <= _SLACK:
        return distance, None
    return distance, _shortfall(step, noise, worst, empty)


class _Variances:
    """Bounds on the variance of each tensor's noise, from its draws."""

    def __init__(self, step: StepInspection, squares: Floats, share: float) -> None:
        self._step = step
        sizes = np.array(step.sizes)
        level = share / max(1, len(sizes))
        freedom = np.maximum(1, step.draws - 1) * sizes
        self.spread = squares / freedom
        # Upper bounds: with them the distance is at most what it is.
        self.upper = squares / (2 * special.gammaincinv(freedom / 2, level))
        # If the variance is as observed, its upper bound is below this with 95 % probability.
        missed = _MISSED / max(1, int(np.count_nonzero(self.spread)))
        quantile = 2 * special.gammaincinv(freedom / 2, 1 - missed)
        self.detectable = self.upper * quantile / freedom

    def without_noise(self) -> str:
        """Names tensors that a record changes and no draw does; "" if there are none."""
        step = self._step
        names = [*step.names, "the clipping bound"]
        for shift in (*step.shifts, Shift(_EMPTY, step.empty)):
            squares = np.array(shift.squares or (0.0,) * len(self.spread))
            silent = np.flatnonzero((self.spread == 0) & (squares > 0))
            if len(silent):
                return listed(names[index] for index in silent)
        if step.without_noise:
            return "parts of " + listed(names[index] for index in step.without_noise)
        return ""

    def change(self, shift: Shift, noise: float) -> _Change:
        """Returns the distance of a change in units of the noise."""
        squares = np.array(shift.squares)
        noisy = self.spread > 0
        by_tensor = squares[noisy] / self.upper[noisy]
        count = 0.0
        if self._step.counts and noisy[-1]:
            count = float(squares[-1] / self.upper[-1])
        return _Change(
            text=shift.change,
            upper=float(np.sum(by_tensor)),
            estimate=float(np.sum(squares[noisy] / self.spread[noisy])),
            detectable=float(np.sum(squares[noisy] / self.detectable[noisy])),
            length=math.sqrt(float(np.sum(squares[: len(self._step.names)]))),
            count=count,
            full=int(np.count_nonzero(by_tensor * noise**2 > _FULL_SHARE)),
        )


def _shortfall(step: StepInspection, noise: float, worst: _Change, empty: _Change) -> Finding:
    """Returns the finding for a change that moves a release further than accounted."""
    where = at_step(step.step, step.line)
    ratio = math.sqrt(worst.upper) * noise
    values: dict[str, Any] = {"effective": noise / max(ratio, 1e-300), "noise": noise}
    counted = max(worst.count, empty.count)
    without_count = math.sqrt(max(0.0, worst.upper - counted)) * noise
    if counted > worst.upper / 4 or without_count <= _SLACK:
        by_count = percent(round(min(1.0, counted / worst.upper), 2))
        return finding("counted", where, share=by_count, **values)
    if empty.upper > worst.upper / 4:
        return finding("scale", where, **values)
    if ratio > _FAR:
        return finding("unclipped", where, change=worst.text, ratio=ratio, noise=noise)
    change = worst.text
    if step.bound and worst.length > _SLACK * step.bound:
        change += f", which changes the sum by {worst.length / step.bound:.3g} clipping bounds"
    elif worst.full > 1:
        change += f", which changes {worst.full} tensors each as far as all together may change"
    return finding("short noise", where, change=change, **values)
