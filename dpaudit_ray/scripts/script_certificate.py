"""Certificate of a script's audit, from the page that `dpaudit audit` leaves."""

import hashlib
import html
import json
import math
import re
from pathlib import Path

import pydantic

from ..errors import ScriptError, plain
from ..report.certificate import CENTRAL, NOT_COVERED, Certificate, listed
from .script_findings import ALPHA, LAYERS, ScriptVerdict

_DATA = re.compile(r'<pre hidden id="audit">(.*?)</pre>', re.DOTALL)
_ADVERSARIES = {
    0: "observes the running code: every step, gradient, draw and saved value",
    1: "plants a gradient in randomly chosen steps, and observes each update",
    2: "plants a gradient in randomly chosen runs, and observes all updates",
}
_COMMITMENT = (
    "The seed, {}, determines all secret bits. If a second party chose it, the author of the "
    "script could not pick favourable bits."
)
_CHECKS = (
    "Compare the digests of the files above: `sha256sum {0}`.",
    "`{1}` audits the same code with the same secret bits, in about {2:.0f} s. It gives the same "
    "findings; a slower machine needs a larger `--budget`.",
    "The same command with a `--seed` of the checker's choice uses other secret bits.",
)


def of_page(page: Path, commit: str) -> Certificate:
    """Returns the certificate of the audit that a page reports.

    Args:
        page: an HTML file of `dpaudit audit`.
        commit: the commit of the audited code, as the code's author states it; may be empty.

    Raises:
        ScriptError: the page is missing, or has no record of an audit.
    """
    try:
        match = _DATA.search(page.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"cannot read {page} ({error})") from error
    record = html.unescape(match[1]) if match else ""
    try:
        audit = pydantic.TypeAdapter(ScriptVerdict).validate_python(json.loads(record))
    except ValueError as error:
        raise ScriptError(
            f"{page} has no record of an audit; write it with `dpaudit audit SCRIPT --html {page}`"
        ) from error
    return Certificate(
        name=audit.script,
        verdict=str(audit.verdict),
        sentence=f"{audit.verdict}: {audit.headline}",
        guarantee=_guarantee(audit),
        evidence=_evidence(audit),
        unchecked=[*audit.unchecked, *NOT_COVERED[1:]],  # `audit.unchecked` has the first already
        identity=_identity(audit, commit, record),
        commitment=_COMMITMENT.format(audit.code.seed),
        checks=[
            check.format(" ".join(audit.code.sources), audit.code.command, audit.seconds)
            for check in _CHECKS
        ],
    )


def _guarantee(audit: ScriptVerdict) -> dict[str, str]:
    """Returns the claim in the terms of NIST SP 800-226."""
    in_words = "nothing is claimed"
    if not math.isnan(audit.claim):
        parameters = f"({audit.claim:.4g}, {plain(audit.delta)})"
        in_words = (
            f"all releases of one training run together are {parameters}-differentially private"
        )
    layers = sorted({check.layer for check in audit.looks if check.done})
    return {
        "Privacy parameters": audit.claim_text,
        "Claim in words": in_words,
        "Unit of privacy": "one record of the training data",
        "Neighbouring data sets": "differ in one record, as the accountant compares them",
        "Algorithm": f"the private training of {audit.script}, as run",
        "Trust model": CENTRAL,
        "Threat model": "; ".join(f"{LAYERS[layer]}: {_ADVERSARIES[layer]}" for layer in layers),
    }


def _evidence(audit: ScriptVerdict) -> dict[str, str]:
    """Returns what was measured, how strong the audit was, and what it found."""
    findings = [f"{item.code} {item.look}, {item.label.lower()}" for item in audit.findings]
    done = [check.name for check in audit.looks if check.done]
    undone = [check.name for check in audit.looks if not check.done and check.applies]
    return {
        "Measured": "; ".join(map(str, audit.measured)) or "no ε: findings of the inspection alone",
        "Strength": audit.sentence,
        "Findings": listed(findings) or "none",
        "Checked": ", ".join(done),
        "Not done": ", ".join(undone),
        "Trials": f"{audit.step_trials:,} steps, {audit.run_trials:,} whole runs; {audit.effort}",
        "False alarms": f"at most {100 * sum(ALPHA.values()):.3g} % of audits of a correct script",
    }


def _identity(
    audit: ScriptVerdict,
    commit: str,
    record: str,
) -> dict[str, str]:
    """Returns what identifies the audited code and its audit: commit, versions and digests.

    Args:
        audit: the audit.
        commit: the commit, as the code's author states it; may be empty.
        record: text of the audit's record, as the page has it.
    """
    sources = audit.code.sources
    fields = {
        "Commit of the code": commit or "not stated",
        "Versions": ", ".join(f"{name} {text}" for name, text in audit.code.versions.items()),
    }
    script = audit.script.partition(":")[0].partition(" ")[0]
    if script in sources:
        fields[f"SHA-256 of {script}"] = sources[script]
    modules = [f"{name} {digest[:16]}" for name, digest in sources.items() if name != script]
    fields["Modules next to it"] = listed(modules) or "none"
    fields["SHA-256 of the audit's record"] = hashlib.sha256(record.encode()).hexdigest()
    return fields
