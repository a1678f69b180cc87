"""A bound on μ from canaries of one training run that do not interfere, by order statistics.

Xiang et al. (2025, arXiv 2509.08704) bound how few mistakes the most confident r of m guesses can
have, if each guess is of another bit. Let the bits be fair and independent, and let everything
that is observed, T, be a randomised function of X_1, ..., X_m, which are independent given
the bits; X_i is sampled from N(±μ/2, 1), and bit i is the sign. Then

1.  an adversary that names r canaries and guesses their bits by T can do so by the X_i and by
    independent randomness;
2.  given these, the bits are independent, and a guess of bit i is wrong with chance at least
    1 / (1 + exp(μ |X_i|)), so the mistakes are stochastically at least those of the rule that
    guesses the r largest |X_i| by their signs: a sum of independent coins rises with each chance;
3.  the mistakes of that rule have the distribution of `gaussian_p_value`.

So r has to be fixed before any score is observed, and nothing else about the rule matters: not
ties, nor a reversed order, nor a term that all scores share.

If r is not fixed, all m canaries are guessed, and a mistake costs more the surer its guess: by
`ranking.Weights`, which fall with the rank. Given the X_i, exchanging two guesses so that the one
with the larger probability of a mistake gets the smaller weight makes the sum of costs smaller. So
by 1 and 2 this sum is stochastically at least that of guesses by the order of |X_i|, whose
distribution `ranking` computes.

If T is not a function of such X_i, the bound may be wrong: two canaries with the same noise err
together. If the mechanism guarantees it (`Mechanism.independent_canaries`), μ is certified;
otherwise it assumes independence.
"""

from dataclasses import dataclass

from .lower_bound import Status
from .one_run import Lower
from .one_run_fdp import OneRunFdp, gaussian_mu
from .ranking import from_median, mu_lower, ranked_mistakes
from .trial_log import Diverged


@dataclass
class OrderStatistics(OneRunFdp):
    """Bound on μ from one training run whose canaries do not interfere; all of them are guessed.

    Mistakes are weighted as by `rank`, and a score that is not a number is the least sure guess.
    The option `guesses` counts mistakes among so many of the surest ones instead. Certified for
    gradients along disjoint parameters, else *assumes independence*. `independent` training runs
    are judged as by `one-run-fdp`.
    """

    name = "order-statistics"
    status = Status.IF_INDEPENDENT
    _lower = staticmethod(gaussian_mu)

    def _of_one_training(self, lower: Lower, confidence: float) -> float:
        """Bounds μ by the order of all mistakes; by their number if `guesses` is set."""
        if self.guesses:
            return super()._of_one_training(lower, confidence)
        scores, members = self._log.arrays()
        mistakes = ranked_mistakes(from_median(scores), members, 0.0, Diverged())
        return mu_lower(mistakes, 1 - confidence)

    def _status_at(self, mu: float) -> Status:
        return Status.IF_GAUSSIAN if self.independent else self.status
