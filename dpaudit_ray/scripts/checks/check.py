"""The interface of checks, and the observations of a script that they are given."""

import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..claims import accounted_steps, events_of
from ..preparation import PreparationRuns
from ..protocol import (
    CarriedSum,
    Cut,
    GhostInspection,
    PinnedStep,
    Prepared,
    Record,
    RunResult,
    StepInspection,
    UnevenStep,
    entries_of,
)
from ..script_findings import ALPHA, Judgement

_TESTS = 5  # noise, correlation, law, rate of sampling, spread of sampling
LEVEL_SHARE = ALPHA[0] / _TESTS  # probability of a false alarm of each test


@dataclass(frozen=True, kw_only=True)
class PinnedRun:
    """A run with pinned releases: random numbers took the place of what its steps released.

    Attributes:
        result: result of the run.
        steps: the run's steps; each states whether it has the record that the run is about.
        record: that record in words, such as "record 7 (the longest record)".
        cut: why the run ended early, or "".
        prepared: the records before training, if the run followed them.
    """

    result: RunResult
    steps: tuple[PinnedStep, ...]
    record: str = "one record"
    cut: str = ""
    prepared: Prepared | None = None

    @classmethod
    def from_record(cls, result: RunResult, record: Record) -> "PinnedRun":
        """Returns a run by its result and record; the result states which record was chosen."""
        name = f"record {result.chosen}"
        if result.chosen_as:
            name += f" ({result.chosen_as})"
        steps = tuple(entries_of(record, PinnedStep))
        prepared = next(iter(entries_of(record, Prepared)), None)
        return cls(result=result, steps=steps, record=name, cut=why_cut(record), prepared=prepared)


@dataclass(frozen=True, kw_only=True)
class PinnedRuns:
    """Runs with the same random numbers in place of releases.

    Attributes:
        unchanged: nothing else is changed.
        exchanged: another record is in place of one. If `varied` or `halved` is the first run that
            differs from the unchanged one, that run is here too.
        other_noise: run with other noise in steps that have the record.
        other_randomness: run with other random numbers outside of steps; None if it was not needed.
        varied: run with a record of each batch exchanged or left out; None without Opacus.
        halved: one record is in place of every other record; None if it was not needed.
        missing: why a run that was needed is missing; "" if all are there.
    """

    unchanged: PinnedRun | None = None
    exchanged: PinnedRun | None = None
    other_noise: PinnedRun | None = None
    other_randomness: PinnedRun | None = None
    varied: PinnedRun | None = None
    halved: PinnedRun | None = None
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Observations of a script, from which checks judge it.

    Attributes:
        record: entries of the inspected run.
        result: result of the inspected run.
        delta: δ of the claim.
        promised: ε that `@audited` or the caller states; None if neither does.
        pinned: runs with pinned releases; None before they ran, or if releases cannot be pinned.
        preparation: result of runs that end before training; None if no array is followed.
        reseeded: result of a run with another seed; None if there was no such run.
        larger: entries of a run with an additional record; None if the number of records is no
            secret.
    """

    record: Record
    result: RunResult
    delta: float
    promised: float | None = None
    pinned: PinnedRuns | None = None
    preparation: PreparationRuns | None = None
    reseeded: RunResult | None = None
    larger: Record | None = None

    @property
    def taken(self) -> int:
        """Number of releases, which is the number of steps taken."""
        return sum(self.result.steps)

    @property
    def cut(self) -> str:
        """Why the run shows fewer steps than the script takes; "" if it ended normally."""
        return why_cut(self.record)

    @property
    def replayed(self) -> list[StepInspection]:
        """Inspected steps whose replay gave the same release."""
        return [step for step in entries_of(self.record, StepInspection) if step.replays]

    @property
    def counted(self) -> int:
        """Number of steps of this run that accountants counted."""
        return accounted_steps(self.result)

    @property
    def is_unsampled(self) -> bool:
        """Whether each step was accounted as one that has all records."""
        rates = {min(rate, 1.0) for _, rate, _ in events_of(self.result)}
        return rates == {1.0}

    @property
    def uses_opacus(self) -> bool:
        """Whether the script calls `make_private`."""
        return self.result.made > 0


class Check(abc.ABC):
    """A question about a script.

    Attributes:
        name: name of the check in reports.
        question: the question, in the table of the documentation.
        inapplicable: why the check does not apply to some scripts.
    """

    name: ClassVar[str]
    question: ClassVar[str]
    inapplicable: ClassVar[str] = ""

    def applies(self, inspection: Inspection) -> bool:
        """Returns whether the question makes sense for this script."""
        return True

    def judge(self, inspection: Inspection) -> Judgement:
        """Returns findings, and an outcome for each part that was done or not."""
        return self.examine(inspection, Judgement(check=self.name))

    @abc.abstractmethod
    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds findings and outcomes to a judgement, and returns the judgement."""


def why_cut(record: Record) -> str:
    """Returns why a run ended early, or ""."""
    for entry in entries_of(record, Cut):
        return f"the budget ended the run after step {entry.steps}; give a longer --budget"
    return ""


def with_line(where: str, line: str) -> str:
    """Adds a line of the script, "" if it is unknown, to the description of a place."""
    return f"{where} ({line})" if line else where


def at_step(step: int, line: str = "") -> str:
    """Returns the place of a step, counted from 0, with the script's line, "" if it is unknown."""
    return with_line(f"step {step + 1}", line)


def at_entry(entry: CarriedSum | GhostInspection | StepInspection) -> str:
    """Returns the place of the step that an entry of a record is about."""
    return at_step(entry.step, entry.line)


def find_uneven(
    judgement: Judgement,
    kind: str,
    steps: Sequence[UnevenStep],
) -> None:
    """Adds a finding at the first of some steps, if there are any.

    Args:
        judgement: takes the finding.
        kind: kind of the finding, a key of `KINDS`.
        steps: steps with another number of gradients than records.
    """
    for step in steps[:1]:
        judgement.find(
            kind,
            at_step(step.step),
            used=step.rows,
            drawn=step.drawn,
            passes=step.passes,
            records=step.records_each,
            count=len(steps),
        )


def listed(names: Iterable[str]) -> str:
    """Joins the first four names with commas, and leaves out the others."""
    return ", ".join(list(names)[:4])
