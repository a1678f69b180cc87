"""Federated averaging with the mistakes of servers that people wrote, each as a plug-in."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dpaudit_ray.mechanisms.dp_sgd.noise import Independent
from dpaudit_ray.mechanisms.dp_sgd.units import Client, GroupedModel, clipped


class DividedTwice(Independent):
    """The noise of a mean of eight clients, added to their sum, which is divided again."""

    name: str = "tests.mechanisms.federated_twins:DividedTwice"

    def correlate(self, normals: Tensor, number: int, state: Any) -> None:
        normals /= 8


@dataclass(frozen=True)
class Twice(GroupedModel):
    """The first client of each batch is in it twice."""

    def clipped_sums(self, theta: Tensor, x: Tensor, y: Tensor, *rest: Any, **more: Any) -> Tensor:
        once = super().clipped_sums(theta, x, y, *rest, **more)
        return once + super().clipped_sums(theta, x[:1], y[:1], *rest, **more)


@dataclass(frozen=True)
class OfMean(GroupedModel):
    """The mean is clipped, not what each client sends."""

    def clipped_sums(self, theta: Tensor, x: Tensor, y: Tensor, *_: Any, **more: Any) -> Tensor:
        total = super().clipped_sums(theta, x, y, float("inf"))
        clients = self.recipe.batch_size
        return clients * clipped(total / clients, total.new_tensor(self.recipe.clip_norm))


class DrawnTwice(Client):
    """A server that draws clients with replacement."""

    name: str = "tests.mechanisms.federated_twins:DrawnTwice"  # type: ignore[assignment]

    def model(self, packed: Any, recipe: Any) -> GroupedModel:
        return Twice(packed, recipe, self)


class MeanClipped(Client):
    """A server that clips after it has averaged."""

    name: str = "tests.mechanisms.federated_twins:MeanClipped"  # type: ignore[assignment]

    def model(self, packed: Any, recipe: Any) -> GroupedModel:
        return OfMean(packed, recipe, self)
