"""Law of the noise: independence, and the normal distribution."""

from scipy import special

from ..protocol import Correlation, StepInspection
from ..script_findings import Judgement
from .check import LEVEL_SHARE, Check, Inspection, at_entry

_KINDS = 3  # kinds of pairs: steps, tensors, neighbours


class LawOfNoise(Check):
    """Tests correlations between noise vectors, and if there are none, their distribution."""

    name = "law of the noise"
    question = "Is the noise Gaussian, and independent in all entries, tensors and steps?"
    inapplicable = "no step was replayed"

    def applies(self, inspection: Inspection) -> bool:
        return bool(inspection.replayed)

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds findings for correlated noise, else for the first step whose noise is not normal."""
        steps = inspection.replayed
        level = LEVEL_SHARE / len(steps)
        for step in steps:
            for pair in step.correlations:
                if _probability(pair) < level / _KINDS:
                    _report(judgement, step, pair)
        vectors = sum(step.draws for step in steps)
        judgement.observe(f"{vectors} noise vectors of {len(steps)} steps")
        if judgement.findings:
            return judgement
        for step in steps:
            law = step.law
            if law is None or judgement.findings:
                continue
            if law.probability >= level:
                continue
            if not law.is_added:
                why = "noisy sums are processed further in the step; process them after it"
                return judgement.miss(why, name="law of processed noise")
            judgement.find(
                "law",
                at_entry(step),
                distance=law.distance,
                numbers=law.numbers,
            )
        return judgement


def _probability(pair: Correlation) -> float:
    """Bounds the probability that independent noise has such a correlation in any of its pairs.

    The square of a correlation of n numbers has a beta distribution; pairs add up (union bound).
    """
    square = min(pair.value**2, 1.0)
    return float(special.betaincc(0.5, (pair.numbers - 1) / 2, square)) * pair.pairs


def _report(judgement: Judgement, step: StepInspection, pair: Correlation) -> None:
    """Adds a finding of correlated noise, unless there is one for pairs of the same kind.

    Args:
        judgement: takes the finding.
        step: the step whose noise is correlated.
        pair: the correlation.
    """
    if any(item.look == f"correlation of {pair.kind}" for item in judgement.findings):
        return
    # The tensors, unless the pair is of two steps.
    first, second = (step.names[min(index, len(step.names) - 1)] for index in pair.between)
    vectors = f"entries of {first}, {pair.shift} apart,"
    if pair.kind == "steps":
        vectors = f"steps {pair.between[0] + 1} and {pair.between[1] + 1}"
        if pair.shift:
            vectors += f", shifted by {pair.shift} entries,"
    elif pair.kind == "tensors":
        vectors = f"{first} and {second}"
    judgement.find(
        "correlation", at_entry(step), pairs=pair.kind, what=vectors, correlation=pair.value
    )
