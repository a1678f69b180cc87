"""The options of DP-SGD, and checks that they fit each other, the data and the adversary.

    θ_t = θ_{t-1} - η_t/|B| ( Σ_{x ∈ B_t} clip(∇ℓ(θ_{t-1}; x), C) + Z_t ),   Z_t ~ N(0, σ²C² I)

(Abadi et al. 2016; with fixed, known mini-batches, Cebere, Bellet, Papernot, eq. 2), or what
another optimizer makes of that sum. The canary joins it at steps t with t mod period = 0 in which
it is sampled; |B| is the expected size, so that it does not reveal the canary.
"""

import functools
import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PrivateAttr,
    model_validator,
)

from ... import accounting, imports
from ...accounting import Sampling
from ...adversaries.base import Adversary, ShadowPlan
from ...data.base import Data, Dataset
from ...errors import SpecError, first_line, plain
from ...models.base import Model, Shape, as_input, input_dtype
from ...plugins import Count, OpenShare, Strict, nested, parse, reported_with_other_fields
from ..base import StepCount
from .noise import Correlated, Independent, Noise
from .sampling import Fixed, Sampler, Sizes
from .units import Group, Record, Unit
from .updates import Constant, Optimizer, Schedule, Sgd

_LARGEST_NOISE = 1e6  # noise multiplier; more noise leaves nothing of a gradient
_DIGITS = 6  # digits of a noise multiplier; versions of an accountant agree in more digits
_MOST_QUERIES = 50  # of an accountant; a few are enough, except for accountants that jump
_EXAMPLES_TRIED = 64  # examples, at least, on which a model is checked
_NoneIsInfinite = BeforeValidator(lambda raw: math.inf if raw is None else raw)


def _share_or_data(raw: Any) -> Any:
    """Returns a share of the data as it is; reads anything else as options of a data set."""
    if raw is None or isinstance(raw, int | float):
        return raw
    with reported_with_other_fields():
        return parse(Data, raw, "held_out")


def _loss_name(name: str) -> str:
    """Returns the name of a loss. Raises ValueError for an unknown one."""
    if ":" in name:
        return imports.require_importable(name, "loss")
    if name not in ("cross-entropy", "mse"):
        raise ValueError("must be cross-entropy, mse, or package.module:function of your own")
    return name


