"""Trials that were missed one by one, while others of their pack were scored: how many, and why.

Score files say of each trial why it was missed. Their sum is a function of the prefix, as estimates
are, and is written beside them: who reads a run need not read all its scores.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import RunDirectoryError
from ..printable import printable
from ..storage import strangers
from ..storage.run_directory import MISSED, RunDirectory
from ..storage.scores import PackScores
from .model import Plan
from .score_stream import ConsumedPack

FILE = MISSED
_LONGEST = 400  # characters; nothing that is written here is longer


@dataclasses.dataclass(frozen=True)
class Kind:
    """Missed trials of the audit with this id that failed in one way.

    `message` is that of trial `first`, the first of them.
    """

    audit: str
    kind: str
    trials: int
    first: int
    message: str


class Tally:
    """The missed trials of one audit by what was raised; packs come in the order of trials."""

    def __init__(self, audit: str) -> None:
        self._audit = audit
        self._kinds: dict[str, Kind] = {}

    def fold(self, pack: ConsumedPack) -> None:
        """Adds a pack."""
        for trial, why in pack.missed.items() if isinstance(pack, PackScores) else ():
            kind = why.partition(": ")[0]
            before = self._kinds.get(kind, Kind(self._audit, kind, 0, trial, why))
            self._kinds[kind] = dataclasses.replace(before, trials=before.trials + 1)

    @property
    def trials(self) -> int:
        """All of them."""
        return sum(each.trials for each in self._kinds.values())

    @property
    def kinds(self) -> list[Kind]:
        """In the order of their first trials."""
        return list(self._kinds.values())


def read(run: RunDirectory, plan: Plan) -> list[Kind]:
    """What was written last.

    Raises:
        RunDirectoryError: the record is damaged.
    """
    trials = {audit.id: audit.trials for audit in plan.audits}
    try:
        return [_kind(entry, trials) for entry in run.read_json(FILE) or []]
    except (RunDirectoryError, AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error.__cause__, OSError):  # it says nothing about what is in it
            raise
        raise RunDirectoryError(
            f"{run.location}/{FILE} is damaged ({strangers.why(error)}); "
            "delete it and run the sweep again: it is rebuilt from the scores"
        ) from error


def write(run: RunDirectory, kinds: Iterable[Kind]) -> None:
    """Replaces the record, where there is one or something to record. Raises StorageError."""
    entries = [dataclasses.asdict(each) for each in kinds]
    if entries or run.read_text(FILE) is not None:
        run.write_json(FILE, entries)


def place(run: RunDirectory, kind: Kind) -> str:
    """The folder that has what such trials printed."""
    return f"{run.location}/{run.output_folder(kind.audit)}/"


def lines(run: RunDirectory, plan: Plan) -> Iterator[str]:
    """One line per audit and kind."""
    labels = {audit.id: audit.label for audit in plan.audits}
    for each in read(run, plan):
        which = f"trial {each.first}" if each.trials == 1 else f"{each.trials} trials"
        first = "" if each.trials == 1 else f", trial {each.first} first"
        yield (
            f"{labels[each.audit]}: {which} failed and counted as missed: "
            f"{printable(each.message)}{first}; output in {place(run, each)}"
        )


def _kind(entry: Any, trials: dict[str, int]) -> Kind:
    number, first = operator.index(entry["trials"]), operator.index(entry["first"])
    audit, kind, message = (str(entry[key])[:_LONGEST] for key in ("audit", "kind", "message"))
    if audit not in trials or not 0 <= first < first + number <= trials[audit]:
        raise ValueError(f"no {number} trials from {first} on in audit {audit}")
    return Kind(audit, kind, number, first, message)
