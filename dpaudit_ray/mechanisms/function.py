"""A user-defined training: one function, called once per trial.

    def train(member: bool, seed: int, **options) -> float

It trains with the canary if `member` is true, else without it, seeds everything random from `seed`,
and returns a score: higher = more confident that the canary was in. What it claims is stated in the
sweep file: as ε, (ε, δ), ρ, μ, points of a curve or losses, or as Gaussian releases for an
accountant.

    def prepare(part: int, seed: int) -> dict[str, np.ndarray]

This function, if there is one, does work that is done once. Then `train` also takes all that it
returned, as `prepared`.

A call that fails leaves its trial without a score. If more calls fail with the canary than without,
that reveals the bit, and counts against the adversary. NaN and inf are scores: of a training that
diverged.
"""

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self, cast

import numpy as np
from pydantic import Field, PositiveFloat, model_validator

from .. import imports
from ..accounting import STATED, Claim, Training
from ..accounting.claim import StatedClaim
from ..adversaries.base import Adversary
from ..errors import REQUIRED, ClusterError, SpecError
from ..isolation import Limits, Sandbox
from ..plugins import Count, ImportPath, Share
from ..stats import TradeOff
from ..stats.base import curve_free_method
from . import isolated_trial
from .base import (
    Arrays,
    Horizons,
    Measured,
    Mechanism,
    Members,
    Missed,
    PartSeeds,
    Preparation,
    Prepared,
    Scores,
    Session,
    StepCount,
)

_TRACEBACK = 2**13  # last characters of a traceback that are recorded