class Recipe(Strict):
    """A training by DP-SGD, without an audit; `DpSgd` explains the options."""

    data: Annotated[Data, nested(Data)]  # what is trained on
    model: Annotated[Model, nested(Model)]  # what is trained
    loss: Annotated[str, AfterValidator(_loss_name)] = "cross-entropy"  # or `mse`, or yours
    unit: Annotated[Unit, nested(Unit)] = Record()  # whose gradient is clipped, and protected
    steps: StepCount  # of a training
    batch_size: Count  # expected, where batches vary
    learning_rate: PositiveFloat  # of the first step after the warm-up
    # C, the norm to clip each gradient to; null, for none, where there is no noise
    clip_norm: Annotated[float, _NoneIsInfinite] = Field(gt=0, allow_inf_nan=True)
    # σ: a sum's noise has deviation σC; 0: none, which claims nothing
    noise_multiplier: NonNegativeFloat | None = None
    epsilon: PositiveFloat | None = None  # in place of σ: the claim at `delta`
    delta: OpenShare | None = None  # of `epsilon`; else the audit's
    accountant: str | None = None  # of `epsilon`; else the audit's first
    noise: Annotated[Noise, nested(Noise)] = Independent()  # how that of different steps relates
    sampling: Annotated[Sampler, nested(Sampler)] = Fixed()  # how batches are drawn
    batches: Literal["known"] = "known"  # the others', to the adversary
    optimizer: Annotated[Optimizer, nested(Optimizer)] = Sgd()  # how θ moves
    schedule: Annotated[Schedule, nested(Schedule)] = Constant()  # of the rate
    physical_batch_size: Count | None = None  # larger ones go in parts
    augmentations: Count = 1  # random views of an image in each step
    # data, or a share of the data, that accuracy and loss are measured on
    held_out: Annotated[Data | float | None, BeforeValidator(_share_or_data)] = None
    reserved: OpenShare | None = None  # share that adversaries have
    engine: Literal["packed", "opacus"] = "packed"  # `opacus`: model by model
    precision: Literal["float32", "tf32"] = "float32"  # of matrix products
    seed: NonNegativeInt = 0  # of θ_0 and of the others' batches
    # Noise multiplier for `epsilon`, if another process computed it.
    _noise: float | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _options_go_together(self) -> Self:
        """Raises SpecError for options that contradict each other, or that are missing."""
        self._check_noise_options()
        if self.augmentations > 1 and self.engine != "packed":
            raise SpecError(
                "augmentations", f"is {self.augmentations}, which engine: {self.engine} does not do"
            )
        if isinstance(self.held_out, float) and not 0 < self.held_out < 1:
            raise SpecError("held_out", f"is {self.held_out:g}; a share must be above 0, below 1")
        self.schedule.check(self.steps)
        self.noise.check(self.steps)
        # The noise multiplier of `epsilon` is not known here; `DpSgd.check_inputs` checks with it.
        if self.noise_multiplier is not None:
            self.unit.check(self)
        self._check_noise_and_unit()
        return self

    def _check_noise_options(self) -> None:
        """Raises SpecError unless the noise is stated once, and has a norm to clip to."""
        if self.epsilon is None:
            if self.noise_multiplier is None:
                raise SpecError("noise_multiplier", "is required, or epsilon in its place")
            for key in ("delta", "accountant"):
                if getattr(self, key) is not None:
                    raise SpecError(key, "belongs to epsilon, which is not given; leave it out")
        elif self.noise_multiplier is not None:
            raise SpecError(
                "epsilon",
                f"is {self.epsilon:g}, and noise_multiplier is {self.noise_multiplier:g}: "
                "each states how much noise there is; leave one out",
            )
        if math.isinf(self.clip_norm) and self.noise_multiplier != 0:
            raise SpecError("clip_norm", "is required where there is noise; give a norm")
        name = self.accountant
        names = accounting.accountants()
        if name is not None and ":" not in name and name not in names:
            raise SpecError("accountant", f"unknown accountant {name!r}; known: {', '.join(names)}")

    def _check_noise_and_unit(self) -> None:
        """Raises SpecError for options that do not fit correlated noise, or units of records."""
        is_packed = self.engine == "packed"
        if isinstance(self.noise, Correlated):
            part = f"noise: {self.noise.name}"
            sampling = self.sampling
            _require(sampling.in_known_steps, part, "sampling", sampling.name, "fixed")
            _require(is_packed, part, "engine", self.engine, "packed")
        if isinstance(self.unit, Group):
            part = f"unit: {self.unit.protects}"
            views = self.augmentations
            _require(views == 1, part, "augmentations", views, "1")
            _require(is_packed, part, "engine", self.engine, "packed")

    @property
    def recipe(self) -> Self:
        """A copy that states the noise multiplier of `epsilon`, and loads no data to find it."""
        unset = dict.fromkeys(("epsilon", "delta", "accountant"))
        return self.model_copy(update=unset | {"noise_multiplier": self.multiplier})

    def rate(self, step: int) -> float:
        """Returns the learning rate of `step`, from 1 on."""
        return self.schedule.rate(self.learning_rate, step, self.steps)

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the utility of trained models, on records that are held out."""
        if self.held_out is None:
            return ()
        return ("accuracy", "loss") if self.data.has_classes else ("loss",)

    @property
    def hidden_start(self) -> bool:
        """Whether each trial draws its own θ_0, which the adversary does not know."""
        return self.model.initialization == "random"

    @property
    def multiplier(self) -> float:
        """Noise multiplier σ, as stated or for `epsilon`.

        Raises SpecError if no σ is possible, or DataError if the data are needed and unusable.
        """
        stated = self._noise if self.noise_multiplier is None else self.noise_multiplier
        if stated is not None:
            return stated
        if self.epsilon is None or self.delta is None or self.accountant is None:
            raise SpecError("mechanism.delta", "is required with epsilon outside of an audit")
        claim = (self.epsilon, self.delta, self.accountant)
        # With correlated noise, all steps together are one release.
        releases = 1 if isinstance(self.noise, Correlated) else self.steps
        return calibrate_noise(*claim, releases, *self.sampled_at)

    @property
    def deviation(self) -> float:
        """Standard deviation of the normals that make the noise, over C; σ if independent."""
        return self.multiplier * self.noise.scale(self.steps)

    @property
    def sampled_at(self) -> tuple[float, Sampling]:
        """Probability that a step has the canary, and how it is sampled; may load data for N."""
        if not self.sampling.in_known_steps:
            rate = self.sampling.rate(self.sizes)
            if rate < 1:
                return rate, self.sampling.claim
        return 1.0, Sampling.POISSON  # at rate 1, the canary is in every step

    @property
    def sizes(self) -> Sizes:
        """N, which is counted in the loaded data, and |B|. Raises SpecError unless |B| ≤ N."""
        total = len(self.data.load().y)
        units = self.trained_records(total) // self.unit.size
        if self.batch_size > units:
            share = "" if units == total else f" to train on, of {total}"
            noun = f"{self.unit.protects}s" if isinstance(self.unit, Group) else "examples"
            raise SpecError(
                "mechanism.batch_size",
                f"is {self.batch_size}, but {self.data.name} has {units} {noun}{share}; "
                f"use at most {units}",
            )
        return Sizes(units, self.batch_size)

    def trained_records(self, examples: int) -> int:
        """Returns how many of `examples` are trained on. Raises SpecError for fewer than two."""
        reserved = self.share_of("reserved", examples)
        count = examples - self.share_of("held_out", examples) - reserved
        if count < 2:
            key = "mechanism.reserved" if reserved else "mechanism.held_out"
            raise SpecError(key, f"leaves {max(count, 0)} of {examples} examples; leave two")
        return count

    def share_of(
        self,
        option: Literal["held_out", "reserved"],
        examples: int,
    ) -> int:
        """Returns how many of `examples` an option takes; 0 unless the option is a share."""
        share = getattr(self, option)
        if not isinstance(share, float):
            return 0
        part_size = round(share * examples)
        if part_size < 1:
            raise SpecError(
                f"mechanism.{option}",
                f"is {share:g}, which is 0 of {examples} examples; take one or more",
            )
        return part_size

    def check_adversary(self, adversary: Adversary) -> None:
        """Raises SpecError for an adversary that cannot attack this training; reads no data."""
        if self.noise_multiplier == 0 and not adversary.private_records:
            raise SpecError(
                "mechanism.noise_multiplier",
                f"is 0, of which nothing is claimed that {adversary.name} could audit; "
                "use a number above 0",
            )
        is_of_records = adversary.frozen or adversary.private_records or adversary.shadow_plan
        if isinstance(self.unit, Group) and is_of_records:
            raise SpecError(
                "mechanism.unit",
                f"is a {self.unit.protects}, but {adversary.name} attacks records; use "
                "watched-records, watched-dimension or one-run",
            )
        self._check_period(adversary)
        if not self.data.has_classes and self.loss == "cross-entropy":
            raise SpecError(
                "mechanism.loss",
                "is cross-entropy, which learns classes, but `regression: true` gives numbers; use "
                "mse, or a function of your own: package.module:function",
            )
        if not self.data.has_classes and adversary.needs_classes:
            raise SpecError(
                "adversary.name",
                f"{adversary.name} gives a record another class, but `regression: true` gives "
                "numbers; use biased-dimension, cosine, or api-access with canary: record",
            )
        if adversary.chooses_start:
            self.check_known_start()
        for key, is_set, remedy in (
            ("held_out", self.held_out is not None, "leave it out: no model is trained"),
            ("engine", self.engine != "packed", "use packed: no step is taken"),
            ("augmentations", self.augmentations > 1, "leave it out: no record has a gradient"),
            ("model.initialization", self.hidden_start, "use fixed: the first model labels all"),
        ):
            if adversary.frozen and is_set:
                raise SpecError(f"mechanism.{key}", f"is of no use to {adversary.name}; {remedy}")

    def _check_period(self, adversary: Adversary) -> None:
        """Raises SpecError if no claim holds for a canary that joins each `period`-th step."""
        period = adversary.period
        sampling = self.sampling
        noise = self.noise
        if isinstance(noise, Correlated):
            if period % noise.separation:
                raise SpecError(
                    "adversary.period",
                    f"is {period}, but mechanism.noise.separation is {noise.separation}, for which "
                    f"the claim holds; use {noise.separation}, or a multiple",
                )
            if adversary.frozen or adversary.private_records:
                raise SpecError(
                    "mechanism.noise",
                    f"is {noise.name}, but {adversary.name} is for independent noise; use that",
                )
        elif self.steps % period:
            raise SpecError(
                "adversary.period",
                f"is {period}, which does not divide the {self.steps} steps; use a divisor",
            )
        if period > 1 and not sampling.in_known_steps and sampling.claim is not Sampling.POISSON:
            raise SpecError(
                "adversary.period",
                f"is {period}, but no claim holds for sampling {sampling.name} where steps "
                "are left out; use 1, or poisson",
            )

    def check_known_start(self) -> None:
        """Raises SpecError unless an adversary can choose θ_0, one for all trials."""
        if self.hidden_start:
            raise SpecError(
                "mechanism.model.initialization",
                "is random, but the adversary chooses one start for all trials; use fixed",
            )

    def check_views(self, shape: Shape) -> None:
        """Raises SpecError if examples of `shape` cannot be augmented as the options state."""
        problem = ""
        if len(shape) != 3 or min(shape[1:]) < 8:
            problem = f"examples have shape {list(shape)}; views are of images from 8 x 8 pixels on"
        elif type(self.model).body is not Model.body:
            problem = "a frozen body sees every image once, before training; use a model without"
        if problem and self.augmentations > 1:
            raise SpecError("mechanism.augmentations", f"is {self.augmentations}, but {problem}")

    def check_shadow_records(self, plan: ShadowPlan, private: Dataset, reserved: int) -> None:
        """Raises SpecError if a shadow model cannot be trained on the records of `plan`.

        Args:
            plan: names the shadows' data, unless records in reserve are used.
            private: the data of this recipe; shadows may have none of its records.
            reserved: number of records in reserve, used if `plan` names no data.
        """
        key = "mechanism.reserved"
        records = reserved
        if plan.data is not None:
            key = "adversary.shadow_data"
            other = plan.data.load()
            records = len(other.y)
            check_like(private, other, key, plan.data.name)
            private_rows = {row.tobytes() for row in private.x}
            shared = sum(row.tobytes() in private_rows for row in other.x)
            if shared:
                raise SpecError(
                    key,
                    f"{shared} of the {records} records of {plan.data.name} are private ones too; "
                    "give others",
                )
        if records < self.batch_size:
            raise SpecError(
                key,
                f"gives shadow models {records} records, fewer than a batch of {self.batch_size}; "
                "give more, or lower mechanism.batch_size",
            )

    def check_private_records(self, adversary: Adversary) -> None:
        """Raises SpecError unless models share batches, and an epoch has each record once."""
        records = self.sizes.examples
        batches = self.sizes.per_epoch
        period = adversary.period
        canaries = adversary.canaries
        for key, value, is_wrong, remedy in (
            ("mechanism.sampling", self.sampling.name, not self.sampling.in_known_steps, "fixed"),
            ("mechanism.augmentations", self.augmentations, self.augmentations > 1, "1"),
            ("adversary.period", period, period != batches, f"{batches}"),
            ("adversary.records", canaries, canaries > records, f"{records}"),
        ):
            if is_wrong:
                raise SpecError(
                    key,
                    f"is {value}; of {records} records in {batches} batches an epoch, "
                    f"{adversary.name} takes {remedy}",
                )

    def check_model(self, data: Dataset) -> int:
        """Checks the model on examples of the data; returns the number of coordinates of θ.

        A batch of examples, or more if the batch is small, goes through the model together, which
        also finds how the model can be packed. Raises SpecError for a network, or a loss, that
        cannot be audited or does not fit the data.
        """
        import torch

        from ...engines.packing.packed import PackedModel
        from .network import check_gradients, check_loss, loss_of, network, seeded

        model = self.model
        loss = loss_of(self.loss)
        count = max(_EXAMPLES_TRIED, self.physical_batch_size or self.batch_size)
        x = torch.from_numpy(data.x[:count].copy())
        y = torch.from_numpy(data.y[:count].copy())
        try:
            with seeded(0):
                body = model.body(data.x.shape[1:])
            with torch.no_grad():
                x = x if body is None else body.eval()(x)
                module = network(model, tuple(x.shape[1:]), data.classes, seed=0)
                x = as_input(x, input_dtype(module, x))
                packed = PackedModel(module, loss=loss)
                outputs = module(x[:2].clone())  # a module may change its input in place
        except SpecError:
            raise
        except Exception as error:  # a user's code may raise anything
            raise SpecError(
                "mechanism.model",
                f"{model.name} does not run on examples of shape {data.x.shape[1:]}: "
                f"{first_line(error)}; its first layer must take these",
            ) from error
        shape = list(outputs.shape) if isinstance(outputs, torch.Tensor) else []
        fits = len(shape) == 2 and shape[1] >= 1
        if fits and self.loss == "cross-entropy":
            is_logistic = data.classes == 2 and shape[1] == 1
            fits = shape[1] == data.classes or is_logistic
        if not fits:
            raise SpecError(
                "mechanism.model",
                f"{model.name} gives {shape or type(outputs).__name__} for two examples of "
                f"{data.classes} classes; give one output per class (one alone for two classes)",
            )
        if not outputs.isfinite().all():
            raise SpecError(
                "mechanism.model",
                f"{model.name} gives values that are not finite for the first two examples; "
                "mend its layers or scale the features",
            )
        if self.loss != "cross-entropy":
            check_loss(self.loss, outputs, y[:2])
        packed.choose_way(x, y, remembered=True)
        if packed.single and self.engine == "opacus":
            raise SpecError(
                "mechanism.engine",
                f"is opacus, which takes a batch together, but {model.name} reads numbers from it "
                "(`if`, `.item()`), so one example may decide for others; use packed",
            )
        check_gradients(module, packed, x, y, self.clip_norm)
        return len(packed.initial) + self.unit.coordinates


def _require(fits: bool, part: str, key: str, value: Any, required: str) -> None:
    """Raises SpecError for option `key` unless it fits.

    Args:
        fits: whether `value` is allowed.
        part: the option that limits `key`, as a sweep file has it.
        key: key of the limited option.
        value: its value.
        required: the only value that `part` allows.
    """
    if not fits:
        problem = f"is {value}, but {part} takes {required}; use that, or leave out {part}"
        raise SpecError(key, problem)


@functools.lru_cache(maxsize=1024)
def calibrate_noise(
    epsilon: float,
    delta: float,
    accountant: str,
    steps: int,
    rate: float,
    sampling: Sampling,
) -> float:
    """Returns a noise multiplier whose claim is at most ε, rounded up to six digits.

    With the Gaussian accountant it is the smallest such multiplier. With others, the claim is
    at most 0.01, and at most 1 %, below ε. The secant method in log σ finds the multiplier in few
    queries, each of which may take seconds.

    Args:
        epsilon: ε of the claim.
        delta: δ of the claim.
        accountant: name of the accountant of the claim.
        steps: number of steps of the training.
        rate: probability that a step has a record.
        sampling: how records are sampled.

    Raises:
        SpecError: no noise multiplier was found.
    """
    tolerance = min(0.01, epsilon / 100)
    log_target = math.log(epsilon - tolerance / 2)
    power = 1.0  # ε is about proportional to σ to the minus this power
    queries: list[tuple[float, float]] = []  # log σ, and log of the ε that is claimed for it
    try:
        if accountant != "gaussian" and sampling is Sampling.POISSON:
            noise = accounting.clt_noise_multiplier(epsilon, steps, delta, rate, tolerance)
        else:
            noise = accounting.noise_multiplier(epsilon, steps, delta, rate, sampling=sampling)
        while accountant != "gaussian":
            claim = accounting.epsilon(noise, steps, delta, rate, accountant, sampling=sampling)
            if epsilon - tolerance <= claim <= epsilon:
                break
            if noise == _LARGEST_NOISE or len(queries) == _MOST_QUERIES:
                raise ValueError(f"with {plain(noise, '.3g')} it still claims {claim:.3g}")
            log_noise, log_claim = math.log(noise), math.log(claim)
            if queries:
                last_noise, last_claim = queries[-1]
                slope = (last_claim - log_claim) / (log_noise - last_noise)
                power = min(max(slope, 0.2), 5.0)  # where the claim jumps, slopes may be any
            queries.append((log_noise, log_claim))
            log_change = min((log_claim - log_target) / power, 10)  # the claim may be infinite
            noise = min(noise * math.exp(log_change), _LARGEST_NOISE)
        if noise > _LARGEST_NOISE:
            raise ValueError(f"it would take more than {plain(_LARGEST_NOISE)}")
    except (ValueError, ArithmeticError) as error:
        raise SpecError(
            "mechanism.epsilon",
            f"is {plain(epsilon)}, for which {accountant} finds no noise multiplier at δ = "
            f"{plain(delta)} ({error}); raise it, or list another accountant first in "
            "audit.accountants",
        ) from error
    last_digit = 10.0 ** (math.floor(math.log10(noise)) + 1 - _DIGITS)
    return float(f"{math.ceil(noise / last_digit) * last_digit:.{_DIGITS}g}")


def check_like(
    data: Dataset,
    other: Dataset,
    key: str,
    name: str,
) -> None:
    """Raises SpecError unless `other` has the features of `data`, and no other class.

    Args:
        data: the data of the mechanism.
        other: the data to check.
        key: option that names the other data.
        name: name of the other data.
    """
    shape = data.x.shape[1:]
    other_shape = other.x.shape[1:]
    has_same_kind = other_shape == shape and other.y.dtype == data.y.dtype
    if not has_same_kind or other.classes > data.classes:
        raise SpecError(
            key,
            f"{name} has examples of shape {other_shape} in {other.classes} classes, the data of "
            f"{shape} in {data.classes}; give the same features, and no other class",
        )
