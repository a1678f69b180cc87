"""What a run lacks, in words: packs that failed, and the command that goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..plan.failures import Failure
    from ..report.tables import Run


def failed(opened: Run, earlier: Sequence[Failure] = ()) -> list[str]:
    """One line per audit and kind of failure; those of an earlier run are said to be."""
    from ..plan import failures
    from ..printable import printable

    known = failures.read(opened.directory, opened.plan)
    old = [failure for failure in known if failure in earlier]
    new = [failure for failure in known if failure not in old]
    place = f"{opened.directory.location}/{failures.FILE}"
    return [
        f"{kind.label}: {'' if kind.packs == 1 else f'{kind.packs} packs of '}trials "
        f"{kind.first}-{kind.last} failed{when}: {printable(kind.message)}; traceback in {place}"
        for when, some in (("", new), (" in an earlier run", old))
        for kind in failures.by_kind(some, opened.plan)
    ]


def remedy(opened: Run, enough: Mapping[int, int]) -> str:
    """The command that a run which is not complete needs."""
    from ..plan import leftover

    if leftover.only_failed(opened.directory, opened.plan, enough):
        return "all that is left has failed; mend it, then `dpaudit run --retry-failed`"
    return "`dpaudit run` resumes it"
