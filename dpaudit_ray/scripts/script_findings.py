"""What an audit of a script says: findings, with their words in one table, looks, the verdict.

The verdict is written as a page of HTML, and as a JUnit file.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from enum import StrEnum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .. import __version__
from ..errors import StorageError, lines, percent, plain
from ..report import page
from ..report.verdict import Verdict

# The error of the whole audit, one in twenty, and what each layer has of it.
ALPHA = {0: 0.01, 1: 0.02, 2: 0.02}
LAYERS = {0: "one run looked into", 1: "canaries in steps", 2: "canaries in whole runs"}
BLIND_SPOTS = (
    "records that are in the data twice, decisions of the script's own code on losses that were "
    "never released (early stopping), constants that were computed from the data beforehand, what "
    "is printed or logged, what a loop of one's own does beside releases that were not held, holes "
    "of floating-point arithmetic, weak random generators"
)


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


@dataclasses.dataclass(frozen=True)
class Look:
    """One look of a layer: what it saw in a line, or why it saw nothing (`done` is False)."""

    layer: int
    name: str
    done: bool
    said: str

    @property
    def line(self) -> str:
        return self.said if self.done else f"not done: {self.said}"


@dataclasses.dataclass
class Judgement:
    """What one layer says, or a part of it; a judge adds to it and returns it."""

    layer: int = 0
    findings: list[Finding] = dataclasses.field(default_factory=list)
    looks: list[Look] = dataclasses.field(default_factory=list)
    complete: bool = True  # a violation of its kind would have been found
    enough: bool = False  # one run showed so much that no trial is needed; see `single_run.judge`
    sentence: str = ""  # says how much that was

    def find(self, code: str, where: str, **values: Any) -> Judgement:
        self.findings.append(finding(code, where, self.layer, **values))
        return self

    def look(
        self, name: str, said: str, *, done: bool = True, complete: bool | None = None
    ) -> Judgement:
        """Adds a look: what it saw, or why it was not `done` and so, usually, not `complete`."""
        self.looks.append(Look(self.layer, name, done, said))
        self.complete &= done if complete is None else complete
        return self

    def add(self, part: Judgement) -> Judgement:
        self.findings += part.findings
        self.looks += part.looks
        self.complete &= part.complete
        self.enough, self.sentence = self.enough or part.enough, self.sentence or part.sentence
        return self


@dataclasses.dataclass(frozen=True)
class Measured:
    """A layer's lower bound on ε at `delta` beside what is claimed: of one step, or of a run.

    Bound and verdict have the layer's error together; `assumes` says under what.
    """

    layer: int
    of: str
    epsilon: float
    claimed: float
    delta: float
    assumes: str

    def __str__(self) -> str:
        return (
            f"measured ε >= {self.epsilon:.3g} for {self.of}, claimed {self.claimed:.3g} "
            f"(δ = {plain(self.delta)}, {percent(1 - ALPHA[self.layer])}, assumes {self.assumes})"
        )


@dataclasses.dataclass(frozen=True)
class ScriptVerdict:
    """A script's audit: the verdict, the claim, and all that was found.

    `claim` is ε at `delta`, NaN where the script has none. `help` says what would decide an audit
    that is INCONCLUSIVE, `sentence` how much the look into one run saw.
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
    measured: tuple[Measured, ...] = ()
    sentence: str = ""
    confidence: float = 1 - sum(ALPHA.values())

    @property
    def claim_text(self) -> str:
        if math.isnan(self.claim):
            return f"its ε at δ = {plain(self.delta)}"
        return f"ε = {self.claim:.3g} (δ = {plain(self.delta)}, {self.accountant})"

    @property
    def headline(self) -> str:
        if self.violations:
            looks = ", ".join(dict.fromkeys(item.look for item in self.violations))
            return f"{self.script} breaks its promise of {self.claim_text}: {looks}"
        kept = f"keeps {self.claim_text}"
        if self.verdict is not Verdict.CONSISTENT:
            kept = f"was not seen whole, so nothing is said of {self.claim_text}"
        return f"{self.script} {kept}. {self.sentence}".rstrip()

    @property
    def effort(self) -> str:
        return f"{self.runs} run{'s' * (self.runs != 1)} in {self.seconds:.0f} s"

    @property
    def error(self) -> str:
        share = 1 - self.confidence
        return f"a promise that is kept is called broken in at most {percent(share)} of audits"

    @property
    def violations(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.weight is Weight.VIOLATION)


