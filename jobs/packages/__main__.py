"""Audits functions of released packages: `python -m jobs.packages`.

Makes an environment for each package in `.venv-packages`, and prints a table. Exits 1 if a function
with a public report of a defect is no VIOLATION, or if more of the others are than by chance.
"""

import sys
from collections.abc import Sequence

from jobs.audits import audit_all, too_many

from .entries import ENTRIES
from .table import VIOLATION, audited, table


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the audits by arguments of a command line; None for those of this process."""
    by_name = {entry.name: entry for entry in ENTRIES}
    rows = audit_all("jobs.packages", __doc__, by_name, audited, arguments)
    sys.stdout.write(table(rows) + "\n")
    wrong = [row.name for row in rows if row.report and row.verdict != VIOLATION]
    others = [row for row in rows if not row.report]
    refuted = [row.name for row in others if row.verdict == VIOLATION]
    if too_many(len(refuted), len(others)):
        wrong += refuted
    if wrong:
        sys.exit(f"not as expected: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
