"""DP-SGD (Abadi et al. 2016; with fixed, known mini-batches, Cebere, Bellet, Papernot, eq. 2).

    θ_t = θ_{t-1} - η_t/|B| ( Σ_{x ∈ B_t} clip(∇ℓ(θ_{t-1}; x), C) + Z_t ),   Z_t ~ N(0, σ²C² I)

or what another optimizer makes of that sum. The canary joins it at steps t with t mod period = 0,
and where it is sampled; |B| is the expected size, so that none gives the canary away.
"""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from ... import accounting, imports
from ...accounting import Sampling
from ...adversaries.base import Adversary, ShadowPlan
from ...data.base import Data, Dataset
from ...errors import SpecError, first_line, plain
from ...models.base import Model, as_input, input_dtype
from ...plugins import Strict, carried, nested, parse
from .sampling import Fixed, Sampler, Sizes
from .updates import Constant, Optimizer, Schedule, Sgd

_LARGEST = 1e6  # noise multiplier; above it, no gradient survives
_DIGITS = 6  # of the answer: fewer than accountants of different versions agree to
_ITERATIONS = 50  # a few are enough, but for accountants that jump
_EXAMPLES_TRIED = 64
_NoneIsInfinite = BeforeValidator(lambda raw: math.inf if raw is None else raw)


def _share_or_data(raw: Any) -> Any:
    """A share of the data as it is; anything else as the options of a data set."""
    if raw is None or isinstance(raw, int | float):
        return raw
    with carried():
        return parse(Data, raw, "held_out")


def _loss_name(name: str) -> str:
    if ":" in name:
        return imports.check(name, "loss")
    if name not in ("cross-entropy", "mse"):
        raise ValueError("must be cross-entropy, mse, or package.module:function of your own")
    return name


