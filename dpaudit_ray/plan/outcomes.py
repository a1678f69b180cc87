"""What became of trials that gave no score, and of audits that needed fewer: `outcomes.json`.

It has packs that were given up and parts of preparations that failed; trials that were missed one
by one while others of their pack were scored; and audits that `stop_when` has ended. The last two
follow from scores, and are written so that who reads a run need not read all of these.

Trials of a pack that was given up are misses. Of a part that failed no trial was run, and no secret
bit is known where it is prepared: its audits are not started. `--retry-failed` tries both again.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter

from ..errors import RunDirectoryError, lines, printable
from ..storage import strangers
from ..storage.run_directory import OUTCOMES, RunDirectory
from ..storage.scores import PackScores
from ..sweep.spec import Sweep
from . import preparing
from .finished_trials import FinishedTrials, remaining
from .model import Pack, Part, Plan

FILE = OUTCOMES
LONGEST = 400  # characters of what is written of a missed trial
MOST_OUTPUTS = 100  # files of an audit: of a thousand trials that fail, nobody reads more
_LONGEST_OUTPUT = 2**16  # characters of one


@dataclasses.dataclass(frozen=True)
class Failure:
    """A pack or part that raised."""

    pack: Pack
    kind: str
    message: str
    traceback: str

    @classmethod
    def of_memory(cls, pack: Pack, detail: str, trials: int = 1) -> Failure:
        """A pack for which memory ran out; a pack holds multiples of so many `trials`."""
        smaller = max(pack.size // 4 // trials, 1) * trials
        remedy = "run fewer trainers on a node, or give them a larger resources.memory"
        if smaller < pack.size:
            remedy = f"set resources.pack_size: {smaller}"
        return cls(pack, "OutOfMemory", f"out of memory; {remedy}", detail)


@dataclasses.dataclass(frozen=True)
class FailureGroup:
    """Failures of one audit that are of one kind; `message` is that of the first."""

    label: str
    kind: str
    packs: int
    trials: int
    first: int
    last: int
    message: str


_Text = Annotated[str, Field(max_length=LONGEST)]


@dataclasses.dataclass(frozen=True)
class MissedTrials:
    """Trials of the audit with this id that failed in one way; `message` is that of the first."""

    audit: str
    kind: _Text
    trials: PositiveInt
    first: NonNegativeInt
    message: _Text


@dataclasses.dataclass(frozen=True)
class Decision:
    """The number of trials that was enough, and the rule of `stop_when` that says so."""

    trials: int
    rule: Any


@dataclasses.dataclass(frozen=True)
class _FailedPack:
    audit: int
    first: int
    last: int
    kind: str
    message: str
    traceback: str


@dataclasses.dataclass(frozen=True)
class _FailedPart:
    preparation: str
    part: int
    kind: str
    message: str
    traceback: str


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """The content of the file; decisions are by number of the audit, as `"000"`."""

    failed_packs: tuple[_FailedPack, ...] = ()
    failed_parts: tuple[_FailedPart, ...] = ()
    missed: tuple[MissedTrials, ...] = ()
    decided: Mapping[str, Decision] = dataclasses.field(default_factory=dict)


_FILE_TYPE = TypeAdapter(Outcomes)


def read(run: RunDirectory, plan: Plan) -> Outcomes:
    """What was written last, held against the plan. Raises RunDirectoryError for damage."""
    try:
        content = _FILE_TYPE.validate_python(run.read_json(FILE) or {}, strict=False)
        _check(content, plan)
    except (RunDirectoryError, ValueError) as error:
        if isinstance(error.__cause__, OSError):  # it says nothing about what is in it
            raise
        raise RunDirectoryError(
            f"{run.location}/{FILE} is damaged ({strangers.why(error)}); delete it: what "
            "failed is then run again, and the rest is made again from the scores"
        ) from error
    return content


def _check(outcomes: Outcomes, plan: Plan) -> None:
    for failed in outcomes.failed_packs:
        exists = 0 <= failed.audit < len(plan.audits)
        if not exists or (failed.first, failed.last) not in plan.audits[failed.audit].packs:
            raise ValueError(f"no pack {failed.first}-{failed.last} in audit {failed.audit}")
    trials = {audit.id: audit.trials for audit in plan.audits}
    for kind in outcomes.missed:
        if kind.first + kind.trials > trials.get(kind.audit, 0):
            raise ValueError(f"no {kind.trials} trials from {kind.first} on in audit {kind.audit}")


class Record:
    """The file while a sweep runs: each change is written at once. Any thread may call it.

    Attributes:
        failed: packs that were given up and are not stored.
    """

    def __init__(self, run: RunDirectory, plan: Plan) -> None:
        self._run = run
        self._turn = threading.RLock()
        self._content = read(run, plan)
        self.failed = {failure.pack: failure for failure in failed(run, plan)}

    def store_pack(self, audit: str, pack: Pack, scores: PackScores) -> PackScores:
        """Stores the scores of a pack, and what its missed trials printed.

        Args:
            audit: id of its audit.
            pack: the pack, which has not failed then, although it may have been given up before.
            scores: its scores.

        Returns:
            The scores without what was printed.

        Raises:
            StorageError: not all of that was stored; the pack does not count as finished.
        """
        printed = scores.outputs
        stored = self._run.outputs(audit) if printed else set()
        for trial in sorted(printed.keys() - stored)[: max(0, MOST_OUTPUTS - len(stored))]:
            self._run.write_output(audit, trial, f"{lines(printed[trial])[:_LONGEST_OUTPUT]}\n")
        scores = dataclasses.replace(scores, outputs={})
        self._run.write_scores(audit, scores)
        with self._turn:
            if pack in self.failed:
                self.set_failed(f for f in self.failed.values() if f.pack != pack)
        return scores

    def add_failed(self, packs: dict[Pack, Failure]) -> None:
        """Adds packs that are given up. Raises StorageError."""
        with self._turn:
            self.set_failed((self.failed | packs).values())

    def set_failed(self, failures: Iterable[Failure]) -> None:
        """Replaces the packs that were given up. Raises StorageError."""
        failed_packs = {failure.pack: failure for failure in failures}
        entries = [
            _FailedPack(pack.audit, pack.first, pack.last, f.kind, f.message, f.traceback)
            for pack, f in failed_packs.items()
        ]
        self.replace(failed_packs=tuple(entries))
        self.failed = failed_packs

    def add_parts(self, parts: Iterable[Failure]) -> None:
        """Adds parts that failed; one that is known already stays. Raises StorageError."""
        entries = {(part.preparation, part.part): part for part in self._content.failed_parts}
        for f in parts:
            assert isinstance(f.pack, Part)
            place = f.pack.preparation, f.pack.first
            entries.setdefault(place, _FailedPart(*place, f.kind, f.message, f.traceback))
        self.replace(failed_parts=tuple(entries.values()))

    def set_derived(
        self, sweep: Sweep, missed: Iterable[MissedTrials], decided: Mapping[int, int]
    ) -> None:
        """Replaces what follows from the scores. Raises StorageError."""
        entries = {f"{i:03d}": Decision(n, _rule(sweep, i)) for i, n in decided.items()}
        self.replace(missed=tuple(missed), decided=entries)

    def replace(self, **fields: Any) -> None:
        """Writes the record with other content of these fields. Raises StorageError."""
        with self._turn:
            content = dataclasses.replace(self._content, **fields)
            if content != self._content:
                self._run.write_json(FILE, dataclasses.asdict(content))
                self._content = content


def recorded(run: RunDirectory, plan: Plan) -> list[Failure]:
    """Every pack that was given up; scores that were stored since stand above them."""
    return [
        Failure(Pack(e.audit, e.first, e.last), e.kind, e.message, e.traceback)
        for e in read(run, plan).failed_packs
    ]


def failed(run: RunDirectory, plan: Plan) -> list[Failure]:
    """The packs that were given up and are still not done."""
    given_up = recorded(run, plan)
    open_packs = set(remaining(run, plan)) if given_up else set()
    return [failure for failure in given_up if failure.pack in open_packs]


def failed_parts(run: RunDirectory, plan: Plan) -> list[Failure]:
    """The parts of preparations that failed, are still not done, and that some audit waits for."""
    entries = read(run, plan).failed_parts
    waited = preparing.all_parts(plan, range(len(plan.audits)))
    parts = {(part.preparation, part.first): part for part in waited} if entries else {}
    return [
        Failure(parts[place], entry.kind, entry.message, entry.traceback)
        for entry in entries
        if (place := (entry.preparation, entry.part)) in parts
        and entry.part not in run.parts(entry.preparation)
    ]


def finished_trials(run: RunDirectory, sweep: Sweep, plan: Plan, index: int) -> FinishedTrials:
    """Opens the trials of an audit, with packs that failed, up to where `stop_when` ended it."""
    packs = [failure.pack for failure in recorded(run, plan)]
    failed_packs = {(pack.first, pack.last) for pack in packs if pack.audit == index}
    end = decided(run, sweep, plan).get(index)
    return FinishedTrials(run, plan, index, failed_packs, end)


def unprepared(run: RunDirectory, plan: Plan) -> set[int]:
    """Audits that are not started, since a part that they wait for has failed."""
    return {index for failure in failed_parts(run, plan) for index in _waiting(failure.pack)}


def decided(run: RunDirectory, sweep: Sweep, plan: Plan) -> dict[int, int]:
    """Trials that were enough, by index of the audit; without those whose rule has changed."""
    entries = read(run, plan).decided
    stored = {i: entries[key] for i in range(len(sweep.cells)) if (key := f"{i:03d}") in entries}
    return {i: entry.trials for i, entry in stored.items() if entry.rule == _rule(sweep, i)}


def _rule(sweep: Sweep, index: int) -> Any:
    rule = sweep.cells[index].audit.stop_when
    return rule and rule.model_dump()


def to_run(
    run: RunDirectory, plan: Plan, enough: Mapping[int, int], left_out: Collection[Pack]
) -> list[Pack]:
    """Packs still to be run, but `left_out`, behind parts that they wait for; see `remaining`."""
    waiting = unprepared(run, plan)
    open_packs = (pack for pack in remaining(run, plan, enough) if pack.audit not in waiting)
    left = [pack for pack in open_packs if pack not in left_out]
    parts = preparing.left(run, plan, left)
    return [*(part for part in parts if not waiting.intersection(part.waiting)), *left]


def complete(run: RunDirectory, plan: Plan, enough: Mapping[int, int]) -> bool:
    """Returns whether a run is marked as complete, and storage has all its packs and parts.

    Args:
        run: where to look.
        plan: names the packs and parts.
        enough: trials of the audits that `stop_when` has ended, by index.
    """
    if not run.complete or next(remaining(run, plan, enough), None) is not None:
        return False
    return not preparing.left(run, plan, ())


def only_failed(run: RunDirectory, plan: Plan, enough: Mapping[int, int]) -> bool:
    """Whether all that an incomplete run lacks has failed before: `dpaudit run` leaves that out."""
    given_up = {failure.pack for failure in failed(run, plan)}
    return bool(given_up or unprepared(run, plan)) and not to_run(run, plan, enough, given_up)


def by_kind(failures: Iterable[Failure], plan: Plan) -> list[FailureGroup]:
    """One entry per audit and kind, in the order in which they came."""
    groups = collections.defaultdict[tuple[int, str], list[Failure]](list)
    for failure in failures:
        groups[failure.pack.audit, failure.kind].append(failure)
    return [
        FailureGroup(
            label=plan.audits[audit].label,
            kind=kind,
            packs=len(group),
            trials=sum(failure.pack.size for failure in group),
            first=min(failure.pack.first for failure in group),
            last=max(failure.pack.last for failure in group),
            message=group[0].message,
        )
        for (audit, kind), group in groups.items()
    ]


def missed_lines(run: RunDirectory, plan: Plan) -> Iterator[str]:
    """One line per audit and way of failing of trials that were missed one by one."""
    labels = {audit.id: audit.label for audit in plan.audits}
    for kind in read(run, plan).missed:
        which, first = f"{kind.trials} trials", f", trial {kind.first} first"
        if kind.trials == 1:
            which, first = f"trial {kind.first}", ""
        yield (
            f"{labels[kind.audit]}: {which} failed and counted as missed: "
            f"{printable(kind.message)}{first}; output in {run.output_folder(kind.audit)}"
        )


def part_lines(failed: Iterable[Failure], plan: Plan) -> Iterator[str]:
    """One line for each preparation that failed: which audits are not started, and why."""
    seen: set[int] = set()
    for failure in failed:
        if new := [index for index in _waiting(failure.pack) if index not in seen]:
            yield part_line([plan.audits[index].label for index in new], failure)
        seen.update(new)


def part_line(labels: list[str], failure: Failure) -> str:
    """Says that audits are not started, and why."""
    others = f" and {len(labels) - 1} more" * (len(labels) > 1)
    return (
        f"{labels[0]}{others}: not started, {failure.pack.what} failed ({failure.message}); "
        f"run --retry-failed makes it again; traceback in {FILE}"
    )


def preparation_lines(run: RunDirectory, plan: Plan) -> Iterator[str]:
    """Lines for who asks how far a run is: of each preparation that is not complete."""
    yield from part_lines(failed_parts(run, plan), plan)
    for entry in preparing.entries(run, plan):
        if entry["done"] < entry["parts"]:
            first, *more = entry["audits"]
            others = f" and {len(more)} more" * bool(more)
            yield f"{first}{others}: {entry['done']} of {entry['parts']} parts prepared"


def _waiting(part: Pack) -> tuple[int, ...]:
    return part.waiting if isinstance(part, Part) else ()
