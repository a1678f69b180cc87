"""Audits mechanisms whose privacy loss is known: `python -m jobs.bench`.

Prints a table, the least reached first. Exits 1 if a broken mechanism is no VIOLATION, or if more
healthy ones are than by chance.
"""

import sys
from collections.abc import Sequence

from jobs.audits import audit_all

from .registry import ENTRIES
from .table import audited, failures, table


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the bench by arguments of a command line; None for those of this process."""
    by_name = {entry.name: entry for entry in ENTRIES}
    rows = audit_all("jobs.bench", __doc__, by_name, audited, arguments)
    sys.stdout.write(table(rows) + "\n")
    wrong = failures(rows)
    if wrong:
        sys.exit(f"wrong verdicts: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