class Recipe(Strict):
    """A training by DP-SGD, and nothing of an audit; `DpSgd` says what each option means."""

    data: Annotated[Data, nested(Data)]  # what is trained on
    model: Annotated[Model, nested(Model)]  # what is trained
    loss: Annotated[str, AfterValidator(_loss_name)] = "cross-entropy"  # or `mse`, or yours
    steps: int = Field(ge=1, le=10**7)  # of a training
    batch_size: int = Field(ge=1)  # expected, where batches vary
    learning_rate: float = Field(gt=0)  # of the first step after the warm-up
    # C, the norm to clip each gradient to; null, for none, where there is no noise
    clip_norm: Annotated[float, _NoneIsInfinite] = Field(gt=0, allow_inf_nan=True)
    # σ: a sum's noise has deviation σC; 0: none, which claims nothing
    noise_multiplier: float | None = Field(default=None, ge=0)
    epsilon: float | None = Field(default=None, gt=0)  # in place of σ: the claim at `delta`
    delta: float | None = Field(default=None, gt=0, lt=1)  # of `epsilon`; else the audit's
    accountant: str | None = None  # of `epsilon`; else the audit's first
    sampling: Annotated[Sampler, nested(Sampler)] = Fixed()  # how batches are drawn
    batches: Literal["known"] = "known"  # the others', to the adversary
    optimizer: Annotated[Optimizer, nested(Optimizer)] = Sgd()  # how θ moves
    schedule: Annotated[Schedule, nested(Schedule)] = Constant()  # of the rate
    physical_batch_size: int | None = Field(default=None, ge=1)  # larger ones go in parts
    augmentations: int = Field(default=1, ge=1)  # random views of an image in each step
    # data, or a share of the data, that accuracy and loss are measured on
    held_out: Annotated[Data | float | None, BeforeValidator(_share_or_data)] = None
    reserved: float | None = Field(default=None, gt=0, lt=1)  # share that adversaries have
    engine: Literal["packed", "opacus"] = "packed"  # `opacus`: model by model
    precision: Literal["float32", "tf32"] = "float32"  # of matrix products
    seed: int = Field(default=0, ge=0)  # of θ_0 and of the others' batches
    _noise: float | None = PrivateAttr(default=None)  # what `given` brought

    @model_validator(mode="after")
    def _options_go_together(self) -> Self:
        self._check_noise()
        if self.augmentations > 1 and self.engine != "packed":
            problem = f"is {self.augmentations}, which engine: {self.engine} does not do"
            raise SpecError("augmentations", problem)
        if isinstance(self.held_out, float) and not 0 < self.held_out < 1:
            raise SpecError("held_out", f"is {self.held_out:g}; a share must be above 0, below 1")
        self.schedule.check(self.steps)
        return self

    def _check_noise(self) -> None:
        if self.epsilon is None:
            if self.noise_multiplier is None:
                raise SpecError("noise_multiplier", "is required, or epsilon in its place")
            for key in ("delta", "accountant"):
                if getattr(self, key) is not None:
                    raise SpecError(key, "belongs to epsilon, which is not given; leave it out")
        elif self.noise_multiplier is not None:
            both = f"is {self.epsilon:g}, and noise_multiplier is {self.noise_multiplier:g}"
            raise SpecError("epsilon", f"{both}: each says how much noise there is; leave one out")
        if math.isinf(self.clip_norm) and self.noise_multiplier != 0:
            raise SpecError("clip_norm", "is required where there is noise; give a norm")
        name, names = self.accountant, accounting.accountants()
        if name is not None and ":" not in name and name not in names:
            raise SpecError("accountant", f"unknown accountant {name!r}; known: {', '.join(names)}")

    @property
    def recipe(self) -> Self:
        """These options with the noise multiplier that they come to: data are read no more."""
        unset = dict.fromkeys(("epsilon", "delta", "accountant"))
        return self.model_copy(update=unset | {"noise_multiplier": self.noise})

    def rate(self, step: int) -> float:
        """The learning rate of `step`, from 1 on."""
        return self.schedule.rate(self.learning_rate, step, self.steps)

    @property
    def measures(self) -> tuple[str, ...]:
        """What is measured of trained models, on records that are held out."""
        return ("accuracy", "loss") if self.data.has_classes else ("loss",)

    @property
    def hidden_start(self) -> bool:
        """Whether every trial draws its own θ_0, which the adversary does not know."""
        return self.model.initialization == "random"

    @property
    def noise(self) -> float:
        """σ, as stated or as `epsilon` needs it. Raises SpecError, or DataError where N is read."""
        stated = self._noise if self.noise_multiplier is None else self.noise_multiplier
        if stated is not None:
            return stated
        if self.epsilon is None or self.delta is None or self.accountant is None:
            raise SpecError("mechanism.delta", "is required beside epsilon outside of an audit")
        return calibrate_noise(
            self.epsilon, self.delta, self.accountant, self.steps, *self.sampled_at
        )

    @property
    def sampled_at(self) -> tuple[float, Sampling]:
        """How often a step has the canary, and by which chance. Loads the data to know N."""
        if self.sampling.in_known_steps:
            return 1.0, Sampling.POISSON
        rate = self.sampling.rate(self.sizes)
        return rate, self.sampling.claim if rate < 1 else Sampling.POISSON

    @property
    def sizes(self) -> Sizes:
        """Loads the data to know N, and holds the batch size against it."""
        total = len(self.data.load().y)
        if self.batch_size > (size := self.trained_records(total)):
            left = "" if size == total else f" to train on, of {total}"
            problem = f"is {self.batch_size}, but {self.data.name} has {size} examples{left}"
            raise SpecError("mechanism.batch_size", f"{problem}; use at most {size}")
        return Sizes(size, self.batch_size)

    def trained_records(self, examples: int) -> int:
        """Number of the `examples` that are trained on. Raises SpecError for fewer than two."""
        reserved = self.share_of("reserved", examples)
        if (left := examples - self.share_of("held_out", examples) - reserved) < 2:
            key = "mechanism.reserved" if reserved else "mechanism.held_out"
            raise SpecError(key, f"leaves {max(left, 0)} of {examples} examples; leave two")
        return left

    def share_of(self, option: Literal["held_out", "reserved"], examples: int) -> int:
        """Number of the `examples` that models are measured on, or that only adversaries have."""
        if not isinstance(share := getattr(self, option), float):
            return 0
        if (count := round(share * examples)) < 1:
            problem = f"is {share:g}, which is none of {examples} examples; take one or more"
            raise SpecError(f"mechanism.{option}", problem)
        return count

    def check_adversary(self, adversary: Adversary) -> None:
        """Raises SpecError for an adversary that cannot attack this training; reads no data."""
        period, sampling = adversary.period, self.sampling
        if self.noise_multiplier == 0 and not adversary.private_records:
            problem = f"is 0, of which nothing is claimed that {adversary.name} could audit"
            raise SpecError("mechanism.noise_multiplier", f"{problem}; use a number above 0")
        if self.steps % period:
            problem = f"is {period}, which does not divide the {self.steps} steps; use a divisor"
            raise SpecError("adversary.period", problem)
        if period > 1 and not sampling.in_known_steps and sampling.claim is not Sampling.POISSON:
            problem = f"is {period}, but no claim holds for sampling {sampling.name} where steps"
            raise SpecError("adversary.period", f"{problem} are left out; use 1, or poisson")
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
        for key, stated, remedy in (
            ("held_out", self.held_out is not None, "leave it out: no model is trained"),
            ("engine", self.engine != "packed", "use packed: no step is taken"),
            ("augmentations", self.augmentations > 1, "leave it out: no record has a gradient"),
            ("model.initialization", self.hidden_start, "use fixed: the first model labels all"),
        ):
            if adversary.frozen and stated:
                raise SpecError(f"mechanism.{key}", f"is of no use to {adversary.name}; {remedy}")

    def check_known_start(self) -> None:
        """Raises SpecError where an adversary could not choose θ_0, one for all trials."""
        if self.hidden_start:
            problem = "is random, but the adversary chooses one start for all trials; use fixed"
            raise SpecError("mechanism.model.initialization", problem)

    def check_views(self, shape: tuple[int, ...]) -> None:
        """Raises SpecError unless examples of `shape` have as many views as are asked for."""
        problem = ""
        if len(shape) != 3 or min(shape[1:]) < 8:
            problem = f"examples have shape {list(shape)}; views are of images from 8 x 8 pixels on"
        elif type(self.model).body is not Model.body:
            problem = "a frozen body sees every image once, before training; use a model without"
        if problem and self.augmentations > 1:
            raise SpecError("mechanism.augmentations", f"is {self.augmentations}, but {problem}")

    def check_shadow_records(self, plan: ShadowPlan, private: Dataset, reserved: int) -> None:
        """Refuses records for shadows that are too few, of another kind, or private ones too."""
        key, records = "mechanism.reserved", reserved
        if plan.data is not None:
            key, other = "adversary.shadow_data", plan.data.load()
            records = len(other.y)
            check_like(private, other, key, plan.data.name)
            rows = {row.tobytes() for row in private.x}
            if shared := sum(row.tobytes() in rows for row in other.x):
                problem = f"{shared} of the {records} records of {plan.data.name} are private ones"
                raise SpecError(key, f"{problem} too; give others")
        if records < self.batch_size:
            few = f"gives shadow models {records} records, fewer than a batch of {self.batch_size}"
            raise SpecError(key, f"{few}; give more, or lower mechanism.batch_size")

    def check_private_records(self, adversary: Adversary) -> None:
        """Raises SpecError unless all models may share batches, of which a record is in one."""
        records, batches = self.sizes.examples, self.sizes.per_epoch
        for key, value, wrong, remedy in (
            ("mechanism.sampling", self.sampling.name, not self.sampling.in_known_steps, "fixed"),
            ("mechanism.augmentations", self.augmentations, self.augmentations > 1, "1"),
            ("adversary.period", adversary.period, adversary.period != batches, f"{batches}"),
            ("adversary.records", adversary.canaries, adversary.canaries > records, f"{records}"),
        ):
            if wrong:
                problem = f"is {value}; of {records} records in {batches} batches an epoch"
                raise SpecError(key, f"{problem}, {adversary.name} takes {remedy}")

    def check_model(self, data: Dataset) -> int:
        """Builds the model and finds how it can be packed; returns how many parameters it has.

        As many examples go through it together as in a batch, and some more where that is small.
        Raises SpecError for a network, or a loss, that cannot be audited or does not fit the data.
        """
        import torch

        from ...engines.packing.packed import PackedModel
        from .network import check_loss, loss_of, network, seeded

        model, loss = self.model, loss_of(self.loss)
        tried = max(_EXAMPLES_TRIED, self.physical_batch_size or self.batch_size)
        x, y = torch.from_numpy(data.x[:tried].copy()), torch.from_numpy(data.y[:tried].copy())
        try:
            with seeded(0):
                body = model.body(data.x.shape[1:])
            with torch.no_grad():
                x = x if body is None else body.eval()(x)
                module = network(model, tuple(x.shape[1:]), data.classes, 0)
                x = as_input(x, input_dtype(module, x))
                packed = PackedModel(module, loss=loss)
                outputs = module(x[:2].clone())
        except SpecError:
            raise
        except Exception as error:  # a user's code may raise anything
            problem = f"does not run on examples of shape {data.x.shape[1:]}: {first_line(error)}"
            remedy = "its first layer must take these"
            raise SpecError("mechanism.model", f"{model.name} {problem}; {remedy}") from error
        given = list(outputs.shape) if isinstance(outputs, torch.Tensor) else []
        wrong = len(given) != 2 or given[1] < 1
        if not wrong and self.loss == "cross-entropy":
            is_logistic = data.classes == 2 and given[1] == 1
            wrong = given[1] != data.classes and not is_logistic
        if wrong:
            problem = f"{model.name} gives {given or type(outputs).__name__} for two examples of"
            remedy = "give one output per class (one alone for two classes)"
            raise SpecError("mechanism.model", f"{problem} {data.classes} classes; {remedy}")
        if not outputs.isfinite().all():
            problem = f"{model.name} gives values that are not finite for the first two examples"
            raise SpecError("mechanism.model", f"{problem}; mend its layers or scale the features")
        if self.loss != "cross-entropy":
            check_loss(self.loss, outputs, y[:2])
        packed.settle(x, y, remembered=True)
        return len(packed.initial)


