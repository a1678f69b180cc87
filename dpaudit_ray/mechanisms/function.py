"""A training of the user's own: one function, called once per trial.

    def train(member: bool, seed: int, **options) -> float

It trains with the canary if `member`, without it if not, seeds everything random from `seed`, and
returns a score: higher = more confident that the canary was in. What the training promises is
said beside it, as Gaussian releases for an accountant.

With `measures: [accuracy]` it returns `score, {"accuracy": ...}`: what its model is worth, on
examples that it was not trained on.

    def prepare(part: int, seed: int) -> dict[str, np.ndarray]

Work that is done once, if there is any. Then `train` takes all that it gave as `prepared`, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationInfo, field_validator

from .. import imports
from ..adversaries.base import Adversary
from ..adversaries.own import Own
from ..errors import SpecError
from ..stats import TradeOff
from .base import Arrays, Claimed, Measured, Mechanism, PartSeeds, Preparation, Session

Train = Callable[..., Any]


class Function(Mechanism):
    """`path` is `package.module:name`; `options` are keyword arguments of every call.

    `noise_multiplier` over `steps` releases, each with the canary at a chance of `sample_rate`,
    is the claim that the audit is held against. `curve: gaussian` states that the training's
    trade-off curve is Gaussian, for some μ: with fixed noise that the canary shifts, and nothing
    hidden. Whoever says so answers for every ε that is then called certified.

    `prepare`, if any, is called for each of `parts` before anything is trained; the training gets
    a tuple of what it returned. Audits with the same `prepare` and `parts` share it.
    """

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

    @property
    def measured(self) -> tuple[str, ...]:
        """As the user states."""
        return self.measures

    @property
    def auto_pack_size(self) -> int:
        """Trials run one after another, so small packs lose little when a worker dies."""
        return 16

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
        return _Calls(self._train(), self.options, self.path, self.measures)

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
        options = self.options | {"prepared": prepared}
        return _Calls(self._train(), options, self.path, self.measures)

    def _train(self) -> Train:
        given = {} if self.prepare is None else {"prepared": ()}
        return imports.training(self.path, self.options | given, "mechanism")


@dataclasses.dataclass(frozen=True)
class _Calls:
    train: Train
    options: dict[str, Any]
    path: str
    measures: tuple[str, ...]

    def run(
        self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]
    ) -> npt.NDArray[np.float64] | Measured:
        """See `Session.run`; every trial has a 63-bit seed of its own."""
        children = np.random.SeedSequence(seed).spawn(len(members))
        rows = np.empty((1 + len(self.measures), len(members)))
        for row, (member, child) in enumerate(zip(members.tolist(), children, strict=True)):
            own = int(child.generate_state(1, np.uint64)[0] >> 1)
            rows[:, row] = self._numbers(self.train(member, own, **self.options))
        scores, *measured = rows[..., None]
        utility = dict(zip(self.measures, measured, strict=True))
        return Measured(scores, utility) if utility else scores

    def _numbers(self, returned: Any) -> list[float]:
        try:
            if not self.measures:
                return [float(returned)]
            score, utility = returned
            return [float(score), *(float(utility[name]) for name in self.measures)]
        except (TypeError, ValueError, KeyError, IndexError) as error:
            told = ", ".join(f"{name!r}: ..." for name in self.measures)
            wanted = f"not score, {{{told}}}" if self.measures else "no number"
            raise TypeError(f"{self.path} returned {returned!r:.60}, {wanted}") from error
