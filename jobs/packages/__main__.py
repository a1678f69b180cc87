"""Audits functions of released packages: `python -m jobs.packages`.

Makes an environment for each package in `.venv-packages`, and prints a table. Exits 1 if a function
with a public report of a defect is no VIOLATION, or if one without is.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .entries import ENTRIES
from .table import audited, table


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the audits by arguments of a command line; None for those of this process."""
    parser = argparse.ArgumentParser(prog="python -m jobs.packages", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="functions; else all")
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
        if options.json:  # after each audit: the run may be stopped
            listed = [dataclasses.asdict(row) for row in rows]
            options.json.write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n")
    sys.stdout.write(table(rows) + "\n")
    wrong = [row.name for row in rows if not row.is_expected]
    if wrong:
        sys.exit(f"not as expected: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
