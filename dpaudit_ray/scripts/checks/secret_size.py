"""The number of records as a secret."""

import math

from ..protocol import Made, entries_of
from ..script_findings import Judgement
from .check import Check, Inspection


class SecretSize(Check):
    """Compares a run with a run in which the data set has an additional record."""

    name = "secret size"
    question = "With `--secret-size`: does one more record change batch size, batches or noise?"
    inapplicable = "the number of records is secret only with --secret-size"

    def applies(self, inspection: Inspection) -> bool:
        return inspection.larger is not None

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds a finding if an additional record changes batch size, batches or noise."""
        made = []
        for record in (inspection.record, inspection.larger or ()):
            made += entries_of(record, Made)[:1]
        if len(made) < 2 or made[0].records is None:
            return judgement.miss("make_private was not called, or its data have no length")
        first, second = made
        if second.records != made[0].records + 1:
            return judgement.miss("the loader draws by a custom sampler, which was left as it is")
        summary = f"with {first.records} and {second.records} records"
        changes = _changes(first, second)
        if not changes:
            return judgement.observe(f"{summary}: the same")
        changed = "; ".join(changes)
        judgement.find("secret size", summary, changed=changed)
        return judgement.observe(f"{summary}: {changed}")


def _changes(first: Made, second: Made) -> list[str]:
    """Returns the parameters that differ between two calls of `make_private`, with both values."""
    values = {
        "expected batch size": (first.expected_batch_size or 0, second.expected_batch_size or 0),
        "number of batches": (first.batches, second.batches),
        "noise": (first.noise, second.noise),
    }
    changes = []
    for name, (before, after) in values.items():
        if not math.isclose(before, after, rel_tol=1e-12):
            changes.append(f"{name} {before:g} to {after:g}")
    return changes
