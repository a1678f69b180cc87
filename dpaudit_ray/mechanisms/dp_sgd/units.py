"""Units of privacy: a record, a user or a client, which adds one clipped vector to each step.

A record adds its gradient, a user the mean gradient of several records, and a client of federated
averaging the change of its model (McMahan et al. 2018). A step of DP-SGD clips each of them to C.
So claims, noise, sampling and adversaries are the same for users and clients as for records.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from pydantic import PositiveFloat

from ...errors import SpecError, plain
from ...plugins import Count, OpenShare, Plugin
from .updates import Noisy, Optimizer, State

if TYPE_CHECKING:
    from torch import Tensor

    from ...engines.packing.packed import PackedModel
    from ...engines.rules.losses import Loss

_CLIENTS_PER_NOISE = 20  # clients of a round over a count's deviation (Andrew et al. 2021)


class Server(Protocol):
    """The options of a training that units depend on."""

    @property
    def batch_size(self) -> int: ...
    @property
    def clip_norm(self) -> float: ...
    @property
    def multiplier(self) -> float: ...
    @property
    def optimizer(self) -> Optimizer: ...


class Unit(Plugin):
    """Base of all units."""

    kind = "unit"
    home = "dpaudit_ray.mechanisms.dp_sgd.units"
    protects: ClassVar[str] = "record"  # what neighbouring data differ by, as in `Claim.unit`

    @property
    def coordinates(self) -> int:
        """Number of coordinates that θ has in addition, after the parameters of the network."""
        return 0

    @property
    def size(self) -> int:
        """Number of records of each unit."""
        return 1

    def grouped(self, values: "Tensor") -> "Tensor":
        """Returns features or labels of records [N, ...] by unit."""
        return values

    def extended(self, theta: "Tensor") -> "Tensor":
        """Returns models [n, p] with these `coordinates` appended, at their first values."""
        return theta

    def model(self, packed: "PackedModel", recipe: Server) -> "PackedModel | GroupedModel":
        """Returns the model that sums up the clipped gradients of units."""
        return packed

    def check(self, recipe: Server) -> None:
        """Raises SpecError if options of the training do not fit this unit."""

    def move(self, recipe: Server, theta: "Tensor", noisy: Noisy, state: State) -> None:
        """Takes one step of n models by the optimizer; arguments are those of `Optimizer.move`."""
        recipe.optimizer.move(theta, noisy, state)


class Record(Unit):
    """Each record: its gradient is clipped."""

    name: Literal["record"] = "record"


class Group(Unit):
    """Base of units with several records, which are next to each other in the data.

    Records that remain after the last complete unit are not used. Subclasses define what a unit
    sends, by `update`.
    """

    records: Count  # of each unit

    @property
    def size(self) -> int:
        return self.records

    def grouped(self, values: "Tensor") -> "Tensor":
        """Returns values [N, ...] as [N // records, records, ...]."""
        units = len(values) // self.records
        used = values[: units * self.records]
        return used.reshape(units, self.records, *values.shape[1:])

    def model(self, packed: "PackedModel", recipe: Server) -> "GroupedModel":
        return GroupedModel(packed, recipe, self)

    @abstractmethod
    def update(self, model: "PackedModel", theta: "Tensor", x: "Tensor", y: "Tensor") -> "Tensor":
        """Computes what one unit sends to n models before it is clipped, float [n, p].

        Args:
            model: computes gradients of records.
            theta: parameters, float [n, p].
            x: features of the unit's records [records, ...].
            y: labels of these records [records].
        """

    def contribution(
        self, recipe: Server, update: "Tensor", theta: "Tensor", clip_norm: float
    ) -> "Tensor":
        """Clips a unit's update; returns what it adds to the sum of a step, float [n, p].

        Args:
            recipe: the training.
            update: what one unit sends to each model, float [n, p].
            theta: models before the step, with all coordinates.
            clip_norm: C, or infinity for no clipping.
        """
        return clipped(update, update.new_tensor(clip_norm))


class User(Group):
    """Users with `records` records each: the mean gradient of a user's records is clipped.

    The records of a user are next to each other in the data; those that remain are not used.
    """

    protects = "user"
    name: Literal["user"] = "user"

    def update(self, model: "PackedModel", theta: "Tensor", x: "Tensor", y: "Tensor") -> "Tensor":
        """Computes the mean gradient of a user's records."""
        return model.clipped_sums(theta, x, y, math.inf) / len(y)


class Client(Group):
    """Clients of federated averaging with `records` records each, as of `user`.

    In a round, a client takes `steps` of gradient descent from θ on its records. Its update is θ
    less the result; the server clips updates, adds them up, and follows the sum like a gradient.

    With `quantile`, the clipping norm adapts to that quantile of the updates' norms (Andrew et al.
    2021, Algorithm 1). For this, a noisy count is released, too: each update within the norm counts
    1/2, each other one -1/2. The noise multiplier is then that of updates and count together, so
    updates alone get more noise.
    """

    protects = "client"
    name: Literal["client"] = "client"
    steps: Count = 1  # of each client in a round
    learning_rate: PositiveFloat = 0.1  # of a client
    batch_size: Count | None = None  # records of a client's step, in turn; null: all
    quantile: OpenShare | None = None  # share of updates within the clipping norm; null: fixed norm
    clip_rate: PositiveFloat = 0.2  # learning rate of the logarithm of the clipping norm
    count_noise: PositiveFloat | None = None  # deviation of the count's noise; null: clients / 20

    @property
    def coordinates(self) -> int:
        """1 with `quantile`, else 0: the coordinate is log(C_t / C) for the norm C_t of round t."""
        return 0 if self.quantile is None else 1

    def extended(self, theta: "Tensor") -> "Tensor":
        """Returns models with any further coordinate at 0: the clipping norm begins at C."""
        result = theta.new_zeros(*theta.shape[:-1], theta.shape[-1] + self.coordinates)
        result[..., : theta.shape[-1]] = theta
        return result

    def check(self, recipe: Server) -> None:
        """Raises SpecError if the noise of counts is too small for the noise multiplier."""
        if self.quantile is not None:
            self.shares(recipe)

    def update(self, model: "PackedModel", theta: "Tensor", x: "Tensor", y: "Tensor") -> "Tensor":
        """Takes the steps of one client from each model; returns θ less its result, float [n, p].

        Arguments are those of `Group.update`.
        """
        batch_size = self.batch_size or len(y)
        batches = math.ceil(len(y) / batch_size)
        change = theta.new_zeros(theta.shape)
        for step in range(self.steps):
            start = step % batches * batch_size  # batches in turn
            batch = slice(start, start + batch_size)
            sums = model.clipped_sums(theta - change, x[batch], y[batch], math.inf)
            change += self.learning_rate / len(y[batch]) * sums
        return change

    def shares(self, recipe: Server) -> tuple[float, float]:
        """Returns the scales of updates over C_t, and of counts, with which both have the noise σ.

        Let the updates' noise have the multiplier s, and the count's noise the deviation b, with
        σ⁻² = s⁻² + (2b)⁻² (Andrew et al. 2021, Theorem 1). Scaled by σ/s and σ/b, a clipped update
        over C_t and its half of a count are a vector of norm 1 at most, in noise σ along all axes:
        (σ/s)² + (σ/b)²/4 = 1. So the release is that of a step of DP-SGD.

        Raises:
            SpecError: the noise of counts is too small for this noise multiplier.
        """
        sigma = recipe.multiplier
        count_noise = self.count_noise or recipe.batch_size / _CLIENTS_PER_NOISE
        count_scale = sigma / count_noise
        if count_scale >= 2:
            raise SpecError(
                "unit.count_noise",
                f"is {plain(count_noise)}, but a noise multiplier of {plain(sigma, '.4g')} takes "
                f"more than half of it; use more, or more clients a round",
            )
        return math.sqrt(1 - count_scale**2 / 4), count_scale

    def contribution(
        self, recipe: Server, update: "Tensor", theta: "Tensor", clip_norm: float
    ) -> "Tensor":
        """Clips an update to C_t and appends its half of the count, scaled by C and `shares`.

        The half is +1/2 if the update is within C_t, else -1/2. Arguments are those of the base
        class.
        """
        if self.quantile is None:
            return super().contribution(recipe, update, theta, clip_norm)
        scale, count_scale = self.shares(recipe)
        growth = theta[:, -1:].exp()  # C_t / C
        bound = recipe.clip_norm * growth  # C_t
        is_within = update.norm(dim=1, keepdim=True) <= bound
        if clip_norm < math.inf:
            update = clipped(update, bound)
        result = theta.new_empty(theta.shape)
        result[:, :-1] = update * (scale / growth)
        result[:, -1:] = (is_within.to(theta) - 0.5) * (count_scale * recipe.clip_norm)
        return result

    def move(self, recipe: Server, theta: "Tensor", noisy: Noisy, state: State) -> None:
        """Takes the server's step, and adapts the clipping norm C_t to the noisy count.

        If the share of updates within C_t exceeds the quantile, log C_t falls by `clip_rate` times
        the excess. The last coordinate of θ is log(C_t / C), and that of the release is the count.
        Arguments are those of `Optimizer.move`.
        """
        if self.quantile is None:
            super().move(recipe, theta, noisy, state)
            return
        scale, count_scale = self.shares(recipe)
        log_growth = theta[:, -1:].clone()  # log(C_t / C); the optimizer changes it with all of θ
        # `contribution` sent ±1/2 of each client, times count_scale C.
        share_less_half = noisy.mean[:, -1:] / (count_scale * recipe.clip_norm)
        # ... and updates over C_t / C, times `scale`.
        updates = replace(noisy, summed=noisy.summed * (log_growth.exp() / scale))
        super().move(recipe, theta, updates, state)
        excess = share_less_half + 0.5 - self.quantile
        theta[:, -1:] = log_growth - self.clip_rate * excess


def clipped(update: "Tensor", clip_norm: "Tensor") -> "Tensor":
    """Returns updates [n, p], each scaled to a norm of at most `clip_norm`, [] or [n, 1]."""
    norms = update.norm(dim=1, keepdim=True)
    # A quotient is NaN if a norm is infinite without clipping, or NaN: the update stays as it is.
    factors: Tensor = (clip_norm / norms).clamp(max=1).nan_to_num(1.0)
    return update * factors


@dataclass(frozen=True)
class GroupedModel:
    """Sums over users or clients, with those methods of `PackedModel` that a training uses.

    Attributes:
        records: computes gradients of records.
        recipe: the training, whose unit is a user or a client.
        unit: that unit.
    """

    records: "PackedModel"
    recipe: Server
    unit: Group

    @property
    def size(self) -> int:
        """Number of coordinates of θ."""
        return self.records.size + self.unit.coordinates

    @property
    def loss(self) -> "Loss":
        """The loss of each record."""
        return self.records.loss

    def outputs(self, theta: "Tensor", x: "Tensor") -> "Tensor":
        """Returns outputs for records x [m, ...], as `PackedModel.outputs`."""
        return self.records.outputs(self._parameters(theta), x)

    def losses(self, theta: "Tensor", x: "Tensor", y: "Tensor") -> "Tensor":
        """Returns the mean loss of each unit's records, x [m, records, ...]: float [n, m]."""
        losses = self.records.losses(self._parameters(theta), x.flatten(0, 1), y.flatten())
        return losses.view(len(theta), *y.shape).mean(2)

    def clipped_sums(
        self,
        theta: "Tensor",
        x: "Tensor",
        y: "Tensor",
        clip_norm: float,
        weights: "Tensor | None" = None,
    ) -> "Tensor":
        """Sums what units contribute: float [n, p].

        Args:
            theta: models, float [n, p], with all coordinates.
            x: features of B units, [B, records, ...].
            y: labels of the records [B, records].
            clip_norm: C, or infinity.
            weights: factor of each unit in each model, [n, B]; None for 1 everywhere.
        """
        total = theta.new_zeros(theta.shape)
        parameters = self._parameters(theta)
        for number in range(len(y)):
            update = self.unit.update(self.records, parameters, x[number], y[number])
            sent = self.unit.contribution(self.recipe, update, theta, clip_norm)
            total += sent if weights is None else sent * weights[:, number, None]
        return total

    # As `PackedModel` has this method. It is never called: options refuse views of grouped records.
    viewed_sums = clipped_sums

    def _parameters(self, theta: "Tensor") -> "Tensor":
        """Returns the parameters of the network, without further coordinates."""
        return theta[:, : self.records.size]
