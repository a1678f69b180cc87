"""The ε that `@audited(epsilon=)` or the caller states."""

import math

from ...errors import plain
from .. import claims
from ..script_findings import Judgement
from .check import Check, Inspection


class Promise(Check):
    """Compares a stated ε with what all accounted steps compose to."""

    name = "promise"
    question = "Is the stated ε at least the composed ε of all accounted steps?"
    inapplicable = "no ε was stated"

    def applies(self, inspection: Inspection) -> bool:
        return inspection.promised is not None

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds a finding if the accounted steps compose to more than the stated ε."""
        promised = inspection.promised
        assert promised is not None  # else the check does not apply
        composed = claims.composed(inspection.result, inspection.delta)
        if math.isnan(composed):
            return judgement.miss(
                "nothing was accounted: state the noise and sampling rate of each step"
            )
        if composed > promised * (1 + claims.TOLERANCE):
            judgement.find(
                "promise",
                f"epsilon={promised:g}",
                promised=promised,
                composed=composed,
                delta=plain(inspection.delta),
            )
        return judgement.observe(f"{promised:.4g} stated, {composed:.4g} composed")
