"""The interface of adversaries against DP-SGD: craft before training, score what is released.

The access level is the type an adversary derives from. A `FinalModelAdversary` is handed θ_0, θ_T
and the canary it crafted, nothing else; a `TrajectoryAdversary` watches every step. The secret bit
is in no object that reaches either.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import Field

from ..plugins import Plugin

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from ..data.base import Data, Dataset

SHADOWS_PER_PART = 16  # shadow models that are trained together


@dataclasses.dataclass(frozen=True)
class GradientCanary:
    """A gradient that is added to the clipped sum, norm at most C.

    `direction` is float [p], or [n, p] with one for each of n models; of m canaries in each
    training [m, p], one for each secret bit, which may be sparse (COO).
    """

    direction: Tensor


@dataclasses.dataclass(frozen=True)
class SampleCanary:
    """Examples that join the batch, one for each bit: `x` [m, ...], `y` [m]; clipped as others."""

    x: Tensor  # entries of at most 1e15, so that gradients have a norm in float32
    y: Tensor


@dataclasses.dataclass(frozen=True)
class RecordCanary(SampleCanary):
    """Private records themselves, at `places` int64 [m]: in or out of all batches with them."""

    places: Tensor


class ChangingCanary(ABC):
    """A canary that is crafted anew at every insertion, from the models as they are then.

    `memoryless`: what it inserts depends on the step and that model alone. So it can go on
    elsewhere, and is asked only of models that the step samples, in or not.
    """

    memoryless: ClassVar[bool] = False

    @abstractmethod
    def at(self, step: int, theta: Tensor) -> GradientCanary | SampleCanary:
        """Crafts what is inserted at `step` (from 1) into models `theta`, a copy, float [n, p].

        Examples, or a direction for all n models or one for each; it must not depend on which are
        "in". Where it is not `memoryless`, it gets all models of the pack at every step.
        """


Canary = GradientCanary | SampleCanary | ChangingCanary
C = TypeVar("C", GradientCanary, SampleCanary, ChangingCanary)


class PublicKnowledge(Protocol):
    """All that the hidden-state threat model grants before training (Cebere et al., section 4).

    Batches of the others are part of it. Losses and gradients are those of any θ: one's own,
    simulated, or seen by an observer.
    """

    clip_norm: float  # C
    noise_multiplier: float  # σ: the noise on a sum of clipped gradients has deviation σC
    batch_size: int  # |B|, by which sums are divided: the expected size where batches vary
    sample_rate: float  # the chance that a step has the canary; 1 where batches are fixed
    classes: int  # number of classes; 0 for regression
    examples: int  # number of training examples

    @property
    def initial(self) -> Tensor:
        """θ_0, float [p]."""

    def rate(self, step: int) -> float:
        """The learning rate of `step`, from 1 on."""

    def example(self, index: int) -> tuple[Tensor, Tensor]:
        """Training example `index` as x [1, ...] and y [1]."""

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The others in the batch of `step` (from 1): x [m, ...], y [m]."""

    def losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Loss of models `theta` [n, p] on examples x [m, ...], y [m]: float [n, m]."""

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, clip_norm: float = math.inf) -> Tensor:
        """Sums of the examples' gradients, each clipped, in every model `theta`: [n, p]."""

    @property
    def outside(self) -> tuple[Tensor, Tensor] | None:
        """Records like the private ones, x and y, not trained on; those of its shadows; or None."""

    @property
    def shadows(self) -> Tensor | None:
        """Parameters of the s models that it has trained itself, float [s, p], or None."""

    def pretrained(self, steps: int, seed: int) -> Tensor:
        """Trains `steps` steps without noise or clipping on records `outside`: θ, float [p]."""

    def input_gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        """Gradient by x of the examples' summed loss, a mean over models or by `weights`."""

    def own_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of each model's loss on an example of its own, x [n, ...], y [n]."""

    def look_ahead(
        self, theta: Tensor, x: Tensor, y: Tensor, query: SampleCanary, rate: float
    ) -> Tensor:
        """Gradient by x of the query's loss in each model after a plain step on its (x, y)."""

    def simulate(
        self, runs: int, noisy: bool, seed: int, canary: SampleCanary | None = None, period: int = 1
    ) -> Iterator[Tensor]:
        """Yields θ_0, θ_1, ..., θ_T of `runs` simulated trainings, float [runs, p].

        With the `canary` in all of them, every `period` steps, or in none. Noiseless
        simulations have none, and neither clip nor add noise.
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
        """Gradient of the summed loss of these examples under every final model, float [n, p]."""


@dataclasses.dataclass(frozen=True)
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
        """What the shadows depend on beside the mechanism, as plain JSON."""
        return {"shadows": self.models, "data": self.data and self.data.identity()}


class Adversary(Plugin):
    """Base of all adversaries. The canary enters at steps t with t mod `period` = 0."""

    kind: ClassVar[str] = "adversary"
    home: ClassVar[str] = "dpaudit_ray.adversaries"
    attacks: ClassVar[str] = ""  # what a mechanism that it can attack is `attacked_as`
    one_run: ClassVar[bool] = False  # True: a trial is a canary, and all are in one training
    # True: every trial of an audit inserts one and the same `GradientCanary`, whatever the model.
    fixed_gradient: ClassVar[bool] = False
    # True: its canaries are private records, a `RecordCanary`, and `period` batches are an epoch.
    private_records: ClassVar[bool] = False
    # True: it has the training stand still, with a learning rate of zero: a `FrozenAdversary`.
    frozen: ClassVar[bool] = False

    # True: crafting is done once, before any training, and stored: tensors of one of these classes.
    crafted_once: ClassVar[bool] = False
    stored_canaries: ClassVar[tuple[type[GradientCanary | SampleCanary], ...]] = (
        GradientCanary,
        SampleCanary,
    )

    period: int = Field(default=1, ge=1)  # the canary is in every step that it divides

    @property
    def reserves(self) -> float | None:
        """The share of the data that it needs for itself, not trained on; None for none."""
        return None

    @property
    def needs_classes(self) -> bool:
        """Whether it gives records another class, so that regression is not for it."""
        return False

    @property
    def shadow_plan(self) -> ShadowPlan | None:
        """The shadow models that it needs; None for none."""
        return None

    def datasets(self) -> Mapping[str, Dataset]:
        """The data sets that it loads, by `Data.key`; see `Mechanism.datasets`."""
        return {}

    @property
    def chooses_start(self) -> bool:
        """Whether it has training begin elsewhere than the mechanism says; see `begin`."""
        return False

    def check_size(self, parameters: int) -> None:
        """Raises SpecError where it cannot attack a model of so many parameters."""

    @property
    def replaces(self) -> bool:
        """Whether one canary takes the place of another: its m are 2 m, for the bits 1 and 0."""
        return False

    def check_reserve(self, records: int) -> None:
        """Raises SpecError where so many records in reserve are too few."""

    @property
    def canaries(self) -> int:
        """Number of canaries in each training, every one with a bit and a score of its own."""
        return 1

    @property
    def apart(self) -> bool:
        """Whether each canary is a gradient along parameters of its own; checked once crafted."""
        return False


class CanaryAdversary(Adversary, Generic[C]):
    """Base of adversaries against DP-SGD, for the canary type they craft."""

    attacks: ClassVar[str] = "dp-sgd"

    def begin(self, public: PublicKnowledge, rng: np.random.Generator) -> Tensor | None:
        """Chooses θ_0, float [p], before `craft`, whatever the bit; None for the mechanism's."""
        return None

    @abstractmethod
    def craft(self, public: PublicKnowledge, rng: np.random.Generator) -> C:
        """Chooses the canary before training; `rng` is the adversary's own randomness."""

    def observer(self, canary: C, public: PublicKnowledge, models: int) -> Observer | None:
        """A fresh observer for a pack of `models` trainings; None: it sees final models only."""
        return None

    def score(self, canary: C, observed: FinalModel) -> Tensor:
        """Float [n], higher = more "in"; [n, m] of several canaries. Called without an observer."""
        raise NotImplementedError(f"{self.name} has neither an observer nor score()")


