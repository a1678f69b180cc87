"""One training, many canaries (Steinke, Nasr, Jagielski 2023, Algorithm 1).

Each of m canaries has a coin, a bit and a score. White box, canaries are gradients of norm C, and a
score is the sum over the steps of the inner product of what the step releases with the canary
(section 4; the paper's sign is that of updates). Black box, they are records, and a score is minus
the loss of the final model. Theorem 3.1 holds for the canaries of several trainings, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from ..errors import SpecError
from .base import (
    Adversary,
    FinalModel,
    FinalModelAdversary,
    GradientCanary,
    PublicKnowledge,
    SampleCanary,
    TrajectoryAdversary,
)
from .likelihood import Sums

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

_LARGEST = 1 << 30  # numbers that random directions may take: 4 GiB


class OneRun(Adversary):
    """`canaries` in each training, of one `kind`; what it sees follows from that.

    `dirac` biases as many parameters, `random` takes as many random directions. `natural` adds
    records like the private ones, that are not trained on otherwise; `mislabelled` gives them
    another label. `audit.trials` is trainings times canaries. With `adjacency: replace` a coin
    picks one of two: a gradient or its opposite, one record or another; the claim is that of
    replacing one, though `mechanism.epsilon` sets the noise by that of adding one.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    name: Literal["one-run"] = "one-run"
    count: int = Field(alias="canaries", ge=1)  # planted in each training

    adjacency: Literal["add-remove", "replace"] = "add-remove"  # what neighbours differ by

    @property
    def canaries(self) -> int:
        return self.count

    @property
    def replaces(self) -> bool:
        return self.adjacency == "replace"

    @classmethod
    def variant(cls, raw: Mapping[str, Any]) -> type[OneRun]:
        """Gradients or records, by `kind`."""
        return OneRunRecords if raw.get("kind") in ("natural", "mislabelled") else OneRunGradients


class OneRunGradients(OneRun, TrajectoryAdversary[GradientCanary]):
    """Sees every update, and the others' part in it: the paper's score takes nothing away."""

    is_variant: ClassVar[bool] = True
    fixed_gradient: ClassVar[bool] = True
    which: Literal["dirac", "random"] = Field(alias="kind")  # dirac, random: gradients

    @property
    def apart(self) -> bool:
        return self.which == "dirac"

    def check_size(self, parameters: int) -> None:
        if self.which == "dirac" and self.count > parameters:
            raise SpecError(
                "adversary.canaries",
                f"is {self.count}, but the model has {parameters} parameters, and each canary "
                "biases one of its own; use fewer, a larger model, or kind: random",
            )
        if self.which == "random" and self.count * parameters > _LARGEST:
            raise SpecError(
                "adversary.canaries",
                f"is {self.count}: random directions in {parameters} parameters would take "
                f"{4 * self.count * parameters / 2**30:.1f} GiB, of which {_LARGEST >> 28} are "
                f"allowed; use at most {_LARGEST // parameters}, or kind: dirac",
            )

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> GradientCanary:
        """Directions of norm C, [m, p]: sparse with one entry each, or dense; a single one [p]."""
        import torch

        size, like = len(public.initial), public.initial
        if self.which == "dirac":
            places = torch.from_numpy(rng.permutation(size)[: self.count]).to(like.device)
            entries, shape = like.new_full((self.count,), public.clip_norm), (self.count, size)
            at = torch.stack([torch.arange(self.count, device=like.device), places])
            directions = torch.sparse_coo_tensor(at, entries, shape, check_invariants=True)
        else:
            seeded = torch.Generator().manual_seed(int(rng.integers(2**63)))
            drawn = torch.randn(self.count, size, generator=seeded, dtype=like.dtype)
            drawn = drawn.to(like.device)
            lengths = torch.linalg.vector_norm(drawn, dim=1, keepdim=True, dtype=torch.float64)
            directions = drawn.mul_(public.clip_norm / lengths)
        if self.replaces:
            directions = torch.cat([directions, -directions])
        if len(directions) == 1:
            return GradientCanary(directions.to_dense()[0])
        return GradientCanary(directions.coalesce() if directions.is_sparse else directions)

    def observer(self, canary: GradientCanary, public: PublicKnowledge, models: int) -> Products:
        """An observer of what every step shows along each canary, but not along its opposite."""
        import torch

        directions = canary.direction
        if self.replaces:
            first = torch.arange(self.count, device=directions.device)
            directions = directions.index_select(0, first)
        if self.count == 1:
            directions = directions.to_dense().flatten()
        shown = public.initial.new_zeros(models, *directions.shape[:-1])
        return Products(shown, public, directions, self.period)


@dataclasses.dataclass
class Products(Sums):
    """An observer: sums [n, m], or [n] of one canary, of updates' products with canaries, in C²."""

    public: PublicKnowledge
    directions: Tensor  # [m, p], perhaps sparse, or [p]
    period: int

    def see_update(self, step: int, before: Tensor, update: Tensor) -> None:
        if step % self.period == 0:
            scale = self.public.batch_size / self.public.clip_norm**2
            self.shown += scale * (self.directions @ update.t()).t()


class OneRunRecords(OneRun, FinalModelAdversary[SampleCanary]):
    """Sees the final model. Records come from those in reserve, half of the data if not said."""

    is_variant: ClassVar[bool] = True
    which: Literal["natural", "mislabelled"] = Field(alias="kind")  # natural, mislabelled: records

    @property
    def reserves(self) -> float | None:
        return 0.5

    @property
    def needs_classes(self) -> bool:
        return self.which == "mislabelled"

    def check_reserve(self, records: int) -> None:
        if self._records > records:
            raise SpecError(
                "adversary.canaries",
                f"is {self.count}, which takes {self._records} records, but only {records} are in "
                "reserve for them; use fewer, or raise mechanism.reserved",
            )

    @property
    def _records(self) -> int:
        return self.count * (2 if self.replaces else 1)

    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> SampleCanary:
        import torch

        assert public.outside is not None  # those who reserve some have some
        x, y = public.outside
        places = torch.from_numpy(rng.permutation(len(y))[: self._records]).to(y.device)
        x, y = x[places], y[places]
        if self.which == "mislabelled":
            shift = torch.from_numpy(rng.integers(1, public.classes, len(y))).to(y)
            y = (y + shift) % public.classes
        return SampleCanary(x, y)

    def score(self, canary: SampleCanary, observed: FinalModel) -> Tensor:
        """Minus the loss of each, or how much larger that of the other one of its pair is."""
        losses = observed.losses(canary.x, canary.y)
        scores = (losses[:, self.count :] if self.replaces else 0.0) - losses[:, : self.count]
        return scores[:, 0] if self.count == 1 else scores
