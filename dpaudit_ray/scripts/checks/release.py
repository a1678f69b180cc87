"""Values that returned and saved objects carry in addition to private parameters."""

from ..script_findings import Judgement
from .check import Check, Inspection, listed
from .pinned_releases import acquits

_WHERE = "returned or saved values"


class Release(Check):
    """Judges the names of values that the run found in what is returned or saved."""

    name = "release"
    question = "Do returned or saved objects contain values that bypassed the noise?"

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds a finding for each kind of leftover that nothing explains.

        Two things explain leftovers: a custom loop may keep releases in `.grad`, and pinned runs
        may show that tensors depend on releases alone. The check counts as not done if the run
        ended early, or if records may have gone into the tensors that nothing explains.
        """
        if inspection.cut:
            return judgement.miss("the run ended before it returned a model")
        explained = set()
        if not inspection.uses_opacus:
            explained.add("others")
        if acquits(inspection):
            explained.add("tensors")
        kinds = inspection.result.leftovers
        names = {kind: listed(kinds[kind]) for kind in kinds.keys() - explained}
        for kind in sorted(names):
            judgement.find(kind, _WHERE, names=names[kind])
        if "tensors" in names:
            return judgement.miss(f"whether records went into {names['tensors']} without noise")
        if "states" in names:
            return judgement.miss(f"whether {names['states']} stays secret")
        if "earlier" in names:
            return judgement.miss(f"whether records chose {names['earlier']}")
        if inspection.result.returned_nothing:
            return judgement.observe(
                "nothing is returned; private parameters and saved files were inspected"
            )
        return judgement.observe("returned and saved values were inspected")
