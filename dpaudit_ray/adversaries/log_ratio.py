"""Scores by a user-defined function, such as a likelihood ratio that is known."""

from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from .. import imports
from ..plugins import ImportPath
from ..stats.error_rates import as_floats
from .outputs import Outputs
from .release import Draw, OutputAdversary, Scorer, rounded


class LogRatio(OutputAdversary):
    """Calls `module:name` with n outputs and the pair of inputs; it returns n scores.

    The best score is the logarithm of how much likelier the output is for the second input. NaN is
    a score, too: the input of such an output is guessed by earlier outputs with NaN.
    """

    name: Literal["log-ratio"] = "log-ratio"
    path: ImportPath  # function of outputs and the pair of inputs

    @property
    def code_paths(self) -> tuple[str, ...]:
        return (self.path,)

    def scorer(
        self, draw: Draw, pair: tuple[Any, Any], rng: Generator, delta: float = 0.0
    ) -> Scorer:
        """Returns a scorer that calls the user's function."""
        log_ratio = imports.function(self.path, "adversary.path", "outputs", "pair")

        def score(outputs: Outputs) -> Any:
            """Returns finite scores, [n]. Raises ValueError for another number of them."""
            scores = as_floats(log_ratio(outputs, pair))
            if scores.shape != (len(outputs),):
                raise ValueError(
                    f"{self.path} must return {len(outputs)} scores, got {scores.shape}"
                )
            return rounded(np.clip(scores, -1e300, 1e300))  # infinite scores become finite

        return score
