"""Updates: optimizers, which turn noisy gradients into a new θ, and learning-rate schedules.

Noise is added before an optimizer gets a gradient, so no claim depends on either. Each optimizer
has one rule for all models of a pack, and torch's own class for Opacus.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from ...errors import SpecError
from ...plugins import Count, Plugin

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

State = dict[str, "Tensor"]  # values that an optimizer keeps between steps, float [n, p] each


@dataclass(frozen=True)
class Noisy:
    """The release of one step."""

    summed: Tensor  # sums of gradients, canary and noise, float [n, p]
    batch_size: int  # |B|, expected
    rate: float  # the learning rate η of this step
    number: int  # the step's number, from 1

    @property
    def mean(self) -> Tensor:
        """Noisy mean gradient, float [n, p]."""
        return self.summed / self.batch_size


class Optimizer(Plugin):
    """Base of all optimizers. θ starts without momentum, as in torch."""

    kind = "optimizer"
    home = "dpaudit_ray.mechanisms.dp_sgd.updates"
    in_torch: ClassVar[str]  # name of the class in `torch.optim`

    @abstractmethod
    def move(self, theta: Tensor, noisy: Noisy, state: State) -> None:
        """Takes one step of n models.

        Args:
            theta: parameters, float [n, p], changed in place.
            noisy: the step's release, which stays as it is.
            state: what this method stores for later steps; empty at the first one.
        """

    def torch(
        self,
        parameters: Iterable[nn.Parameter],
        rate: float,
    ) -> optim.Optimizer:
        """Returns torch's optimizer for one model, with the fields of this class as its options.

        Args:
            parameters: parameters of the model.
            rate: learning rate of the first step; the caller sets it again at every step.
        """
        from torch import optim

        options = self.model_dump(exclude={"name"})
        optimizer: optim.Optimizer = getattr(optim, self.in_torch)(parameters, rate, **options)
        return optimizer


class Sgd(Optimizer):
    """Plain gradient descent, θ ← θ - η g."""

    in_torch = "SGD"

    name: Literal["sgd"] = "sgd"

    def move(self, theta: Tensor, noisy: Noisy, state: State) -> None:
        theta.sub_(noisy.summed, alpha=noisy.rate / noisy.batch_size)


class Momentum(Optimizer):
    """Gradient descent with momentum (Polyak 1964): v ← m v + g, θ ← θ - η v, as in torch."""

    in_torch = "SGD"

    name: Literal["momentum"] = "momentum"
    momentum: float = Field(default=0.9, ge=0, lt=1)  # m, the share of v that stays

    def move(self, theta: Tensor, noisy: Noisy, state: State) -> None:
        """Adds the noisy gradient to a velocity, and moves along it."""
        if "velocity" not in state:
            state["velocity"] = theta.new_zeros(theta.shape)
        velocity = state["velocity"].mul_(self.momentum).add_(noisy.summed)
        theta.sub_(velocity, alpha=noisy.rate / noisy.batch_size)


_Decay = Annotated[float, Field(ge=0, lt=1)]
ListAsTuple = BeforeValidator(lambda raw: tuple(raw) if isinstance(raw, list) else raw)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, Algorithm 1) on noisy gradients."""

    in_torch = "Adam"

    name: Literal["adam"] = "adam"
    betas: Annotated[tuple[_Decay, _Decay], ListAsTuple] = (0.9, 0.999)  # decay of both moments
    eps: PositiveFloat = 1e-8  # keeps the quotient finite

    def move(self, theta: Tensor, noisy: Noisy, state: State) -> None:
        """Takes Adam's step, with both moments corrected for their start at zero."""
        if not state:
            state["m"] = theta.new_zeros(theta.shape)
            state["v"] = theta.new_zeros(theta.shape)
        first, second = state.values()  # moments m and v, in the order in which they were stored
        beta1, beta2 = self.betas
        gradient = noisy.summed / noisy.batch_size
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        step = noisy.number
        unbiased_second = second / (1 - beta2**step)
        denominator = unbiased_second.sqrt_().add_(self.eps)
        step_size = noisy.rate / (1 - beta1**step)
        theta.addcdiv_(first, denominator, value=-step_size)


class Schedule(Plugin):
    """Base of all schedules. The rate rises over `warmup` steps, then it is scaled by `factor`."""

    kind = "schedule"
    home = "dpaudit_ray.mechanisms.dp_sgd.updates"

    warmup: NonNegativeInt = 0  # steps in which the rate rises from 0

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Returns the factor of the learning rate at a step after the warm-up.

        Args:
            step: number of steps since the warm-up, 0, ..., steps - 1.
            steps: number of all steps after the warm-up.
        """

    @property
    def length(self) -> int:
        """Fewest steps after the warm-up that this schedule accepts, at least 1."""
        return 1

    def rate(self, learning_rate: float, step: int, steps: int) -> float:
        """Returns the learning rate of a step.

        Args:
            learning_rate: the rate of the first step after the warm-up.
            step: number of the step, 1, ..., steps.
            steps: number of steps of the training.
        """
        if step <= self.warmup:
            return learning_rate * step / self.warmup
        step_after_warmup = step - self.warmup - 1
        return learning_rate * self.factor(step_after_warmup, steps - self.warmup)

    def check(self, steps: int) -> None:
        """Raises SpecError if the training has too few `steps` for this schedule."""
        required = self.warmup + self.length
        if required > steps:
            raise SpecError(
                "schedule",
                f"is {self.name} over {required} steps ({self.warmup} of them to warm up), but "
                f"there are only {steps}; shorten it, or raise mechanism.steps",
            )


class Constant(Schedule):
    """A learning rate that is constant after the warm-up."""

    name: Literal["constant"] = "constant"

    def factor(self, step: int, steps: int) -> float:
        return 1.0


class Cosine(Schedule):
    """Lets the rate fall along a cosine to the share `final` (Loshchilov and Hutter 2017, eq. 5).

    It falls over `over` steps, which must fit into the training; null means to the end.
    """

    name: Literal["cosine"] = "cosine"
    final: NonNegativeFloat = 0.0  # share of the rate at the end
    over: Count | None = None  # number of steps in which it falls; null: to the end

    @property
    def length(self) -> int:
        return self.over or 1

    def factor(self, step: int, steps: int) -> float:
        angle = math.pi * min(1.0, step / (self.over or steps))
        fall = 1 - self.final
        return self.final + fall * (1 + math.cos(angle)) / 2