def finding(code: str, where: str, layer: int = 0, **values: Any) -> Finding:
    """A finding in the words of `_TEXTS`, with these values in them."""
    look, weight, *texts = _TEXTS[code]
    look, *texts = (text.format(**values) for text in (look, *texts))
    return Finding(layer, look, weight, where, *texts)


def html(verdict: ScriptVerdict) -> str:
    """One page that needs nothing else."""
    environment = page.environment(trim_blocks=True, lstrip_blocks=True)
    template = environment.get_template("script.html.j2")
    written = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return template.render(
        audit=verdict, layers=LAYERS, blind=BLIND_SPOTS, version=__version__, written=written
    )


def junit(verdict: ScriptVerdict) -> str:
    """A test case per look; a look that found a violation failed, one that saw nothing is skipped.

    A finding of a kind that no look is named after has a case of its own.
    """
    # Why it is skipped, and failures.
    cases: dict[tuple[int, str], tuple[str, list[str]]] = {
        (look.layer, look.name): ("" if look.done else look.line, []) for look in verdict.looks
    }
    for violation in verdict.violations:
        cases.setdefault((violation.layer, violation.look), ("", []))[1].append(str(violation))
    failures = sum(bool(messages) for _, messages in cases.values())
    suite = ElementTree.Element(
        "testsuite", name=f"dpaudit {verdict.script}", tests=str(len(cases)),
        failures=str(failures), errors="0",
        skipped=str(sum(bool(why) and not messages for why, messages in cases.values())),
        time=f"{verdict.seconds:.1f}",
    )  # fmt: skip
    properties = ElementTree.SubElement(suite, "properties")
    values = {"verdict": f"{verdict.verdict}: {verdict.headline}"}
    values |= {f"L{measured.layer}": str(measured) for measured in verdict.measured}
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=lines(value))
    for (layer, name), (why, messages) in cases.items():
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"L{layer} {LAYERS[layer]}", name=name
        )
        if messages:
            failure = ElementTree.SubElement(case, "failure", message=lines(messages[0]))
            failure.text = lines("\n".join(messages))
        elif why:
            ElementTree.SubElement(case, "skipped", message=lines(why))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def write(path: Path, text: str) -> None:
    """Writes a file. Raises StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path} ({error.strerror}); name another file") from error


_V, _W, _N = Weight.VIOLATION, Weight.WARNING, Weight.NOTE
_POISSON = "every record drawn by itself at a rate of {rate:.3g} (Poisson), as accounted"
_SAMPLE = "sample by poisson_sampling=True, or account without amplification"
_PUBLIC = "harmless on public data and private releases only"

# By code: look, weight, what was expected, what was seen, what to do.
# fmt: off
_TEXTS: dict[str, tuple[Any, ...]] = {
    "no noise": (
        "noise", _V, "noise on every gradient",
        "the same gradient whatever the generators' state: no noise, or always the same",
        "look at what adds the noise, and at what seeds its generator"),
    "bare": ("noise", _V, "noise on every gradient", "none on {bare}, which records move"),
    "short noise": (
        "noise", _V, "a noise multiplier of {noise:.3g}, as accounted",
        "{effective:.3g} or less, by {what}",
        "noise is its multiplier times what a record moves the sum by: add up squared bounds"),
    "counted": (
        "noise", _V, "a noise multiplier of {noise:.3g}, as accounted",
        "{effective:.3g} or less: {share} of it by the clipping bound, which a count moves",
        "the count needs noise too: Opacus takes a record for half of what it counts, so make "
        "unclipped_num_std twice as large, or batches larger where that is a share of them"),
    "not finite": (
        "noise", _W, "numbers", "a release with inf or NaN in it, at {count} of {steps} steps",
        "what makes training diverge may depend on a record"),
    "scale": (
        "scale", _V, "a record without a gradient to change nothing",
        "all scaled with the batch, as by a noise multiplier of {effective:.3g}, not {noise:.3g}",
        "divide by the expected batch size, not by the one that was drawn"),
    "unclipped": (
        "clipping", _V, "no record to move the release by more than the clipping bound",
        "{what} moved it {ratio:.0f} times as far as a noise multiplier of {noise:.3g} allows",
        "clip every record's gradient, over all parameters, before they are added up"),
    "ghost": (
        "clipping", _V, "no clipped gradient longer than {bound:.3g}", "{longest:.3g}, of {what}",
        "ghost clipping bounds what it thinks the norm is: look at its norms"),
    "correlation": (
        "correlation of {kind}", _V, "independent noise",
        "noise of {what} with a correlation of {correlation:.2f}",
        "draw fresh noise for every parameter and every step, from one generator"),
    "law": (
        "law of the noise", _V, "Gaussian noise",
        "another law ({distance:.3f} away from the normal one, of {n} numbers)"),
    "mixes": (
        "records apart", _V,
        "what it gives for a record not to depend on the others of its batch",
        "another record in the first place changed the others by {by:.2g} of their size",
        "replace batch normalisation, and whatever else looks across a batch"),
    "buffers": (
        "buffers", _V, "buffers that no record changes",
        "values computed from the batch, without noise",
        "they are published with the model: freeze them, or use GroupNorm"),
    "not accounted": (
        "accounting", _V, "{taken} steps, which were taken", "{counted} in its history",
        "every release must be accounted: attach_step_hook replaces the engine's own hook"),
    "told less": (
        "accounting", _V, "ε = {claimed:.4g}, of all {engines} engines on these records together",
        "{epsilon:.4g}, of {count} of them; another was never asked", "quote the sum"),
    "told apart": (
        "accounting", _W, "ε = {claimed:.4g}, of all {engines} engines together",
        "{epsilon:.4g} at the end, of {count} of them",
        "quote the sum, by one accountant for all, and promise it by @audited(epsilon=...)"),
    "carried sum": (
        "accumulation", _V, "a release of one draw of records",
        "a draw that was left, and the next on top: a record of both counts twice under one noise",
        "leave BatchMemoryManager at the end of a batch only"),
    "not private": (
        "updates", _V, "every update to be a private release",
        "{names} updated by an optimizer that no PrivacyEngine wraps",
        "step the optimizer that make_private returned, and that alone"),
    "warm-up": (
        "updates", _V, "no training on these records without noise",
        "{names} trained on the data set that make_private was given later",
        "warm up on public data only, or in the private loop"),
    "beside": (
        "records elsewhere", _W, "no training on these records without noise",
        "{value}, trained on them by an optimizer that no engine wraps",
        "what private steps learn from it has no noise: train it privately, or on public data"),
    "standardised": (
        "records elsewhere", _W, "data scaled by constants, or by what is public",
        "mean 0 and deviation 1 of {value} columns: the records were scaled by themselves",
        "scale by constants, or by means that have noise and are accounted"),
    "moves others": (
        "records apart", _V, "a record to be in one gradient of its batch",
        "another record in its place changed {count} of {rows} gradients, of {drawn} records",
        "one row a record; what is weighted, scaled or averaged must not know the batch"),
    "goes on": (
        "state", _V, "steps that know of earlier records by earlier releases alone",
        "{count} of {others} without the record that released something else with another in its "
        "place, while releases were held the same; step {had} had it first",
        "keep nothing of a batch for later but what was released"),
    "decided": (
        "updates", _V, "choices by what was released, or by public records",
        "{names}, which another record changed while releases were held the same",
        "plan rates and epochs ahead, or choose by public records"),
    "let out": (
        "release", _V, "nothing but what was released",
        "{names}, which another record changed while releases were held the same",
        "leave it out, or add noise to it and account for that"),
    "moved": (
        "updates", _W, "parameters that private steps alone change", "changes by other code",
        _PUBLIC),
    "outside": ("updates", _W, "private updates only", "updates {what}", _PUBLIC),
    "gradients": (
        "release", _V, "no gradient but private ones", ".grad of {names} is none that was released",
        "return it after optimizer.zero_grad(), or its state_dict() only"),
    "others": (
        "release", _W, "no gradient in it", ".grad of {names}, which no private optimizer made"),
    "tensors": (
        "release", _W, "private parameters, and what was there before training became private",
        "{names}, which is neither",
        "return it without, or name it to @audited(public=[...]) if noise hides its records"),
    "saved": (
        "release", _V, "parameters only",
        "gradients of single records in a file, as grad_sample of {names}",
        "save its state_dict(), after optimizer.zero_grad()"),
    "statistics": (
        "release", _V, "nothing of the records without noise",
        "{names}, which are means or deviations of the records",
        "use constants, or add noise to it and account for that"),
    "earlier": (
        "release", _W, "what the last step left", "{names}",
        "if a loss on records chose it, no noise hides that; choose by public records and name it "
        "to @audited(public=[...]), or return the last"),
    "examples": (
        "release", _N, "parameters only", "gradients of single records in grad_sample",
        "save its state_dict(): a pickled model has them"),
    "same seeds": (
        "seeds", _V, "noise that nobody can draw again",
        "a generator that every run seeds with {seed}: whoever has the script knows its noise",
        "leave noise_generator out, or seed it from os.urandom"),
    "fixed seed": (
        "seeds", _W, "noise that nobody can draw again",
        "a seed fixed in the script: whoever reads it can compute the noise",
        "train what is published without it; further runs are seeded otherwise"),
    "promise": (
        "promise", _V, "an accountant that says {promised:g} or less",
        "ε = {claimed:.4g} at δ = {delta}, by the script's own ({name})",
        "train for fewer steps, or with more noise"),
    "draws lost": (
        "sampling", _W, "a step for every draw", "{count} draws that led to no step",
        "which draws are passed over must not depend on their records"),
    "records passed over": (
        "sampling", _W, "every record that was drawn to be in its step",
        "{used} of {drawn}, and fewer at {count} steps in all",
        "which records of a batch are passed over must not depend on the others: no top-k"),
    "more rows": (
        "sampling", _W, "one gradient for each record that was drawn",
        "{used} for {drawn}, and more at {count} steps in all",
        "the noise is for one clipped gradient of a record: average its copies before clipping"),
    "empty passed over": (
        "sampling", _V, "a step for every draw, empty ones too",
        "{count} empty draws that were passed over",
        "take the step: its noise hides that nobody was drawn"),
    "too often": (
        "sampling", _V, "no record in more than {counted} steps, which were accounted",
        "one that was in {most}"),
    "rate": (
        "sampling", _V, "a rate of {rate:.4g}, as accounted",
        "{share:.4g}: {total} records in {draws} draws of {records}",
        "account the rate that the loader draws at"),
    "twice": (
        "sampling", _V, "a record once in a batch",
        "{count} records that were drawn twice into one batch"),
    "no empty": (
        "sampling", _V, "about {expected:.0f} empty draws", "none in all",
        "keep empty batches: without them, that a step is taken tells who was drawn"),
    "dependent": (
        "sampling", _V, "independent draws of every record", "draws that hang together"),
    "not Poisson": (
        "sampling", _V, _POISSON,
        "draws that are {how}; neighbours whose other gradients all point away exceed "
        "ε = {epsilon:.3g} with δ = {reached} at least, where {delta} is promised",
        _SAMPLE),
    "not proven": (
        "sampling", _W, _POISSON,
        "draws that are {how}: no accountant proves the claim for them", _SAMPLE),
    "secret size": (
        "secret size", _V, "nothing published to depend on the number of records", "{seen}",
        "choose sample rate, expected batch size and steps as constants"),
    "guessed": ("{look}", _V, "{claim}", "{seen}"),
    "failed": (
        "every step a trial", _W, "runs that end", "{seen}",
        "a step that fails counts as a wrong guess"),
}
# fmt: on