class FinalModelAdversary(CanaryAdversary[C], Generic[C]):
    """An adversary under `final_model` access: `score` is handed nothing but what is released."""

    @abstractmethod
    def score(self, canary: C, observed: FinalModel) -> Tensor:
        """Float [n], higher = more confident that the canary was in; [n, m] of several canaries."""


class Observer(Protocol):
    """Watches the trainings of one pack: models, updates, or both."""

    def scores(self) -> Tensor:
        """Float [n] for the steps seen so far, higher = more confident that the canary was in."""


@runtime_checkable
class TrajectoryObserver(Observer, Protocol):
    """Sees every model."""

    def see(self, step: int, before: Tensor, after: Tensor) -> None:
        """Called after every step (from 1) with copies of θ_{t-1} and θ_t, until the next one."""


@runtime_checkable
class UpdateObserver(Observer, Protocol):
    """Sees what every step releases, whatever optimizer and learning rate make of it."""

    def see_update(self, step: int, before: Tensor, update: Tensor) -> None:
        """Called in every step, before `see`, with copies of θ_{t-1} and the noisy mean, [n, p]."""


@runtime_checkable
class SavedObserver(Observer, Protocol):
    """Can be saved with a training that is to go on elsewhere; others cannot be interrupted."""

    def state(self) -> dict[str, Tensor]:
        """Returns all that it remembers: tensors of numbers, by name."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from that state, in place of what it has seen."""


class TrajectoryAdversary(CanaryAdversary[C], Generic[C]):
    """An adversary under `trajectory` access: it sees every intermediate model and update."""

    @abstractmethod
    def observer(self, canary: C, public: PublicKnowledge, models: int) -> Observer:
        """A fresh observer for a pack of `models` trainings."""


class FrozenAdversary(TrajectoryAdversary[GradientCanary]):
    """An adversary that chooses all records and a learning rate of zero: no model ever moves."""

    frozen: ClassVar[bool] = True

    @abstractmethod
    def relabel(self, outputs: Callable[[], Tensor]) -> Tensor | None:
        """Classes of all records, int64 [N], by the first model's outputs [N, classes]; or None."""

    @abstractmethod
    def step_score(self, along: Tensor, public: PublicKnowledge) -> Tensor:
        """What a step that shows `along`, in C, adds to each model's score, float64 [n]."""
