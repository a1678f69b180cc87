"""Reads and writes `outcomes.json`: trials without a score, and audits that needed fewer trials.

The file has packs that were given up and parts of preparations that failed; trials that were missed
one by one while others of their pack were scored; and audits that `stop_when` has ended. The last
two follow from scores, and are written so that a reader of the run need not read all of these.

Trials of a pack that was given up are misses. Of a part that failed no trial was run, and no secret
bit is known where it is prepared: its audits are not started. `--retry-failed` tries both again.
"""

import collections
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter

from ..errors import RunDirectoryError, and_more, lines, printable
from ..storage import strangers
from ..storage.run_directory import OUTCOMES, RunDirectory
from ..storage.scores import PackScores
from ..sweep.spec import Sweep
from . import preparing
from .finished_trials import FinishedTrials, remaining
from .model import Pack, Part, Plan

FILE = OUTCOMES
LONGEST = 400  # characters of a missed trial's message
MOST_OUTPUTS = 100  # files of an audit: no one reads more
_LONGEST_OUTPUT = 2**16  # characters of an output file


@dataclass(frozen=True)
class Failure:
    """A pack or part whose training run raised an exception."""

    pack: Pack
    kind: str
    message: str
    traceback: str

    @classmethod
    def of_memory(
        cls,
        pack: Pack,
        detail: str,
        trials: int = 1,
    ) -> "Failure":
        """Returns the failure of a pack for which memory ran out.

        Args:
            pack: the pack.
            detail: the message of the operating system or of Ray.
            trials: number that the trials of a pack are a multiple of.
        """
        smaller = max(pack.size // 4 // trials, 1) * trials
        remedy = "run fewer trainers on a node, or give them a larger resources.memory"
        if smaller < pack.size:
            remedy = f"set resources.pack_size: {smaller}"
        return cls(pack, "OutOfMemory", f"out of memory; {remedy}", detail)


@dataclass(frozen=True)
class FailureGroup:
    """Failed packs of one audit with the same exception.

    Attributes:
        label: label of the audit.
        kind: the exception's name.
        packs: number of the packs.
        trials: number of trials in these packs.
        first: the first of these trials.
        last: the last of these trials.
        message: message of the pack that failed first.
    """

    label: str
    kind: str
    packs: int
    trials: int
    first: int
    last: int
    message: str


_Text = Annotated[str, Field(max_length=LONGEST)]


@dataclass(frozen=True)
class MissedTrials:
    """Trials of one audit, by its id, that failed in one way; the first gave the `message`."""

    audit: str
    kind: _Text
    trials: PositiveInt
    first: NonNegativeInt
    message: _Text


@dataclass(frozen=True)
class Decision:
    """The number of trials that were enough by a rule of `stop_when`, and that rule."""

    trials: int
    rule: Any


@dataclass(frozen=True)
class _FailedPack:
    """A pack that was given up, as the file has it."""

    audit: int
    first: int
    last: int
    kind: str
    message: str
    traceback: str


@dataclass(frozen=True)
class _FailedPart:
    """A part of a preparation that failed, as the file has it."""

    preparation: str
    part: int
    kind: str
    message: str
    traceback: str


@dataclass(frozen=True)
class Outcomes:
    """The content of the file; decisions are by number of the audit, as `"000"`."""

    failed_packs: tuple[_FailedPack, ...] = ()
    failed_parts: tuple[_FailedPart, ...] = ()
    missed: tuple[MissedTrials, ...] = ()
    decided: Mapping[str, Decision] = field(default_factory=dict)


_FILE_TYPE = TypeAdapter(Outcomes)


def read(run: RunDirectory, plan: Plan) -> Outcomes:
    """Reads the file and checks it against the plan. Raises RunDirectoryError for damage."""
    try:
        content = _FILE_TYPE.validate_python(run.read_json(FILE) or {}, strict=False)
        _check(content, plan)
    except (RunDirectoryError, ValueError) as error:
        if isinstance(error.__cause__, OSError):  # the file could not be read, and may be sound
            raise
        raise RunDirectoryError(
            f"{run.location}/{FILE} is damaged ({strangers.describe(error)}); delete it: what "
            "failed is then run again, and the rest is made again from the scores"
        ) from error
    return content


def _check(outcomes: Outcomes, plan: Plan) -> None:
    """Raises ValueError for packs and trials that the plan does not have."""
    for pack in outcomes.failed_packs:
        exists = 0 <= pack.audit < len(plan.audits)
        bounds = (pack.first, pack.last)
        if not exists or bounds not in plan.audits[pack.audit].packs:
            raise ValueError(f"no pack {pack.first}-{pack.last} in audit {pack.audit}")
    trials = {audit.id: audit.trials for audit in plan.audits}
    for group in outcomes.missed:
        if group.first + group.trials > trials.get(group.audit, 0):
            raise ValueError(
                f"no {group.trials} trials from {group.first} on in audit {group.audit}"
            )


class Record:
    """The file while a sweep runs: each change is written at once. Any thread may call it.

    Attributes:
        failed: packs that were given up and are not stored.
    """

    def __init__(self, run: RunDirectory, plan: Plan) -> None:
        """Reads the file of a run directory. Raises RunDirectoryError if it is damaged."""
        self._run = run
        self._lock = threading.RLock()
        self._content = read(run, plan)
        self.failed = {failure.pack: failure for failure in failed(run, plan)}

    def store_pack(self, audit: str, pack: Pack, scores: PackScores) -> PackScores:
        """Stores the scores of a pack, and what its missed trials printed.

        Args:
            audit: id of the pack's audit.
            pack: the pack. If it was given up before, it no longer counts as failed.
            scores: the scores of the pack.

        Returns:
            The scores without what was printed.

        Raises:
            StorageError: scores or output were not stored; the pack does not count as finished.
        """
        printed = scores.outputs
        stored = self._run.outputs(audit) if printed else set()
        new = sorted(printed.keys() - stored)
        for trial in new[: max(0, MOST_OUTPUTS - len(stored))]:
            self._run.write_output(audit, trial, f"{lines(printed[trial])[:_LONGEST_OUTPUT]}\n")
        scores = replace(scores, outputs={})
        self._run.write_scores(audit, scores)
        with self._lock:
            if pack in self.failed:
                self.set_failed(other for other in self.failed.values() if other.pack != pack)
        return scores

    def add_failed(self, packs: dict[Pack, Failure]) -> None:
        """Adds packs that are given up. Raises StorageError."""
        with self._lock:
            self.set_failed((self.failed | packs).values())

    def set_failed(self, failures: Iterable[Failure]) -> None:
        """Replaces the packs that were given up. Raises StorageError."""
        failed_packs = {failure.pack: failure for failure in failures}
        entries = [
            _FailedPack(pack.audit, *pack.bounds, failure.kind, failure.message, failure.traceback)
            for pack, failure in failed_packs.items()
        ]
        self.replace(failed_packs=tuple(entries))
        self.failed = failed_packs

    def add_parts(self, parts: Iterable[Failure]) -> None:
        """Adds failed parts; an entry that exists for a part stays. Raises StorageError."""
        entries = {(part.preparation, part.part): part for part in self._content.failed_parts}
        for failure in parts:
            part = failure.pack
            assert isinstance(part, Part)
            key = part.preparation, part.first
            entry = _FailedPart(*key, failure.kind, failure.message, failure.traceback)
            entries.setdefault(key, entry)
        self.replace(failed_parts=tuple(entries.values()))

    def set_derived(
        self,
        sweep: Sweep,
        missed: Iterable[MissedTrials],
        decided: Mapping[int, int],
    ) -> None:
        """Replaces the entries that follow from the scores.

        Args:
            sweep: the sweep, for its rules.
            missed: trials that were missed one by one.
            decided: the trials that were enough, by index of each audit that was ended.

        Raises:
            StorageError: the file could not be written.
        """
        entries = {
            f"{index:03d}": Decision(trials, _rule(sweep, index))
            for index, trials in decided.items()
        }
        self.replace(missed=tuple(missed), decided=entries)

    def replace(self, **fields: Any) -> None:
        """Replaces these fields, and writes the file if that changes it. Raises StorageError."""
        with self._lock:
            content = replace(self._content, **fields)
            if content != self._content:
                self._run.write_json(FILE, asdict(content))
                self._content = content


def recorded(run: RunDirectory, plan: Plan) -> list[Failure]:
    """Returns all packs that were given up; some may have been stored afterwards."""
    failures = []
    for entry in read(run, plan).failed_packs:
        pack = Pack(entry.audit, entry.first, entry.last)
        failures.append(Failure(pack, entry.kind, entry.message, entry.traceback))
    return failures


def failed(run: RunDirectory, plan: Plan) -> list[Failure]:
    """Returns the packs that were given up and are not stored."""
    given_up = recorded(run, plan)
    open_packs = set(remaining(run, plan)) if given_up else set()
    return [failure for failure in given_up if failure.pack in open_packs]


def failed_parts(run: RunDirectory, plan: Plan) -> list[Failure]:
    """Returns the parts that failed and are not stored, if an audit of the plan waits for them."""
    entries = read(run, plan).failed_parts
    if not entries:
        return []
    awaited = preparing.all_parts(plan)
    parts = {(part.preparation, part.first): part for part in awaited}
    failures = []
    for entry in entries:
        part = parts.get((entry.preparation, entry.part))
        if part and entry.part not in run.parts(entry.preparation):
            failures.append(Failure(part, entry.kind, entry.message, entry.traceback))
    return failures


def finished_trials(
    run: RunDirectory,
    sweep: Sweep,
    plan: Plan,
    index: int,
) -> FinishedTrials:
    """Opens the trials of an audit, up to where `stop_when` ended it.

    Args:
        run: the run directory.
        sweep: the sweep, for its rules.
        plan: the sweep's plan.
        index: index of the audit in the plan.
    """
    packs = [failure.pack for failure in recorded(run, plan)]
    failed_packs = [pack.bounds for pack in packs if pack.audit == index]
    end = decided(run, sweep, plan).get(index)
    return FinishedTrials(run, plan, index, failed_packs, end)


def unprepared(run: RunDirectory, plan: Plan) -> set[int]:
    """Returns the indices of audits that are not started, as a part for which they wait failed."""
    audits = set[int]()
    for failure in failed_parts(run, plan):
        audits.update(_waiting(failure.pack))
    return audits


def decided(
    run: RunDirectory,
    sweep: Sweep,
    plan: Plan,
) -> dict[int, int]:
    """Returns the trials that were enough, by index of the audits that `stop_when` has ended.

    A decision by another rule than the audit has now does not count.

    Args:
        run: the run directory.
        sweep: the sweep, for its rules.
        plan: the sweep's plan.
    """
    entries = read(run, plan).decided
    trials = {}
    for index in range(len(sweep.cells)):
        entry = entries.get(f"{index:03d}")
        if entry and entry.rule == _rule(sweep, index):
            trials[index] = entry.trials
    return trials


def _rule(sweep: Sweep, index: int) -> Any:
    """Returns an audit's rule as plain JSON; None without one."""
    rule = sweep.cells[index].audit.stop_when
    return rule and rule.model_dump()


def to_run(
    run: RunDirectory,
    plan: Plan,
    enough: Mapping[int, int],
    left_out: Collection[Pack],
) -> list[Pack]:
    """Returns the parts of preparations that are to be run, and then the packs.

    Args:
        run: the run directory.
        plan: plan of the sweep.
        enough: the trials that were enough, by index of each audit that `stop_when` has ended.
        left_out: packs that are not to be run.
    """
    blocked = unprepared(run, plan)
    packs = [
        pack
        for pack in remaining(run, plan, enough)
        if pack.audit not in blocked and pack not in left_out
    ]
    missing = preparing.missing_parts(run, plan, packs)
    parts = [part for part in missing if not blocked.intersection(part.waiting)]
    return [*parts, *packs]


def complete(
    run: RunDirectory,
    plan: Plan,
    enough: Mapping[int, int],
) -> bool:
    """Returns whether a run is marked as complete, and storage has all its packs and parts.

    Args:
        run: the run directory.
        plan: plan of the sweep, for the packs and parts.
        enough: the trials that were enough, by index of each audit that `stop_when` has ended.
    """
    if not run.complete or any(remaining(run, plan, enough)):
        return False
    return not preparing.missing_parts(run, plan, ())


def only_failed(
    run: RunDirectory,
    plan: Plan,
    enough: Mapping[int, int],
) -> bool:
    """Returns whether an incomplete run lacks only failed work, which `dpaudit run` skips.

    Args:
        run: the run directory.
        plan: plan of the sweep.
        enough: the trials that were enough, by index of each audit that `stop_when` has ended.
    """
    given_up = {failure.pack for failure in failed(run, plan)}
    if not given_up and not unprepared(run, plan):
        return False
    return not to_run(run, plan, enough, given_up)


def by_kind(failures: Iterable[Failure], plan: Plan) -> list[FailureGroup]:
    """Groups failures by audit and kind, in the order in which they came."""
    groups = collections.defaultdict[tuple[int, str], list[Failure]](list)
    for failure in failures:
        groups[failure.pack.audit, failure.kind].append(failure)
    listed = []
    for (audit, kind), group in groups.items():
        packs = [failure.pack for failure in group]
        entry = FailureGroup(
            plan.audits[audit].label,
            kind,
            packs=len(packs),
            trials=sum(pack.size for pack in packs),
            first=min(pack.first for pack in packs),
            last=max(pack.last for pack in packs),
            message=group[0].message,
        )
        listed.append(entry)
    return listed


def missed_lines(run: RunDirectory, plan: Plan) -> Iterator[str]:
    """Yields a line for each audit and kind of exception by which single trials were missed."""
    labels = {audit.id: audit.label for audit in plan.audits}
    for group in read(run, plan).missed:
        trials_text = f"trial {group.first}"
        first_text = ""
        if group.trials > 1:
            first_text = f", {trials_text} first"
            trials_text = f"{group.trials} trials"
        yield (
            f"{labels[group.audit]}: {trials_text} failed and counted as missed: "
            f"{printable(group.message)}{first_text}; output in {run.output_folder(group.audit)}"
        )


def part_lines(failed: Iterable[Failure], plan: Plan) -> Iterator[str]:
    """Yields a line for each preparation that failed: which audits are not started, and why."""
    listed = set[int]()
    for failure in failed:
        audits = _waiting(failure.pack)
        labels = [plan.audits[index].label for index in audits if index not in listed]
        if labels:
            yield part_line(labels, failure)
        listed.update(audits)


def part_line(labels: list[str], failure: Failure) -> str:
    """Returns a line about audits that are not started since a part failed."""
    return (
        f"{and_more(labels)}: not started, {failure.pack.what} failed ({failure.message}); "
        f"run --retry-failed makes it again; traceback in {FILE}"
    )


def preparation_lines(run: RunDirectory, plan: Plan) -> Iterator[str]:
    """Yields lines about each preparation that failed or is not complete."""
    yield from part_lines(failed_parts(run, plan), plan)
    for state in preparing.states(run, plan):
        if state.done < state.parts:
            yield f"{and_more(state.audits)}: {state.done} of {state.parts} parts prepared"


def _waiting(part: Pack) -> tuple[int, ...]:
    """Returns the indices of the audits that wait for a part; () for a pack of trials."""
    return part.waiting if isinstance(part, Part) else ()
