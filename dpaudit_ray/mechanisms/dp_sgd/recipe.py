"""DP-SGD (Abadi et al. 2016; with fixed, known mini-batches, Cebere, Bellet, Papernot, eq. 2).

    θ_t = θ_{t-1} - η_t/|B| ( Σ_{x ∈ B_t} clip(∇ℓ(θ_{t-1}; x), C) + Z_t ),   Z_t ~ N(0, σ²C² I)

or what another optimizer makes of that sum. The canary joins it at steps t with t mod period = 0,
and where it is sampled; |B| is the expected size, so that none gives the canary away.
"""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    SerializeAsAny,
    model_validator,
)

from ... import accounting, imports
from ...accounting import Sampling
from ...data.base import Data
from ...errors import SpecError
from ...models.base import Model
from ...plugins import Strict, carried, nested, parse
from .sampling import Fixed, Sampler, Sizes
from .updates import Constant, Optimizer, Schedule, Sgd

_LARGEST = 1e6  # noise multiplier; above it, no gradient survives
_DIGITS = 6  # of the answer: fewer than accountants of different versions agree to
_ITERATIONS = 50  # a few are enough, but for accountants that jump


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

    data: Annotated[SerializeAsAny[Data], nested(Data)]  # what is trained on
    model: Annotated[SerializeAsAny[Model], nested(Model)]  # what is trained
    loss: Annotated[str, AfterValidator(_loss_name)] = "cross-entropy"  # or `mse`, or yours
    steps: int = Field(ge=1, le=10**7)  # of a training
    batch_size: int = Field(ge=1)  # expected, where batches vary
    learning_rate: float = Field(gt=0)  # of the first step after the warm-up
    clip_norm: float = Field(gt=0)  # C, the norm to clip each gradient to
    noise_multiplier: float | None = Field(default=None, gt=0)  # σ: a sum's noise has deviation σC
    epsilon: float | None = Field(default=None, gt=0)  # in place of σ: the claim at `delta`
    delta: float | None = Field(default=None, gt=0, lt=1)  # of `epsilon`; else the audit's
    accountant: str | None = None  # of `epsilon`; else the audit's first
    sampling: Annotated[SerializeAsAny[Sampler], nested(Sampler)] = Fixed()  # how batches are drawn
    batches: Literal["known"] = "known"  # the others', to the adversary
    optimizer: Annotated[SerializeAsAny[Optimizer], nested(Optimizer)] = Sgd()  # how θ moves
    schedule: Annotated[SerializeAsAny[Schedule], nested(Schedule)] = Constant()  # of the rate
    physical_batch_size: int | None = Field(default=None, ge=1)  # larger ones go in parts
    augmentations: int = Field(default=1, ge=1)  # random views of an image in each step
    # data, or a share of the data, that accuracy and loss are measured on
    held_out: Annotated[SerializeAsAny[Data] | float | None, BeforeValidator(_share_or_data)] = None
    reserved: float | None = Field(default=None, gt=0, lt=1)  # share that adversaries have
    engine: Literal["packed", "opacus"] = "packed"  # `opacus`: model by model
    precision: Literal["float32", "tf32"] = "float32"  # of matrix products
    seed: int = Field(default=0, ge=0)  # of θ_0 and of the others' batches
    _noise: float | None = PrivateAttr(default=None)  # what `given` brought

    @model_validator(mode="after")
    def _options_go_together(self) -> Self:
        self._check_noise()
        if self.augmentations > 1 and self.engine != "packed":
            raise SpecError(
                "augmentations", f"is {self.augmentations}, which engine: {self.engine} does not do"
            )
        if isinstance(self.held_out, float) and not 0 < self.held_out < 1:
            raise SpecError("held_out", f"is {self.held_out:g}; a share must be above 0, below 1")
        self.schedule.check(self.steps)
        return self

    def _check_noise(self) -> None:
        """Takes σ or ε; `delta` and `accountant` belong to ε."""
        if self.epsilon is None:
            if self.noise_multiplier is None:
                raise SpecError("noise_multiplier", "is required, or epsilon in its place")
            for key in ("delta", "accountant"):
                if getattr(self, key) is not None:
                    raise SpecError(key, "belongs to epsilon, which is not given; leave it out")
        elif self.noise_multiplier is not None:
            raise SpecError(
                "epsilon",
                f"is {self.epsilon:g}, and noise_multiplier is {self.noise_multiplier:g}: each "
                "says how much noise there is; leave one out",
            )
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
        """σ, as stated or as `epsilon` needs it.

        Raises SpecError where no noise keeps ε, DataError where the data cannot be read, whose size
        sampling needs.
        """
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
        size = self.trained_records(total)
        if self.batch_size > size:
            left = "" if size == total else f" to train on, of {total}"
            raise SpecError(
                "mechanism.batch_size",
                f"is {self.batch_size}, but {self.data.name} has {size} examples{left}; "
                f"use at most {size}",
            )
        return Sizes(size, self.batch_size)

    def trained_records(self, examples: int) -> int:
        """Number of the `examples` that are trained on. Raises SpecError for fewer than two."""
        reserved = self.share_of("reserved", examples)
        left = examples - self.share_of("held_out", examples) - reserved
        if left < 2:
            raise SpecError(
                "mechanism.reserved" if reserved else "mechanism.held_out",
                f"leaves {max(left, 0)} of {examples} examples to train on; lower it, leave two",
            )
        return left

    def share_of(self, option: Literal["held_out", "reserved"], examples: int) -> int:
        """Number of the `examples` that models are measured on, or that only adversaries have."""
        share = getattr(self, option)
        if not isinstance(share, float):
            return 0
        count = round(share * examples)
        if count < 1:
            raise SpecError(
                f"mechanism.{option}",
                f"is {share:g}, which is none of {examples} examples; take at least one",
            )
        return count


@functools.lru_cache(maxsize=1024)
def calibrate_noise(
    epsilon: float, delta: float, accountant: str, steps: int, rate: float, sampling: Sampling
) -> float:
    """A noise multiplier whose claim is at most ε, rounded up to six digits.

    The least one with the Gaussian accountant; by others the claim is at most 0.01 below ε, and at
    most 1 % of it. They are asked by secants in log σ, as one answer may take seconds. Raises
    SpecError where no noise keeps ε, or the accountant cannot tell.
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
                raise ValueError(f"with {noise:.3g} it still claims {claim:.3g}")
            tried.append((math.log(noise), math.log(claim)))
            if len(tried) > 1:
                (x, y), (at, there) = tried[-2:]
                power = min(max((y - there) / (at - x), 0.2), 5.0)
            noise = min(noise * math.exp(min((tried[-1][1] - aim) / power, 10)), _LARGEST)
        if noise > _LARGEST:
            raise ValueError(f"it would take more than {_LARGEST:g}")
    except (ValueError, ArithmeticError) as error:
        raise SpecError(
            "mechanism.epsilon",
            f"is {epsilon:g}, for which {accountant} finds no noise multiplier at δ = {delta:g} "
            f"({error}); raise it, or list another accountant first in audit.accountants",
        ) from error
    unit = 10.0 ** (math.floor(math.log10(noise)) + 1 - _DIGITS)
    return float(f"{math.ceil(noise / unit) * unit:.{_DIGITS}g}")
