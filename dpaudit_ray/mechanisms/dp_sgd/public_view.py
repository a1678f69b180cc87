"""The public view of a training: what everybody knows of it before it begins, for adversaries.

Gradients of many models, each on an example of its own, go by `torch.func` for all models at once.
A module that it does not take, or takes for another one, is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ...adversaries.base import SampleCanary
from ...engines.packing.samplewise import Samplewise, placed
from ...engines.rules.base import trained
from ...engines.rules.losses import Loss, losses
from ...errors import SpecError
from .sampling import Sizes
from .training import DpSgdTraining
from .updates import Constant

_NUMBERS = 1 << 24  # parameters of the models that are computed at once: 64 MiB of float32
_TOLERANCE = 1e-3  # how far both ways may differ, by the scale of what they compute

Values = dict[str, Tensor]  # parameters, by their names
OfOneModel = Callable[[Tensor, Tensor, Tensor], Tensor]  # of θ [p], x [...] and y []


class PublicView:
    """What `PublicKnowledge` grants, and describes: all as copies, to work on in place."""

    def __init__(self, training: DpSgdTraining) -> None:
        recipe, self._training = training.recipe, training
        self.clip_norm, self.noise_multiplier = recipe.clip_norm, recipe.noise
        self.batch_size, self.rate = recipe.batch_size, recipe.rate
        self.classes, self.examples = training.classes, training.examples
        self.example, self.batch = training.example, training.batch
        self.losses, self.gradients = training.model.losses, training.sums
        one_each = OneEach(training.module, training.model.loss)
        self.own_gradients, self.look_ahead = one_each.gradients, one_each.ahead
        self.sample_rate = recipe.sampling.rate(Sizes(self.examples, recipe.batch_size))

    @property
    def initial(self) -> Tensor:
        return self._training.initial.clone()

    @property
    def shadows(self) -> Tensor | None:
        shadows = self._training.shadows
        return None if shadows is None else shadows.clone()

    @property
    def outside(self) -> tuple[Tensor, Tensor] | None:
        records = self._training.reserved
        return None if records is None else (records[0].clone(), records[1].clone())

    def pretrained(self, steps: int, seed: int) -> Tensor:
        records = self.outside
        if records is None:
            raise SpecError("mechanism.reserved", "is needed to pretrain on; give a share")
        changes = {"steps": steps, "schedule": Constant()}
        recipe = self._training.recipe.model_copy(update=changes)
        elsewhere = dataclasses.replace(self._training, recipe=recipe).elsewhere(*records, seed)
        *_, last = elsewhere.simulate(1, noisy=False, seed=seed)
        return last[0]

    def simulate(
        self, runs: int, noisy: bool, seed: int, canary: SampleCanary | None = None, period: int = 1
    ) -> Iterator[Tensor]:
        path = self._training.simulate(runs, noisy, seed, canary, period)
        return (theta.clone() for theta in path)

    def input_gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        check_floating(x)
        module, total = self._training.module, torch.zeros_like(x)
        for row, weight in zip(
            theta, [1.0] * len(theta) if weights is None else weights, strict=True
        ):
            with placed(module, row), torch.enable_grad():
                moved = x.clone().requires_grad_()
                loss = self._training.model.loss(module(moved), y).sum()
                total += weight * torch.autograd.grad(loss, moved)[0]
        return total / len(theta) if weights is None else total


def check_floating(x: Tensor) -> None:
    """Raises SpecError for examples of whole numbers, which cannot be moved along a gradient."""
    if not x.is_floating_point():
        raise SpecError(
            "adversary.name",
            "crafts an example by its gradient, but the network takes whole numbers, which have "
            "none; use loss or biased-dimension",
        )


class OneEach:
    """Gradients of models of one architecture, each on an example of its own, all at once.

    A module may reach parameters where `functional_call` does not put others, and then says
    nothing: so the first gradient is held against autograd on the module itself.
    """

    def __init__(self, module: nn.Module, loss: Loss = losses) -> None:
        self._module, self._of_outputs = module, loss
        self._checked = False

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """∇_θ ℓ(θ_i; x_i, y_i), float [n, p]; theta [n, p], x [n, ...], y [n]."""
        return self._of_all_models(self._gradient, theta, x, y)

    def ahead(
        self, theta: Tensor, x: Tensor, y: Tensor, query: SampleCanary, rate: float
    ) -> Tensor:
        """∇_{x_i} ℓ(θ_i - rate ∇_θ ℓ(θ_i; x_i, y_i); query), shaped as x is, [n, ...].

        Theta is float [n, p], y [n]; the query one example. Double back-propagation.
        """
        check_floating(x)

        def slope(row: Tensor, x: Tensor, y: Tensor) -> Tensor:
            values = self._named(row)

            def later(x: Tensor) -> Tensor:
                first: Values = grad(self._loss)(values, x, y)
                stepped = {name: value - rate * first[name] for name, value in values.items()}
                return self._loss(stepped, query.x[0], query.y[0])

            upwards: Tensor = grad(later)(x)
            return upwards

        return self._of_all_models(slope, theta, x, y)

    def _of_all_models(self, function: OfOneModel, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Calls `function` for every model, in groups that are small enough."""
        if not self._checked:
            self._check(x[:1], y[:1])
            self._checked = True
        size = max(1, _NUMBERS // theta.shape[1])
        parts = zip(*(torch.split(rows, size) for rows in (theta, x, y)), strict=True)
        return torch.cat([vmap(function)(*part) for part in parts]).detach()

    def _check(self, x: Tensor, y: Tensor) -> None:
        row = nn.utils.parameters_to_vector(trained(self._module).values()).detach()
        try:
            mapped = vmap(self._gradient)(row[None], x, y)[0].detach()
            alone = Samplewise(self._module, self._of_outputs).gradients(row, x, y)[0]
            right = float((mapped - alone).abs().max()) <= _TOLERANCE * float(alone.abs().max())
        except Exception:  # noqa: BLE001 (a user's module may raise anything under vmap)
            right = False
        if not right:
            raise SpecError(
                "adversary.name",
                f"crafts by torch.func, which does not run {type(self._module).__name__} "
                "as it is: shared weights, recurrent layers; use static-poison",
            )

    def _gradient(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        gradient: Values = grad(self._loss)(self._named(row), x, y)
        return torch.cat([part.flatten() for part in gradient.values()])

    def _named(self, row: Tensor) -> Values:
        """The parameters `row` [p] by their names."""
        named = trained(self._module)
        parts = torch.split(row, [p.numel() for p in named.values()])
        return {k: part.view(p.shape) for (k, p), part in zip(named.items(), parts, strict=True)}

    def _loss(self, values: Values, x: Tensor, y: Tensor) -> Tensor:
        """Loss of one example x [...], y []."""
        # Torch does not put back what it ties in a layer that a module holds twice.
        outputs = functional_call(self._module, values, (x[None].clone(),), tie_weights=False)
        return self._of_outputs(outputs, y[None]).sum()