class Function(Mechanism):
    """Calls the function at `path`, `package.module:name`, with `options` in every call.

    `claim` is what the function promises: `{epsilon: 1}`, `{epsilon: 1, delta: 1e-6}`,
    `{rho: 0.1}`, `{mu: 0.5}`, `{laplace: 1.0, releases: 4}`,
    `{points: [[1, 1e-5], [2, 1e-9]]}`, `{losses: [...], chances: [...]}` or
    `{event: "module:name"}`. Without a `claim`, it is `noise_multiplier` over `steps` Gaussian
    releases, each of which has the canary with probability `sample_rate`. `curve: gaussian` states
    that the trade-off function of the training is Gaussian, for some μ; each ε that is then called
    certified depends on that statement.

    `prepare`, if any, is called for each of `parts` before anything is trained, in the trainer's
    process; the training gets a tuple of its results. Audits with the same `prepare` share them.

    `isolated`: each trial is a child process, forked from one that has imported the installed
    packages that the module imports. A trial has no score if it takes more than `trial_seconds`,
    or `trial_gib` GiB of memory with all its processes and imports, or if it raises or dies; a pack
    in which no trial has a score has failed. With `isolated: false`, trials are calls in the
    trainer's process, and one that raises fails its complete pack: for functions that take
    milliseconds.
    """

    locations = frozenset({"isolated", "trial_seconds", "trial_gib"})
    for_free = frozenset({"trial_seconds", "trial_gib"})

    uses_gpu = False
    attacked_as = "function"

    name: Literal["function"] = "function"
    path: ImportPath  # package.module:name of the function
    options: dict[str, Any] = Field(default_factory=dict)  # arguments of every call
    claim: StatedClaim | None = None  # what it promises, if not Gaussian releases
    steps: StepCount | None = None  # Gaussian releases; null: `claim` has what is promised
    noise_multiplier: PositiveFloat | None = None  # σ of each release; null: `claim` has it
    sample_rate: Share = 1.0  # chance that a release has the canary
    curve: Literal["gaussian", "unknown"] = "unknown"  # what you know of the trade-off curve
    prepare: ImportPath | None = None  # function to be called before any training
    parts: Count = 1  # number of calls of `prepare`, with part = 0, 1, ..., parts - 1
    isolated: bool = True  # each trial in a process of its own
    trial_seconds: PositiveFloat | None = None  # limit of a trial's time; null: none
    trial_gib: PositiveFloat | None = None  # limit of a trial's memory; null: none

    @model_validator(mode="after")
    def _limits_need_a_process(self) -> Self:
        """Raises SpecError for limits of trials that are not processes and so cannot be ended."""
        for key in ("trial_seconds", "trial_gib"):
            limit = getattr(self, key)
            if limit is not None and not self.isolated:
                raise SpecError(
                    key,
                    f"is {limit:g}, but isolated is false, and calls cannot be ended; "
                    "leave one of them out",
                )
        return self

    @model_validator(mode="after")
    def _one_claim(self) -> Self:
        """Checks that the claim is stated once: by `claim`, or by Gaussian releases."""
        keys = ("steps", "noise_multiplier", "sample_rate")
        release_keys = [key for key in keys if key in self.model_fields_set]
        if self.claim is not None and release_keys:
            problem = "is of Gaussian releases, but `claim` is given; leave one out"
            raise SpecError(release_keys[0], problem)
        if self.claim is None:
            for key in ("steps", "noise_multiplier"):
                if key not in release_keys:
                    raise SpecError(key, f"{REQUIRED}, or `claim` in its place")
        return self

    @property
    def default_accountant(self) -> str:
        needs_accountant = self.claim is None or isinstance(self.claim, Training)
        return "gaussian" if needs_accountant else STATED

    @property
    def default_estimator(self) -> str:
        if self.claim is None or self.claim.gaussian:
            return super().default_estimator
        return curve_free_method()

    @property
    def auto_pack_size(self) -> int:
        """16: a small number, so that little work is lost if a trainer dies."""
        return 16

    @property
    def trial_limit(self) -> float | None:
        return self.trial_seconds

    def horizons(self, record_every: int | None) -> Horizons:
        """Returns the last step only: the function returns one score."""
        steps = self.steps or 1
        if record_every is not None and record_every < steps:
            raise SpecError(
                "audit.record_every",
                f"is {record_every}, but a function is scored at its end only; leave it out",
            )
        return (steps,)

    def check_inputs(self) -> None:
        self._import_train()
        if self.prepare is not None:
            imports.function(self.prepare, "mechanism.prepare", "part", "seed")

    @property
    def code_paths(self) -> tuple[str, ...]:
        """`path`, and the paths of `prepare` and `claim` if there are any."""
        of_claim = self.claim.code if self.claim else None
        return tuple(filter(None, (self.path, self.prepare, of_claim)))

    def claimed(self, adversary: Adversary, horizon: int) -> Claim:
        """Returns the stated claim, or else all releases: only the complete training is scored."""
        if self.claim is not None:
            return self.claim
        return Training(self.noise_multiplier or 0.0, self.steps or 1, self.sample_rate)

    def trade_off(self, adversary: Adversary, horizon: int) -> TradeOff:
        """Returns the user's statement; code that is only called cannot be analysed."""
        return TradeOff(self.curve)

    def preparation(self, adversary: Adversary) -> Preparation | None:
        """Returns the parts that `prepare` computes, whatever the training's options are."""
        if self.prepare is None:
            return None
        return Preparation(self.parts, {"name": self.name, "prepare": self.prepare})

    def prepare_part(
        self,
        adversary: Adversary,
        part: int,
        seeds: PartSeeds,
        gpu: bool,
    ) -> Arrays:
        """Calls `prepare` for one part; returns its arrays."""
        prepare = imports.function(str(self.prepare), "mechanism.prepare", "part", "seed")
        return cast(Arrays, prepare(part, seeds.part % 2**63))  # seeds of users fit into int64

    def open(
        self,
        adversary: Adversary,
        seed: int,
        craft_seed: int,
        gpu: bool,
        prepared: Prepared = (),
    ) -> Session:
        """Opens trials in processes of their own, or in this one if they are not isolated.

        Implements `Mechanism.open`, without its `adversary`, `seed` and `craft_seed`: the function
        itself inserts the canary and scores it, with the seed of each trial.
        """
        # Also if trials are isolated: options that do not fit raise SpecError here.
        train = self._import_train()
        parts = None if self.prepare is None else prepared  # None: `train` takes no `prepared`
        if self.isolated:
            limits = Limits(self.trial_seconds, self.trial_gib)
            return TrialByTrial(IsolatedTrials(self.path, self.options, parts, limits, gpu))
        options = self.options if parts is None else self.options | {"prepared": parts}

        def trial(member: bool, trial_seed: int) -> float:
            """Calls the function in this process; returns its score."""
            return isolated_trial.number(train(member, trial_seed, **options), self.path)

        return TrialByTrial(trial)

    def _import_train(self) -> Callable[..., Any]:
        """Imports `train`. Raises SpecError if it does not take the options."""
        options = dict(self.options)
        if self.prepare is not None:
            options["prepared"] = ()  # a placeholder: only the signature is checked
        return imports.training(self.path, options, "mechanism")


