"""Verdict of a script's audit: findings, outcomes of checks, and measured bounds."""

import math
from dataclasses import dataclass, field
from typing import Any

from ..errors import percent, plain
from ..report.verdict import Verdict
from .finding_kinds import KINDS, Weight

# Each layer's part of the probability of a false alarm, which is one in twenty for an audit.
ALPHA = {0: 0.01, 1: 0.02, 2: 0.02}
LAYERS = {0: "run inspection", 1: "step test", 2: "run test"}


@dataclass(frozen=True)
class Finding:
    """Observation that contradicts an expectation, and its place.

    Attributes:
        layer: 0 run inspection, 1 step test, 2 run test.
        look: name of the check.
        weight: consequence for the claim.
        where: step, optimizer or object, with the script's line.
        expected: what a script without a violation shows.
        seen: what was observed instead.
        remedy: what to do.
        code: stable code of its kind, DPA001 and so on.
        silenced: why the code is ignored, in the user's words; "" if the finding counts.
    """

    layer: int
    look: str
    weight: Weight
    where: str
    expected: str
    seen: str
    remedy: str = ""
    code: str = ""
    silenced: str = ""

    @property
    def label(self) -> str:
        """The finding's weight in a word, or that the finding is silenced."""
        return "Silenced" if self.silenced else self.weight.capitalize()

    def __str__(self) -> str:
        text = f"{self.where}: expected {self.expected}; observed {self.seen}"
        return f"{text}; {self.remedy}" if self.remedy else text


@dataclass(frozen=True)
class CheckOutcome:
    """Outcome of one check.

    Attributes:
        layer: 0 run inspection, 1 step test, 2 run test.
        name: name of the check.
        done: whether it was done.
        said: summary of what the check observed, or why it is not done.
        applies: whether the check can apply to the script; if not, no verdict waits for it.
    """

    layer: int
    name: str
    done: bool
    said: str
    applies: bool = True

    @property
    def line(self) -> str:
        """The outcome in words: what was observed, or why the check was not done."""
        if self.done:
            return self.said
        return f"not done: {self.said}" if self.applies else f"cannot apply: {self.said}"


@dataclass
class Judgement:
    """Findings and outcomes of the checks of one layer, or of one check.

    Attributes:
        layer: 0 run inspection, 1 step test, 2 run test.
        check: name of the check that outcomes are added under.
        findings: findings of the checks.
        looks: outcomes of the checks.
        complete: a violation that the checks look for would have been found.
        enough: the inspected run showed so much that no trial is needed.
        sentence: states how strong the inspection was.
        ratios: noise-to-sensitivity ratios of steps, relative to the accounted ones: (number of the
            step from 1, ratio).
    """

    layer: int = 0
    check: str = ""
    findings: list[Finding] = field(default_factory=list)
    looks: list[CheckOutcome] = field(default_factory=list)
    complete: bool = True
    enough: bool = False
    sentence: str = ""
    ratios: tuple[tuple[int, float], ...] = ()

    def find(self, kind: str, where: str, **values: Any) -> "Judgement":
        """Adds a finding of a kind, with the values of its texts."""
        self.findings.append(finding(kind, where, layer=self.layer, **values))
        return self

    def observe(self, summary: str, *, complete: bool = True) -> "Judgement":
        """Adds the outcome of a check that is done; it is not `complete` with too few trials."""
        self.looks.append(CheckOutcome(self.layer, self.check, done=True, said=summary))
        self.complete &= complete
        return self

    def miss(self, why: str, *, name: str = "", applies: bool = True) -> "Judgement":
        """Adds the outcome of a check that is not done, or of its part `name`.

        If the check `applies` to the script, the judgement is no longer complete.
        """
        self.looks.append(CheckOutcome(self.layer, name or self.check, False, why, applies))
        self.complete &= not applies
        return self

    def add(self, part: "Judgement") -> "Judgement":
        """Adds the findings and outcomes of another judgement to this one."""
        self.findings += part.findings
        self.looks += part.looks
        self.complete &= part.complete
        self.enough |= part.enough
        self.sentence = self.sentence or part.sentence
        self.ratios = self.ratios or part.ratios
        return self

    @property
    def violations(self) -> list[Finding]:
        """Findings that violate the claim, silenced or not."""
        return [item for item in self.findings if item.weight is Weight.VIOLATION]


