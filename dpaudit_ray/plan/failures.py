"""Packs that were given up: what is known of each, and their record in the run directory.

The record says which trials count as misses, so estimates are a function of it and of the scores.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from typing import Any

from ..errors import RunDirectoryError
from ..storage import strangers
from ..storage.run_directory import FAILURES, RunDirectory
from .model import Pack, Plan

FILE = FAILURES


@dataclasses.dataclass(frozen=True)
class Failure:
    """A pack that raised: data, not an exception, so that other packs go on."""

    pack: Pack
    kind: str
    message: str
    traceback: str


@dataclasses.dataclass(frozen=True)
class Kind:
    """Failures of one audit that are of one kind; `message` is that of the first."""

    label: str
    kind: str
    packs: int
    trials: int
    first: int
    last: int
    message: str


def read(run: RunDirectory, plan: Plan) -> list[Failure]:
    """The recorded failures of packs that are still not done.

    Raises:
        RunDirectoryError: the record is damaged.
    """
    found = recorded(run, plan)
    open_packs = set(plan.remaining(run)) if found else set()
    return [failure for failure in found if failure.pack in open_packs]


def recorded(run: RunDirectory, plan: Plan) -> list[Failure]:
    """All recorded failures; scores that were stored since stand above them.

    Raises:
        RunDirectoryError: the record is damaged.
    """
    try:
        raw = run.read_json(FILE) or []
        return [_failure(entry, plan) for entry in raw]
    except (RunDirectoryError, AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error.__cause__, OSError):  # it says nothing about what is in it
            raise
        raise RunDirectoryError(
            f"{run.location}/{FILE} is damaged ({strangers.why(error)}); "
            "delete it: its packs are then run again"
        ) from error


def write(run: RunDirectory, failures: Iterable[Failure]) -> None:
    """Replaces the record, where there is one or something to record. Raises StorageError."""
    entries = [dataclasses.asdict(failure) for failure in failures]
    if entries or run.read_text(FILE) is not None:
        run.write_json(FILE, entries)


def by_kind(failures: Iterable[Failure], plan: Plan) -> list[Kind]:
    """One entry per audit and kind, in the order in which they came."""
    groups: dict[tuple[int, str], list[Failure]] = {}
    for failure in failures:
        groups.setdefault((failure.pack.audit, failure.kind), []).append(failure)
    return [
        Kind(
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


def _failure(entry: Any, plan: Plan) -> Failure:
    pack = Pack(**{key: operator.index(value) for key, value in entry["pack"].items()})
    known = 0 <= pack.audit < len(plan.audits)
    if not known or (pack.first, pack.last) not in plan.audits[pack.audit].packs:
        raise ValueError(f"no pack {pack.first}-{pack.last} in audit {pack.audit}")
    told = (str(entry[key]) for key in ("kind", "message", "traceback"))
    return Failure(pack, *told)
