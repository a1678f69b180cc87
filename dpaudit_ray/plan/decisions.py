"""The record of audits that have shown enough: `decisions.json` of a run directory."""

from __future__ import annotations

from ..errors import RunDirectoryError
from ..storage.run_directory import RunDirectory
from ..sweep.spec import Sweep

FILE = "decisions.json"


def decided(run: RunDirectory, sweep: Sweep) -> dict[int, int]:
    """Trials that were enough, by index of the audit; audits whose rule has changed are not in it.

    Raises:
        RunDirectoryError: the record is damaged.
    """
    raw = run.read_json(FILE) or {}
    enough = {}
    try:
        for index, cell in enumerate(sweep.cells):
            entry = raw.get(f"{index:03d}")
            rule = cell.audit.stop_when and cell.audit.stop_when.rule()
            if entry is not None and entry["rule"] == rule:
                enough[index] = int(entry["trials"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunDirectoryError(
            f"{run.location}/{FILE} is damaged ({error!r}); delete it: it is made again from the "
            "scores"
        ) from error
    return enough


def record(run: RunDirectory, sweep: Sweep, enough: dict[int, int]) -> None:
    """Replaces the record; `enough` is as `decided` returns it. Raises StorageError."""
    entries = {}
    for index, trials in enough.items():
        rule = sweep.cells[index].audit.stop_when
        entries[f"{index:03d}"] = {"trials": trials, "rule": rule and rule.rule()}
    run.write_json(FILE, entries)
