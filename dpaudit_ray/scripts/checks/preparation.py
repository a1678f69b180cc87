"""Preparation of the records before training."""

from ..script_findings import Judgement
from .check import Check, Inspection, listed


class Preparation(Check):
    """Judges whether a prepared record changes with the rows of other records."""

    name = "preparation"
    question = "Is each record prepared for training without regard to the others?"
    inapplicable = "no array in the script's variables becomes the private records row by row"

    def applies(self, inspection: Inspection) -> bool:
        return inspection.preparation is not None

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds findings if records of unchanged rows changed, or settings of training."""
        runs = inspection.preparation
        assert runs is not None  # else the check does not apply
        if runs.records_changed:
            judgement.find(
                "preparation from several records",
                runs.line,
                rows=runs.rows,
                changed=runs.records_changed,
                records=runs.records,
            )
        if runs.settings_changed:
            names = listed(runs.settings_changed)
            judgement.find("settings from records", runs.line, names=names, rows=runs.rows)
        if judgement.findings:
            return judgement.miss("the claim does not cover how records were prepared")
        rows = f"{runs.rows} rows that appear at {runs.line}"
        return judgement.observe(f"{rows} were changed, and no record of another row")
