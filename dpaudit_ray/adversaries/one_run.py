"""Audits with many canaries in each training run (Steinke, Nasr, Jagielski 2023, Algorithm 1).

Each of m canaries has a random bit and a score. White box, canaries are gradients of norm C, and a
score is the sum over the steps of the inner product of the step's release with the canary (section
4; the paper's sign is that of updates). Black box, they are records, and a score is minus the loss
of the final model. Theorem 3.1 also holds for the canaries of several training runs together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

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
from .likelihood import Sums, Whitening

if TYPE_CHECKING:
    from numpy.random import Generator
    from torch import Tensor

_MOST_NUMBERS = 1 << 30  # numbers of all random directions together: 4 GiB


class OneRun(Adversary):
    """Plants `canaries` in each training run, gradients or records by their `kind`.

    The kinds `dirac` and `random` are gradients, along one parameter each or in random directions;
    scores use every update. The kinds `natural` and `mislabelled` are records that are not trained
    on otherwise, like the private ones or with another label; scores use the final model.
    `audit.trials` is training runs times canaries. With `adjacency: replace` a random bit picks one
    of two: a gradient or its opposite, one record or another. The claim is then that of replacing
    one record, though `mechanism.epsilon` sets the noise by that of adding one.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    name: Literal["one-run"] = "one-run"
    count: int = Field(alias="canaries", ge=1)  # planted in each training run

    adjacency: Literal["add-remove", "replace"] = "add-remove"  # relation of neighbouring data sets

    @property
    def canaries(self) -> int:
        return self.count

    @property
    def replaces(self) -> bool:
        return self.adjacency == "replace"

    @classmethod
    def variant(cls, raw: Mapping[str, Any]) -> type[OneRun]:
        """Returns the class for gradients or for records, by `kind`."""
        if raw.get("kind") in ("natural", "mislabelled"):
            return OneRunRecords
        return OneRunGradients


class OneRunGradients(OneRun, TrajectoryAdversary[GradientCanary]):
    """Observes every update; as in the paper, other gradients are not subtracted from it.

    If noise is correlated, scores are likelihood ratios of all steps, and other gradients are
    subtracted: their sum over so many steps would hide the canaries.
    """

    is_variant = True
    fixed_gradient = True
    which: Literal["dirac", "random"] = Field(alias="kind")  # dirac, random: gradients

    @property
    def apart(self) -> bool:
        return self.which == "dirac"

    def check_size(self, parameters: int) -> None:
        """Raises SpecError if directions are too many for the parameters, or for memory."""
        if self.which == "dirac" and self.count > parameters:
            raise SpecError(
                "adversary.canaries",
                f"is {self.count}, but the model has {parameters} parameters, and each canary "
                "biases another one; use fewer, a larger model, or kind: random",
            )
        if self.which == "random" and self.count * parameters > _MOST_NUMBERS:
            raise SpecError(
                "adversary.canaries",
                f"is {self.count}: random directions in {parameters} parameters would take "
                f"{4 * self.count * parameters / 2**30:.1f} GiB, of which {_MOST_NUMBERS >> 28} "
                f"are allowed; use at most {_MOST_NUMBERS // parameters}, or kind: dirac",
            )

    def craft(self, public: PublicKnowledge, rng: Generator) -> GradientCanary:
        """Crafts directions of norm C, float [m, p], or [p] for a single canary.

        `dirac` directions are sparse, with one entry each. If canaries replace others, the second
        half are the opposites of the first.
        """
        import torch

        initial = public.initial
        shape = self.count, len(initial)
        if self.which == "dirac":
            parameters = rng.permutation(len(initial))[: self.count]
            rows = torch.arange(self.count)
            indices = torch.stack([rows, torch.from_numpy(parameters)]).to(initial.device)
            entries = initial.new_full((self.count,), public.clip_norm)
            directions = torch.sparse_coo_tensor(indices, entries, shape, check_invariants=True)
        else:
            generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
            directions = torch.randn(shape, generator=generator, dtype=initial.dtype)
            directions = directions.to(initial.device)
            norms = torch.linalg.vector_norm(directions, dim=1, keepdim=True, dtype=torch.float64)
            directions.mul_(public.clip_norm / norms)
        if self.replaces:
            directions = torch.cat([directions, -directions])
        if len(directions) == 1:
            return GradientCanary(directions.to_dense()[0])
        return GradientCanary(directions.coalesce() if directions.is_sparse else directions)

    def observer(self, canary: GradientCanary, public: PublicKnowledge, models: int) -> Products:
        """Returns an observer of every step's product with each canary, but not its opposite.

        Args:
            canary: directions, as crafted.
            public: all that the adversary knows before training.
            models: number of training runs in the pack.
        """
        import torch

        directions = canary.direction
        if self.replaces:  # the opposites come second
            # Sparse tensors cannot be sliced.
            first_half = torch.arange(self.count, device=directions.device)
            directions = directions.index_select(0, first_half)
        if self.count == 1:
            directions = directions.to_dense().flatten()
        zeros = public.initial.new_zeros(models, *directions.shape[:-1])
        whitening = Whitening.of(public, self.period, zeros)
        return Products(zeros, whitening, public, directions, self.period)


