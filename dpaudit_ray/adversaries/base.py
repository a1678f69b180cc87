"""The interface of adversaries against DP-SGD: craft before training, score what is released.

The access level is the class that an adversary derives from. A `FinalModelAdversary` gets only θ_0,
θ_T and the canary that it crafted; a `TrajectoryAdversary` observes every step. No object that
reaches either of them contains the secret bit.
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
    """A gradient of norm C at most, which is added to the sum of clipped gradients.

    `direction` is float [p]. It is [n, p] if each of n models has its own, and [m, p], perhaps
    sparse (COO), if each training run has m canaries with a secret bit each.
    """

    direction: Tensor


@dataclass(frozen=True)
class SampleCanary:
    """Examples x [m, ...], y [m] that join the batch, one for each bit; gradients are clipped."""

    x: Tensor  # entries of at most 1e15, so that gradients have a norm in float32
    y: Tensor


@dataclass(frozen=True)
class RecordCanary(SampleCanary):
    """Private records, by their `indices` in the data, int64 [m]; if "out", no batch has them."""

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
    batch_size: int  # |B|, by which sums are divided: the expected size if batches vary
    sample_rate: float  # probability that a step has the canary; 1 if batches are fixed
    classes: int  # number of classes; 0 for regression
    examples: int  # number of training examples
    offset: int  # the canary is in steps t ≡ offset modulo the period: 1 for correlated noise, or 0

    @property
    def strategy(self) -> NDArray[np.float64] | None:
        """The matrix C of correlated noise, float64 [T, T]; None if noise is independent."""

    @property
    def initial(self) -> Tensor:
        """θ_0, float [p]."""

    def rate(self, step: int) -> float:
        """Returns the learning rate of `step`, from 1 on."""

    def example(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns training example `index` as x [1, ...] and y [1]."""

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Returns the batch of `step` (from 1) without the canary: x [m, ...], y [m]."""

    def losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Returns the loss of models `theta` [n, p] on examples x [m, ...], y [m]: [n, m]."""

    def gradients(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        clip_norm: float = math.inf,
    ) -> Tensor:
        """Returns sums of clipped gradients in every model `theta`: float [n, p].

        Args:
            theta: models, float [n, p].
            x: examples [m, ...].
            y: labels of these examples [m].
            clip_norm: largest norm of each gradient; by default they are not clipped.
        """

    @property
    def outside(self) -> tuple[Tensor, Tensor] | None:
        """Records like the private ones, x and y, that are not trained on; None if there are none.

        An adversary that trains shadow models gets the records of its shadow models.
        """

    @property
    def shadows(self) -> Tensor | None:
        """The s shadow models that the adversary has trained, float [s, p]; None without any."""

    def pretrained(self, steps: int, seed: int) -> Tensor:
        """Trains on the records `outside`, without noise or clipping; returns θ, float [p].

        Args:
            steps: number of steps.
            seed: seed of the initial parameters and of the batches.
        """

    def input_gradient(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Returns the gradient by x of the examples' summed loss, as a mean over models.

        Args:
            theta: models, float [n, p].
            x: examples [m, ...].
            y: labels of these examples [m].
            weights: factors of the models in a sum, [n]; None for the mean.
        """

    def own_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Returns the gradient of each model's loss on its own example, float [n, p].

        Args:
            theta: models, float [n, p].
            x: an example for each model, [n, ...].
            y: labels of these examples [n].
        """

    def look_ahead(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        query: SampleCanary,
        rate: float,
    ) -> Tensor:
        """Returns the gradient by x of the query's loss, after each model's plain step on (x, y).

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
        """θ_0, float [p]; zeros if the initialisation is unknown."""

    @property
    def final(self) -> Tensor:
        """θ_T, float [n, p]."""

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the loss of every final model on examples x [m, ...], y [m]: float [n, m]."""

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the gradient of the summed loss of examples in every final model: [n, p]."""


@dataclass(frozen=True)
class ShadowPlan:
    """Shadow models that are trained before any trial, on `data` or else on reserved records."""

    models: int
    data: Data | None = None

    @property
    def parts(self) -> int:
        """Number of packs."""
        return math.ceil(self.models / SHADOWS_PER_PART)

    def models_of(self, part: int) -> int:
        """Returns the number of models in pack number `part`, from 0."""
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
        """The share of the data that is reserved for the adversary, and not trained on; or None."""
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
        """Returns the data sets that the adversary loads, by `Data.key`."""
        return {}

    @property
    def chooses_start(self) -> bool:
        """Whether the adversary chooses θ_0 in place of the mechanism; see `begin`."""
        return False

    def check_size(self, parameters: int) -> None:
        """Raises SpecError if no model with this number of parameters can be attacked."""

    @property
    def replaces(self) -> bool:
        """Whether a bit chooses one of two canaries: of 2 m, the first m are for bit 1."""
        return False

    def check_reserve(self, records: int) -> None:
        """Raises SpecError if there are too few reserved records."""

    @property
    def canaries(self) -> int:
        """Number of canaries in each training run, each with a secret bit and a score."""
        return 1

    @property
    def apart(self) -> bool:
        """Whether canaries are gradients without a common parameter; checked once crafted."""
        return False


class CanaryAdversary(Adversary, Generic[C]):
    """Base of adversaries against DP-SGD, generic in the type of the canary that they craft."""

    attacks = "dp-sgd"

    def begin(self, public: PublicKnowledge, rng: Generator) -> Tensor | None:
        """Chooses θ_0, float [p], for all trials, before `craft`; None for the mechanism's θ_0.

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
        """Scores n final models if there is no observer: float [n], or [n, m] for m canaries.

        A score is higher if the canary is more likely "in".

        Args:
            canary: the canary as it was crafted.
            observed: the models.
        """
        raise NotImplementedError(f"{self.name} has neither an observer nor score()")


class FinalModelAdversary(CanaryAdversary[C], Generic[C]):
    """An adversary under `final_model` access: `score` gets only what is released."""

    @abstractmethod
    def score(self, canary: C, observed: FinalModel) -> Tensor: ...


class LossAdversary(FinalModelAdversary[SampleCanary]):
    """An adversary that scores an inserted example by its loss under the final model."""

    def score(self, canary: SampleCanary, observed: FinalModel) -> Tensor:
        """Returns minus the loss of the example, which models with it have fitted."""
        return -observed.losses(canary.x, canary.y)[:, 0]


class Observer(Protocol):
    """Watches the training runs of one pack: models, updates, or both."""

    def scores(self) -> Tensor:
        """Returns scores by all steps so far, float [n]: higher if the canary is more likely in."""


@runtime_checkable
class TrajectoryObserver(Observer, Protocol):
    """An observer that gets every model."""

    def see(self, step: int, before: Tensor, after: Tensor) -> None:
        """Observes the models before and after one step; called for every step, in order.

        Args:
            step: number of the step, from 1.
            before: θ_{t-1}, float [n, p]; a copy, which is valid until the next step.
            after: θ_t, float [n, p]; also such a copy.
        """


@runtime_checkable
class UpdateObserver(Observer, Protocol):
    """An observer that gets the release of every step, before optimizer and learning rate."""

    def see_update(self, step: int, before: Tensor, update: Tensor) -> None:
        """Observes what a step releases, its noisy mean gradient; called before `see`.

        Args:
            step: the step's number, from 1.
            before: a copy of θ_{t-1}, float [n, p].
            update: a copy of the release, float [n, p].
        """


@runtime_checkable
class SavedObserver(Observer, Protocol):
    """An observer whose state can be saved, so that its training run can be resumed."""

    def state(self) -> dict[str, Tensor]:
        """Returns all that the observer remembers: tensors of numbers, by name."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continues from what `state` returned."""


class TrajectoryAdversary(CanaryAdversary[C], Generic[C]):
    """An adversary under `trajectory` access: it observes every intermediate model and update."""

    @abstractmethod
    def observer(self, canary: C, public: PublicKnowledge, models: int) -> Observer: ...


class FrozenAdversary(TrajectoryAdversary[GradientCanary]):
    """An adversary that chooses all records, and a learning rate of zero: no model changes."""

    frozen = True

    @abstractmethod
    def relabel(self, outputs: Callable[[], Tensor]) -> Tensor | None:
        """Returns new classes of all records, int64 [N]; None if labels add nothing to scores.

        Args:
            outputs: computes the outputs of the first model, float [N, classes].
        """

    @abstractmethod
    def step_score(self, projection: Tensor, public: PublicKnowledge) -> Tensor:
        """Returns what a step adds to the score of each model, float64 [n].

        Args:
            projection: projection of the step's noisy sum on the canary over C, float64 [n].
            public: all that the adversary knows before training.
        """
