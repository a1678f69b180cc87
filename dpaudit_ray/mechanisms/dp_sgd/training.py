"""DP-SGD at work: the public part of a training, and the loop over its steps."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...adversaries.base import Canary, ChangingCanary, GradientCanary, SampleCanary
from ...engines.cpu import memory
from ...engines.packing.packed import PackedModel
from ...engines.rules.layers import slots_of
from ...errors import SpecError
from ...seeds import derive
from .recipe import Recipe
from .start import network, seeded
from .steps import Inserted, OpacusSteps, PackedSteps, Steps

if TYPE_CHECKING:
    from ...data.base import Dataset

_LARGEST = 1e15  # entry of a crafted example: squares and their sums must not overflow
_BODY_BATCH = 256  # examples that go through a frozen body together


@dataclasses.dataclass(frozen=True)
class Training:
    """The public part of DP-SGD, on one device; also what an adversary may know beforehand."""

    recipe: Recipe
    module: nn.Module
    model: PackedModel
    initial: Tensor  # [p]; zeros where every trial draws its own
    x: Tensor  # [N, ...]
    y: Tensor  # [N]
    batches: Tensor  # [T, B] indices
    classes: int

    @classmethod
    def prepare(
        cls, recipe: Recipe, seed: int, gpu: bool, dtype: torch.dtype = torch.float32
    ) -> Training:
        """Loads the data, draws θ_0 and the mini-batches from (sweep seed, `recipe.seed`)."""
        device = torch.device("cuda" if gpu else "cpu")
        if gpu:
            torch.backends.cuda.matmul.allow_tf32 = recipe.precision == "tf32"
            torch.backends.cudnn.allow_tf32 = recipe.precision == "tf32"
        else:
            memory.keep_heap()
        data = recipe.data.load()
        drawn = derive("initialization", seed, recipe.seed)
        with seeded(drawn):
            body = recipe.model.body(data.x.shape[1:])
        features = _features(data, body, device, dtype)
        module = network(recipe.model, tuple(features.shape[1:]), data.classes, drawn)
        compute = torch.bfloat16 if recipe.precision == "bfloat16" else None
        y = torch.from_numpy(data.y.copy()).to(device)
        slots_of(module)  # refuses parameters that could not be moved as they are
        model = PackedModel(module.to(device, dtype), compute=compute)
        model.settle(features[: recipe.batch_size], y[: recipe.batch_size])
        initial = model.initial
        return cls(
            recipe=recipe,
            module=module,
            model=model,
            initial=torch.zeros_like(initial) if recipe.hidden_start else initial,
            x=features,
            y=y,
            batches=torch.from_numpy(_batches(recipe, len(data.y), seed)).to(device),
            classes=data.classes,
        )

    @property
    def clip_norm(self) -> float:
        """C."""
        return self.recipe.clip_norm

    @property
    def examples(self) -> int:
        """Number of training examples."""
        return len(self.y)

    def example(self, index: int) -> tuple[Tensor, Tensor]:
        """Training example `index` as x [1, ...] and y [1]."""
        if not 0 <= index < self.examples:
            last = self.examples - 1
            raise SpecError("adversary.example", f"is {index}, but the data ends at {last}")
        return self.x[index : index + 1].clone(), self.y[index : index + 1].clone()

    def simulate(self, runs: int, noisy: bool, seed: int) -> Iterator[Tensor]:
        """Yields θ_0, ..., θ_T of `runs` trainings without the canary, [runs, p]."""
        if noisy:
            nobody = torch.zeros(runs, dtype=self.initial.dtype, device=self.initial.device)
            yield from (theta.clone() for theta in self.run(nobody, seed, None, 1))
            return
        theta = self.starts(runs, seed)
        yield theta
        for batch in self.batches:
            sums = self.model.clipped_sums(theta, self.x[batch], self.y[batch], math.inf)
            theta = theta.sub(sums, alpha=self._rate)
            yield theta

    def starts(self, models: int, seed: int) -> Tensor:
        """θ_0 of every model, float [models, p]: one for all, or drawn from the pack's seed."""
        if not self.recipe.hidden_start:
            return self.initial.repeat(models, 1)
        shape, rows = tuple(self.x.shape[1:]), []
        for i in range(models):
            drawn = derive("start", seed, i)
            module = network(self.recipe.model, shape, self.classes, drawn)
            rows.append(nn.utils.parameters_to_vector(module.parameters()).detach())
        return torch.stack(rows).to(self.initial)

    def run(
        self, inside: Tensor, seed: int, canary: Canary | None, period: int
    ) -> Iterator[Tensor]:
        """Yields θ_0, ..., θ_T [n, p]; a yielded tensor changes when the next one is asked for.

        Args:
            inside: [n], 1 where the canary is in, else 0; or [n, m] for each of m samples.
            seed: of the pack's noise.
            canary: added to the sum, or to the batch, at steps that `period` divides.
        """
        steps = self._steps(seed)
        theta = self.starts(len(inside), seed)
        yield theta
        inserted = None
        if isinstance(canary, GradientCanary | SampleCanary):
            inserted = Inserted(canary, inside)
        for step, batch in enumerate(self.batches, start=1):
            here = step % period == 0
            if here and isinstance(canary, ChangingCanary):
                crafted = canary.at(step, theta.clone())
                self.check_claim(crafted, 1 if inside.dim() == 1 else inside.shape[1])
                inserted = Inserted(crafted, inside)
            steps.step(theta, self.x[batch], self.y[batch], inserted if here else None)
            yield theta

    def check_claim(self, canary: Canary, coins: int = 1) -> None:
        """Raises SpecError for a canary that breaks the sensitivity of the claim.

        `coins`: the secret bits that each model has; every one stands for one example.
        """
        if isinstance(canary, GradientCanary):
            if canary.direction.shape[-1:] != self.initial.shape:
                raise SpecError(
                    "adversary.name",
                    f"crafted a gradient of shape {tuple(canary.direction.shape)}; its last "
                    f"dimension must be the {len(self.initial)} parameters",
                )
            norm = float(canary.direction.norm(dim=-1).max())
            if not norm <= self.clip_norm * (1 + 1e-6):
                raise SpecError(
                    "adversary.name",
                    f"crafted a gradient of norm {norm:.6g}, above the clip norm "
                    f"{self.clip_norm:g}: the claim would not cover it",
                )
        if isinstance(canary, SampleCanary):
            rows = len(canary.x)
            if rows != coins or len(canary.y) != rows:
                raise SpecError(
                    "adversary.name",
                    f"crafted {rows} examples with {len(canary.y)} labels for {coins} secret "
                    f"bit{'s' * (coins > 1)}: together they may move the sum by {rows} clip norms, "
                    "the claim covers one for each bit; craft one example with one label",
                )
            largest = float(canary.x.abs().max())
            if not largest <= _LARGEST:
                raise SpecError(
                    "adversary.name",
                    f"crafted an example with an entry of {largest:.3g}, whose gradient has no "
                    f"norm in float32; use at most {_LARGEST:g}",
                )

    def _steps(self, seed: int) -> Steps:
        device = self.initial.device
        if self.recipe.engine == "opacus":
            return OpacusSteps(self.recipe, self.module, seed, device)
        return PackedSteps(self.recipe, self.model, seed, device)

    @property
    def _rate(self) -> float:
        return self.recipe.learning_rate / self.recipe.batch_size


def _features(
    data: Dataset, body: nn.Module | None, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Examples as the trained part of the model sees them: a frozen body is applied once."""
    with warnings.catch_warnings():  # shared memory is read-only, and nothing here writes to it
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        x = torch.from_numpy(data.x)
    if body is None:
        return x.to(device, dtype)
    body = body.to(device).eval()
    with torch.no_grad():
        parts = [body(part.to(device)) for part in torch.split(x, _BODY_BATCH)]
    return torch.cat(parts).to(dtype)


def _batches(recipe: Recipe, examples: int, seed: int) -> npt.NDArray[np.int64]:
    """Indices [T, B]: epochs of shuffled data, cut into full batches."""
    rng = np.random.default_rng(derive("batches", seed, recipe.seed))
    per_epoch = examples // recipe.batch_size
    epochs = math.ceil(recipe.steps / per_epoch)
    rows = [
        rng.permutation(examples)[: per_epoch * recipe.batch_size].reshape(per_epoch, -1)
        for _ in range(epochs)
    ]
    return np.concatenate(rows)[: recipe.steps]
