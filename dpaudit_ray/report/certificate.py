"""`dpaudit certify`: one page to sign on an audit, with the terms of NIST SP 800-226.

The page of a run has nothing that the run directory does not show, and the commands by which others
check it. `scripts/script_certificate` fills the same page for a script.
"""

import datetime
import hashlib
import math
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .. import __version__
from ..adversaries.base import Adversary, FinalModelAdversary, TrajectoryAdversary
from ..errors import RunDirectoryError, plain
from ..plan import record
from ..plan.finished_trials import FinishedTrials, stored_ranges
from ..storage.scores import PackScores
from . import check, verdict
from .page import environment
from .tables import Run

HTML = "certificate.html"
PDF = "certificate.pdf"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PRINT_SECONDS = 120
_LISTED = 4  # texts of a field, so that all fits one page
_COMMITMENT = (
    "SHA-256 of the secret bits and of the declared trials: `{}`. `dpaudit plan --json` prints it "
    "before training. If a second party received it then, bits and trials were not chosen after "
    "the results."
)
_CHECKS = (
    "`dpaudit check {0} --commitment {1}` recomputes claims, bits, bounds and verdict from the "
    "scores.",
    "`dpaudit check {0} --rerun 1%` also trains 1 % of the packs again; the checker's machine "
    "picks them. Invented scores differ.",
    "`dpaudit certify {0}` must give the same digests as this page.",
)
NOT_COVERED = (
    "floating-point arithmetic and the random number generator",  # scripts list it themselves
    "side channels, such as time, logs and error messages",
    "choices on private records: filters, scaling, hyperparameters, stopping",
    "code and data other than those with the digests on this page",
)
CENTRAL = "central: one party holds all data and runs the algorithm"
Fields = dict[str, str]  # text by its term


@dataclass(frozen=True)
class Certificate:
    """Content of the page.

    Attributes:
        name: name of the audit.
        verdict: the verdict in a word.
        sentence: the verdict in a sentence.
        guarantee: what is claimed.
        evidence: what was measured.
        unchecked: what was not covered.
        identity: versions and digests.
        commitment: who could choose the secret bits, with code in backticks.
        checks: how a third party checks the audit, with code in backticks.
    """

    name: str
    verdict: str
    sentence: str
    guarantee: Fields
    evidence: Fields
    unchecked: list[str]
    identity: Fields
    commitment: str
    checks: list[str]


def of_run(run: Run, commit: str) -> Certificate:
    """Checks a run, and returns its certificate.

    Args:
        run: the run.
        commit: the commit of the audited code, as its author states it; may be empty.

    Raises:
        RunDirectoryError: the run is not complete, or does not follow from its scores.
    """
    location = run.directory.location
    checked = check.check_run(location)
    if checked.partial:
        raise RunDirectoryError(f"{location}: has {checked.partial}; complete it, then certify it")
    if not checked.in_order:
        raise RunDirectoryError(
            f"{location}: differs in {checked.different} places; see `dpaudit check {location}`"
        )
    answer = verdict.current(run)
    commitment = run.plan.commitment
    return Certificate(
        name=run.sweep.name,
        verdict=str(answer.verdict),
        sentence=answer.sentence,
        guarantee=_guarantee(run, answer),
        evidence=_evidence(run, answer, checked),
        unchecked=[*checked.unchecked, *NOT_COVERED],
        identity=_identity(run, commit),
        commitment=_COMMITMENT.format(commitment),
        checks=[check.format(location, commitment) for check in _CHECKS],
    )


def write(certificate: Certificate, folder: Path) -> tuple[Path, Path | None]:
    """Writes a certificate as HTML and PDF.

    Returns:
        Paths of both files; None for a PDF that no browser could print.
    """
    page = environment().get_template("certificate.html.j2").render(
        page=certificate,
        version=__version__,
        written=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    )  # fmt: skip
    html = folder / HTML
    html.write_text(page, encoding="utf-8")
    return html, _printed(html, folder / PDF)


