"""A training of the user's own: one function, called once per trial.

    def train(member: bool, seed: int, **options) -> float

It trains with the canary if `member`, without it if not, seeds everything random from `seed`, and
returns a score: higher = more confident that the canary was in. What the training promises is
said beside it, as Gaussian releases for an accountant.

    def prepare(part: int, seed: int) -> dict[str, np.ndarray]

Work that is done once, if there is any. Then `train` takes all that it gave as `prepared`, too.

A call that fails is a miss of its trial: what fails more often with the canary than without tells
the bit, and counts against the adversary. NaN and inf are scores of a training that diverged.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import numpy as np
from pydantic import Field, ValidationInfo, field_validator, model_validator

from .. import imports
from ..adversaries.base import Adversary
from ..errors import ClusterError, SpecError
from ..isolation import Limits, Sandbox
from ..stats import TradeOff
from . import isolated_trial
from .base import Arrays, Claimed, Measured, Mechanism, Missed, Preparation

if TYPE_CHECKING:
    from .base import Members, PartSeeds, Prepared, Scores, Session

_TRACEBACK = 2**13  # characters of a traceback that are kept


class Function(Mechanism):
    """`path` is `package.module:name`; `options` are keyword arguments of every call.

    `noise_multiplier` over `steps` releases, each with the canary at a chance of `sample_rate`, is
    the claim. `curve: gaussian` states that the training's trade-off curve is Gaussian, for some μ,
    and answers for every ε that is then called certified.

    `prepare`, if any, is called for each of `parts` before anything is trained, in the trainer's
    process; the training gets a tuple of what it returned. Audits that state the same share it.

    `isolated`: each trial is a child process, forked from one that has imported what the module
    imports of installed packages. A trial that takes more than `trial_seconds`, or `trial_gib` GiB
    of memory with all that it starts and that was imported, raises or dies is missed; a pack that
    misses all has failed. With `isolated: false` trials are calls in the trainer's process, where
    one that raises fails its whole pack: for trainings of milliseconds.
    """

    locations: ClassVar[frozenset[str]] = frozenset({"isolated", "trial_seconds", "trial_gib"})
    for_free: ClassVar[frozenset[str]] = frozenset({"trial_seconds", "trial_gib"})

    uses_gpu: ClassVar[bool] = False
    attacked_as: ClassVar[str] = "function"

    name: Literal["function"] = "function"
    path: str = Field(pattern=r"^[\w.]+:[\w.]+$")  # package.module:name of the function
    options: dict[str, Any] = Field(default_factory=dict)  # arguments of every call
    steps: int = Field(ge=1, le=10**7)  # of the claim: Gaussian releases
    noise_multiplier: float = Field(gt=0)  # of the claim: σ of each release
    sample_rate: float = Field(default=1.0, gt=0, le=1)  # of the claim: chance of a step
    curve: Literal["gaussian", "unknown"] = "unknown"  # what you know of the trade-off curve
    prepare: str | None = Field(default=None, pattern=r"^[\w.]+:[\w.]+$")  # to be called first
    parts: int = Field(default=1, ge=1)  # so often, with 0, 1, ... parts - 1
    isolated: bool = True  # each trial in a process of its own
    trial_seconds: float | None = Field(default=None, gt=0)  # limit of each; null: none
    trial_gib: float | None = Field(default=None, gt=0)  # limit of its memory; null: none

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
    def auto_pack_size(self) -> int:
        """So few lose little when a worker dies."""
        return 16

    @property
    def trial_limit(self) -> float | None:
        return self.trial_seconds

    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        """The end of the training: the function returns one score."""
        if record_every is not None and record_every < self.steps:
            problem = f"is {record_every}, but a function is scored at its end only; leave it out"
            raise SpecError("audit.record_every", problem)
        return (self.steps,)

    def check_inputs(self) -> None:
        self._train()
        if self.prepare is not None:
            imports.function(self.prepare, "mechanism.prepare", "part", "seed")

    def named_modules(self) -> tuple[str, ...]:
        """The modules that `path` and `prepare` name."""
        named = (path.partition(":")[0] for path in (self.path, self.prepare) if path is not None)
        return (*super().named_modules(), *dict.fromkeys(named))

    def claimed(self, adversary: Adversary, horizon: int) -> Claimed:
        """All releases: the function scores the whole training."""
        return Claimed(self.noise_multiplier, self.steps, self.sample_rate)

    def trade_off(self, adversary: Adversary, horizon: int) -> TradeOff:
        """The curve that the user states; nothing is known of code that is only called."""
        return TradeOff(self.curve)

    def preparation(self, adversary: Adversary) -> Preparation | None:
        """The arrays that `prepare` gives; the options of the training are no part of it."""
        if self.prepare is None:
            return None
        return Preparation(self.parts, {"name": self.name, "prepare": self.prepare})

    def prepare_part(self, adversary: Adversary, part: int, seeds: PartSeeds, gpu: bool) -> Arrays:
        prepare: Any = imports.function(str(self.prepare), "mechanism.prepare", "part", "seed")
        return cast(Arrays, prepare(part, seeds.part % 2**63))

    def open(
        self, adversary: Adversary, seed: int, craft_seed: int, gpu: bool, prepared: Prepared = ()
    ) -> Session:
        train, given = self._train(), None if self.prepare is None else prepared
        if self.isolated:
            limits = Limits(self.trial_seconds, self.trial_gib)
            return TrialByTrial(IsolatedTrials(self.path, self.options, given, limits, gpu))
        options = self.options if given is None else self.options | {"prepared": given}

        def trial(member: bool, seed: int) -> float:
            return isolated_trial.number(train(member, seed, **options), self.path)

        return TrialByTrial(trial)

    def _train(self) -> Callable[..., Any]:
        prepared = {} if self.prepare is None else {"prepared": ()}
        return imports.training(self.path, self.options | prepared, "mechanism")


@dataclasses.dataclass(frozen=True)
class TrialByTrial:
    """A session that asks `trial` for a score, or why there is none, by a bit and a 63-bit seed."""

    trial: Callable[[bool, int], float | Missed]

    def run(self, members: Members, seed: int, horizons: tuple[int, ...]) -> Scores | Measured:
        """Runs trials by their bits, one after another."""
        scores, missed = np.full((len(members), 1), np.nan), {}
        children = np.random.SeedSequence(seed).spawn(len(members))
        for row, (member, child) in enumerate(zip(members.tolist(), children, strict=True)):
            outcome = self.trial(member, int(child.generate_state(1, np.uint64)[0] >> 1))
            if isinstance(outcome, Missed):
                missed[row] = outcome
            else:
                scores[row] = outcome
        return Measured(scores, missed=missed) if missed else scores


class IsolatedTrials:
    """Runs calls of `path` with `options`, and what is `given`, in child processes in `limits`."""

    def __init__(
        self, path: str, options: dict[str, Any], given: Prepared | None, limits: Limits, gpu: bool
    ) -> None:
        # Else asking whether there is a GPU, as some modules do, leaves none to forked processes.
        surroundings = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} if gpu else {}
        preload = (isolated_trial.__name__, *preloaded(path.partition(":")[0]))
        self._limits, self._sandbox = limits, Sandbox(preload, tuple(sys.path), surroundings)
        weakref.finalize(self, self._sandbox.close)
        file = None
        if given is not None:
            file = str(self._sandbox.folder / "prepared.npz")
            parts = enumerate(given)
            named: Any = {f"{i} {name}": array for i, part in parts for name, array in part.items()}
            np.savez(file, parts=len(given), **named)
        threads, share = _torch()
        self._request: dict[str, Any] = {
            "path": path, "options": dict(options), "prepared": file,
            "threads": threads, "gpu_share": share,
        }  # fmt: skip

    def __call__(self, member: bool, seed: int) -> float | Missed:
        target, request = f"{isolated_trial.__name__}:run", {"member": member, "seed": seed}
        try:
            ended = self._sandbox.call(target, self._request | request, self._limits)
        except ClusterError:  # what children are forked from has died, once: the machine's fault
            ended = self._sandbox.call(target, self._request | request, self._limits)
        if ended.how == "returned":
            return float(ended.value)
        kind = ended.message.partition(":")[0] if ended.how == "raised" else ended.how
        parts = (ended.message, ended.traceback[-_TRACEBACK:], ended.output)
        return Missed(kind, ended.message, "\n".join(p.rstrip("\n") for p in parts if p))


def preloaded(module: str) -> tuple[str, ...]:
    """Installed modules that a user's module needs; none of the user's: threads do not fork."""
    names = imports.installed_imports(imports.source_closure([module]))
    packages = {name.partition(".")[0] for name in names}
    return tuple(sorted(packages | {name for name in names if name in sys.modules}))


def _torch() -> tuple[int | None, float | None]:
    """Torch's threads here, and the share of a GPU's memory; None where that is not limited."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None, None
    limited = torch.cuda.is_initialized() and hasattr(torch.cuda, "get_per_process_memory_fraction")
    share = float(torch.cuda.get_per_process_memory_fraction()) if limited else None
    return int(torch.get_num_threads()), share
