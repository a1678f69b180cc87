"""The interface of adversaries against DP-SGD: craft before training, score what is released.

The access level is the type an adversary derives from. A `FinalModelAdversary` gets θ_0, θ_T and
the canary it crafted, nothing else; a `TrajectoryAdversary` watches every step. The secret bit is
in no object that reaches either.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from ..plugins import Count, Plugin

if TYPE_CHECKING:
    import numpy as np
    from numpy.random import Generator
    from numpy.typing import NDArray
    from torch import Tensor

    from ..data.base import Data, Dataset

SHADOWS_PER_PART = 16  # shadow models that are trained together


@dataclass(frozen=True)
class GradientCanary:
    """A gradient that is added to the clipped sum, norm at most C.

    `direction` is float [p]. It is [n, p] if each of n models has its own, and [m, p], perhaps
    sparse (COO), if each training run has m canaries with a secret bit each.
    """

    direction: Tensor


@dataclass(frozen=True)
class SampleCanary:
    """Examples that join the batch, one for each bit: `x` [m, ...], `y` [m], clipped as others."""

    x: Tensor  # entries of at most 1e15, so that gradients have a norm in float32
    y: Tensor


@dataclass(frozen=True)
class RecordCanary(SampleCanary):
    """Private records, numbers `indices` int64 [m] of the data; if "out", no batch has them."""

    indices: Tensor


class ChangingCanary(ABC):
    """A canary that is crafted at every insertion, from the models at that step.

    A `memoryless` canary depends on the step and the model alone. So its training run can continue
    in another process, and it is crafted only for models that sample it in this step, whatever
    their secret bit.
    """

    memoryless: ClassVar[bool] = False

    @abstractmethod
    def at(self, step: int, theta: Tensor) -> GradientCanary | SampleCanary:
        """Crafts what is inserted at one step, whichever models are "in".

        Args:
            step: number of the step, from 1.
            theta: a copy of the models, float [n, p]; all of the pack, unless it is `memoryless`.

        Returns:
            Examples, or a direction for all n models or one for each.
        """


Canary = GradientCanary | SampleCanary | ChangingCanary
C = TypeVar("C", GradientCanary, SampleCanary, ChangingCanary)


class PublicKnowledge(Protocol):
    """All that the hidden-state threat model grants before training (Cebere et al., section 4).

    Batches without the canary are part of it. Losses and gradients may be those of any θ: chosen by
    the adversary, simulated, or observed.
    """

    clip_norm: float  # C
    # σ: the noise on a sum of clipped gradients has deviation σC; or correlated noise C⁻¹ z is made
    # of normals z with that deviation
    noise_multiplier: float
    batch_size: int  # |B|, by which sums are divided: the expected size where batches vary
    sample_rate: float  # the chance that a step has the canary; 1 where batches are fixed
    classes: int  # number of classes; 0 for regression
    examples: int  # number of training examples
    offset: int  # the canary is in steps that equal it modulo the period: 1 if noise is correlated

    @property
    def strategy(self) -> NDArray[np.float64] | None:
        """The matrix C of correlated noise, float64 [T, T]; None if noise is independent."""

    @property
    def initial(self) -> Tensor:
        """θ_0, float [p]."""

    def rate(self, step: int) -> float:
        """The learning rate of `step`, from 1 on."""

    def example(self, index: int) -> tuple[Tensor, Tensor]:
        """Training example `index` as x [1, ...] and y [1]."""

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """All examples in the batch of `step` (from 1) but the canary: x [m, ...], y [m]."""

    def losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Loss of models `theta` [n, p] on examples x [m, ...], y [m]: float [n, m]."""

    def gradients(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        clip_norm: float = math.inf,
    ) -> Tensor:
        """Sums of the examples' gradients, each clipped, in every model `theta`: [n, p]."""

    @property
    def outside(self) -> tuple[Tensor, Tensor] | None:
        """Records like the private ones that are not trained on, x and y; None without any.

        An adversary that trains shadow models gets the records of its shadow models.
        """

    @property
    def shadows(self) -> Tensor | None:
        """Parameters of the s models that the adversary has trained, float [s, p], or None."""

    def pretrained(self, steps: int, seed: int) -> Tensor:
        """Trains `steps` steps without noise or clipping on records `outside`; θ, float [p]."""

    def input_gradient(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Gradient by x of the examples' summed loss, a mean over models or by `weights`."""

    def own_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of each model's loss on a separate example, x [n, ...], y [n]: [n, p]."""

    def look_ahead(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        query: SampleCanary,
        rate: float,
    ) -> Tensor:
        """Gradient by x of the query's loss in each model after a plain step on its (x, y).

        Args:
            theta: models, float [n, p].
            x: an example for each model, [n, ...].
            y: labels of these examples, [n].
            query: the example whose loss counts.
            rate: learning rate of the step.
        """

    def simulate(
        self,
        runs: int,
        noisy: bool,
        seed: int,
        canary: SampleCanary | None = None,
        period: int = 1,
    ) -> Iterator[Tensor]:
        """Yields θ_0, θ_1, ..., θ_T of simulated training runs, float [runs, p].

        Args:
            runs: number of simulated training runs.
            noisy: whether gradients are clipped and get noise.
            seed: seed of batches and noise.
            canary: joins all noisy runs; None for no canary.
            period: steps from one insertion of the canary to the next.
        """


class FinalModel(Protocol):
    """All that a hidden-state adversary observes of n trained models."""

    @property
    def initial(self) -> Tensor:
        """θ_0, float [p]; zeros where the initialisation is unknown."""

    @property
    def final(self) -> Tensor:
        """θ_T, float [n, p]."""

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss of every final model on examples x [m, ...], y [m]: float [n, m]."""

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of the summed loss of some examples under every final model, float [n, p]."""


@dataclass(frozen=True)
class ShadowPlan:
    """Shadow models to train before any trial, in packs, on `data` or on records in reserve."""

    models: int
    data: Data | None = None

    @property
    def parts(self) -> int:
        """Number of packs."""
        return math.ceil(self.models / SHADOWS_PER_PART)

    def models_of(self, part: int) -> int:
        """Number of models in pack number `part`, from 0."""
        return min(SHADOWS_PER_PART, self.models - part * SHADOWS_PER_PART)

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that the shadows depend on in addition to the mechanism, as plain JSON."""
        return {"shadows": self.models, "data": self.data and self.data.identity()}


class Adversary(Plugin):
    """Base of all adversaries. The canary enters at steps that `period` divides.

    With correlated noise it enters at the first step, and every `period` steps from there.
    """

    kind = "adversary"
    home = "dpaudit_ray.adversaries"
    attacks: ClassVar[str] = ""  # the `attacked_as` of mechanisms that it can attack
    one_run: ClassVar[bool] = False  # True: a trial is a canary, and all are in one training run
    # True: every trial of an audit inserts one and the same `GradientCanary`, whatever the model.
    fixed_gradient: ClassVar[bool] = False
    # True: its canaries are private records, a `RecordCanary`, and `period` batches are an epoch.
    private_records: ClassVar[bool] = False
    # True: the learning rate is zero, so that no model changes: a `FrozenAdversary`.
    frozen: ClassVar[bool] = False

    log_odds: ClassVar[bool] = False  # True: its scores are log odds of the bit
    # True: the canary is crafted once, before any training, and stored: one of these classes.
    crafted_once: ClassVar[bool] = False
    stored_canaries: ClassVar[tuple[type[GradientCanary | SampleCanary], ...]] = (
        GradientCanary,
        SampleCanary,
    )

    period: Count = 1  # steps from one insertion of the canary to the next

    @property
    def reserves(self) -> float | None:
        """The share of the data that the adversary reserves, not trained on; None for none."""
        return None

    @property
    def needs_classes(self) -> bool:
        """Whether the adversary gives records another class: then it cannot attack regression."""
        return False

    @property
    def shadow_plan(self) -> ShadowPlan | None:
        """The shadow models that the adversary needs; None for none."""
        return None

    def datasets(self) -> Mapping[str, Dataset]:
        """The data sets that the adversary loads, by `Data.key`; see `Mechanism.datasets`."""
        return {}

    @property
    def chooses_start(self) -> bool:
        """Whether the adversary chooses θ_0 in place of the mechanism; see `begin`."""
        return False

    def check_size(self, parameters: int) -> None:
        """Raises SpecError if no model with this number of parameters can be attacked."""

    @property
    def replaces(self) -> bool:
        """Whether a canary replaces another one: of 2 m canaries, m are for bit 1, m for bit 0."""
        return False

    def check_reserve(self, records: int) -> None:
        """Raises SpecError if there are too few reserved records."""

    @property
    def canaries(self) -> int:
        """Number of canaries in each training run, every one with a bit and a score."""
        return 1

    @property
    def apart(self) -> bool:
        """Whether canaries are gradients along disjoint parameters; checked once crafted."""
        return False


class CanaryAdversary(Adversary, Generic[C]):
    """Base of adversaries against DP-SGD, for the canary type they craft."""

    attacks = "dp-sgd"

    def begin(self, public: PublicKnowledge, rng: Generator) -> Tensor | None:
        """Chooses θ_0, float [p], before `craft`, whatever the bit; None for the mechanism's.

        Args:
            public: all that the adversary knows before training.
            rng: the adversary's own randomness.
        """
        return None

    @abstractmethod
    def craft(self, public: PublicKnowledge, rng: Generator) -> C:
        """Chooses the canary before training; the arguments are those of `begin`."""

    def observer(
        self,
        canary: C,
        public: PublicKnowledge,
        models: int,
    ) -> Observer | None:
        """Returns a fresh observer of a pack; None if only final models are observed.

        Args:
            canary: the canary as it was crafted.
            public: all that the adversary knows before training.
            models: number of training runs in the pack.
        """
        return None

    def score(self, canary: C, observed: FinalModel) -> Tensor:
        """Scores n final models if there is no observer: float [n], or [n, m] of m canaries.

        Args:
            canary: the canary as it was crafted.
            observed: the models. The higher a score, the more likely is the canary "in".
        """
        raise NotImplementedError(f"{self.name} has neither an observer nor score()")


class FinalModelAdversary(CanaryAdversary[C], Generic[C]):
    """An adversary under `final_model` access: `score` gets only what is released."""

    @abstractmethod
    def score(self, canary: C, observed: FinalModel) -> Tensor: ...


class LossAdversary(FinalModelAdversary[SampleCanary]):
    """An adversary that scores an inserted example by its loss under the final model."""

    def score(self, canary: SampleCanary, observed: FinalModel) -> Tensor:
        """Minus the loss: the models with the example have learnt it."""
        return -observed.losses(canary.x, canary.y)[:, 0]


class Observer(Protocol):
    """Watches the training runs of one pack: models, updates, or both."""

    def scores(self) -> Tensor:
        """Scores of the steps so far, float [n]: higher if the canary is more likely "in"."""


@runtime_checkable
class TrajectoryObserver(Observer, Protocol):
    """Sees every model."""

    def see(self, step: int, before: Tensor, after: Tensor) -> None:
        """Takes the models after every step.

        Args:
            step: number of the step, from 1.
            before: θ_{t-1}, float [n, p]; a copy, which is valid until the next step.
            after: θ_t, float [n, p]; such a copy, too.
        """


@runtime_checkable
class UpdateObserver(Observer, Protocol):
    """Sees the release of every step, before optimizer and learning rate."""

    def see_update(self, step: int, before: Tensor, update: Tensor) -> None:
        """Observes what a step releases, its noisy mean gradient; called before `see`.

        Args:
            step: the step's number, from 1.
            before: a copy of θ_{t-1}, float [n, p].
            update: a copy of the release, float [n, p].
        """


@runtime_checkable
class SavedObserver(Observer, Protocol):
    """Can be saved with a training run; a run with another observer cannot be resumed."""

    def state(self) -> dict[str, Tensor]:
        """Returns all that the observer remembers: tensors of numbers, by name."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Replaces all that the observer remembers by that state."""


class TrajectoryAdversary(CanaryAdversary[C], Generic[C]):
    """An adversary under `trajectory` access: it sees every intermediate model and update."""

    @abstractmethod
    def observer(self, canary: C, public: PublicKnowledge, models: int) -> Observer: ...


class FrozenAdversary(TrajectoryAdversary[GradientCanary]):
    """An adversary that chooses all records and a learning rate of zero: no model changes."""

    frozen = True

    @abstractmethod
    def relabel(self, outputs: Callable[[], Tensor]) -> Tensor | None:
        """Returns new classes of all records, int64 [N], or None to keep them.

        Args:
            outputs: computes the outputs of the first model, float [N, classes].
        """

    @abstractmethod
    def step_score(self, along: Tensor, public: PublicKnowledge) -> Tensor:
        """Returns what a step adds to the score of each model, float64 [n].

        Args:
            along: projection of the step's noisy sum on the canary, in units of C, float64 [n].
            public: all that the adversary knows before training.
        """
