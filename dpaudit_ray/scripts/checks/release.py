"""The returned and saved objects: what they carry in addition to private parameters."""

from ..script_findings import Judgement
from .check import Check, Inspection, listed
from .pinned_releases import acquits

_WHERE = "returned or saved values"


class Release(Check):
    """Judges the names of values that the run found in what is returned or saved."""

    name = "release"
    question = "Does what is returned or saved have anything that did not go through noise?"

    def judge(self, inspection: Inspection) -> Judgement:
        judgement = Judgement()
        if inspection.cut:
            return judgement.miss(self.name, "the run was ended before it returned a model")
        remains = inspection.result.left
        is_private = inspection.uses_opacus  # a custom loop may keep its releases in .grad
        names = {
            "gradients": remains.gradients, "others": remains.other_gradients if is_private else (),
            "examples": remains.examples, "saved": remains.saved, "records": remains.records,
            "statistics": remains.statistics, "earlier": remains.earlier,
            "tensors": () if acquits(inspection) else remains.tensors,
        }  # fmt: skip
        for kind, listing in names.items():
            if listing:
                judgement.find(kind, _WHERE, names=listed(listing))
        if names["tensors"]:
            why = f"whether records went into {listed(names['tensors'])} without noise"
            return judgement.miss(self.name, why)
        if remains.earlier:
            return judgement.miss(self.name, f"whether records chose {listed(remains.earlier)}")
        if inspection.result.returned_nothing:
            summary = "nothing is returned; private parameters and saved files were inspected"
            return judgement.observe(self.name, summary)
        return judgement.observe(self.name, "returned and saved values were inspected")
