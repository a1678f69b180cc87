"""Checks of a script's inspected run, in the order in which reports list them.

To add a check, write a module with a `Check` and name it in `CHECKS`.
"""

import dataclasses

from ..script_findings import Finding, Judgement
from .accounting import Accounting
from .check import Check, Inspection, PinnedRun, PinnedRuns, why_cut, with_line
from .law_of_noise import LawOfNoise
from .noise import Noise
from .pinned_releases import PinnedReleases, differences
from .preparation import Preparation
from .promise import Promise
from .records_apart import RecordsApart
from .records_elsewhere import RecordsElsewhere
from .release import Release
from .sampling import Sampling
from .secret_size import SecretSize
from .seeds import Seeds
from .updates import Updates

__all__ = [
    "CHECKS",
    "Check",
    "Inspection",
    "PinnedRun",
    "PinnedRuns",
    "differences",
    "judge",
    "why_cut",
]

CHECKS: tuple[Check, ...] = (
    Noise(),
    LawOfNoise(),
    RecordsApart(),
    Sampling(),
    Accounting(),
    Promise(),
    Updates(),
    Release(),
    RecordsElsewhere(),
    Preparation(),
    Seeds(),
    PinnedReleases(),
    SecretSize(),
)


def judge(inspection: Inspection) -> Judgement:
    """Returns the findings and outcomes of all checks that apply to an inspected run."""
    judgement = Judgement()
    for check in CHECKS:
        if check.applies(inspection):
            judgement.add(check.judge(inspection))
        else:
            judgement.miss(check.inapplicable, name=check.name, applies=False)
    # A single check may state that trials are needless. It counts only if all checks are done.
    judgement.enough &= judgement.complete
    lines = inspection.result.lines  # the script's line at each place of a finding
    judgement.findings = [
        dataclasses.replace(item, where=with_line(item.where, lines.get(item.where, "")))
        for item in _first_of_each_kind(judgement.findings)
    ]
    return judgement


def _first_of_each_kind(findings: list[Finding]) -> list[Finding]:
    """Returns the first finding of each kind, with the number of others in its text.

    There are several, for example, if a script has several engines.
    """
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for item in findings:
        kinds.setdefault((item.code, item.look), []).append(item)
    firsts = []
    for first, *repeated in kinds.values():
        if repeated:
            text = f"{first.seen}; {len(repeated)} more of its kind"
            first = dataclasses.replace(first, seen=text)
        firsts.append(first)
    return firsts
