"""A bound on μ from canaries of one training that do not interfere, by order statistics.

Xiang et al. (2025, arXiv 2509.08704) bound how few mistakes the most confident r of m guesses can
have, where each guess is of a bit of its own. Let the bits be fair and independent, and let all
that the observer sees, T, be a randomised function of X_1, ..., X_m, which are independent given
the bits; X_i is drawn from N(±μ/2, 1), and bit i is the sign. Then

1.  whoever names r canaries and guesses their bits by T is somebody who does so by the X_i and by
    coins of his own;
2.  given these, the bits are independent, and a guess of bit i is wrong with chance at least
    1 / (1 + exp(μ |X_i|)), so the mistakes are stochastically at least those of the rule that
    guesses the r largest |X_i| by their signs: a sum of independent coins rises with each chance;
3.  the mistakes of that rule have the law of `gaussian_p_value`.

So r has to be fixed before any score is seen, and nothing else about the rule matters: ties, an
order turned round, numbers in common to all scores.

Where r is not fixed, all m canaries are guessed, and a mistake costs more the surer its guess: by
`ranking.Weights`, which fall with the rank. Given the X_i, exchanging two guesses so that the one
with the larger chance of a mistake gets the smaller weight moves the sum of costs down. So by 1 and
2 it is stochastically at least that of guesses by the order of |X_i|, whose law `ranking` computes.

Without the function of the X_i the bound may
be wrong: two canaries with the same noise err together. Where a mechanism knows that there is one
(`Mechanism.independent_canaries`), μ is certified; elsewhere it assumes independence.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from .lower_bound import Status
from .one_run_fdp import OneRunFdp, gaussian_mu
from .ranking import from_median, mu_lower, ranked_mistakes
from .trial_log import Diverged


@dataclasses.dataclass
class OrderStatistics(OneRunFdp):
    """Bound on μ from one training whose canaries do not interfere; all of them are guessed.

    Mistakes are weighed as by `rank`, and a score that is not a number is the least sure guess. The
    option `guesses` counts mistakes among so many of the surest ones instead.
    Certified for gradients along parameters of their own, else *assumes independence*.
    `independent` trainings are judged as by `one-run-fdp`.
    """

    name: ClassVar[str] = "order-statistics"
    status: ClassVar[Status] = Status.IF_INDEPENDENT

    def _of_one_training(
        self, lower: Callable[[int, int, float], float], confidence: float
    ) -> float:
        if self.guesses:
            return super()._of_one_training(lower, confidence)
        scores, members = self._log.arrays()
        mistakes = ranked_mistakes(from_median(scores), members, 0.0, Diverged())
        return mu_lower(mistakes, 1 - confidence)

    def lower(self, correct: int, guesses: int, canaries: int, confidence: float) -> float:
        return gaussian_mu(correct, guesses, canaries, confidence)

    def _status_at(self, mu: float) -> Status:
        return Status.IF_GAUSSIAN if self.independent else self.status
