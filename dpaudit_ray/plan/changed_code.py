"""A run that is resumed with other code is refused: it is of one version.

The run directory has a copy of the user's modules, `code/<SHA-256>.py`: a digest says that there is
a difference, and only the text says which, months later and on another machine.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
from collections.abc import Callable, Iterator

from ..errors import ChangedCodeError, printable
from ..storage.run_directory import OUTCOMES, RESTORE, RunDirectory
from ..sweep.spec import Sweep
from . import provenance
from .model import Plan
from .provenance import Code

_MAX_LINES = 20  # of a textual difference


def followed(
    sweep: Sweep,
    plan: Plan,
    previous: Plan,
    run: RunDirectory,
    tell: Callable[[str], None],
) -> Plan:
    """The plan, which was made by the code as it is now, with the code that computed `previous`.

    A run of which nothing was computed takes the code as it is. A run without trials left may go on
    with another version of a package, but not with other modules of the user's. Raises
    ChangedCodeError where trials were computed by other code.
    """
    before = previous.code
    if before[-1] == plan.code[-1]:
        return dataclasses.replace(plan, code=before)
    if not _begun(plan, run):
        return plan
    then, now = before[-1], plan.code[-1]
    remains = next(plan.remaining(run), None) is not None
    grave, harmless = provenance.changes(then, now)
    if harmless and remains:
        tell(f"{run.location} goes on elsewhere ({_listed(harmless)}): last bits may differ")
    if not grave or not (remains or then.modules != now.modules):
        return dataclasses.replace(plan, code=before)
    raise ChangedCodeError(
        f"{run.location} was run with other code ({_listed(grave)}); {RESTORE}",
        tuple(_diff(then, now, sweep, run)),
    )


def keep_sources(sweep: Sweep, run: RunDirectory) -> None:
    """Puts a copy of the user's modules into the run directory, where it has none."""
    for digest, text in provenance.sources(sweep).items():
        if run.read_text(_copy(digest)) is None:
            run.write_text(_copy(digest), text)


def trials_seen(plan: Plan, run: RunDirectory) -> set[int]:
    """Numbers of the audits of which a trial was computed, or failed to be."""
    computed = {index for index, audit in enumerate(plan.audits) if run.score_files(audit.id)}
    try:
        failed = (run.read_json(OUTCOMES) or {}).get("failed_packs", ())
        return computed | {int(entry["audit"]) for entry in failed}
    except (AttributeError, KeyError, TypeError, ValueError):
        # Whoever needs the record tells what is wrong.
        return computed


def _begun(plan: Plan, run: RunDirectory) -> set[int]:
    """The same, and those of which a part of a preparation was computed."""
    prepared = {
        index
        for index, audit in enumerate(plan.audits)
        if audit.preparation and run.parts(audit.preparation.id)
    }
    return prepared | trials_seen(plan, run)


def _diff(then: Code, now: Code, sweep: Sweep, run: RunDirectory) -> Iterator[str]:
    """Changed lines of the user's modules, as far as there is a copy of the earlier text."""
    texts = provenance.sources(sweep)
    shown: list[str] = []
    for name in sorted(then.modules.keys() & now.modules.keys()):
        old, new = then.modules[name], now.modules[name]
        before = run.read_text(_copy(old))
        whole = before is not None and hashlib.sha256(before.encode()).hexdigest() == old
        if old != new and whole and new in texts and before is not None:
            ends = (before.splitlines(), texts[new].splitlines(), f"{name} there", f"{name} here")
            shown += difflib.unified_diff(*ends, n=1, lineterm="")
    yield from (printable(line) for line in shown[:_MAX_LINES])
    if len(shown) > _MAX_LINES:
        yield f"... and {len(shown) - _MAX_LINES} more lines"


def _copy(digest: str) -> str:
    return f"code/{digest}.py"


def _listed(changes: list[str]) -> str:
    return "; ".join(changes[:4]) + (f"; and {len(changes) - 4} more" * (len(changes) > 4))
