"""Per-example independence: forward passes and batches, repeated with another record."""

from ..protocol import ForwardInspection, entries_of
from ..script_findings import Judgement
from .check import Check, Inspection, listed, with_line


class RecordsApart(Check):
    """Judges forward passes that were repeated with another record in one place."""

    name = "records apart"
    question = "Do a record's outputs and its row in a batch depend on this record alone?"
    inapplicable = "a custom training loop: its network is not known"

    def applies(self, inspection: Inspection) -> bool:
        return inspection.uses_opacus

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds findings for passes in which a record changes a buffer, or outputs of others.

        If records seem to lie along the second dimension, the finding is about that instead.
        """
        forwards = entries_of(inspection.record, ForwardInspection)
        passes = [entry for entry in forwards if not entry.inconclusive]
        mixing = [entry for entry in passes if entry.mixes]
        time_first = [entry for entry in passes if entry.time_first]
        for kind, entries in (("time first", time_first), ("mixes", mixing)):
            if entries and not judgement.findings:  # time first explains why outputs mix
                worst = max(entries, key=lambda entry: entry.relative_change)
                where = with_line("the network's forward pass", worst.line)
                judgement.find(kind, where, by=worst.relative_change)
        buffers: set[str] = set()
        for entry in passes:
            buffers.update(entry.buffers)
        if buffers:
            judgement.find("buffers", listed(sorted(buffers)))
        if not passes:
            reasons = [entry.inconclusive for entry in forwards]
            reasons.append("no forward pass of the network in training was observed")
            return judgement.miss(reasons[0])
        return judgement.observe(f"{len(passes)} forward passes repeated")
