"""Questions to accountants about a training by its numbers, as short as tests want them."""

from dpaudit_ray import accounting
from dpaudit_ray.accounting import Training, UpperBound

EVERY = list(accounting.accountants())
SAMPLED = [name for name, cls in accounting.accountants().items() if cls.samplings]


def bound(
    noise_multiplier: float, steps: int, delta: float, sample_rate: float = 1.0,
    accountant: str = "gaussian",
    adjacency: str = "add-remove", sampling: str = "poisson",
) -> UpperBound:  # fmt: skip
    """ε at δ, and who answered; arguments as for `accounting.epsilon`."""
    training = Training(noise_multiplier, steps, sample_rate, adjacency, sampling)
    return accounting.epsilon_of(training, delta, accountant)


def least_delta(
    noise_multiplier: float, steps: int, epsilon: float, sample_rate: float = 1.0,
    accountant: str = "gaussian",
    adjacency: str = "add-remove", sampling: str = "poisson",
) -> float:  # fmt: skip
    """δ at ε."""
    training = Training(noise_multiplier, steps, sample_rate, adjacency, sampling)
    return accounting.delta_of(training, epsilon, accountant).upper
