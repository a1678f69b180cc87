"""Updates of parameters by anything except private releases."""

from ..protocol import OutsideSteps
from ..script_findings import Judgement
from .check import Check, Inspection, listed, with_line
from .pinned_releases import acquits

_WHAT = {
    "before": "before make_private",
    "after": "without noise of parameters outside the private network",
}


class Updates(Check):
    """Judges steps of optimizers that no engine wraps; pinned runs judge all other changes."""

    name = "updates"
    question = "Do only private releases change the published parameters?"

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds findings for optimizers that no engine wraps, and for training before noise."""
        result = inspection.result
        for outside in result.outside_steps:
            _judge_outside(inspection, outside, judgement)
        if result.pretrained:
            judgement.find("warm-up", "before make_private", names=listed(result.pretrained))
        summary = f"{len(result.outside_steps)} other optimizers"
        if acquits(inspection):
            summary += "; runs with pinned releases end in the same values"
        return judgement.observe(summary)


def _judge_outside(inspection: Inspection, outside: OutsideSteps, judgement: Judgement) -> None:
    """Judges steps of one optimizer that no engine wraps.

    Args:
        inspection: inspection of the script.
        outside: steps of the optimizer.
        judgement: takes findings.
    """
    uses_opacus = inspection.uses_opacus
    is_never_private = inspection.taken == 0
    if not (uses_opacus or is_never_private):
        return  # the optimizer steps by releases of the script's own loop
    line = inspection.result.lines.get(outside.optimizer, "")
    where = with_line(f"{outside.optimizer}, {outside.steps} steps", line)
    # Without any private step, a stated ε is violated, and steps on records are not private.
    if is_never_private and inspection.promised is not None and not uses_opacus:
        judgement.find(
            "no privacy",
            where,
            promised=inspection.promised,
            steps=outside.steps,
            optimizer=outside.optimizer,
        )
    elif outside.when == "after" and (outside.private or is_never_private):
        if inspection.pinned is None and uses_opacus:
            return  # runs with pinned releases follow, and then the check is repeated
        # Such runs exchange records in arrays, wherever these are read, but not in scaled copies.
        if acquits(inspection) and inspection.result.tables:
            judgement.miss(f"whether {where}, were on private records in another form")
            return
        names = listed(outside.names) or "parameters of another model"
        judgement.find("not private", where, names=names)
    elif outside.when == "before" or not acquits(inspection):
        judgement.find("outside", where, what=_WHAT[outside.when])
