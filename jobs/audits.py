"""Audits entries of a catalogue from a command line, as `jobs.bench` and `jobs.packages` do."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from joblib import Parallel, delayed
from scipy import stats

LEVEL = 0.05  # at which verdicts on healthy entries may be wrong


def audit_all(
    job: str,
    description: str | None,
    entries: Mapping[str, Any],
    audited: Callable[..., Any],
    arguments: Sequence[str] | None,
) -> list[Any]:
    """Audits the entries that the arguments of a command line choose; returns their rows.

    Args:
        job: name of the module.
        description: what it does.
        entries: by name.
        audited: audits an entry with a number of trials, or None, and a seed; returns a row, a
            dataclass with `name`, `verdict`, `certified` and `seconds`.
        arguments: of the command line; None for those of this process.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {job}", description=description)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these entries; else all")
    parser.add_argument("--trials", type=int, help="trials of each audit, in place of its own")
    parser.add_argument("--seed", type=int, default=0, help="of secret bits and noise")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="audits at the same time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    options = parser.parse_args(arguments)
    names = options.only or list(entries)
    for name in names:
        if name not in entries:
            parser.error(f"--only: is {name!r}, but must be one of {', '.join(entries)}")
    audit = delayed(audited)
    audits = (audit(entries[name], options.trials, options.seed) for name in names)
    rows: list[Any] = []
    for row in Parallel(options.jobs, return_as="generator_unordered")(audits):
        rows.append(row)
        progress = (
            f"{len(rows)} of {len(names)}: {row.name}, {row.verdict}, ε ≥ {row.certified:.3g}"
        )
        sys.stderr.write(progress + f", {row.seconds:.0f} s\n")
        if options.json:  # after each audit: the run may be stopped
            listed = [dataclasses.asdict(row) for row in rows]
            options.json.write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n")
    return rows


def too_many(refuted: int, healthy: int) -> bool:
    """Returns whether chance refutes so many of these healthy entries in less than 1 % of runs."""
    return bool(refuted > stats.binom.ppf(0.99, healthy, LEVEL))
