"""What an audit of a script says: findings, what was looked at, and the verdict."""

from __future__ import annotations

import dataclasses
from enum import StrEnum

from ..report.verdict import Verdict

# The error of the whole audit, one in twenty, and what each layer has of it.
ALPHA = {0: 0.01, 1: 0.02, 2: 0.02}


class Weight(StrEnum):
    """What a finding says of the promise."""

    VIOLATION = "VIOLATION"  # it is broken
    WARNING = "WARNING"  # it rests on what was not seen, or is not proven
    NOTE = "NOTE"  # worth knowing; says nothing of the promise


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was found: by which look of which layer, and where."""

    layer: int
    look: str
    weight: Weight
    where: str
    expected: str
    seen: str
    remedy: str = ""

    def __str__(self) -> str:
        rest = f"; {self.remedy}" if self.remedy else ""
        return f"{self.where}: expected {self.expected}; seen {self.seen}{rest}"


def violation(look: str, where: str, expected: str, seen: str, remedy: str = "") -> Finding:
    """A finding of one run looked into that breaks the promise."""
    return Finding(0, look, Weight.VIOLATION, where, expected, seen, remedy)


@dataclasses.dataclass(frozen=True)
class Look:
    """One look of a layer: what it saw in a line, or why it saw nothing (`done` is False)."""

    layer: int
    name: str
    done: bool
    said: str


@dataclasses.dataclass(frozen=True)
class Judged:
    """What one layer says. `complete`: a violation of its kind would have been found."""

    findings: tuple[Finding, ...] = ()
    looks: tuple[Look, ...] = ()
    complete: bool = True


@dataclasses.dataclass(frozen=True)
class ScriptVerdict:
    """A script's audit: the verdict, the claim, and all that was found.

    `claim` is ε at `delta`, NaN where the script has none. `help` says what would decide an audit
    that is INCONCLUSIVE. `confidence`: a promise that is kept is called broken with a probability
    of one minus that at most, all layers together.
    """

    script: str
    verdict: Verdict
    claim: float
    delta: float
    accountant: str
    findings: tuple[Finding, ...]
    looks: tuple[Look, ...]
    help: tuple[str, ...]
    runs: int
    step_trials: int
    run_trials: int
    seconds: float
    output: str = ""
    confidence: float = 1 - sum(ALPHA.values())

    @property
    def effort(self) -> str:
        """How many runs it took."""
        return "1 run" if self.runs == 1 else f"{self.runs} runs"

    @property
    def violations(self) -> tuple[Finding, ...]:
        """Those that break the promise."""
        return tuple(one for one in self.findings if one.weight is Weight.VIOLATION)
