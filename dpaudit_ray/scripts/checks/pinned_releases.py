"""Runs with pinned releases: what another record changes in such a run bypasses the noise."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

from ..protocol import PinnedStep
from ..script_findings import Judgement
from .check import Check, Inspection, PinnedRun, PinnedRuns, at_step, listed

_CHANGED = 1e-3  # relative: arithmetic in another order changes a gradient's length by less
_ROUNDINGS = 4  # by which equal gradients may differ if the batch has another size
_FINE = 1e-6  # relative distance of neighbouring numbers, which those of 32 bits fall below
_ROUNDED = 30.0  # times the change by rounding: a smaller change is not the record's
_BEYOND_ROUNDING = 1000.0  # times the change by rounding: a larger change is certainly noise
# Kinds of findings, by the kind of a difference in steps.
_FINDINGS = {"row": "moves others", "release": "goes on", "update": "comes between"}
_SMALLEST = 1e-6  # share of the longest gradient: shorter ones are compared with this length


@dataclasses.dataclass(frozen=True, order=True)
class Difference:
    """Difference of two runs with pinned releases.

    Attributes:
        kind: "release" of a step without the exchanged record; "row", the length of a gradient in
            a step that has it; "update", gradients that reached an optimizer; "published".
        step: number of the step, from 0.
        row: number of the gradient.
        name: name of what is published.
    """

    kind: Literal["release", "row", "update", "published"]
    step: int = 0
    row: int = 0
    name: str = ""


def differences(unchanged: PinnedRun, other: PinnedRun | None) -> set[Difference]:
    """Returns all differences of two runs, as far as both ran.

    Args:
        unchanged: the run with pinned releases and no other change.
        other: a run with the same pinned releases and one more change; None gives no differences.
    """
    if other is None:
        return set()
    different = set()
    for number, (a, b) in enumerate(zip(unchanged.steps, other.steps, strict=False)):
        # A step that has the exchanged record may release something else, which its noise hides.
        if not b.member and a.release != b.release:
            different.add(Difference("release", number))
        if a.update != b.update:
            different.add(Difference("update", number))
        if a.bound != b.bound:
            different.add(Difference("published", name="what sets the clipping bound"))
        different.update(Difference("row", number, row) for row in _changed_rows(a, b))
    if len(unchanged.steps) != len(other.steps) and not (unchanged.cut or other.cut):
        different.add(Difference("published", name="what ends training"))
    # A run that ended early has published only the first of the values that the other published.
    texts = zip(unchanged.result.published, other.result.published, strict=False)
    for (name, text), (other_name, other_text) in texts:
        if name == other_name and text != other_text:
            different.add(Difference("published", name=name))
    return different


def _changed_rows(a: PinnedStep, b: PinnedStep) -> Iterator[int]:
    """Yields the numbers of gradients that changed in length in a step with the record.

    The record's own gradient may change. Nothing is yielded unless another gradient did.

    Args:
        a: the step of the unchanged run.
        b: the step of the run with another record.
    """
    x = np.nan_to_num(a.rows)
    y = np.nan_to_num(b.rows)
    permitted = 1  # gradients that may change
    if b.missing is not None and len(y) == len(x) - 1 == b.drawn - 1:  # left out of the batch
        x = np.delete(x, b.missing)
        permitted = 0
    is_comparable = b.member and a.state == b.state
    if len(x) == 0 or len(x) != len(y) or not is_comparable:
        return
    least = _SMALLEST * x.max()
    tolerance = max(_CHANGED, _ROUNDINGS * a.rounding)
    longer = np.maximum(x, y).clip(least)
    changed = np.flatnonzero(np.abs(x - y) > tolerance * longer)
    if len(changed) > permitted:
        yield from map(int, changed)


def acquits(inspection: Inspection) -> bool:
    """Returns whether pinned runs show that all that is published depends on releases alone.

    In such a run a record of each batch was exchanged or left out, or every other record was
    replaced. So a value that depends on records in another way would differ.
    """
    pinned = inspection.pinned or PinnedRuns()
    unchanged = pinned.unchanged
    other = pinned.varied or pinned.halved
    if unchanged is None or other is None:
        return False
    is_whole = not (unchanged.cut or other.cut) and len(unchanged.steps) == len(other.steps)
    return is_whole and unchanged.result.published == other.result.published


class PinnedReleases(Check):
    """Compares a run with pinned releases with such a run in which a record is exchanged."""

    name = "pinned releases"
    question = "If constants replace the releases, does another record still change anything?"
    inapplicable = "this script's releases cannot be pinned"

    def applies(self, inspection: Inspection) -> bool:
        return inspection.pinned is not None

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds findings for values that depend on a record in another way than by noisy steps.

        A value has bypassed the noise if it changes with the record, but not with other noise in
        the steps of the record. If it changes with random numbers outside of steps as well, these
        may hide the record: then it is doubtful whether the value bypassed noise, and there is no
        finding.
        """
        pinned = inspection.pinned or PinnedRuns()
        unchanged = pinned.unchanged
        exchanged = pinned.exchanged
        if unchanged is None or exchanged is None:
            return judgement.miss(pinned.missing)
        bypassing = differences(unchanged, exchanged) - differences(unchanged, pinned.other_noise)
        doubtful = bypassing & differences(unchanged, pinned.other_randomness)
        certain = sorted(bypassing - doubtful)
        _report_steps(exchanged, certain, judgement)
        by_noise = _largest_change(unchanged, pinned.other_noise)
        by_record = _largest_change(unchanged, exchanged)
        # Later steps changed with the noise of earlier ones, and not with their record. A value
        # that is computed from an earlier release would change with its record as well.
        if by_noise > _BEYOND_ROUNDING and by_record < _ROUNDED:
            judgement.find("noise again", "later steps")
        names = [item.name for item in certain if item.kind == "published"]
        decisions = [name for name in names if name.startswith("what ")]  # "what was printed"
        values = [name for name in names if name not in decisions]
        for kind, changed in (("decided", decisions), ("let out", values)):
            if changed:
                judgement.find(
                    kind,
                    "values that are chosen, returned or saved",
                    names=listed(changed),
                )
        if pinned.missing:
            return judgement.miss(pinned.missing)
        if unchanged.cut or exchanged.cut:
            steps = min(len(unchanged.steps), len(exchanged.steps))
            why = f"returned values were not compared, only {steps} steps"
            return judgement.miss(f"{why}; give a longer --budget for whole runs")
        perhaps_hidden = {item.name or "later steps" for item in doubtful if item.kind != "row"}
        if perhaps_hidden:
            why = (
                f"whether noise outside of steps hides a record in {listed(sorted(perhaps_hidden))}"
            )
            return judgement.miss(why)
        summary = f"{len(unchanged.steps)} steps, repeated with another record in place of "
        summary += exchanged.record.removesuffix(",")
        if pinned.varied is not None:
            summary += ", and with one of each batch exchanged or left out"
        if pinned.halved is not None:
            summary += ", and with one record in place of every second one"
        return judgement.observe(summary)


