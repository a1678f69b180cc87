"""The rows of `dpaudit verify`: what its columns are, and what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..report.verdict import AuditVerdict, ExactVerdict, RunVerdict

COLUMNS = ("audit", "verdict", "accountant", "claim", "noise", "found", "evidence", "needed",
           "trials", "refuted", "power")  # fmt: skip
EXACT_COLUMNS = ("audit", "verdict", "accountant", "claim", "exact", "step")
# What a narrow terminal does without, the first ones first.
SPARE = ("accountant", "needed", "refuted", "trials", "evidence")
WORDS = (
    "claim: eps at delta; noise: its multiplier, as claimed; found: what it is at most by the "
    "trials; evidence: log10 of the e-value against the claim, which is refuted once that is what "
    "is needed; refuted: after so many trials"
)


def row(audit: AuditVerdict) -> tuple[object, ...]:
    """What is under `COLUMNS`."""
    return (audit.label, audit.verdict, audit.accountant, audit.claim, audit.noise_multiplier,
            audit.effective_noise or "any", audit.evidence, audit.needed, audit.trials,
            audit.refuted_after or "never", f"{audit.power:.0%}")  # fmt: skip


def computed(audit: ExactVerdict) -> tuple[object, ...]:
    """What is under `EXACT_COLUMNS`."""
    return (audit.label, audit.verdict, audit.accountant, audit.claim, audit.epsilon, audit.step)


def why_rows_differ(found: RunVerdict) -> str | None:
    """Why a run's verdict is not that of some row; None where that needs no word."""
    from ..report.verdict import Verdict

    verdicts = [audit.verdict for audit in found.audits]
    verdicts += [audit.verdict for audit in found.exact]
    unclear = verdicts.count(Verdict.INCONCLUSIVE)
    if found.verdict is Verdict.CONSISTENT and unclear:
        which = "an audit that cannot" if unclear == 1 else f"{unclear} audits that cannot"
        return (
            "CONSISTENT: each mechanism has an audit that would have found missing noise, beside "
            f"{which} (INCONCLUSIVE)"
        )
    if found.verdict is Verdict.VIOLATION and Verdict.VIOLATION not in verdicts:
        return "VIOLATION: by the evidence of all audits together, and of none alone"
    return None
