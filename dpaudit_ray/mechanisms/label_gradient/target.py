"""The target: trained once by DP-SGD, and what an attacker of its steps can know of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...errors import SpecError
from ..base import Arrays
from .chain import ACTIVATIONS, Chain, Shape

if TYPE_CHECKING:
    from ..dp_sgd.training import DpSgdTraining

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Batch:
    """A step of the target: the model before it, its `records` by number, their x [N, d], y [N]."""

    model: Chain
    x: Floats
    y: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Target:
    """A trained target, as arrays: `theta` [steps, p], `x` [steps, N, d], `y`, `records`."""

    arrays: Arrays

    @classmethod
    def trained(cls, training: DpSgdTraining, shape: Shape, steps: int, seed: int) -> Target:
        """Trains without a canary, and keeps what is needed of the first `steps`.

        Raises:
            SpecError: it diverged, or a batch has a record twice.
        """
        import torch

        nobody = torch.zeros(1, dtype=training.initial.dtype, device=training.initial.device)
        thetas = []
        for step, theta in enumerate(training.run(nobody, seed, None, 1)):
            if step == steps:
                break
            thetas.append(theta[0].cpu().numpy().copy())
            if not np.isfinite(thetas[-1]).all():
                raise SpecError(
                    "mechanism.training.learning_rate",
                    f"is {training.recipe.learning_rate:g}, with which the target has diverged "
                    f"before step {step + 1}; lower it",
                )
        batches = training.batches[:steps]
        size = training.recipe.batch_size
        if any(not len(set(batch.tolist())) == len(batch) == size for batch in batches):
            raise SpecError(
                "mechanism.training.sampling",
                f"is {training.recipe.sampling.address}, which has batches with a record twice, or "
                f"of another size than {size}; use fixed or shuffle",
            )
        return cls(
            {
                "theta": np.stack(thetas),
                "x": np.stack([training.x[batch].cpu().numpy() for batch in batches]),
                "y": np.stack([training.y[batch].cpu().numpy() for batch in batches]),
                "records": np.stack([batch.cpu().numpy() for batch in batches]),
                "sizes": np.array(shape.sizes),
                "activation": np.array(ACTIVATIONS.index(shape.activation)),
                "seed": np.array(seed % 2**63),
            }
        )

    @property
    def steps(self) -> int:
        """How many steps are kept."""
        return len(self.arrays["theta"])

    @property
    def shape(self) -> Shape:
        """Of its network."""
        sizes = tuple(int(size) for size in self.arrays["sizes"])
        return Shape(sizes, ACTIVATIONS[int(self.arrays["activation"])])

    def batch(self, step: int) -> Batch:
        """What its step number `step`, from 0 on, was computed from."""
        kept = self.arrays
        model = self.shape.chain(kept["theta"][step])
        x = kept["x"][step].reshape(len(kept["x"][step]), -1).astype(np.float64)
        return Batch(model, x, kept["y"][step], kept["records"][step])

    def crafting(self, step: int) -> np.random.Generator:
        """For records that an attacker makes for a step: the same in whatever looks at it."""
        return np.random.default_rng([int(self.arrays["seed"]), step])

    def batches(self) -> Iterator[Batch]:
        """All of them, in order."""
        return map(self.batch, range(self.steps))
