"""DP-SGD at work: trains a pack of models side by side and lets the adversary score them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..adversaries.base import Canary, FinalModelAdversary, GradientCanary, SampleCanary
from ..errors import SpecError
from ..seeds import derive
from .noise import noise_source
from .packed import PackedModel

if TYPE_CHECKING:
    from ..mechanisms.dp_sgd import DpSgd


@dataclasses.dataclass(frozen=True)
class Training:
    """The public part of DP-SGD, on one device; also what an adversary may know beforehand."""

    options: DpSgd
    model: PackedModel
    initial: Tensor  # [p]
    x: Tensor  # [N, ...]
    y: Tensor  # [N]
    batches: Tensor  # [T, B] indices
    classes: int

    @classmethod
    def prepare(
        cls, options: DpSgd, seed: int, gpu: bool, dtype: torch.dtype = torch.float32
    ) -> Training:
        """Loads the data, draws θ_0 and the mini-batches from (sweep seed, `options.seed`)."""
        device = torch.device("cuda" if gpu else "cpu")
        data = options.data.load()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive("initialization", seed, options.seed) % 2**63)
            module = options.model.build(data.x.shape[1:], data.classes)
        model = PackedModel(module)
        return cls(
            options=options,
            model=model,
            initial=model.initial.to(device, dtype),
            x=torch.from_numpy(data.x).to(device, dtype),
            y=torch.from_numpy(data.y).to(device),
            batches=torch.from_numpy(_batches(options, len(data.y), seed)).to(device),
            classes=data.classes,
        )

    @property
    def clip_norm(self) -> float:
        """C."""
        return self.options.clip_norm

    @property
    def examples(self) -> int:
        """Number of training examples."""
        return len(self.y)

    def example(self, index: int) -> tuple[Tensor, Tensor]:
        """Training example `index` as x [1, ...] and y [1]."""
        if not 0 <= index < self.examples:
            last = self.examples - 1
            raise SpecError("adversary.example", f"is {index}, but the data ends at {last}")
        return self.x[index : index + 1], self.y[index : index + 1]

    def simulate(self, runs: int, noisy: bool, seed: int) -> Iterator[Tensor]:
        """Yields θ_0, ..., θ_T of `runs` trainings without the canary, [runs, p]."""
        if noisy:
            nobody = torch.zeros(runs, dtype=self.initial.dtype, device=self.initial.device)
            yield from (theta.clone() for theta in self.run(nobody, seed, None, 1))
            return
        theta = self.initial.repeat(runs, 1)
        yield theta
        for batch in self.batches:
            sums = self.model.clipped_sums(theta, self.x[batch], self.y[batch], math.inf)
            theta = theta.sub(sums, alpha=self._rate)
            yield theta

    def run(
        self, inside: Tensor, seed: int, canary: Canary | None, period: int
    ) -> Iterator[Tensor]:
        """Yields θ_0, ..., θ_T [n, p]; a yielded tensor changes when the next one is asked for.

        Args:
            inside: [n], 1 where the canary is in, else 0.
            seed: of the pack's noise.
            canary: added to the sum, or to the batch, at steps that `period` divides.
        """
        options = self.options
        noise = noise_source(seed, self.initial.device)
        theta = self.initial.repeat(len(inside), 1)
        update = torch.empty_like(theta)
        yield theta
        for step, batch in enumerate(self.batches, start=1):
            inserted = canary if step % period == 0 else None
            noise.fill(update)
            update *= options.noise_multiplier * options.clip_norm
            update += self._sums(theta, batch, inside, inserted)
            if isinstance(inserted, GradientCanary):
                update.addr_(inside, inserted.direction)
            theta.sub_(update, alpha=self._rate)
            yield theta

    def _sums(self, theta: Tensor, batch: Tensor, inside: Tensor, canary: Canary | None) -> Tensor:
        x, y = self.x[batch], self.y[batch]
        weights = None
        if isinstance(canary, SampleCanary):
            x, y = torch.cat([x, canary.x]), torch.cat([y, canary.y])
            weights = inside.new_ones(len(inside), len(y))
            weights[:, len(batch) :] = inside[:, None]
        return self.model.clipped_sums(theta, x, y, self.options.clip_norm, weights)

    @property
    def _rate(self) -> float:
        return self.options.learning_rate / self.options.batch_size


@dataclasses.dataclass(frozen=True)
class _Released:
    """Final models as a hidden-state adversary sees them."""

    initial: Tensor
    final: Tensor
    model: PackedModel

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss of every final model on examples x [m, ...], y [m]: float [n, m]."""
        return self.model.losses(self.final, x, y)


@dataclasses.dataclass(frozen=True)
class FinalModelSession:
    """DP-SGD against an adversary that sees only where training ended."""

    training: Training
    adversary: FinalModelAdversary[Any]
    canary: Canary

    @classmethod
    def craft(
        cls, training: Training, adversary: FinalModelAdversary[Any], seed: int
    ) -> FinalModelSession:
        """Crafts the canary; refuses one whose gradient breaks the sensitivity of the claim."""
        canary = adversary.craft(training, np.random.default_rng(seed))
        if isinstance(canary, GradientCanary):
            norm = float(canary.direction.norm())
            if norm > training.clip_norm * (1 + 1e-6):
                raise SpecError(
                    "adversary.name",
                    f"{adversary.name} crafted a gradient of norm {norm:.6g}, above the clip norm "
                    f"{training.clip_norm:g}: the claim would not cover it",
                )
        return cls(training, adversary, canary)

    def run(
        self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]
    ) -> npt.NDArray[np.float64]:
        """See `Session.run`. Every horizon is judged alone, from θ_0 and θ there."""
        training = self.training
        inside = torch.from_numpy(members).to(training.initial)
        scores = np.empty((len(members), len(horizons)))
        column = {step: i for i, step in enumerate(horizons)}
        path = training.run(inside, seed, self.canary, self.adversary.period)
        for step, theta in enumerate(path):
            if step in column:
                released = _Released(training.initial, theta, training.model)
                observed = self.adversary.score(self.canary, released)
                scores[:, column[step]] = observed.double().cpu().numpy()
        return scores


def _batches(options: DpSgd, examples: int, seed: int) -> npt.NDArray[np.int64]:
    """Indices [T, B]: epochs of shuffled data, cut into full batches."""
    rng = np.random.default_rng(derive("batches", seed, options.seed))
    per_epoch = examples // options.batch_size
    epochs = math.ceil(options.steps / per_epoch)
    rows = [
        rng.permutation(examples)[: per_epoch * options.batch_size].reshape(per_epoch, -1)
        for _ in range(epochs)
    ]
    return np.concatenate(rows)[: options.steps]
