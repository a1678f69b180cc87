"""Seeds of generators that noise is drawn from."""

from ..script_findings import Judgement
from .check import Check, Inspection


class Seeds(Check):
    """Compares the seeds of two runs: a seed is fixed only if both have it."""

    name = "seeds"
    question = "Can anyone with the script recompute its noise?"

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds findings for seeds that both runs have: of generators of noise, or as constants."""
        result = inspection.result
        second = inspection.reseeded
        constants = set(result.seeded)
        if second is not None:
            constants &= set(second.seeded)
            for first_seed, seed in zip(result.noise_seeds, second.noise_seeds, strict=False):
                if first_seed == seed and not judgement.findings:
                    judgement.find("same seeds", "noise_generator", seed=seed)
        if constants:
            judgement.find("fixed seed", ", ".join(sorted(constants)[:3]))
        if result.noise_seeds and second is None:
            return judgement.miss("a second run with other seeds did not end")
        return judgement.observe(f"{len(constants)} constant seeds")
