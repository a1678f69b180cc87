"""Accounting: each release is accounted, and each ε that the script was given covers its steps."""

import math

from ...errors import plain
from .. import claims
from ..protocol import CarriedSum, Claim, Made, Participation, Report, entries_of
from ..script_findings import Judgement
from .check import Check, Inspection, at_entry

_TARGET_TOLERANCE = 0.01  # relative: a target that is missed by less is no finding


class Accounting(Check):
    """Compares steps with accountants' histories, and reported ε with the composed histories."""

    name = "accounting"
    question = "Is every release accounted, and is ε at least that of all accounted steps?"

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds findings for steps that no accountant counted, and for ε that is too small or early.

        A script may account for its steps, or compute ε, only after the last step. So neither is
        judged if the run was cut short.
        """
        counted = inspection.counted
        steps_taken = inspection.taken
        if steps_taken > counted and not (inspection.is_unsampled or inspection.cut):
            judgement.find("not accounted", "the accountant", taken=steps_taken, counted=counted)
        for entry in entries_of(inspection.record, CarriedSum)[:1]:
            judgement.find("carried sum", at_entry(entry))
        summary = f"{counted} of {steps_taken} steps accounted"
        if entries_of(inspection.record, Participation):
            summary = f"{steps_taken} steps accounted as one release"
        if inspection.cut:
            return judgement.miss(f"{summary}, and then {inspection.cut}")
        self._judge_targets(inspection, judgement)
        for group in claims.groups_of(inspection.result.claims):
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
        """Compares the sum of the accountants' last ε with the ε of all steps on the same records.

        Args:
            inspection: inspection of the script.
            group: the claims about the same records, one of each engine.
            judgement: takes the findings.
        """
        all_claims = inspection.result.claims
        claim_indices = {index for index, claim in enumerate(all_claims) if claim in group}
        reported = inspection.result.reported
        # The script may count all steps by an accountant of its own, and ask no engine's.
        own_accountants = {report.claim for report in reported if report.claim < 0}
        at_the_end = {report.claim for report in reported if report.steps == inspection.taken}
        is_only = len(own_accountants) == 1 and at_the_end == own_accountants
        if is_only and len(group) == len(all_claims):
            claim_indices = own_accountants
        last_reports: dict[float, dict[int, Report]] = {}  # by δ, and by the claim's index
        for report in reported:
            if report.claim in claim_indices:
                last_reports.setdefault(report.delta, {})[report.claim] = report
        for _, reports in sorted(last_reports.items()):
            self._judge_last_reports(inspection, group, list(reports.values()), judgement)

    def _judge_last_reports(
        self,
        inspection: Inspection,
        group: list[Claim],
        reports: list[Report],
        judgement: Judgement,
    ) -> None:
        """Judges the last ε of accountants at one δ, as far as they cover all steps.

        Args:
            inspection: inspection of the script.
            group: the claims about the same records, one of each engine.
            reports: the last report of each of these engines that made one at the δ.
            judgement: takes the findings.
        """
        after_all_steps = [report for report in reports if report.steps == inspection.taken]
        if not after_all_steps:
            return
        delta = reports[0].delta
        # Engines on the same records: their ε add up (basic composition).
        epsilon = sum(report.epsilon for report in after_all_steps)
        composed = claims.composed_epsilon(claims.steps_on_same_records(group), delta)
        if epsilon >= composed * (1 - claims.TOLERANCE):
            return
        engine_count = len(group)
        values = {"composed": composed, "epsilon": epsilon, "count": len(after_all_steps)}
        all_engines_reported = len(reports) == engine_count
        some_reported_early = len(after_all_steps) < len(reports)
        if all_engines_reported and some_reported_early:  # the script may add up all these ε
            judgement.find("reported apart", "get_epsilon", engines=engine_count, **values)
            if inspection.promised is None:
                judgement.miss(
                    f"whether the script adds up the ε of {engine_count} engines",
                    name="sum of engines",
                )
            return
        engines = ""
        if engine_count > 1:
            engines = f", of {len(after_all_steps)} of {engine_count} engines on these records"
        names = []
        for report in after_all_steps:
            is_own = report.claim < 0
            names.append(
                "its own accountant" if is_own else inspection.result.claims[report.claim].name
            )
        judgement.find(
            "less reported",
            "get_epsilon",
            name="+".join(dict.fromkeys(names)),
            engines=engines,
            delta=plain(delta),
            **values,
        )

    def _judge_targets(self, inspection: Inspection, judgement: Judgement) -> None:
        """Adds a finding for each target ε below the ε of all accounted steps.

        The target is the only ε of a script that does not get one from an accountant. If the user
        states an ε, `Promise` compares the steps with that one instead.
        """
        if inspection.promised is not None:
            return
        made_private = entries_of(inspection.record, Made)
        only_target = claims.only_target(made_private, inspection.result)
        for make_private_call in made_private:
            target = make_private_call.target_epsilon
            if target is None:
                continue
            delta = make_private_call.target_delta or inspection.delta
            composed = claims.composed(inspection.result, delta)
            if target < composed * (1 - _TARGET_TOLERANCE):
                judgement.find(
                    "target" if only_target is None else "only target",
                    make_private_call.line or "make_private_with_epsilon",
                    target=target,
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
        last_report = reports[-1]
        judgement.find(
            "reported early",
            "get_epsilon",
            delta=plain(inspection.delta),
            epsilon=last_report.epsilon,
            other=plain(last_report.delta),
            steps=last_report.steps,
            taken=steps_taken,
        )
