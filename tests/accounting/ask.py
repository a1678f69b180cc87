"""Questions to accountants about a training by its numbers, as short as tests want them."""

from dpaudit_ray import accounting
from dpaudit_ray.accounting import Sampling, Training, UpperBound

EVERY = list(accounting.accountants())
SAMPLED = [n for n, cls in accounting.accountants().items() if Sampling.POISSON in cls.samplings]


def bound(
    noise: float, steps: int, delta: float, rate: float = 1.0, accountant: str = "gaussian",
    *kind: str, **kinds: str,
) -> UpperBound:  # fmt: skip
    """ε at δ, and who answered; arguments as for `accounting.epsilon`."""
    return accounting.epsilon_of(Training(noise, steps, rate, *kind, **kinds), delta, accountant)


def least_delta(
    noise: float, steps: int, epsilon: float, rate: float = 1.0, accountant: str = "gaussian",
    **kinds: str,
) -> float:  # fmt: skip
    """δ at ε."""
    return accounting.delta_of(Training(noise, steps, rate, **kinds), epsilon, accountant).upper
