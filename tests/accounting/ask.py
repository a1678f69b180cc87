"""Questions to accountants about a training by its numbers, as short as tests want them."""

from dpaudit_ray import accounting
from dpaudit_ray.accounting import Bounds, Training

EVERY = list(accounting.accountants())
SAMPLED = [name for name, cls in accounting.accountants().items() if cls.samplings]


def bounds(
    noise_multiplier: float, steps: int, delta: float, sample_rate: float = 1.0,
    accountant: str = "gaussian",
    adjacency: str = "add-remove", sampling: str = "poisson",
) -> Bounds:  # fmt: skip
    """ε at δ with both ends; arguments as for `accounting.epsilon`."""
    training = Training(noise_multiplier, steps, sample_rate, adjacency, sampling)
    return accounting.epsilon_of(training, delta, accountant, both_ends=True)


def delta_bounds(
    noise_multiplier: float, steps: int, epsilon: float, sample_rate: float = 1.0,
    accountant: str = "gaussian",
    adjacency: str = "add-remove", sampling: str = "poisson",
) -> Bounds:  # fmt: skip
    """δ at ε with both ends."""
    training = Training(noise_multiplier, steps, sample_rate, adjacency, sampling)
    return accounting.delta_of(training, epsilon, accountant, both_ends=True)


def least_delta(*training: object, **names: object) -> float:
    """The upper end of δ at ε."""
    return delta_bounds(*training, **names).upper  # type: ignore[arg-type]