@dataclass
class Products(Sums):
    """An observer that adds up products of releases with canaries, in units of C².

    The sums are float [n, m], or [n] for a single canary.
    """

    public: PublicKnowledge
    directions: Tensor  # [m, p], perhaps sparse, or [p]
    period: int  # steps from one insertion to the next

    def see_update(self, step: int, before: Tensor, update: Tensor) -> None:
        """Adds the products of one release with the canaries.

        With independent noise, releases of the steps that have the canaries count as they are. With
        correlated noise every step counts, after the other records' gradients are subtracted.

        Args:
            step: number of the step, from 1.
            before: θ_{t-1}, float [n, p].
            update: the step's release, its noisy mean gradient, float [n, p].
        """
        public = self.public
        if self.whitening is None:  # the noise is independent
            if step % self.period == 0:  # canaries enter at multiples of the period
                self.total += self._products(update)
            return
        x, y = public.batch(step)
        known_sum = public.gradients(before, x, y, clip_norm=public.clip_norm)
        products = self._products(update - known_sum / public.batch_size)
        self.total += self.whitening.evidence(step, products)

    def _products(self, update: Tensor) -> Tensor:
        """Returns products of summed gradients with the canaries, in units of C²: [n, m] or [n]."""
        scale = self.public.batch_size / self.public.clip_norm**2
        products = (self.directions @ update.t()).t()
        return scale * products


class OneRunRecords(OneRun, FinalModelAdversary[SampleCanary]):
    """Observes the final model. Canaries are reserved records, half of the data by default."""

    is_variant = True
    which: Literal["natural", "mislabelled"] = Field(alias="kind")  # natural, mislabelled: records

    @property
    def reserves(self) -> float | None:
        return 0.5

    @property
    def needs_classes(self) -> bool:
        return self.which == "mislabelled"

    def check_reserve(self, records: int) -> None:
        """Raises SpecError if fewer records are reserved than canaries take."""
        if self._records > records:
            raise SpecError(
                "adversary.canaries",
                f"is {self.count}, which takes {self._records} records, but only {records} are "
                "reserved for them; use fewer, or raise mechanism.reserved",
            )

    @property
    def _records(self) -> int:
        """The number of records that canaries take: two for each if a canary replaces a record."""
        return 2 * self.count if self.replaces else self.count

    def craft(self, public: PublicKnowledge, rng: Generator) -> SampleCanary:
        """Draws reserved records; if `mislabelled`, each with a label of another class."""
        import torch

        assert public.outside is not None  # `reserves` provides them
        x, y = public.outside
        chosen = rng.permutation(len(y))[: self._records]
        indices = torch.from_numpy(chosen).to(y.device)
        x, y = x[indices], y[indices]
        if self.which == "mislabelled":
            shifts = rng.integers(1, public.classes, len(y))
            # All records of a user have the same shift: one of shape [canaries, 1, ...].
            shifts = shifts.reshape(-1, *[1] * (y.dim() - 1))
            y = (y + torch.from_numpy(shifts).to(y)) % public.classes
        return SampleCanary(x, y)

    def score(self, canary: SampleCanary, observed: FinalModel) -> Tensor:
        """Returns minus the loss of each canary; for a pair, the second loss minus the first."""
        losses = observed.losses(canary.x, canary.y)
        # The second records of all pairs come after the first ones.
        second = losses[:, self.count :] if self.replaces else 0.0
        scores = second - losses[:, : self.count]
        return scores[:, 0] if self.count == 1 else scores
