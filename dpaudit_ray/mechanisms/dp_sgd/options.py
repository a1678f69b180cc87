"""DP-SGD (Abadi et al. 2016; with fixed, known mini-batches, Cebere, Bellet, Papernot, eq. 2).

    θ_t = θ_{t-1} - η_t/|B| ( Σ_{x ∈ B_t} clip(∇ℓ(θ_{t-1}; x), C) + Z_t ),   Z_t ~ N(0, σ²C² I)

or what another optimizer makes of that sum. The canary joins it at steps t with t mod period = 0,
and where it is sampled; |B| is the expected size, so that none gives the canary away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, SerializeAsAny, model_validator

from ...accounting import Adjacency, Sampling
from ...adversaries.base import Adversary, FinalModelAdversary, TrajectoryAdversary
from ...adversaries.shadows import Shadowed
from ...data.base import Data, Dataset
from ...errors import SpecError
from ...models.base import Model
from ...plugins import Plugin, carried, nested, parse
from ...stats import TradeOff
from ..base import Arrays, Claimed, Mechanism, PartSeeds, Preparation, Session
from . import division, noise
from .optimizers.base import Optimizer
from .optimizers.sgd import Sgd
from .recipe import Recipe, check_known_start
from .refusals import check_augmentations, check_frozen, check_noise, check_period
from .sampling.base import Sampler, Sizes
from .sampling.fixed import Fixed
from .sampling.poisson import Poisson
from .schedules.base import Schedule
from .schedules.constant import Constant

if TYPE_CHECKING:
    from torch import Tensor

    from .training import DpSgdTraining


def _held_out(raw: Any) -> Any:
    if raw is None or isinstance(raw, float):
        return raw
    with carried():
        if isinstance(raw, int):
            what = f"is {raw}; must be a share of the data, as 0.2, or a data set"
            raise SpecError("held_out", what)
        return parse(Data, raw, "held_out")


class DpSgd(Mechanism):
    """The options of DP-SGD. `seed` varies θ_0 and the mini-batches, for repetitions.

    `engine` computes the same steps: `packed` for all models of a pack at once, `opacus` one by
    one through Opacus. `precision` is that of activations and gradients; parameters, norms, sums
    and noise stay float32. `tf32` changes matrix products on NVIDIA GPUs only.

    The others' batches are drawn once for a sweep and known to the adversary; `batches: secret`
    draws them for each trial, through Opacus. `epsilon` at `delta`, by `accountant`, stands for
    the noise multiplier that keeps it over all steps; an audit fills in its own δ and its first
    accountant. A batch of more than `physical_batch_size` is processed in parts of at most that.
    With `augmentations` an image has so many random crops, mirrored or not, in each step, whose
    gradients are averaged and then clipped; a canary's example has one, itself.

    On `held_out`, a data set or a share of the data that is then not trained on, accuracy and loss
    of every trained model are measured, at the steps at which scores are recorded. `reserved` is
    a share of the data that is not trained on and that adversaries have; those that need some take
    half of it where the sweep does not say.

    Revision 2: the canary joins the sum before θ is rounded; θ_0 is keyed by a whole seed.
    """

    revision: ClassVar[int] = 2
    several_gpus: ClassVar[bool] = False
    for_free: ClassVar[frozenset[str]] = frozenset(
        {"learning_rate", "clip_norm", "noise_multiplier", "epsilon", "delta", "accountant", "seed"}
    )

    name: Literal["dp-sgd"] = "dp-sgd"
    data: Annotated[SerializeAsAny[Data], nested(Data)]
    model: Annotated[SerializeAsAny[Model], nested(Model)]
    steps: int = Field(ge=1, le=10**7)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    clip_norm: float = Field(gt=0)
    noise_multiplier: float | None = Field(default=None, gt=0)
    epsilon: float | None = Field(default=None, gt=0)
    delta: float | None = Field(default=None, gt=0, lt=1)
    accountant: str | None = None
    sampling: Annotated[SerializeAsAny[Sampler], nested(Sampler)] = Fixed()
    batches: Literal["known", "secret"] = "known"
    optimizer: Annotated[SerializeAsAny[Optimizer], nested(Optimizer)] = Sgd()
    schedule: Annotated[SerializeAsAny[Schedule], nested(Schedule)] = Constant()
    physical_batch_size: int | None = Field(default=None, ge=1)
    augmentations: int = Field(default=1, ge=1)
    held_out: Annotated[SerializeAsAny[Data] | float | None, BeforeValidator(_held_out)] = None
    reserved: float | None = Field(default=None, gt=0, lt=1)
    engine: Literal["packed", "opacus"] = "packed"
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    seed: int = Field(default=0, ge=0)
    _noise: float | None = PrivateAttr(default=None)  # as worked out elsewhere

    @model_validator(mode="after")
    def _whole(self) -> Self:
        belongs: dict[str, object] = {"delta": self.delta, "accountant": self.accountant}
        check_noise(self.noise_multiplier, self.epsilon, belongs)
        if self.batches == "secret" and self.engine != "opacus":
            raise SpecError(
                "batches",
                f"is secret, but the {self.engine} engine gives all models of a pack the same "
                "batches; use known, or engine: opacus",
            )
        if self.augmentations > 1 and self.engine != "packed":
            raise SpecError(
                "augmentations", f"is {self.augmentations}, which engine: {self.engine} does not do"
            )
        if isinstance(self.held_out, float) and not 0 < self.held_out < 1:
            raise SpecError("held_out", f"is {self.held_out:g}; a share must be above 0, below 1")
        self.schedule.check(self.steps)
        return self

    def worked_out(self) -> Mapping[str, float]:
        """The noise that keeps `epsilon`: seconds, for some accountants."""
        return {} if self.epsilon is None else {"noise": self.noise}

    def given(self, worked_out: Mapping[str, float]) -> Self:
        """See `Mechanism.given`."""
        found = self.model_copy()
        found._noise = worked_out.get("noise")
        return found

    @property
    def claim_reads_data(self) -> bool:
        """Sampling is at a rate of N."""
        return not self.sampling.known

    @property
    def measured(self) -> tuple[str, ...]:
        """Accuracy and loss, if anything is held out."""
        return () if self.held_out is None else division.MEASURES

    def for_audit(self, delta: float, accountant: str) -> Self:
        """With the δ and the accountant that `epsilon` is meant at, where it does not say."""
        if self.epsilon is None:
            return self
        named = {"delta": self.delta or delta, "accountant": self.accountant or accountant}
        return self.model_copy(update=named)

    def against(self, adversary: Adversary) -> Self:
        """With records in reserve where the adversary needs some, and nothing says how many."""
        if self.reserved is not None or adversary.reserves is None:
            return self
        return self.model_copy(update={"reserved": adversary.reserves})

    @property
    def claim_parts(self) -> tuple[Plugin, ...]:
        """How batches are sampled."""
        return (self.sampling,)

    @property
    def auto_pack_size(self) -> int:
        """As many models as have room by their parameters."""
        return self.model.pack_size

    @property
    def recipe(self) -> Recipe:
        """The training that these options describe."""
        taken = {field.name: getattr(self, field.name) for field in fields(Recipe)}
        return Recipe(**taken | {"noise_multiplier": self.noise})

    @property
    def noise(self) -> float:
        """σ, as stated or as `epsilon` needs it.

        Raises:
            SpecError: no noise keeps ε.
            DataError: the data cannot be read, whose size sampling needs.
        """
        stated = self._noise if self.noise_multiplier is None else self.noise_multiplier
        if stated is not None:
            return stated
        if self.epsilon is None or self.delta is None or self.accountant is None:
            raise SpecError("mechanism.delta", "is required beside epsilon outside of an audit")
        target = (self.epsilon, self.delta, self.accountant)
        return noise.solved(*target, self.steps, *self._sampled)

    @property
    def _sampled(self) -> tuple[float, Sampling]:
        """How often a step has the canary, and by which chance. Loads the data to know N."""
        if self.sampling.known:
            return 1.0, Sampling.POISSON
        rate = self.sampling.rate(self.sizes)
        return rate, self.sampling.claim if rate < 1 else Sampling.POISSON

    @property
    def sizes(self) -> Sizes:
        """Loads the data to know N, and holds the batch size against it."""
        every = len(self.data.load().y)
        size = division.trained(self, every)
        if self.batch_size > size:
            left = "" if size == every else f" to train on, of {every}"
            raise SpecError(
                "mechanism.batch_size",
                f"is {self.batch_size}, but {self.data.name} has {size} examples{left}; "
                f"use at most {size}",
            )
        return Sizes(size, self.batch_size)

    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        """Multiples of `record_every` up to the last step, which is always recorded."""
        every = record_every or self.steps
        return tuple(sorted({*range(every, self.steps + 1, every), self.steps}))

    def check(self, adversary: Adversary) -> None:
        """Refuses a period that does not divide the steps, and adversaries of other mechanisms."""
        check_period(adversary, self.steps, self.sampling)
        adversary.check_steps(self.steps)
        if adversary.chooses_start:
            check_known_start(self.model)
        asked = {
            "held_out": self.held_out is not None,
            "engine": self.engine != "packed",
            "batches": self.batches != "known",
            "augmentations": self.augmentations > 1,
            "model.initialization": self.model.initialization == "random",
        }
        check_frozen(adversary, asked)
        if not isinstance(adversary, FinalModelAdversary | TrajectoryAdversary):
            raise SpecError("adversary.name", f"{adversary.name} cannot attack {self.name}")

    def datasets(self) -> Mapping[str, Dataset]:
        """The training data, and what is held out where it is other data."""
        used = [self.data, *([self.held_out] if isinstance(self.held_out, Data) else [])]
        return {data.key: data.load() for data in used}

    def check_inputs(self) -> None:
        """Loads the data, holds the batch size against it, and holds the model against autograd."""
        data, _ = self.data.load(), self.sizes
        division.divide(self.recipe, data, 0)
        check_augmentations(self.augmentations, data.x.shape[1:], type(self.model))
        if self.engine == "opacus" and self.precision == "bfloat16":
            raise SpecError("mechanism.precision", "is bfloat16, which Opacus does not do here")
        from . import rounding

        rounding.check(self.recipe, self._tried(data))

    def _tried(self, data: Dataset) -> Tensor:
        from .trial_run import check_model

        return check_model(self.model, data, self.physical_batch_size or self.batch_size)

    def check_records(self, adversary: Adversary) -> None:
        """Holds it against the model's size, and its shadows' records against the private ones."""
        if type(adversary).check_size is not Adversary.check_size:
            adversary.check_size(len(self._tried(self.data.load())))
        if adversary.reserves is not None:
            adversary.check_reserve(division.reserved(self, len(self.data.load().y)))
        if isinstance(adversary, Shadowed):
            from . import shadowing

            data = self.data.load()
            shadowing.check(adversary, data, self.batch_size)
            if adversary.shadow_data is None:
                count = division.reserved(self, len(data.y))
                shadowing.check_reserve(count, self.batch_size)

    def claimed(self, adversary: Adversary, horizon: int) -> Claimed:
        """Counts the steps that may have the canary; the others are post-processing."""
        kind = Adjacency.REPLACE if adversary.replaces else Adjacency.ADD_REMOVE
        return Claimed(self.noise, horizon // adversary.period, *self._sampled, kind)

    def trade_off(self, adversary: Adversary, horizon: int) -> TradeOff:
        """Gaussian for a gradient canary of one direction in every step, which is proved here.

        Batches are known, so given θ_{t-1} both worlds have the same sum of clipped gradients,
        whatever it is: step t shows b g* + Z_t, and no more. The likelihood ratio of the whole
        trajectory is that of T releases of N(b g*, s² I), one Gaussian with μ = √T |g*| / s for
        the true deviation s of the noise. The adversary's view is part of the trajectory, so its
        μ is a bound on that one. The certified ε is that of releasing every step, which is what
        accountants claim; that of the last model alone may be smaller.

        A longer period asks what the steps in between hide, which is a question about the last
        model, and its curve is not known; nor is any, for a gradient that depends on the model, or
        a canary that is sampled. Optimizer and schedule only process what steps show.

        Of Poisson sampling it is the claimed one: given the others' batches, which are known, step
        t shows b c_t g* + Z_t with a coin c_t of the canary's own, so the trajectory is that of T
        sampled Gaussian releases with a noise multiplier of s / |g*|. What is certified through
        the claim's curves is again the ε of releasing every step.
        """
        every_step = adversary.fixed_gradient and adversary.period == 1
        if not every_step or self.batches != "known":
            return TradeOff.UNKNOWN
        if isinstance(self.sampling, Poisson):
            return TradeOff.UNKNOWN if adversary.replaces else TradeOff.CLAIMED
        return TradeOff.GAUSSIAN if self.sampling.known else TradeOff.UNKNOWN

    def training(self, seed: int, gpu: bool) -> DpSgdTraining:
        """Everything public about the training: data, θ_0, batches, and the engine."""
        from .training import DpSgdTraining

        return DpSgdTraining.prepare(self.recipe, seed, gpu)

    def open(self, adversary: Adversary, seed: int, craft_seed: int, gpu: bool) -> Session:
        """Prepares the training and lets the adversary craft its canary."""
        from . import crafting

        return crafting.opened(self.training(seed, gpu), adversary, craft_seed)

    def preparation(self, adversary: Adversary) -> Preparation | None:
        """Shadow models, or the canary of an adversary that is `crafted_once`."""
        if isinstance(adversary, Shadowed):
            identity = {"mechanism": self.identity(), **adversary.shadow_identity}
            return Preparation(adversary.shadow_parts, identity)
        if not adversary.crafted_once:
            return None
        return Preparation(1, {"mechanism": self.identity(), "adversary": adversary.identity()})

    def prepare_part(self, adversary: Adversary, part: int, seeds: PartSeeds, gpu: bool) -> Arrays:
        """Trains a pack of shadows, or crafts the canary."""
        from . import crafting, shadowing

        if isinstance(adversary, Shadowed):
            training = self.training(seeds.sweep, gpu)
            return shadowing.part(training, adversary, part, seeds.part)
        return crafting.crafted(self.training(seeds.sweep, gpu), adversary, seeds.part)

    def open_prepared(
        self,
        adversary: Adversary,
        seed: int,
        craft_seed: int,
        gpu: bool,
        prepared: tuple[Arrays, ...],
    ) -> Session:
        """`open` with the canary, or the shadow models, that were prepared."""
        from . import crafting

        return crafting.opened(self.training(seed, gpu), adversary, craft_seed, prepared)
