"""A training of the user's own: one function, called once per trial.

    def train(member: bool, seed: int, **options) -> float

It trains with the canary if `member`, without it if not, seeds everything random from `seed`, and
returns a score: higher = more confident that the canary was in. What the training promises is
said beside it, as Gaussian releases for an accountant.

With `measures: [accuracy]` it returns `score, {"accuracy": ...}`: what its model is worth, on
examples that it was not trained on.

    def prepare(part: int, seed: int) -> dict[str, np.ndarray]

Work that is done once, if there is any. Then `train` takes all that it gave as `prepared`, too.

Every call of `train` is a process of its own. One that raises, takes longer than `trial_seconds` or
more than `trial_gib`, or dies, is a miss of its trial: what fails more often with the canary than
without tells the bit, and counts against the adversary. NaN and inf are scores of a training that
diverged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from .. import imports
from ..adversaries.base import Adversary
from ..adversaries.own import Own
from ..errors import SpecError
from ..isolation import Limits
from ..stats import TradeOff
from .base import Arrays, Claimed, Mechanism, PartSeeds, Preparation, Session
from .calls import Apart, Called, Together

Train = Callable[..., Any]


class Function(Mechanism):
    """`path` is `package.module:name`; `options` are keyword arguments of every call.

    `noise_multiplier` over `steps` releases, each with the canary at a chance of `sample_rate`,
    is the claim that the audit is held against. `curve: gaussian` states that the training's
    trade-off curve is Gaussian, for some μ: with fixed noise that the canary shifts, and nothing
    hidden. Whoever says so answers for every ε that is then called certified.

    `prepare`, if any, is called for each of `parts` before anything is trained; the training gets
    a tuple of what it returned. Audits with the same `prepare` and `parts` share it.

    `isolated`: each trial is a child process, forked from one that has imported what the module
    imports of installed packages; the module itself is imported anew for each. A trial may take
    `trial_seconds` and `trial_gib` GiB of memory, with all that it starts and all that was imported
    (null: no limit); one that takes more, raises or dies is missed, and a pack that misses all has
    failed. A pack with missed trials counts as one of `resources.max_trial_failures`. With
    `isolated: false` trials are calls in the trainer's process, without limits, and one that raises
    fails its whole pack: for trainings of milliseconds. None of the three changes the score of a
    training that ends, so they are not in the fingerprint: a run may go on with other limits, and
    what was missed stays so. `prepare` is called in the trainer's process in any case.
    """

    locations: ClassVar[frozenset[str]] = frozenset({"isolated", "trial_seconds", "trial_gib"})
    for_free: ClassVar[frozenset[str]] = frozenset({"trial_seconds", "trial_gib"})

    name: Literal["function"] = "function"
    path: str = Field(pattern=r"^[\w.]+:[\w.]+$")
    options: dict[str, Any] = Field(default_factory=dict)
    steps: int = Field(ge=1, le=10**7)
    noise_multiplier: float = Field(gt=0)
    sample_rate: float = Field(default=1.0, gt=0, le=1)
    curve: Literal["gaussian", "unknown"] = "unknown"
    prepare: str | None = Field(default=None, pattern=r"^[\w.]+:[\w.]+$")
    parts: int = Field(default=1, ge=1)
    measures: tuple[Literal["accuracy", "loss"], ...] = ()
    isolated: bool = True
    trial_seconds: float | None = Field(default=None, gt=0)
    trial_gib: float | None = Field(default=None, gt=0)

    @field_validator("measures", mode="before")
    @classmethod
    def _once_each(cls, names: Any) -> Any:
        if isinstance(names, list) and len(names) == len(set(map(str, names))):
            return tuple(names)
        return names

    @field_validator("path", "prepare")
    @classmethod
    def _may_be_imported(cls, path: str | None, info: ValidationInfo) -> str | None:
        return None if path is None else imports.check(path, str(info.field_name))

    @model_validator(mode="after")
    def _limits_need_a_process(self) -> Self:
        for key in ("trial_seconds", "trial_gib"):
            if not self.isolated and (limit := getattr(self, key)) is not None:
                said = f"is {limit:g}, but isolated is false, and calls cannot be ended"
                raise SpecError(key, f"{said}; leave one of them out")
        return self

    @property
    def measured(self) -> tuple[str, ...]:
        """As the user states."""
        return self.measures

    @property
    def auto_pack_size(self) -> int:
        """Trials run one after another, so small packs lose little when a worker dies."""
        return 16

    @property
    def trial_limit(self) -> float | None:
        """As the user states."""
        return self.trial_seconds

    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        """The end of the training: the function returns one score."""
        if record_every is not None and record_every < self.steps:
            raise SpecError(
                "audit.record_every",
                f"is {record_every}, but a function is scored at its end only; leave it out",
            )
        return (self.steps,)

    def check(self, adversary: Adversary) -> None:
        """The function is its own adversary."""
        if not isinstance(adversary, Own):
            raise SpecError(
                "adversary.name", f"{adversary.name} cannot attack {self.name}; must be own"
            )

    def check_inputs(self) -> None:
        """Imports the function, and holds the options against what it takes."""
        self._train()
        if self.prepare is not None:
            imports.preparing(self.prepare, "mechanism.prepare")

    def named_modules(self) -> tuple[str, ...]:
        """The modules that `path` and `prepare` name."""
        paths = [path for path in (self.path, self.prepare) if path is not None]
        named = dict.fromkeys(path.partition(":")[0] for path in paths)
        return (*super().named_modules(), *named)

    def claimed(self, adversary: Adversary, horizon: int) -> Claimed:
        """All releases: the function scores the whole training."""
        return Claimed(self.noise_multiplier, self.steps, self.sample_rate)

    def trade_off(self, adversary: Adversary, horizon: int) -> TradeOff:
        """What the user states; nothing is known of code that is only called."""
        return TradeOff(self.curve)

    def open(self, adversary: Adversary, seed: int, craft_seed: int, gpu: bool) -> Session:
        """Nothing is shared between trials but the function itself."""
        return self._opened(gpu)

    def preparation(self, adversary: Adversary) -> Preparation | None:
        """What `prepare` gives; the options of the training are no part of it."""
        if self.prepare is None:
            return None
        return Preparation(self.parts, {"name": self.name, "prepare": self.prepare})

    def prepare_part(self, adversary: Adversary, part: int, seeds: PartSeeds, gpu: bool) -> Arrays:
        """Calls `prepare`."""
        prepare = imports.preparing(str(self.prepare), "mechanism.prepare")
        found: Arrays = prepare(part, seeds.part % 2**63)
        return found

    def open_prepared(
        self,
        adversary: Adversary,
        seed: int,
        craft_seed: int,
        gpu: bool,
        prepared: tuple[Arrays, ...],
    ) -> Session:
        """Every call gets what was prepared."""
        return self._opened(gpu, prepared)

    def _opened(self, gpu: bool, prepared: tuple[Arrays, ...] | None = None) -> Session:
        train = self._train()
        called = Called(self.path, self.options, self.measures, prepared)
        if not self.isolated:
            return Together(called, train)
        return Apart(called, Limits(self.trial_seconds, self.trial_gib), gpu)

    def _train(self) -> Train:
        given = {} if self.prepare is None else {"prepared": ()}
        return imports.training(self.path, self.options | given, "mechanism")
