"""One DP-SGD step for n models: θ ← θ - η/|B| (Σ_j w_j clip(g_j, C) + N(0, σ²C² I)).

Both engines do this to the rows of one matrix. `PackedSteps` computes all models together;
`OpacusSteps` takes them one by one through the real `GradSampleModule` and `DPOptimizer`.
"""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from .losses import losses
from .noise import noise_source
from .packed import PackedModel

if TYPE_CHECKING:
    from ..mechanisms.dp_sgd import DpSgd


class Steps(Protocol):
    """An engine at work on one pack."""

    def step(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor | None) -> None:
        """Changes `theta`, float [n, p], in place.

        Args:
            theta: parameters before, then after the step.
            x: examples [m, ...]: the batch, and any canary samples behind it.
            y: classes [m].
            weights: float [n, m] of zeros and ones: who takes part; None for everybody.
        """


class PackedSteps:
    """Gradients of all models at once; noise from one stream for the whole pack."""

    def __init__(self, options: DpSgd, model: PackedModel, seed: int, device: torch.device) -> None:
        self._options = options
        self._model = model
        self._noise = noise_source(seed, device)
        self._update: Tensor | None = None

    def step(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor | None) -> None:
        options = self._options
        if self._update is None:
            self._update = torch.empty_like(theta)
        update = self._update
        # Drawn for the whole pack, so that how it is split for the gradients changes nothing.
        self._noise.fill(update)
        update *= options.noise_multiplier * options.clip_norm
        update += self._model.clipped_sums(theta, x, y, options.clip_norm, weights)
        theta.sub_(update, alpha=options.learning_rate / options.batch_size)


class OpacusSteps:
    """The reference: slow, and exactly what a user of Opacus runs.

    Torch's CPU generator keeps 32 bits of a seed, so two of 10,000 packs share their noise with
    probability 1 %.
    """

    def __init__(self, options: DpSgd, module: nn.Module, seed: int, device: torch.device) -> None:
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer

        self._module = GradSampleModule(copy.deepcopy(module).to(device))
        self._parameters = list(self._module.parameters())
        self._optimizer = DPOptimizer(
            torch.optim.SGD(self._parameters, lr=options.learning_rate),
            noise_multiplier=options.noise_multiplier,
            max_grad_norm=options.clip_norm,
            expected_batch_size=options.batch_size,
            generator=torch.Generator(device).manual_seed(seed % 2**63),
        )

    def step(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor | None) -> None:
        for i, row in enumerate(theta):
            taken = slice(None) if weights is None else weights[i] > 0
            nn.utils.vector_to_parameters(row.clone(), self._parameters)
            self._optimizer.zero_grad()
            with torch.enable_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # hooks on inputs that need no gradient
                loss = losses(self._module(x[taken]), y[taken]).mean()
                torch.autograd.backward(loss)
            self._optimizer.step()
            row.copy_(nn.utils.parameters_to_vector(self._parameters).detach())