def _guarantee(run: Run, answer: verdict.Answer) -> Fields:
    """Returns the claim in the terms of NIST SP 800-226."""
    cells = run.sweep.cells
    claims = [cell.claimed() for cell in cells if not cell.unimported]
    quote = answer.quote
    claimed = "nothing is claimed"
    if quote.claim < math.inf:
        claimed = f"ε ≤ {quote.claim:.4g} at δ = {plain(quote.delta)}, by {quote.accountant}"
    units = listed([f"one {claim.unit}" for claim in claims]) or "stated in code that was not run"
    return {
        "Privacy parameters": claimed,
        "Claim in words": listed([claim.words for claim in claims]),
        "Unit of privacy": units,
        "Neighbouring data sets": f"differ in {units}, as the accountant compares them",
        "Algorithm": listed([cell.mechanism.name for cell in cells]),
        "Trust model": CENTRAL,
        "Threat model": listed([_threat(cell.adversary) for cell in cells]),
    }


def _threat(adversary: Adversary) -> str:
    """Returns the name of an adversary, and what it has access to."""
    access = "the access described in docs/adversaries.md"
    if isinstance(adversary, FinalModelAdversary):
        access = "the final model"
    elif isinstance(adversary, TrajectoryAdversary):
        access = "all models and updates"
    return f"{adversary.name}, with access to {access}"


def _evidence(
    run: Run,
    answer: verdict.Answer,
    checked: check.Checked,
) -> Fields:
    """Returns what was measured, how strong the audit was, and what was recomputed.

    Args:
        run: the run.
        answer: the verdict on the run.
        checked: the results of `dpaudit check`.
    """
    quote = answer.quote
    same = [audit for audit in answer.audits if audit.verdict is answer.verdict]
    extended = any(audit.extended for audit in run.plan.audits)
    return {
        "Measured": f"{verdict.measured(quote).removeprefix('Measured ')}, {quote.label}",
        "Strength": f"{same[0].label}: {same[0].reason}" if same else "",
        "Audits": f"{len(answer.audits):,}, of which {len(same):,} {answer.verdict}",
        "Trials": f"{answer.judged:,}, of which {answer.failed_trials:,} ended without a score",
        "Growth": "trials were added after results were known" if extended else "only as planned",
        "Recomputed": ", ".join(f"{count:,} {name}" for name, count in checked.derived.items()),
    }


def _identity(run: Run, commit: str) -> Fields:
    """Returns commit, versions and digests."""
    code = run.plan.code[-1]
    modules = [f"{name} {digest[:16]}" for name, digest in code.modules.items()]
    files = [f"{Path(file.file).name} {file.sha256[:16]}" for file in run.plan.data]
    fields = {
        "Commit of the code": commit or "not stated",
        "Modules": listed(modules) or "none outside of dpaudit",
        "Versions": ", ".join(f"{name} {version}" for name, version in code.versions.items()),
        "Data files": listed(files) or "none outside of packages",
    }
    for name in (record.SWEEP_FILE, record.FILE):
        content = run.directory.read_text(name) or ""
        fields[f"SHA-256 of {name}"] = hashlib.sha256(content.encode()).hexdigest()
    fields["SHA-256 of all scores"] = _scores_digest(run)
    return fields


def _scores_digest(run: Run) -> str:
    """Returns a digest of the digests of all packs in trial order, whatever their files are."""
    sha256 = hashlib.sha256()
    for index, audit in enumerate(run.plan.audits):
        finished = FinishedTrials(run.directory, run.plan, index)
        for stored in stored_ranges(run.directory, audit):
            scores = finished.read(stored)
            assert isinstance(scores, PackScores)  # no pack that failed is stored
            for bounds in audit.packs[stored.start : stored.stop]:
                digest = scores.part(*bounds).digest(audit.id)
                sha256.update(digest.encode())
    return sha256.hexdigest()


def listed(texts: list[str]) -> str:
    """Returns different texts, the first `_LISTED` of them in full."""
    different = list(dict.fromkeys(texts))
    in_full = different[:_LISTED]
    if len(different) > _LISTED:
        in_full.append(f"{len(different) - _LISTED} more")
    return "; ".join(in_full)


def _printed(html: Path, pdf: Path) -> Path | None:
    """Prints a page by a headless Chromium; returns None without one, or if it fails."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        return None
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
        command += [f"--user-data-dir={profile}", f"--print-to-pdf={pdf}", html.absolute().as_uri()]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_PRINT_SECONDS)
        except (OSError, subprocess.SubprocessError):
            return None
    return pdf if pdf.exists() else None