def _largest_change(unchanged: PinnedRun, other: PinnedRun | None) -> float:
    """Returns the largest change in length of a release without the record.

    Its unit is the change that rounding makes. A step counts only if its numbers have 32 bits or
    more, and if both runs took it with the same parameters, clipping bound and random numbers.
    """
    largest = 0.0
    steps = other.steps if other else []
    for a, b in zip(unchanged.steps, steps, strict=False):
        if a.state == b.state and not b.member and a.length > 0 and a.rounding < _FINE:
            # Rounding is random, so that most of it cancels out in the length.
            by_rounding = a.length * a.rounding / math.sqrt(a.numbers)
            largest = max(largest, abs(b.length - a.length) / by_rounding)
    return largest


def _report_steps(
    run: PinnedRun,
    certain: list[Difference],
    judgement: Judgement,
) -> None:
    """Adds a finding for each kind of difference in steps, at its first step.

    Args:
        run: the run with another record, in which the differences show.
        certain: differences that only the record explains, in their order.
        judgement: takes the findings.
    """
    steps = run.steps
    members = [number for number, step in enumerate(steps) if step.member] or [0]
    for kind, finding in _FINDINGS.items():
        items = [item for item in certain if item.kind == kind]
        if not items:
            continue
        number = items[0].step
        first_step = steps[number]
        if kind == "row":
            items = [item for item in items if item.step == number]
        judgement.find(
            finding,
            at_step(number, first_step.line),
            change=first_step.change or f"another record in place of {run.record}",
            count=len(items),
            rows=len(first_step.rows),
            drawn=first_step.drawn,
            first=members[0] + 1,
            others=len(steps) - len(members),
            steps=len(steps),
        )