@functools.lru_cache(maxsize=1024)
def calibrate_noise(
    epsilon: float, delta: float, accountant: str, steps: int, rate: float, sampling: Sampling
) -> float:
    """A noise multiplier whose claim is at most ε, rounded up to six digits.

    The least one with the Gaussian accountant; by others the claim is at most 0.01 below ε, and at
    most 1 % of it: secants in log σ, as one answer may take seconds. Raises SpecError for none.
    """
    tolerance = min(0.01, epsilon / 100)
    aim, power, tried = math.log(epsilon - tolerance / 2), 1.0, list[tuple[float, float]]()
    try:
        if accountant != "gaussian" and sampling is Sampling.POISSON:
            noise = accounting.clt_noise_multiplier(epsilon, steps, delta, rate, tolerance)
        else:
            noise = accounting.noise_multiplier(epsilon, steps, delta, rate, sampling=sampling)
        while accountant != "gaussian":
            claim = accounting.epsilon(noise, steps, delta, rate, accountant, sampling=sampling)
            if epsilon - tolerance <= claim <= epsilon:
                break
            if noise == _LARGEST or len(tried) == _ITERATIONS:
                raise ValueError(f"with {plain(noise, '.3g')} it still claims {claim:.3g}")
            tried.append((math.log(noise), math.log(claim)))
            if len(tried) > 1:
                (x, y), (at, there) = tried[-2:]
                power = min(max((y - there) / (at - x), 0.2), 5.0)
            noise = min(noise * math.exp(min((tried[-1][1] - aim) / power, 10)), _LARGEST)
        if noise > _LARGEST:
            raise ValueError(f"it would take more than {plain(_LARGEST)}")
    except (ValueError, ArithmeticError) as error:
        raise SpecError(
            "mechanism.epsilon",
            f"is {plain(epsilon)}, for which {accountant} finds no noise multiplier at δ = "
            f"{plain(delta)} ({error}); raise it, or list another accountant first in "
            "audit.accountants",
        ) from error
    unit = 10.0 ** (math.floor(math.log10(noise)) + 1 - _DIGITS)
    return float(f"{math.ceil(noise / unit) * unit:.{_DIGITS}g}")


def check_like(data: Dataset, other: Dataset, key: str, name: str) -> None:
    """Raises SpecError under `key` where `other` is not of the kind of `data`."""
    same_kind = other.x.shape[1:] == data.x.shape[1:] and other.y.dtype == data.y.dtype
    if not same_kind or other.classes > data.classes:
        problem = f"{name} has examples of shape {other.x.shape[1:]} in {other.classes} classes"
        wanted = f"the data of {data.x.shape[1:]} in {data.classes}; give the same features"
        raise SpecError(key, f"{problem}, {wanted}, and no other class")
