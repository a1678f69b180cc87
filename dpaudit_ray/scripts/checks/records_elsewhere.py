"""Uses of the private records outside of private steps."""

from ..script_findings import Judgement
from .check import Check, Inspection, listed, with_line


class RecordsElsewhere(Check):
    """Judges networks that the records trained without noise, and scaling by the records."""

    name = "records elsewhere"
    question = "Are the records used only in private steps?"

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds a finding for each use outside of private steps.

        Processes that were not watched may use records, too, so with them the check is not done.
        """
        result = inspection.result
        if result.other_networks:
            judgement.find(
                "beside", "an optimizer without noise", value=listed(result.other_networks)
            )
        if result.common_scale:
            judgement.find("common scale", "the data set", what=result.common_scale)
        if result.initial_statistics:
            names = listed(result.initial_statistics)
            judgement.find("initial values", "make_private", names=names)
        if result.processes:
            first = result.processes[0]
            count = sum(kind.count for kind in result.processes)
            where = with_line("a process", first.line)
            judgement.find("unwatched process", where, count=count, process=first.process)
            return judgement.miss(result.unwatched_processes)
        if judgement.findings:
            return judgement.miss("records without noise went into training")
        return judgement.observe("no other use was observed")
