"""Audits mechanisms whose privacy loss is known: `python -m jobs.bench`.

Prints a table, the least reached first. Exits 1 if a broken mechanism is no VIOLATION, or if more
healthy ones are than by chance.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .registry import ENTRIES
from .table import audited, failures, table


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the bench by arguments of a command line; None for those of this process."""
    parser = argparse.ArgumentParser(prog="python -m jobs.bench", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="mechanisms; else all")
    parser.add_argument("--trials", type=int, help="trials of each audit, in place of its own")
    parser.add_argument("--seed", type=int, default=0, help="of secret bits and noise")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    options = parser.parse_args(arguments)
    by_name = {entry.name: entry for entry in ENTRIES}
    names = options.only or list(by_name)
    for name in names:
        if name not in by_name:
            parser.error(f"--only: is {name!r}, but must be one of {', '.join(by_name)}")
    rows = []
    for number, name in enumerate(names, start=1):
        row = audited(by_name[name], options.trials, options.seed)
        rows.append(row)
        progress = f"{number} of {len(names)}: {name}, {row.verdict}, ε ≥ {row.certified:.3g}"
        sys.stderr.write(progress + f", {row.seconds:.0f} s\n")
        if options.json:  # after each audit: the bench may be stopped
            listed = [dataclasses.asdict(row) for row in rows]
            options.json.write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n")
    sys.stdout.write(table(rows) + "\n")
    wrong = failures(rows)
    if wrong:
        sys.exit(f"wrong verdicts: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
