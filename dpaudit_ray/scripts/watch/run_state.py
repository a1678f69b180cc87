"""What one run is asked to do, and the watch that all its parts hang on."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

from ... import seeds
from .loaders import Loaders
from .recorder import Recorder


class Enough(BaseException):
    """The run has shown what it was started for: raised out of the script, past its `except`."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a run does beside training.

    `looks`: steps are looked into. `canary`: "steps" puts one into every other step, by a coin of
    each; "run" into all steps or none, by `member`; "" into none. `reseeds`: constants that the
    script seeds generators with are mixed with `seed`. `most_steps`: the run ends after so many.
    `seconds`: and after this time. `one_more`: the data set has a record more.
    """

    seed: int
    looks: bool = False
    canary: str = ""
    member: bool = False
    reseeds: bool = False
    most_steps: int | None = None
    seconds: float | None = None
    one_more: bool = False

    def derived(self, *what: Any) -> int:
        """A seed of 63 bits for some purpose."""
        return int(seeds.derive("script", self.seed, *what)) % 2**63

    def coin(self, chance: float, *what: Any) -> bool:
        """True with this chance."""
        return bool(np.random.default_rng(self.derived("coin", *what)).random() < chance)


@dataclasses.dataclass
class Run:
    """The state that observers of one run share."""

    asked: Asked
    recorder: Recorder
    phase: str = "import"  # then "main"
    replaying: bool = False
    asking: bool = False  # an accountant is at work
    loaders: Loaders = dataclasses.field(default_factory=Loaders)
    streams: Any = None  # of functions that give releases
    made: int = 0  # calls of `make_private`
    rate: float | None = None  # at which it will sample, as far as known
    engines: list[Any] = dataclasses.field(default_factory=list)  # their accountants
    accountants: list[Any] = dataclasses.field(default_factory=list)
    modules: list[Any] = dataclasses.field(default_factory=list)
    optimizers: list[Any] = dataclasses.field(default_factory=list)
    data: list[Any] = dataclasses.field(default_factory=list)
    loaders_made: list[Any] = dataclasses.field(default_factory=list)
    batch_first: bool = True
    accounted: list[tuple[int, int, float, float]] = dataclasses.field(default_factory=list)
    outside: dict[tuple[str, ...], int] = dataclasses.field(default_factory=dict)
    steps: int = 0  # releases so far
    seeded: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    noise_seeds: list[int] = dataclasses.field(default_factory=list)  # of optimizers' generators
    began: float = dataclasses.field(default_factory=time.monotonic)
    spent: float = 0.0  # seconds that watching took
    moved: int = 0  # times that parameters had changed between steps
    stepped: set[int] = dataclasses.field(default_factory=set)  # parameters, outside, once private
    _counts: dict[tuple[int, float, float], int] = dataclasses.field(default_factory=dict)
    _release: tuple[int, int] | None = None

    def settle(self, now: tuple[int, int] | None) -> None:
        """What accountants gained since the last release is that release's; `now` is the next.

        A script may account before a step or after it. (Optimizer, step) names a release.
        """
        counts: dict[tuple[int, float, float], int] = {}
        for index, one in enumerate(self.accountants):
            for noise, rate, steps in one.history:
                key = (index, float(noise), float(rate))
                counts[key] = counts.get(key, 0) + int(steps)
        gained = {key for key, steps in counts.items() if steps > self._counts.get(key, 0)}
        if self._release is not None and gained:
            _, noise, rate = min(gained)
            self.accounted.append((*self._release, noise, rate))
        self._counts, self._release = counts, now

    def after_step(self) -> None:
        """Counts a release, and ends the run where that was enough."""
        self.steps += 1
        asked = self.asked
        if asked.most_steps is not None and self.steps >= asked.most_steps:
            raise Enough
        if asked.seconds is not None and time.monotonic() - self.began > asked.seconds:
            self.recorder.put("cut", seconds=asked.seconds, steps=self.steps)
            raise Enough

    def history(self) -> list[list[float]]:
        """(σ, q, steps) of all accountants, as they have it now."""
        return [
            [float(x) for x in entry] for one in self.own_accountants() for entry in one.history
        ]

    def own_accountants(self) -> list[Any]:
        """Those whose claim is the script's: of its engines, or its own where it has no engine.

        An accountant that a script asks for a noise multiplier, or what it plans, claims nothing.
        """
        if self.made:
            return [one for one in self.engines if any(one is own for own in self.accountants)]
        return [one for one in self.accountants if one.history]

    def names(self, params: list[Any]) -> list[str]:
        """What the private networks call these parameters."""
        known = {
            id(p): name.removeprefix("_module.")
            for module in self.modules
            for name, p in module.named_parameters()
        }
        return [known.get(id(p), f"parameter {index}") for index, p in enumerate(params)]

    def stepped_outside(self, optimizer: Any) -> None:
        """An optimizer that no engine wraps, or that was reached past its wrapper, is stepping."""
        params = [p for group in optimizer.param_groups for p in group["params"]]
        params = [p for p in params if p.grad is not None]
        own = {id(p) for module in self.modules for p in module.parameters()}
        own |= {id(p) for one in self.optimizers for p in one.optimizer.params}
        inside = [p for p in params if id(p) in own]
        when = self.phase if self.phase == "import" else "after" if self.made else "before"
        names = self.names(inside)[:4] if inside else []
        key = (when, "private" if inside else "other", type(optimizer).__name__, *names)
        self.outside[key] = self.outside.get(key, 0) + 1
        if when == "after":
            self.stepped |= {id(p) for p in params}