@dataclass(frozen=True)
class TrialByTrial:
    """A session that runs trials one after another.

    Attributes:
        trial: function of a secret bit and a 63-bit seed; returns a score, or its failure.
    """

    trial: Callable[[bool, int], float | Missed]

    def run(
        self,
        members: Members,
        seed: int,
        horizons: Horizons,
    ) -> Scores | Measured:
        """Runs the trials one by one, each with its own seed; a failed trial is NaN and `missed`.

        Args:
            members: bool [n], True if the canary is in.
            seed: 128 bits, from which the seeds of trials are derived.
            horizons: the last step only.
        """
        scores = np.full((len(members), 1), np.nan)
        missed = {}
        trial_seeds = np.random.SeedSequence(seed).spawn(len(members))
        for row, trial_seed in enumerate(trial_seeds):
            (word,) = trial_seed.generate_state(1, np.uint64)  # its last bit is dropped
            outcome = self.trial(bool(members[row]), int(word >> 1))
            if isinstance(outcome, Missed):
                missed[row] = outcome
            else:
                scores[row] = outcome
        return Measured(scores, missed=missed) if missed else scores


class IsolatedTrials:
    """Calls a user's function in child processes, one for each trial.

    Args:
        path: path of the function.
        options: arguments of each call.
        prepared: parts of a preparation, passed to each call; None for none.
        limits: limits of time and memory of a call.
        gpu: whether calls use a GPU.
    """

    def __init__(
        self,
        path: str,
        options: dict[str, Any],
        prepared: Prepared | None,
        limits: Limits,
        gpu: bool,
    ) -> None:
        """Creates the sandbox, and a file with the prepared arrays for its processes."""
        # Without this variable, torch initializes CUDA if a preloaded module asks for a GPU, and
        # then forked processes cannot use it.
        environment = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} if gpu else {}
        preload = (isolated_trial.__name__, *preloaded(path.partition(":")[0]))
        self._limits = limits
        self._sandbox = Sandbox(preload, tuple(sys.path), environment)
        weakref.finalize(self, self._sandbox.close)
        file = None
        if prepared is not None:
            file = str(self._sandbox.folder / "prepared.npz")
            arrays: dict[str, Any] = {}
            for number, part in enumerate(prepared):  # array `loss` of part 0 is called "0 loss"
                arrays |= {f"{number} {name}": array for name, array in part.items()}
            np.savez(file, parts=len(prepared), **arrays)
        threads, gpu_share = _torch_limits()
        self._request: dict[str, Any] = {
            "path": path,
            "options": dict(options),
            "prepared": file,
            "threads": threads,
            "gpu_share": gpu_share,
        }

    def __call__(self, member: bool, seed: int) -> float | Missed:
        """Runs one trial in a child process; returns its score, or why it has none."""
        target = f"{isolated_trial.__name__}:run"
        request = self._request | {"member": member, "seed": seed}
        try:
            ended = self._sandbox.call(target, request, self._limits)
        except ClusterError:  # the process that forks children died; a second one is started
            ended = self._sandbox.call(target, request, self._limits)
        if ended.how == "returned":
            return float(ended.value)
        # The message of an exception begins with its class.
        kind = ended.message.partition(":")[0] if ended.how == "raised" else ended.how
        texts = (ended.message, ended.traceback[-_TRACEBACK:], ended.output)
        output = "\n".join(text.rstrip("\n") for text in texts if text)
        return Missed(kind, ended.message, output)


def preloaded(module: str) -> tuple[str, ...]:
    """Returns the installed modules that a user's module imports, to import before forking.

    The user's own modules are not among them: threads that they start would not be forked.
    """
    names = imports.installed_imports(imports.source_closure([module]))
    packages = {name.partition(".")[0] for name in names}
    loaded = {name for name in names if name in sys.modules}
    return tuple(sorted(packages | loaded))


def _torch_limits() -> tuple[int | None, float | None]:
    """Returns torch's number of threads and its share of GPU memory; None if not limited."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None, None
    gpu_share = None
    if torch.cuda.is_initialized() and hasattr(torch.cuda, "get_per_process_memory_fraction"):
        gpu_share = float(torch.cuda.get_per_process_memory_fraction())
    return int(torch.get_num_threads()), gpu_share
