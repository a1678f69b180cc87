"""One DP-SGD step for n models: θ ← θ - η/|B| (Σ_j clip(g_j, C) + b g* + N(0, σ²C² I)).

The canary's part b g* joins the sum before θ is rounded: added to θ afterwards, a step below one
unit in the last place of θ would be lost, or doubled, in the trainings that have the canary only.

Both engines do this to the rows of one matrix. `PackedSteps` computes all models together;
`OpacusSteps` takes them one by one through the real `GradSampleModule` and `DPOptimizer`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from typing import Protocol

import torch
from torch import Tensor, nn

from ...adversaries.base import GradientCanary, SampleCanary
from ...engines.cpu.noise import noise_source
from ...engines.packing.packed import PackedModel
from ...engines.rules.losses import losses
from .recipe import Recipe
from .start import generator


@dataclasses.dataclass(frozen=True)
class Inserted:
    """A canary at one step, and which models have it.

    `inside` is [n], 1 where it is in, else 0; or [n, m] for each of a `SampleCanary`'s m examples.
    """

    canary: GradientCanary | SampleCanary
    inside: Tensor

    @functools.cached_property
    def rows(self) -> tuple[Tensor, ...]:
        """The models that have it; for each of its examples, where it has several."""
        coins = self.inside.view(len(self.inside), -1)
        if isinstance(self.canary, SampleCanary):
            coins = coins.expand(-1, len(self.canary.y))
        return tuple(coin.nonzero()[:, 0] for coin in coins.t())


class Steps(Protocol):
    """An engine at work on one pack."""

    def step(self, theta: Tensor, x: Tensor, y: Tensor, inserted: Inserted | None) -> None:
        """Changes `theta`, float [n, p], in place.

        Args:
            theta: parameters before, then after the step.
            x: the batch's examples [B, ...].
            y: their classes [B].
            inserted: a canary that joins some of the models' sums.
        """


class PackedSteps:
    """Gradients of all models at once; noise from one stream for the whole pack."""

    def __init__(self, recipe: Recipe, model: PackedModel, seed: int, device: torch.device) -> None:
        self._recipe = recipe
        self._model = model
        self._noise = noise_source(seed, device)
        self._update: Tensor | None = None

    def step(self, theta: Tensor, x: Tensor, y: Tensor, inserted: Inserted | None) -> None:
        recipe = self._recipe
        if self._update is None:
            self._update = torch.empty_like(theta)
        update = self._update
        # Drawn for the whole pack, so that how it is split for the gradients changes nothing.
        self._noise.fill(update)
        update *= recipe.noise_multiplier * recipe.clip_norm
        update += self._model.clipped_sums(theta, x, y, recipe.clip_norm)
        if inserted is not None:
            self._insert(update, theta, inserted)
        theta.sub_(update, alpha=recipe.learning_rate / recipe.batch_size)

    def _insert(self, update: Tensor, theta: Tensor, inserted: Inserted) -> None:
        """Adds to the rows of models that have the canary; whatever it is, no other row changes."""
        canary = inserted.canary
        for j, rows in enumerate(inserted.rows):
            if not len(rows):
                continue
            if isinstance(canary, GradientCanary):
                direction = canary.direction
                update[rows] += direction if direction.dim() == 1 else direction[rows]
            else:
                x, y = canary.x[j : j + 1], canary.y[j : j + 1]
                update[rows] += self._model.clipped_sums(theta[rows], x, y, self._recipe.clip_norm)


class OpacusSteps:
    """The reference: slow, and exactly what a user of Opacus runs.

    A canary's gradient joins that of the optimizer before it takes its step.
    """

    def __init__(self, recipe: Recipe, module: nn.Module, seed: int, device: torch.device) -> None:
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer

        self._module = GradSampleModule(copy.deepcopy(module).to(device))
        self._parameters = list(self._module.parameters())
        self._optimizer = DPOptimizer(
            torch.optim.SGD(self._parameters, lr=recipe.learning_rate),
            noise_multiplier=recipe.noise_multiplier,
            max_grad_norm=recipe.clip_norm,
            expected_batch_size=recipe.batch_size,
            generator=generator(seed, device),
        )
        self._batch_size = recipe.batch_size
        self._direction: Tensor | None = None  # of the model that takes its step
        self._optimizer.attach_step_hook(self._push)

    def step(self, theta: Tensor, x: Tensor, y: Tensor, inserted: Inserted | None) -> None:
        for i, row in enumerate(theta):
            own_x, own_y = _joined(x, y, inserted, i)
            self._direction = _direction(inserted, i)
            nn.utils.vector_to_parameters(row.clone(), self._parameters)
            self._optimizer.zero_grad()
            with torch.enable_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # hooks on inputs that need no gradient
                loss = losses(self._module(own_x), own_y).mean()
                torch.autograd.backward(loss)
            self._optimizer.step()
            row.copy_(nn.utils.parameters_to_vector(self._parameters).detach())

    def _push(self, _optimizer: object) -> None:
        """Called by the optimizer between noise and step."""
        if self._direction is None:
            return
        parts = torch.split(self._direction, [p.numel() for p in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad += part.view(parameter.shape) / self._batch_size


def _joined(x: Tensor, y: Tensor, inserted: Inserted | None, model: int) -> tuple[Tensor, Tensor]:
    """The batch of one model, a copy: a module may change its input in place."""
    if inserted is None or not isinstance(inserted.canary, SampleCanary):
        return x.clone(), y
    taken = inserted.inside[model].view(-1).bool().expand(len(inserted.canary.y))
    return torch.cat([x, inserted.canary.x[taken]]), torch.cat([y, inserted.canary.y[taken]])


def _direction(inserted: Inserted | None, model: int) -> Tensor | None:
    if inserted is None or not isinstance(inserted.canary, GradientCanary):
        return None
    if not inserted.inside[model]:
        return None
    direction = inserted.canary.direction
    return direction if direction.dim() == 1 else direction[model]