@dataclass(frozen=True)
class Measured:
    """Lower bound on ε from a layer's trials, next to the claim. Both are of a step, or of a run.

    Of steps, the bound and the verdict share the layer's probability of a false alarm.

    Attributes:
        layer: 1 step test, 2 run test.
        of: kind of the trials, in words.
        epsilon: the bound.
        claimed: the accounted ε.
        delta: δ of both.
        assumes: assumption of the bound, in words.
    """

    layer: int
    of: str
    epsilon: float
    claimed: float
    delta: float
    assumes: str

    def __str__(self) -> str:
        """The bound and the accounted ε, with δ, confidence and assumption."""
        bound = f"ε >= {self.epsilon:.3g}" if self.epsilon > 0 else "no ε above 0 shown"
        confidence = percent(1 - ALPHA[self.layer])
        return (
            f"{self.of}: {bound}, accounted {self.claimed:.3g} "
            f"(δ = {plain(self.delta)}, {confidence}, assumes {self.assumes})"
        )


@dataclass(frozen=True)
class AuditedCode:
    """Code that was audited, and the command that audits it again with the same coins.

    Attributes:
        command: command of the shell, from the script's folder.
        seed: seed of all secret bits.
        sources: SHA-256 of the script and of the modules in its folder, by their paths.
        versions: versions of packages, by their names.
    """

    command: str = ""
    seed: int = 0
    sources: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ScriptVerdict:
    """Audit of a script: verdict, claim, findings, and outcomes of all checks.

    Attributes:
        claim: ε at `delta`; NaN if the script has none.
        accountant: who states the claim.
        composed: ε at `delta` of all accounted steps by PLD; NaN if nothing was accounted.
        help: what would decide an INCONCLUSIVE audit.
        runs: number of runs of the script.
        output: last lines that the script printed.
        sentence: how strong the inspection was.
        ratios: noise-to-sensitivity ratios of steps, relative to the accounted ones: (number of the
            step from 1, ratio).
        unchecked: what this kind of audit does not check in this script.
        waited: seconds that the runs waited for a processor.
        code: identity of the script, for a certificate.
    """

    script: str
    verdict: Verdict
    claim: float
    delta: float
    accountant: str
    findings: tuple[Finding, ...]
    looks: tuple[CheckOutcome, ...]
    help: tuple[str, ...]
    runs: int
    step_trials: int
    run_trials: int
    seconds: float
    output: str = ""
    measured: tuple[Measured, ...] = ()
    sentence: str = ""
    confidence: float = 1 - sum(ALPHA.values())
    composed: float = math.nan
    ratios: tuple[tuple[int, float], ...] = ()
    unchecked: tuple[str, ...] = ()
    waited: float = 0.0
    code: AuditedCode = field(default_factory=AuditedCode)

    @property
    def claim_text(self) -> str:
        """The claimed ε with who states it, and the ε that accounted steps compose to."""
        delta = f"δ = {plain(self.delta)}"
        if math.isnan(self.claim):
            return f"none at {delta}: the run did not end, or nothing was accounted"
        text = f"ε <= {self.claim:.3g} at {delta}, {self.accountant}"
        if math.isnan(self.composed):
            return text
        return f"{text}; recomputed: {self.composed:.3g} by PLD"

    @property
    def headline(self) -> str:
        """The verdict in a sentence: what the script violates, or what could not be checked."""
        if self.violations:
            checks = dict.fromkeys(item.look for item in self.violations)
            return f"{self.script} violates its claim: {', '.join(checks)}"
        if self.verdict is Verdict.CONSISTENT:
            return f"{self.script}: no violation found"
        reason = f": {self.help[0]}" if self.help else ""
        return f"{self.script} could not be checked completely{reason}"

    @property
    def effort(self) -> str:
        """Number of runs and seconds, and how long they waited for a processor."""
        runs = "1 run" if self.runs == 1 else f"{self.runs} runs"
        text = f"{runs} in {self.seconds:.0f} s"
        if self.waited < 1:
            return text
        return f"{text}; runs waited {self.waited:.0f} s for a processor, as this machine is busy"

    @property
    def error(self) -> str:
        """The probability of a false alarm, in a sentence."""
        return (
            f"False alarms: at most {percent(1 - self.confidence)} of audits of a correct script."
        )

    @property
    def violations(self) -> tuple[Finding, ...]:
        """Findings that violate the claim, without silenced ones."""
        return tuple(item for item in self.findings if item.label == "Violation")


def finding(
    kind: str,
    where: str,
    layer: int = 0,
    **values: Any,
) -> Finding:
    """Returns a finding in the words of its kind, with these values in them.

    Args:
        kind: key of `KINDS`.
        where: place of the finding.
        layer: 0 run inspection, 1 step test, 2 run test.
        values: values of the braces in the kind's texts.
    """
    words = KINDS[kind]
    return Finding(
        layer=layer,
        look=words.check.format(**values),
        weight=words.weight,
        where=where,
        expected=words.expected.format(**values),
        seen=words.observed.format(**values),
        remedy=words.fix.format(**values),
        code=words.code,
    )
