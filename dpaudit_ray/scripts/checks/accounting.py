"""Accounting: each release is accounted, and each ε that the script was given covers its steps."""

import math

from ...errors import plain
from .. import claims
from ..protocol import CarriedSum, Claim, Made, Participation, Report, entries_of
from ..script_findings import Judgement
from .check import Check, Inspection, at_step


class Accounting(Check):
    """Compares steps with accountants' histories, and reported ε with the composed histories."""

    name = "accounting"
    question = "Is every release accounted, and is ε at least that of all accounted steps?"

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds findings for steps that no accountant counted, and for ε that is too small or early.

        The script of a run that was cut short may account for steps, or ask for ε, after all its
        steps. So of such a run neither is judged.
        """
        counted = inspection.counted
        steps_taken = inspection.taken
        if steps_taken > counted and not (inspection.is_unsampled or inspection.cut):
            judgement.find("not accounted", "the accountant", taken=steps_taken, counted=counted)
        for entry in entries_of(inspection.record, CarriedSum)[:1]:
            judgement.find("carried sum", at_step(entry.step, entry.line))
        summary = f"{counted} of {steps_taken} steps accounted"
        if entries_of(inspection.record, Participation):
            summary = f"{steps_taken} steps accounted as one release"
        if inspection.cut:
            return judgement.miss(f"{summary}, and then {inspection.cut}")
        self._judge_targets(inspection, judgement)
        for group in claims.groups_of(inspection.result.claims).values():
            self._judge_reports(inspection, group, judgement)
        self._judge_early_reports(inspection, judgement)
        sizes = [draws.records for draws in inspection.result.draws]
        records = min(sizes, default=0)
        if records * inspection.delta >= 1:
            delta = plain(inspection.delta)
            judgement.find("large delta", f"δ = {delta}", records=records)
            return judgement.miss(f"{summary}; δ = {delta} promises little: give a smaller one")
        return judgement.observe(summary)

    def _judge_reports(
        self, inspection: Inspection, group: list[Claim], judgement: Judgement
    ) -> None:
        """Compares the last ε of each accountant with the ε of all steps on the same records.

        Args:
            inspection: inspection of the script.
            group: the claims about the same records, one of each engine.
            judgement: takes the findings.
        """
        claimed = inspection.result.claims
        claim_ids = {n for n, claim in enumerate(claimed) if claim in group}
        reported = inspection.result.reported
        # The script may count all steps by an accountant of its own, and ask no engine's.
        own = {report.claim for report in reported if report.claim < 0}
        asked = {report.claim for report in reported if report.steps == inspection.taken}
        if len(own) == 1 and asked == own and len(group) == len(claimed):
            claim_ids = own
        last: dict[float, dict[int, Report]] = {}  # last report, by δ and accountant
        for report in reported:
            if report.claim in claim_ids:
                last.setdefault(report.delta, {})[report.claim] = report
        for delta, reports in sorted(last.items()):
            final = [item for item in reports.values() if item.steps == inspection.taken]
            epsilon = sum(report.epsilon for report in final)
            composed = claims.composed_epsilon(claims.steps_on_same_records(group), delta)
            if not final or epsilon >= composed * (1 - claims.TOLERANCE):
                continue
            values = {"composed": composed, "epsilon": epsilon, "count": len(final)}
            if len(final) < len(claim_ids) == len(reports):
                # Each engine stated an ε, though not all at the end. The script may add them up.
                judgement.find("reported apart", "get_epsilon", engines=len(claim_ids), **values)
                if inspection.promised is None:
                    judgement.miss(
                        f"whether the script adds up the ε of {len(claim_ids)} engines",
                        name="sum of engines",
                    )
                continue
            engines = ""
            if len(claim_ids) > 1:
                engines = f", of {len(final)} of {len(claim_ids)} engines on these records"
            names = "its own accountant"
            if claim_ids != own:
                names = "+".join(dict.fromkeys(claimed[report.claim].name for report in final))
            judgement.find(
                "less reported",
                "get_epsilon",
                name=names,
                engines=engines,
                delta=plain(delta),
                **values,
            )

    def _judge_targets(self, inspection: Inspection, judgement: Judgement) -> None:
        """Adds a finding for a target ε that is less than the ε of all accounted steps.

        A script that asked no accountant for ε states its target alone.
        """
        made_private = entries_of(inspection.record, Made)
        only_target = claims.only_target(made_private, inspection.result)
        for made in made_private:
            if made.target_epsilon is None or inspection.promised is not None:
                continue
            composed = claims.composed(inspection.result, made.target_delta or inspection.delta)
            if made.target_epsilon < composed * (1 - 0.01):
                judgement.find(
                    "target" if only_target is None else "only target",
                    made.line or "make_private_with_epsilon",
                    target=made.target_epsilon,
                    composed=composed,
                )

    def _judge_early_reports(self, inspection: Inspection, judgement: Judgement) -> None:
        """Adds a finding if the script got an ε, but none at δ of the claim after its last step."""
        reports = inspection.result.reported
        steps_taken = inspection.taken
        if not reports or math.isnan(claims.composed(inspection.result, inspection.delta)):
            return
        if any(item.steps == steps_taken and item.delta == inspection.delta for item in reports):
            return
        judgement.find(
            "reported early",
            "get_epsilon",
            delta=plain(inspection.delta),
            epsilon=reports[-1].epsilon,
            other=plain(reports[-1].delta),
            steps=reports[-1].steps,
            taken=steps_taken,
        )
