"""Updates: optimizers, which say how noisy gradients move θ, and learning-rate schedules.

Noise is added before an optimizer sees a gradient, so no claim depends on either. Each optimizer
has one rule for all models of a pack, and torch's own class for Opacus.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from ...errors import SpecError
from ...plugins import Plugin

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

State = dict[str, "Tensor"]  # what an optimizer remembers between steps, float [n, p] each


@dataclasses.dataclass(frozen=True)
class Noisy:
    """A step's release: `summed`, float [n, p], gradients, canary and noise; `number` from 1 on."""

    summed: Tensor
    batch_size: int
    rate: float
    number: int

    @property
    def mean(self) -> Tensor:
        """The gradient that descent follows, float [n, p]."""
        return self.summed / self.batch_size


class Optimizer(Plugin):
    """Base of all optimizers. θ starts without momentum, as in torch."""

    kind: ClassVar[str] = "optimizer"
    home: ClassVar[str] = "dpaudit_ray.mechanisms.dp_sgd.updates"

    @abstractmethod
    def move(self, theta: Tensor, noisy: Noisy, state: State) -> None:
        """Takes one step of n trainings: changes `theta`, float [n, p], in place, `noisy` not.

        `state` is empty at the first step; what a step puts into it is there at the next one.
        """

    @abstractmethod
    def torch(self, parameters: Iterable[nn.Parameter], rate: float) -> optim.Optimizer:
        """The same, for the parameters of one model. The rate is set anew at every step."""


class Sgd(Optimizer):
    """Plain gradient descent, θ ← θ - η g."""

    name: Literal["sgd"] = "sgd"

    def move(self, theta: Tensor, noisy: Noisy, state: State) -> None:
        theta.sub_(noisy.summed, alpha=noisy.rate / noisy.batch_size)

    def torch(self, parameters: Iterable[nn.Parameter], rate: float) -> optim.Optimizer:
        from torch import optim

        return optim.SGD(parameters, lr=rate)


class Momentum(Optimizer):
    """Gradient descent with momentum (Polyak 1964): v ← m v + g, θ ← θ - η v, as in torch."""

    name: Literal["momentum"] = "momentum"
    momentum: float = Field(default=0.9, ge=0, lt=1)  # m, the share of v that stays

    def move(self, theta: Tensor, noisy: Noisy, state: State) -> None:
        if "velocity" not in state:
            state["velocity"] = theta.new_zeros(theta.shape)
        velocity = state["velocity"].mul_(self.momentum).add_(noisy.summed)
        theta.sub_(velocity, alpha=noisy.rate / noisy.batch_size)

    def torch(self, parameters: Iterable[nn.Parameter], rate: float) -> optim.Optimizer:
        from torch import optim

        return optim.SGD(parameters, lr=rate, momentum=self.momentum)


_Decay = Annotated[float, Field(ge=0, lt=1)]
_ListAsTuple = BeforeValidator(lambda raw: tuple(raw) if isinstance(raw, list) else raw)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, Algorithm 1) on noisy gradients."""

    name: Literal["adam"] = "adam"
    betas: Annotated[tuple[_Decay, _Decay], _ListAsTuple] = (0.9, 0.999)  # decay of both moments
    eps: float = Field(default=1e-8, gt=0)  # keeps the quotient finite

    def move(self, theta: Tensor, noisy: Noisy, state: State) -> None:
        if not state:
            state.update(m=theta.new_zeros(theta.shape), v=theta.new_zeros(theta.shape))
        first, second, gradient, (slow, slower) = *state.values(), noisy.mean, self.betas
        first.lerp_(gradient, 1 - slow)
        second.mul_(slower).addcmul_(gradient, gradient, value=1 - slower)
        root = (second / (1 - slower**noisy.number)).sqrt_().add_(self.eps)
        theta.addcdiv_(first, root, value=-noisy.rate / (1 - slow**noisy.number))

    def torch(self, parameters: Iterable[nn.Parameter], rate: float) -> optim.Optimizer:
        from torch import optim

        return optim.Adam(parameters, lr=rate, betas=self.betas, eps=self.eps)


class Schedule(Plugin):
    """Base of all schedules. The rate rises over `warmup` steps; later ones count from 0 on."""

    kind: ClassVar[str] = "schedule"
    home: ClassVar[str] = "dpaudit_ray.mechanisms.dp_sgd.updates"

    warmup: int = Field(default=0, ge=0)  # steps in which the rate rises from 0

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """The learning rate's factor at `step` = 0, 1, ..., steps - 1 after the warm-up."""

    @property
    def length(self) -> int:
        """The fewest steps after the warm-up that this schedule accepts, at least 1."""
        return 1

    def rate(self, learning_rate: float, step: int, steps: int) -> float:
        """The learning rate of `step` = 1, ..., steps of a training."""
        if step <= self.warmup:
            return learning_rate * step / self.warmup
        return learning_rate * self.factor(step - self.warmup - 1, steps - self.warmup)

    def check(self, steps: int) -> None:
        """Raises SpecError for a schedule that is longer than the training."""
        if (needed := self.warmup + self.length) > steps:
            over = f"is {self.name} over {needed} steps ({self.warmup} of them to warm up)"
            remedy = "shorten it, or raise mechanism.steps"
            raise SpecError("schedule", f"{over}, but there are only {steps}; {remedy}")


class Constant(Schedule):
    """A learning rate that stays what it is after the warm-up."""

    name: Literal["constant"] = "constant"

    def factor(self, step: int, steps: int) -> float:
        return 1.0


class Cosine(Schedule):
    """From the whole rate to `final` of it, along a cosine (Loshchilov and Hutter 2017, eq. 5).

    It falls over `over` steps, all that there are if left out, which must fit into the training.
    """

    name: Literal["cosine"] = "cosine"
    final: float = Field(default=0.0, ge=0)  # share of the rate at the end
    over: int | None = Field(default=None, ge=1)  # steps of the fall; null: to the end

    @property
    def length(self) -> int:
        return self.over or 1

    def factor(self, step: int, steps: int) -> float:
        angle = math.pi * min(1.0, step / (self.over or steps))
        return self.final + (1 - self.final) * (1 + math.cos(angle)) / 2
